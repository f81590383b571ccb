"""Re-optimization: whether a plan in force should change as prices move, and what each move saves.

It imports every other room of the domain. Begin with ``reoptimizing``, then ``move_cost_benefit``.
"""

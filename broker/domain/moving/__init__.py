"""Whether a plan in force should change as prices move, and what a move is worth.

It imports every other room of the domain. Begin with ``reoptimizing``, then ``weighing``.
"""

"""What holdings cost: charges, sums, budgets, approvals, months and unit costs.

It imports ``holding`` and the rooms below it. Begin with ``charging``, then ``spend``.
"""

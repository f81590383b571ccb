"""Spend: charges, sums, budgets, approvals, month close, variance and unit costs.

It imports ``holding`` and the rooms below it. Begin with ``charging``, then ``spend``.
"""

"""JSON forms of spend, budgets, unit costs and exports.

It imports ``base``. Begin with ``spend``.
"""

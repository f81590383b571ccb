"""The planning problem as arrays: offers, gates, stock and pools, quotas, estimates, and the columns of a plan.

It imports no other room but ``runtime``. Begin with ``problem``, then ``gates``, ``stock`` and ``columns``.
"""

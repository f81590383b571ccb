"""The planning problem as arrays: offers, gates, stock and pools, quotas, estimates, and columns of plans.

It imports no other room but ``runtime``. Begin with ``problem``, then ``gates``, ``stock`` and ``columns``.
"""

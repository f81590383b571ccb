"""The planning problem as arrays: offers, gates, stock and pools, quotas, estimates, and columns of plans.

Of the other rooms it imports only ``runtime``. Begin with ``problem``, then ``gates``, ``stock`` and
``columns``.
"""

"""Reservations: their state machine, orders, quotas, prices, and launch statistics.

It imports ``planning`` and the rooms below it. Begin with ``reservation``, then ``holding_orders``.
"""

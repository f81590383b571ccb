"""What is held: reservations, the orders behind them, quotas, and what sellers answered.

It imports ``planning`` and the rooms below it. Begin with ``reservation``, then ``holding_orders``.
"""

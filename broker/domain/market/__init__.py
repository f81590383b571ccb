"""The market: SKUs, offers, stock, places, prices, forecasts, and the billing rules of providers.

It imports ``basics``. Begin with ``offer``, then ``billing``.
"""

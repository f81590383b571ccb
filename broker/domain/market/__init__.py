"""What is sold: SKUs, offers, stock, places, prices and how sellers bill.

It imports ``basics``. Begin with ``offer``, then ``billing``.
"""

"""What runs by the clock in a broker process, and the broker's place among others.

It imports ``api.bootstrap``. Begin with ``scheduler``.
"""

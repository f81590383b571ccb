"""Documents of reservations.

It imports ``base``. Begin with ``reservation``.
"""

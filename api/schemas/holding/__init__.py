"""JSON forms of reservations.

It imports ``base``. Begin with ``reservation``.
"""

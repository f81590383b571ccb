"""JSON forms of offers, prices and providers.

It imports ``base``. Begin with ``offer``.
"""

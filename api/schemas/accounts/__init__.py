"""Documents of keys and of history.

It imports ``base``. Begin with ``keys``.
"""

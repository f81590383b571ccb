"""The user's own measured rows as evidence of the Gaussian process.

It imports ``tables``. Begin with ``rows``, then ``evidence``.
"""

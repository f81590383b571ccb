"""Measured rows as evidence of the Gaussian process: the user's own, and those for fitting its kernels.

It imports ``fitting`` and ``tables``. Begin with ``rows``, then ``evidence``.
"""

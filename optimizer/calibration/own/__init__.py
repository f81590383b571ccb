"""Rows as evidence of the Gaussian process: a user's own, and those that its kernels are fitted to.

It imports ``fitting`` and ``tables``. Begin with ``rows``, then ``evidence``.
"""

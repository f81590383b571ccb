"""Documents of plans and of re-optimization runs.

It imports ``base``, ``market`` and ``finance``. Begin with ``plan``.
"""

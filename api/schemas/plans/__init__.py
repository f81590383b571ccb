"""JSON forms of plans and of re-optimizations.

It imports ``base``, ``market`` and ``finance``. Begin with ``plan``.
"""

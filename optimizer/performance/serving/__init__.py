"""Serving: the cache and steps of a replica, waiting under load, and the most that an objective allows.

It imports ``hardware``, ``constants`` and the shapes of models. Begin with ``estimate``, then ``steps`` and
``queueing``; ``table`` does the same over every SKU.
"""

"""Serving: cache and steps of a replica, latencies under load, and the highest rate that an objective allows.

It imports ``hardware``, ``constants`` and the shapes of models. Begin with ``estimate``, then ``steps`` and
``queueing``; ``table`` computes the same over every SKU.
"""

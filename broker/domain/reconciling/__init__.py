"""Reconciliation: decides the next action for each reservation, so that it agrees with its provider.

It imports ``holding``, ``spend`` and the rooms below them. Begin with ``reconciling``.
"""

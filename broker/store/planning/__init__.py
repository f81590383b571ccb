"""Repositories of plans and of re-optimization runs.

It imports the ground of the store. Begin with ``plans``.
"""

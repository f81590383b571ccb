"""Repositories of plans and re-optimizations.

It imports the modules directly under ``store``. Begin with ``plans``.
"""

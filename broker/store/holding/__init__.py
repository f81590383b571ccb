"""Repositories of reservations and launches.

It imports the modules directly under ``store``. Begin with ``reservations``.
"""

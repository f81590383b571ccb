"""Repositories of reservations and launches.

It imports the ground of the store. Begin with ``reservations``.
"""

"""Calibration: reads tables of measured rows, predicts them as they were measured, tells how far off
predictions are, and keeps a user's own rows.

It imports ``performance``; nothing in ``optimizer`` that plans imports it. Begin with ``tables.rows``; its
rooms, from the ground up: ``regimes``, ``tables``, ``own`` and ``evaluation``.
"""

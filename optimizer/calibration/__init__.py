"""Calibration: fits the constants and their intervals to published tables, measures held-out errors, reads
own rows.

It imports ``performance``; nothing that plans imports it. Begin with ``tables.rows``; its rooms, from the
ground up: ``regimes``, ``tables``, ``fitting``, ``own``, ``evaluation``.
"""

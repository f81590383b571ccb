"""Where the constants and their intervals come from: published tables, fits, held-out errors, own rows.

It imports ``performance``; nothing that plans imports it. Begin with ``tables.rows``; its rooms, from the
ground up: ``regimes``, ``tables``, ``fitting``, ``own``, ``evaluation``.
"""

"""Workloads from what a team already has: a ``config.json``, a SkyPilot task, the command line of a server
or of a training run. ``starting_points.py`` is the face.
"""

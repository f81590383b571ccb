"""Explains a plan: placements, reasons, second-best options, near ties, obstacles, and fixes that were tried.

It imports ``search`` and the rooms below. Begin with ``explain``, then ``fixes`` and ``near_ties``.
"""

"""Placements in the words of a plan: reasons, the next best, near ties, obstacles and fixes that were tried.

It imports ``search`` and what lies below. Begin with ``explain``, then ``fixes`` and ``near_ties``.
"""

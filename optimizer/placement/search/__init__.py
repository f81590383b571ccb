"""The search over columns: local search by dependency groups, ruin and recreate, neighbourhoods, final
polishing.

It imports ``columns`` and the rooms below. Begin with ``solve``, which reads as a page.
"""

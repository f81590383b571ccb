"""The search over columns: one party at a time, ruin and recreate, groups of rivals, the last look.

It imports ``columns`` and what lies below. Begin with ``solve``, which is the search as a page to read.
"""

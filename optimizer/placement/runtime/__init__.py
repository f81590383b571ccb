"""Infrastructure of a plan: compiled loops, clocks that count seconds or work, progress reports.

It imports no other room. Begin with ``stopwatch``.
"""

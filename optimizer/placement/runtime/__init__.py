"""What a plan runs on: compiled loops, clocks that count seconds or work, progress while it is made.

It imports no other room. Begin with ``stopwatch``.
"""

"""Candidates of runs (training, batch), priced as arrays, and runs split into two parts.

It imports ``problem``. Begin with ``candidates``, then ``builder``.
"""

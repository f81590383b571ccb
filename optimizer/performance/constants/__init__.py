"""The constants of the performance core, by group, and how they are read from ``config/performance.toml``.

It imports no other room. Begin with ``calibrated``; ``groups`` and ``serving`` name each constant.
"""

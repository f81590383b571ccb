"""A user's own measurements: a Gaussian process over them shifts estimates of similar configurations.

It imports ``training`` and ``serving``. Begin with ``gaussian_process``; ``plans`` asks it about workloads.
"""

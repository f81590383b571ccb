"""A user's own measurements: a Gaussian process over them corrects estimates of similar configurations.

It imports ``training`` and ``serving``. Begin with ``gaussian_process``; ``plans`` applies it to workloads.
"""

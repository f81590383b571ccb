"""What a plan needs to know of a workload on a SKU: whether it fits, how fast it runs, for how long.

Pure arithmetic on arrays: it imports the domain and NumPy, and nothing of ``calibration`` or ``placement``.
Begin with ``estimator``; its rooms, from the ground up: ``constants``, ``hardware``, ``training`` beside
``serving``, ``own``.
"""

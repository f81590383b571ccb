"""What a plan needs to know of a workload on a SKU: whether it fits, how fast it runs, and for how long.

Pure arithmetic on arrays. It imports the domain and NumPy, and nothing of ``calibration`` or ``placement``.
Begin with ``estimator``. Its rooms, from the bottom up: ``constants``, ``hardware``, ``training`` and
``serving``, ``own``.
"""

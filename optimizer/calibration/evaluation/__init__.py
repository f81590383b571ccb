"""Reports of prediction errors, and the files that a fit writes.

It imports every other room of ``calibration``. Begin with ``evaluate``.
"""

"""Reports of prediction errors, held out by source, model and GPU.

It imports ``tables``. Begin with ``evaluate``.
"""

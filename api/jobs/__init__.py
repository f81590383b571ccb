"""The scheduled jobs of a broker process, and its role in a cluster of several.

It imports ``api.bootstrap``. Begin with ``scheduler``.
"""

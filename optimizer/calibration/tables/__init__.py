"""Rows of published tables: read, predicted, and compared with their measurements.

It imports ``regimes``. Begin with ``rows``, then ``training_rows`` and ``serving_reading``.
"""

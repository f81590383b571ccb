"""Rows of published tables: read into the core's words, predicted, and set beside what was measured.

It imports ``regimes``. Begin with ``rows``, then ``training_rows`` and ``serving_reading``.
"""

"""Spend as rows of the FinOps FOCUS specification, and the check of any such rows.

It imports ``spend`` and the rooms below it. Begin with ``rows``, then ``check``.
"""

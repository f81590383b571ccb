"""Spend as rows of the FinOps FOCUS specification, and a checker of FOCUS files.

It imports ``spend`` and the rooms below it. Begin with ``rows``, then ``check``.
"""

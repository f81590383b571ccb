"""Readers of documents, field errors, and forms that several schemas share.

It imports the broker's domain. Begin with ``document``.
"""

"""JSON forms of API keys and of the audit trail.

It imports ``base``. Begin with ``keys``.
"""

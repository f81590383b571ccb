"""Use cases of API keys, idempotent requests, the audit trail, webhooks and retention.

It imports the domain and the ports. Begin with ``keys``.
"""

"""Tables and repositories of keys, the audit trail and webhooks, and the encryption of secrets.

It imports the modules directly under ``store``. Begin with ``accounts``, then ``sealing``.
"""

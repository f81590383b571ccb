"""Tables and repositories of keys, history and webhooks, and the encryption of secrets.

It imports the ground of the store. Begin with ``accounts``, then ``sealing``.
"""

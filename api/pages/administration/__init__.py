"""The pages of who runs the broker: keys, webhooks, the audit trail and settings.

It imports ``parts``. Begin with ``tabs``.
"""

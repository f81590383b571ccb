"""Notifications: progress streams, wake-up signals and webhooks.

It imports the broker. Begin with ``events``.
"""

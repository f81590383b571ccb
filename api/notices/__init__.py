"""Telling others what happened: the stream of events, wake-up signals and webhooks.

It imports the broker. Begin with ``events``.
"""

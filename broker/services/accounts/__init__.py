"""Use cases of keys, history, webhooks and of what is no longer kept.

It imports the domain and the ports. Begin with ``keys``.
"""

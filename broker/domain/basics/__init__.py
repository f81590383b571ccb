"""What every rule of the broker stands on: money, time, errors, identity and access.

It imports nothing of the product. Begin with ``money`` and ``window``.
"""

"""What to do about each reservation so that it agrees with its seller.

It imports ``holding``, ``spend`` and the rooms below them. Begin with ``reconciling``.
"""

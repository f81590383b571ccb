"""What simpler strategies would have cost, each a plan under every rule.

It imports ``search`` and what lies below. Begin with ``baselines``.
"""

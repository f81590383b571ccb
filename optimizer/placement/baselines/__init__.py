"""Costs of simpler strategies, each of them a plan under every rule.

It imports ``search`` and the rooms below. Begin with ``baselines``.
"""

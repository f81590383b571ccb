"""Loads as benchmarks make them: closed loops, bursts and finite runs, on the replicas of ``serving``.

It imports ``performance`` alone. Begin with ``load``, then ``regimes``.
"""

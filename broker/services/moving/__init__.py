"""Use cases of re-optimization: proposals, moves and backtests.

It imports the domain, the ports and the other rooms of services. Begin with ``reoptimize``.
"""

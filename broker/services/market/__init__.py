"""Use cases of the market: polling, prices, forecasts and probes.

It imports the domain and the ports. Begin with ``offers``.
"""

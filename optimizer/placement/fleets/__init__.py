"""An exact model of one service's fleet over its hours: pools, sets of pools, hourly covers, shortest paths;
lanes.

It imports ``runtime`` and ``problem``. Begin with ``model``, then ``pools`` and ``pool_search``.
"""

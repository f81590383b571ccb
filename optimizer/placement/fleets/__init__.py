"""One exact model of a fleet over its hours: pools, the sets of them, covers of hours, walks; lanes.

It imports ``runtime`` and ``problem``. Begin with ``model``, then ``pools`` and ``sets``; ``many_pools``
for more of them.
"""

"""SKUs as arrays of rates and sizes, and the time of collectives over their links and fabrics.

It imports ``constants``. Begin with ``sku_arrays``.
"""

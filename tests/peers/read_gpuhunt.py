"""Prints what gpuhunt reads of its catalogue: CLOUD ...; its own variables say from where."""

import json
import os
import sys

from gpuhunt import Catalog

catalog = Catalog(auto_reload=False)
if "GPUHUNT_CATALOG_DIR" not in os.environ:
    catalog.load()
found = [
    [
        item.provider,
        item.instance_name,
        item.location,
        item.spot,
        item.price,
        item.gpu_name,
        item.gpu_count,
        item.gpu_memory,
    ]
    for item in catalog.query(provider=sys.argv[1:])
]
print(json.dumps(found))

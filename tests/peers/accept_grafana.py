"""Grafana's own SDK reads a dashboard: its panels with their kinds and queries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

given = json.loads(Path(sys.argv[1]).read_text())
read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(given)))
print(
    json.dumps(
        {panel["title"]: sorted(set(panel) & {"type", "targets", "gridPos"}) for panel in read["panels"]}
    )
)

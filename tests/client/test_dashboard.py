"""The Grafana dashboard against a running broker's own figures, and against Grafana's SDK."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.client.conftest import Served
from tests.containers.test_containers import DASHBOARD, alerts
from tests.peers_env import run

SUFFIXES = {"counter": ("_total", "_created"), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("served")
def test_a_running_broker_has_every_metric_that_dashboard_and_alerts_ask_for(served: Served) -> None:
    text = httpx.get(f"{served.url}/metrics", timeout=60).text
    exposed = {
        f"{family.name}{suffix}"
        for family in text_string_to_metric_families(text)
        for suffix in SUFFIXES.get(family.type, ())
    }
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [rule["expr"] for rule in alerts()]
    asked = {name for query in queries for name in re.findall(r"\bbroker_\w+", query)}
    assert len(asked) >= 12
    assert asked <= exposed


@pytest.mark.xdist_group("peers")
def test_grafana_s_own_sdk_reads_the_dashboard(tmp_path: Path) -> None:
    found = run("grafana", "accept_grafana.py", str(DASHBOARD), environ={"HOME": str(tmp_path)})
    assert len(found) == len(json.loads(DASHBOARD.read_text())["panels"])
    assert all(parts == ["gridPos", "targets", "type"] for parts in found.values())


def test_no_panel_lies_on_another() -> None:
    places = [panel["gridPos"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(at["x"] + at["w"] <= 24 for at in places)
    ids = sorted(panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"])
    assert all(one < following for one, following in pairwise(ids))

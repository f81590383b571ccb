"""``broker divide`` through the real command, and the document that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.schemas.base.document import read_document
from api.schemas.plans.division import divided_document
from api.schemas.workloads.workloads import read_workloads
from broker.domain.planning.lanes import DividedService, Division, Lane
from broker.domain.planning.workload import Serving
from broker.domain.workloads.traffic import RequestSize
from tests.cli.running import broker, offer
from tests.placement.market import T0, plan, serving
from tests.placement.market import offer as priced
from tests.placement.market import request as asked
from tests.placement.test_lanes import applied

WORKLOADS = """\
team: assistants
horizon: {start: now, days: 2}
workloads:
  - name: chat            # asked at all hours
    kind: serving
    model: Llama-3.1-8B
    unplaced_usd: 90000
    traffic:
      shape: diurnal
      peak_requests_per_s: 120
      trough_share: 0.4
      mix:
        - {share: 0.9, input_tokens: 150, output_tokens: 40}
        - {share: 0.1, input_tokens: 6000, output_tokens: 300}
    slo: {ttft_p95_ms: 5000, itl_p95_ms: 150}
    policy: {countries: [US]}
  - name: plain
    kind: serving
    model: Llama-3.1-8B
    traffic: {hourly: [HOURS], input_tokens: 150, output_tokens: 40}
    slo: {ttft_p95_ms: 5000, itl_p95_ms: 150}
""".replace("HOURS", ", ".join(["1.5"] * 48))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Single cards: cheap ones with little memory bandwidth, and dear ones."""
    path = tmp_path_factory.mktemp("divide")
    card: dict[str, Any] = {"gpus_per_node": 1, "fabric": None, "intra_node": None, "form": "vm"}
    many = {"level": "high", "nodes": 90}
    small = offer("l4", gpu="L4", gpu_memory_gb=24, price_usd_per_node_hour="0.08", stock=many, **card)
    large = offer("h100", price_usd_per_node_hour="4.50", stock=many, **card)
    (path / "market.json").write_text(json.dumps({"as_of": "2026-11-23T08:00:00Z", "offers": [small, large]}))
    (path / "workloads.yaml").write_text(WORKLOADS)
    return path


def divide(folder: Path, *more: str | Path) -> Any:
    return broker("divide", folder / "workloads.yaml", "--market", folder / "market.json", *more, width=80)


def test_a_service_is_divided_and_the_written_document_is_planned_for_that_price(folder: Path) -> None:
    made = divide(folder, "--output", folder / "divided.yaml")
    assert made.exit_code == 0, made.output
    for words in ("in 2 lanes instead of $", "saves $", "chat-1", "chat-2", "6,000 / 300", "L4", "H100"):
        assert words in made.stdout
    assert "plain" not in made.stdout
    assert max(map(len, made.stdout.splitlines())) <= 80

    document = yaml.safe_load((folder / "divided.yaml").read_text())
    assert [row["name"] for row in document["workloads"]] == ["chat-1", "chat-2", "plain"]
    assert all(row["policy"] == {"countries": ["US"]} for row in document["workloads"][:2])
    told = json.loads(divide(folder, "--json").stdout)
    (one,) = told["divided"]
    document["workloads"] = document["workloads"][:2]
    (folder / "lanes.json").write_text(json.dumps(document))
    planned = broker("plan", folder / "lanes.json", "--market", folder / "market.json", "--json")
    assert "share the fleets of chat-2;" in planned.stderr
    cost = float(json.loads(planned.stdout)["cost_usd"])
    assert cost == pytest.approx(float(one["divided_usd"]), rel=0.01)
    assert float(one["saves_usd"]) == pytest.approx(float(one["whole_usd"]) - float(one["divided_usd"]))


def test_nothing_with_several_sizes_is_said(folder: Path) -> None:
    plain = yaml.safe_load(WORKLOADS)
    plain["workloads"] = plain["workloads"][1:]
    (folder / "plain.json").write_text(json.dumps(plain))
    made = broker("divide", folder / "plain.json", "--market", folder / "market.json")
    assert made.exit_code == 0
    assert "no service has requests of several sizes" in made.stdout


def test_a_wrong_document_is_named(folder: Path) -> None:
    (folder / "wrong.yaml").write_text(WORKLOADS.replace("0.9", "0.95"))
    made = broker("divide", folder / "wrong.yaml", "--market", folder / "market.json")
    assert made.exit_code == 2
    assert "shares that sum to 1" in made.stderr


def test_the_document_reads_as_the_request_with_lanes() -> None:
    """Hourly figures, a lane of one size and one of two, and the price of leaving out."""
    short = "share: 0.5, input_tokens: 10, output_tokens: 5"
    long = "share: 0.5, input_tokens: 900, output_tokens: 9"
    burst = 'bursts: [{at: "09:00", minutes: 5, requests_per_s: 8}]'
    mix = f"mix: [{{{short}}}, {{{long}}}], {burst}}}\n    unplaced_usd: '10.01'\n    slo"
    text = WORKLOADS.replace("input_tokens: 150, output_tokens: 40}\n    slo", mix)
    request = read_workloads(text, source="w", base=None, now=T0)
    chat, plain = (w for w in request.workloads if isinstance(w, Serving))
    lanes = (
        Lane("plain-1", 0.25, (RequestSize(1.0, 10, 5),)),
        Lane("plain-2", 0.75, (RequestSize(1 / 3, 10, 5), RequestSize(2 / 3, 900, 9))),
    )
    some = plan(asked(serving(), hours=2), [priced("any", "1.00", nodes=9)])
    division = Division((DividedService(plain, lanes, some, some),), ())
    document = divided_document(read_document(text, "w").data, division)
    again = read_workloads(json.dumps(document), source="w", base=None, now=T0)
    assert again == applied(division, request)
    assert again.workloads[0] == chat

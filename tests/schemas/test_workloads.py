"""Workloads documents: what is read, and how each mistake is told."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from api.schemas.workloads.document_form import WorkloadsForm
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_countries, load_geographies, load_gpus
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.window import Window
from broker.domain.market.offer import HostKind, Tier
from broker.domain.market.sku import GpuClass, GpuVendor
from broker.domain.planning.effective_rules import EffectiveRules, assumed_nodes, rules_of
from broker.domain.planning.workload import (
    NO_LIMIT,
    Batch,
    FleetLimits,
    PlanRequest,
    Policy,
    Precision,
    Redundancy,
    Serving,
    Survival,
    Training,
)
from broker.domain.planning.workload_document import to_document
from broker.domain.workloads.gpu_rules import GpuRules, allowed_gpus
from broker.domain.workloads.traffic import TrafficShape, TrafficUncertainty

NOW = datetime(2026, 11, 23, 9, 30, tzinfo=UTC)
EXAMPLES = sorted((Path(__file__).parents[2] / "fixtures" / "examples").glob("*.yaml"))

CONTRACT = """\
team: research
horizon: {start: 2026-11-23T00:00:00Z, days: 30}
budget: {usd: 400000}                    # over the horizon; optional
policy:                                  # optional; each also allowed on one workload
  regions: ["us-*", "eu-*"]              # by region name; countries: [US, DE] by country
  providers: {only: [], exclude: []}
  tiers: [on_demand, committed, window, spot]
  compliance: [soc2]
  quotas: {aws: {gpus: 64}, lambda: {nodes: 8}}
  hosts: [datacenter, community]
  min_reliability: 0.98
  gpus: {only: [h100, L40S], min_memory_gb: 40}
  assumed_nodes: 32
  premium: 0.02
  fleet: {max_gpu_kinds: null}
workloads:
  - name: pretrain-8b
    kind: training
    model: Llama-3.1-8B
    tokens: 2.0e11
    sequence_length: 8192
    global_batch_tokens: 4.0e6
    precision: bf16
    gpus: {min: 64, max: 512}
    earliest_start: 2026-11-24T00:00:00Z
    deadline: 2026-12-20T00:00:00Z
    late_usd_per_hour: 500
    unplaced_usd: 90000
    headroom: 0.1
    checkpoint: {every_minutes: 60}
    interruptible: false
    dataset: {gb: 3000, provider: aws, region: us-east-1}
  - name: chat-70b
    kind: serving
    model: Llama-3.1-70B
    precisions: [bf16, fp8]
    traffic: {peak_requests_per_s: 12, input_tokens: 1500, output_tokens: 300,
              shape: diurnal, trough_share: 0.4, peak_hour_utc: 15, uncertainty: {level: 0.2, growth: 0.05}}
    slo: {ttft_p95_ms: 1000, itl_p95_ms: 60}
    redundancy: {zones: 2, spare_replicas: 1, survives: zone, zone_loss_share: 0.6}
    fleet: {max_pools: 4}
    starts: {after: pretrain-8b, delay_usd_per_hour: 12.5}
    policy: {geography: [eu, UK], hosts: [datacenter]}
    weights: {gb: 140, provider: gcp, region: us-central1}
  - name: summaries
    kind: batch
    model: Qwen3-32B
    requests: 5.0e6
    input_tokens: 4000
    output_tokens: 200
    earliest_start: 2026-11-25T00:00:00Z
    deadline: 2026-11-28T00:00:00Z
    measured: [{gpu: L4, gpus: 1, tokens_per_s: 1234}, {gpu: A10G-24GB, gpus: 1, requests_per_s: 2.1}]
"""


def read(text: str, base: Path | None = None) -> PlanRequest:
    return read_workloads(text, source="w.yaml", base=base, now=NOW)


def changed(**paths: Any) -> str:
    """The contract's document with values set at ``a__0__b`` paths (``...``: the field is removed)."""
    document = yaml.load(CONTRACT, Loader=yaml.BaseLoader)
    document["policy"]["fleet"]["max_gpu_kinds"] = None
    for path, value in paths.items():
        *way, last = path.split("__")
        target = document
        for step in way:
            target = target[int(step)] if step.isdigit() else target[step]
        key = int(last) if last.isdigit() else last
        if value is ...:
            del target[key]
        else:
            target[key] = value
    return json.dumps(document)


def problems(text: str, base: Path | None = None) -> tuple[FieldProblem, ...]:
    with pytest.raises(InputError) as raised:
        read(text, base)
    return raised.value.problems


def told(text: str) -> set[str]:
    """The pointers of the problems that reading ``text`` tells of."""
    with pytest.raises(InputError) as caught:
        read(text)
    return {problem.pointer for problem in caught.value.problems}


def test_the_contracts_own_document_is_read() -> None:
    request = read(CONTRACT)
    assert request.team == "research"
    assert request.horizon == Window(datetime(2026, 11, 23, tzinfo=UTC), datetime(2026, 12, 23, tzinfo=UTC))
    assert request.budget_usd == Decimal(400000)
    assert request.policy.regions == ("us-*", "eu-*")
    assert request.policy.providers.only == ()
    assert request.policy.tiers == (Tier.ON_DEMAND, Tier.COMMITTED, Tier.WINDOW, Tier.SPOT)
    run, service, batch = request.workloads
    assert isinstance(run, Training)
    assert (run.tokens, run.global_batch_tokens, run.gpus.min, run.gpus.max) == (2e11, 4e6, 64, 512)
    assert run.late_usd_per_hour == Decimal(500)
    assert run.dataset is not None
    assert run.model.name == "Llama-3.1-8B"
    assert isinstance(service, Serving)
    assert service.precisions == (Precision.BF16, Precision.FP8)
    assert service.starts_after == "pretrain-8b"
    assert service.delay_usd_per_hour == Decimal("12.5")
    assert service.redundancy == Redundancy(2, 1, Survival.ZONE, 0.6)
    assert service.traffic.uncertainty == TrafficUncertainty(0.2, 0.05)
    assert service.policy.geography == ("eu", "uk")
    assert rules_of(request.policy, service) == EffectiveRules(
        hosts=frozenset({HostKind.DATACENTER}),
        gpus=allowed_gpus([GpuRules(only=("H100-*", "L40S"), min_memory_gb=40.0), GpuRules()]),
        min_reliability=0.98,
        premium=0.02,
        max_pools=4,
        max_gpu_kinds=NO_LIMIT,
    )
    assert service.traffic.shape is TrafficShape.DIURNAL
    assert isinstance(batch, Batch)
    assert [(m.gpu, m.tokens_per_s, m.requests_per_s) for m in batch.measured] == [
        ("L4", 1234.0, None),
        ("A10G", None, 2.1),
    ]


def test_a_batch_may_be_divided_and_interrupted_unless_it_says_otherwise() -> None:
    batch = read(changed()).workloads[2]
    assert isinstance(batch, Batch)
    assert (batch.interruptible, batch.chunk_minutes, batch.parts) == (True, 10.0, None)
    said = changed(workloads__2__interruptible=False, workloads__2__chunk_minutes=30, workloads__2__parts=1)
    batch = read(said).workloads[2]
    assert isinstance(batch, Batch)
    assert (batch.interruptible, batch.chunk_minutes, batch.parts) == (False, 30.0, 1)
    with pytest.raises(InputError) as caught:
        read(changed(workloads__2__parts=0, workloads__2__chunk_minutes=0))
    assert [problem.pointer for problem in caught.value.problems] == [
        "/workloads/2/parts",
        "/workloads/2/chunk_minutes",
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("now", [NOW, datetime(2031, 2, 28, 23, 59, tzinfo=UTC)])
def test_examples_never_go_stale(example: Path, now: datetime) -> None:
    request = read_workloads(example.read_text(), source=example.name, base=None, now=now)
    assert request.horizon.start >= now
    assert all(w.deadline <= request.horizon.end for w in request.workloads if not isinstance(w, Serving))


def test_the_shared_budget_example_has_many_teams() -> None:
    path = next(path for path in EXAMPLES if path.stem == "shared-budget")
    request = read_workloads(path.read_text(), source=path.name, base=None, now=NOW)
    assert len({workload.team for workload in request.workloads}) >= 4
    assert request.budget_usd is not None


@pytest.mark.parametrize("text", [CONTRACT, *(path.read_text() for path in EXAMPLES)])
def test_writing_and_reading_again_changes_nothing(text: str) -> None:
    request = read(text)
    assert read(json.dumps(to_document(request))) == request


def test_defaults_of_the_rules_of_a_plan() -> None:
    text = CONTRACT.replace("  fleet: {max_gpu_kinds: null}\n", "").replace("    fleet: {max_pools: 4}\n", "")
    request = read(text)
    service = request.workloads[1]
    rules = rules_of(Policy(), replace(service, policy=Policy()))
    assert rules == EffectiveRules(
        frozenset({HostKind.DATACENTER}), allowed_gpus([GpuRules(), GpuRules()]), 0.0, 0.01, 3, 2
    )
    assert Redundancy(zones=2).survives_zone_loss
    assert not Redundancy(zones=1).survives_zone_loss
    assert not Redundancy(zones=2, survives=Survival.REPLICA).survives_zone_loss


def test_a_workloads_rules_only_narrow() -> None:
    service = read(CONTRACT).workloads[1]
    wide = Policy(premium=0.05, min_reliability=0.9, fleet=FleetLimits(NO_LIMIT, NO_LIMIT))
    rules = rules_of(
        Policy(premium=0.0, min_reliability=0.99, fleet=FleetLimits(2, 1)),
        replace(service, policy=wide),
    )
    assert (rules.premium, rules.min_reliability) == (0.0, 0.99)
    assert (rules.max_pools, rules.max_gpu_kinds) == (2, 1)


@pytest.mark.parametrize(
    ("written", "only"),
    [
        ("H100", ("H100-*",)),
        ("[h100*, L40]", ("H100*", "L40")),
        ("rtx-4090", ("RTX-4090",)),
        ("{only: A10G-24GB}", ("A10G",)),
        ("'*'", ("*",)),
        ("{exclude: T4}", ()),
        ("null", ()),
    ],
)
def test_gpus_are_named_in_short(written: str, only: tuple[str, ...]) -> None:
    text = CONTRACT.replace("{only: [h100, L40S], min_memory_gb: 40}", written)
    request = read(text)
    assert request.policy.gpus == GpuRules(only=only, exclude=("T4",) if "exclude" in written else ())
    assert read(json.dumps(to_document(request))) == request


def test_every_gpu_has_a_vendor_and_a_class() -> None:
    classes = {one.product_class: one for one in load_gpus().values()}
    assert set(classes) == set(GpuClass)
    assert {one.maker for one in load_gpus().values()} == set(GpuVendor)
    assert all(one.class_source for one in load_gpus().values())


def test_one_number_of_assumed_nodes_holds_for_a_whole_document() -> None:
    request = read(CONTRACT)
    assert assumed_nodes(request) == 32
    service = replace(request.workloads[1], policy=Policy(assumed_nodes=8))
    assert assumed_nodes(replace(request, workloads=(request.workloads[0], service))) == 8
    assert assumed_nodes(replace(request, policy=Policy(), workloads=request.workloads[:1])) == 16


def test_words_are_read_without_case() -> None:
    request = read(changed(policy__compliance=["SOC2", "soc2", "Gdpr"], policy__providers={"only": ["AWS"]}))
    assert request.policy.compliance == ("soc2", "gdpr")
    assert request.policy.providers.only == ("aws",)
    assert read(changed(policy__countries=["us", "De"])).policy.countries == ("US", "DE")


def test_sets_of_countries_are_what_they_are_called() -> None:
    sets = load_geographies()
    assert len(sets["eu"]) == 27
    assert sets["eea"] - sets["eu"] == {"IS", "LI", "NO"}
    assert sets["uk"] == {"GB"}
    assert {"JP", "SG", "IN", "AU", "KR", "TW", "HK"} <= sets["apac"]
    assert sets["eea"] | {"GB", "CH"} <= sets["europe"]
    assert not sets["apac"] & (sets["europe"] | sets["middle_east"] | sets["africa"])
    assert all(codes <= set(load_countries()) for codes in sets.values())


def test_no_set_has_a_country_under_broad_sanctions() -> None:
    """A buyer who writes `europe` means none of them; who does, names them in `countries`."""
    everywhere = frozenset().union(*load_geographies().values())
    assert not everywhere & {"RU", "BY", "IR", "KP", "SY", "CU"}
    assert {"UA", "MD", "RS", "TR"} <= everywhere


def test_json_and_quoted_numbers_are_read_alike() -> None:
    assert read(changed()) == read(CONTRACT)


def test_yaml_surprises_do_not_surprise() -> None:
    request = read(
        CONTRACT.replace("2.0e11", "2e11").replace('regions: ["us-*", "eu-*"]', "countries: [NO, de]")
    )
    assert request.policy.countries == ("NO", "DE")
    assert isinstance(request.workloads[0], Training)
    assert request.workloads[0].tokens == 2e11


def test_anchors_and_merges_are_read() -> None:
    text = """
team: t
horizon: {start: 2026-11-24, days: 7}
workloads:
  - &run {name: a, kind: training, model: Qwen3-8B, tokens: 1e9,
          sequence_length: 4096, global_batch_tokens: 1e6, deadline: +3d}
  - {<<: *run, name: b, deadline: +90h}
"""
    first, second = read(text).workloads
    assert isinstance(first, Training)
    assert isinstance(second, Training)
    assert second.tokens == first.tokens
    assert second.deadline - first.deadline == timedelta(hours=18)


@pytest.mark.parametrize(
    ("word", "start"),
    [
        ("now", datetime(2026, 11, 23, 9, 30, tzinfo=UTC)),
        ("today", datetime(2026, 11, 23, tzinfo=UTC)),
        ("tomorrow", datetime(2026, 11, 24, tzinfo=UTC)),
        ("next-monday", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-25", datetime(2026, 11, 25, tzinfo=UTC)),
        ("2026-11-25T06:00:00+02:00", datetime(2026, 11, 25, 4, tzinfo=UTC)),
    ],
)
def test_horizon_starts(word: str, start: datetime) -> None:
    assert read(changed(horizon__start=word, workloads__2__deadline="+9d")).horizon.start == start


def test_now_is_the_second_that_begins_next() -> None:
    document = changed(horizon__start="now", workloads__2__deadline="+9d")
    at = NOW + timedelta(seconds=7, milliseconds=300)
    request = read_workloads(document, source="test", base=None, now=at)
    assert request.horizon.start == NOW + timedelta(seconds=8)


def test_a_request_that_fills_the_context_is_read() -> None:
    batch = read(changed(workloads__2__input_tokens=40_960 - 200)).workloads[2]
    assert isinstance(batch, Batch)
    assert batch.input_tokens + batch.output_tokens == batch.model.context


@pytest.mark.parametrize(
    ("days", "seconds"), [(0.0417, 3603), (1 / 24, 3600), (0.5, 43_200), (1.00001, 86_401)]
)
def test_horizons_are_as_long_as_is_said_to_the_second(days: float, seconds: int) -> None:
    text = json.dumps(
        {
            "team": "t",
            "horizon": {"start": "2026-11-24", "days": days},
            "workloads": [
                {
                    "name": "s",
                    "kind": "serving",
                    "model": "Llama-3.1-8B",
                    "traffic": {"peak_requests_per_s": 1, "input_tokens": 9, "output_tokens": 9},
                    "slo": {"ttft_p95_ms": 1000, "itl_p95_ms": 50},
                }
            ],
        }
    )
    request = read(text)
    assert request.horizon.duration == timedelta(seconds=seconds)
    assert read(json.dumps(to_document(request))) == request


def test_demand_may_be_nothing_in_some_hours() -> None:
    traffic = {"input_tokens": 10, "output_tokens": 10, "hourly": [0] * 167 + [5.0]}
    assert read(changed(workloads__1__traffic=traffic)).workloads
    assert read(changed(workloads__1__traffic__trough_share=0)).workloads
    both = [{"gpu": "L4", "tokens_per_s": 900}, {"gpu": "L4", "requests_per_s": 2}]
    assert len(read(changed(workloads__1__measured=both)).workloads[1].measured) == 2


def test_limits_are_told_in_the_form() -> None:
    forms = WorkloadsForm.model_json_schema()["$defs"]
    assert forms["Training"]["properties"]["tokens"]["minimum"] == 1
    assert forms["Slo"]["properties"]["ttft_p95_ms"] == {
        "exclusiveMinimum": 0, "title": "Ttft P95 Ms", "type": "number"
    }  # fmt: skip
    assert forms["Redundancy"]["properties"]["zones"]["maximum"] == 100


def test_hourly_demand_of_a_week_or_of_the_horizon() -> None:
    traffic = {"input_tokens": 10, "output_tokens": 10, "hourly": [1.0] * 167 + [5.0]}
    service = read(changed(workloads__1__traffic=traffic)).workloads[1]
    assert isinstance(service, Serving)
    assert service.traffic.shape is TrafficShape.HOURLY
    assert service.traffic.peak_requests_per_s == 5.0
    traffic["hourly"] = [1.0] * 720
    assert read(changed(workloads__1__traffic=traffic)).workloads


def test_hours_of_a_service_by_the_clock_are_read_and_written() -> None:
    """Office hours alone need no peak; what they say is in the document that the request is written to."""
    burst = {"at": "08:00", "minutes": "600", "requests_per_s": 0.5, "days": ["mon", "fri"]}
    traffic = {"input_tokens": 10, "output_tokens": 10, "time_zone": "europe/berlin", "bursts": [burst]}
    asked = read(changed(workloads__1__traffic=traffic, workloads__1__ends="+20d"))
    service = asked.workloads[1]
    assert isinstance(service, Serving)
    assert service.traffic.time_zone == "Europe/Berlin"
    assert service.ends == asked.horizon.start + timedelta(days=20)
    assert service.traffic.most_requests_per_s == 0.5
    written = to_document(asked)
    told = written["workloads"][1]
    assert told["ends"] == "2026-12-13T00:00:00Z"
    assert told["traffic"]["bursts"] == [{**burst, "minutes": 600}]
    assert "peak_requests_per_s" not in told["traffic"]
    assert read(json.dumps(written)) == asked
    diurnal = {**traffic, "shape": "diurnal", "peak_requests_per_s": 4, "peak_hour": 15}
    asked = read(changed(workloads__1__traffic=diurnal))
    assert read(json.dumps(to_document(asked))) == asked
    beyond = read(changed(workloads__1__ends="+90d")).workloads[1]
    assert isinstance(beyond, Serving)
    assert beyond.ends_by(asked.horizon.end) == asked.horizon.end


def test_short_forms_stand_for_lists_and_objects() -> None:
    short = {
        "budget": 400000,
        "policy__tiers": "spot",
        "policy__regions": "us-*",
        "policy__compliance": "soc2",
        "policy__hosts": "datacenter",
        "policy__providers__only": "aws",
        "workloads__0__gpus": 512,
        "workloads__1__precisions": "bf16",
        "workloads__1__policy__geography": "eu",
    }
    long = {
        "budget": {"usd": 400000},
        **{name: [value] for name, value in short.items() if isinstance(value, str)},
        "workloads__0__gpus": {"max": 512},
    }
    assert read(changed(**short)) == read(changed(**long))
    assert to_document(read(changed(**short)))["workloads"][1]["precisions"] == ["bf16"]
    assert told(changed(budget=True, workloads__0__gpus=0)) == {"/budget", "/workloads/0/gpus/max"}


def test_the_schema_tells_of_short_forms() -> None:
    schema = WorkloadsForm.model_json_schema()
    validator = Draft202012Validator(schema)
    document = json.loads(json.dumps(yaml.load(CONTRACT, Loader=yaml.SafeLoader), default=str))
    for row in document["workloads"]:
        for name in ("tokens", "global_batch_tokens", "requests"):
            if name in row:
                row[name] = float(row[name])
    assert [error.message for error in validator.iter_errors(document)] == []
    document["budget"] = 5000
    document["workloads"][0]["gpus"] = 32
    document["policy"]["tiers"] = "spot"
    assert [error.message for error in validator.iter_errors(document)] == []

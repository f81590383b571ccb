"""Short changes of a workloads document, against the documents that they should make."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.schemas.base.times import format_time
from api.schemas.workloads.document_changes import operations_of
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload_document import to_document

NOW = datetime(2026, 11, 27, 9, tzinfo=UTC)
TEXT = """
team: research
horizon: {start: 2026-12-01T00:00:00Z, days: 14}
workloads:
  - {name: tune, kind: training, model: Llama-3.1-8B, tokens: 2.0e9, sequence_length: 8192,
     global_batch_tokens: 1.0e6, deadline: 2026-12-05T00:00:00Z}
  - {name: chat.eu, kind: serving, model: gpt-oss-120b, slo: {ttft_p95_ms: 800, itl_p95_ms: 60},
     traffic: {shape: diurnal, peak_requests_per_s: 12, trough_share: 0.4, peak_hour_utc: 15,
               input_tokens: 1500, output_tokens: 300}}
  - {name: hourly, kind: serving, model: Llama-3.1-8B, precisions: [bf16, fp8],
     slo: {ttft_p95_ms: 900, itl_p95_ms: 60},
     traffic: {shape: hourly, hourly: HOURS, input_tokens: 100, output_tokens: 10,
               bursts: [{at: "09:00", minutes: 5, requests_per_s: 40}]}}
""".replace("HOURS", str([1, 2.5, 4] * 56))


def stored() -> dict[str, Any]:
    return to_document(read_workloads(TEXT, source="test", base=None, now=NOW))


def changed(*changes: str) -> dict[str, Any]:
    document = stored()
    result: dict[str, Any] = jsonpatch.apply_patch(copy.deepcopy(document), operations_of(document, changes))
    assert document == stored()
    return result


def test_a_field_is_set_multiplied_shifted_appended_to_and_removed() -> None:
    after = changed(
        "tune.deadline+=36h",
        "chat.eu.traffic*=1.5",
        "hourly.traffic*=2",
        "hourly.slo.ttft_p95_ms*=0.5",
        "policy.providers.exclude+=lambda",
        "policy.providers.exclude+=[aws, gcp]",
        "tune.gpus.max=16",
        "budget.usd=5000",
        "horizon.days+=1",
        "hourly.precisions=[fp8]",
    )
    tune, chat, hourly = after["workloads"]
    assert tune["deadline"] == "2026-12-06T12:00:00Z"
    assert tune["gpus"]["max"] == 16
    assert chat["traffic"]["peak_requests_per_s"] == 18
    assert hourly["traffic"]["hourly"] == [2, 5, 8] * 56
    assert [one["requests_per_s"] for one in hourly["traffic"]["bursts"]] == [80]
    assert hourly["slo"]["ttft_p95_ms"] == 450
    assert hourly["precisions"] == ["fp8"]
    assert after["budget"] == {"usd": 5000}
    assert after["horizon"]["days"] == 15
    assert "budget" not in changed("budget.usd=5000", "budget=").get("budget", {})


def test_each_of_several_additions_counts() -> None:
    after = changed("policy.providers.exclude+=lambda", "policy.providers.exclude+=aws")
    assert after["policy"]["providers"]["exclude"] == ["lambda", "aws"]
    assert changed("tune.deadline+=1d", "tune.deadline+=-12h")["workloads"][0]["deadline"] == (
        "2026-12-05T12:00:00Z"
    )


def test_a_star_names_every_workload_that_has_the_field() -> None:
    tune, chat, hourly = changed("*.slo.ttft_p95_ms=400")["workloads"]
    assert (chat["slo"]["ttft_p95_ms"], hourly["slo"]["ttft_p95_ms"]) == (400, 400)
    assert "slo" not in tune


def test_a_service_follows_its_run_under_a_new_name() -> None:
    document = stored()
    document["workloads"][1]["starts"] = {"after": "tune"}
    patch = operations_of(document, ["tune.name=sft", "sft.deadline+=1d"])
    tune, chat, hourly = jsonpatch.apply_patch(document, json.dumps(patch))["workloads"]
    assert (tune["name"], tune["deadline"]) == ("sft", "2026-12-06T00:00:00Z")
    assert chat["starts"] == {"after": "sft"}
    assert hourly == document["workloads"][2]


def test_another_model_is_served_in_its_own_published_format() -> None:
    assert stored()["workloads"][1]["precisions"] == ["fp4"]
    chat = changed("chat.eu.model=Llama-3.3-70B")["workloads"][1]
    assert (chat["model"], "precisions" in chat) == ("Llama-3.3-70B", False)
    hourly = changed("hourly.model=Qwen3-8B")["workloads"][2]
    assert hourly["precisions"] == ["bf16", "fp8"]


@pytest.mark.parametrize(
    ("change", "found", "expected"),
    [
        ("tune.deadline", '"tune.deadline"', "PATH=VALUE"),
        ("tine.deadline=+2d", "tine.deadline", "a workload: chat.eu, hourly, tune"),
        ("tune.deadlin+=2d", "no field tune.deadlin", "deadline"),
        ("tune.deadline+=8", "8", "a span such as 48h"),
        ("tune.model*=2", 'a factor on "Llama-3.1-8B"', "a number"),
        ("tune.tokens*=twice", '"twice"', "a factor such as 1.5"),
        ("tune.interruptible+=1", "+= on false", "a number, a time or a list"),
        ("*.colour+=1", "*.colour", "a field that some workload has"),
        ("policy.providers.exclude=[a", '"[a"', "as YAML writes it"),
    ],
)
def test_a_change_without_meaning_says_what_was_found_and_expected(
    change: str, found: str, expected: str
) -> None:
    with pytest.raises(InputError) as refused:
        operations_of(stored(), ["tune.tokens*=2", change], "/changes/3/set")
    (problem,) = refused.value.problems
    assert problem.pointer == "/changes/3/set/1"
    assert found in problem.found
    assert expected in problem.expected


@given(st.integers(-200, 200), st.floats(0.1, 10))
def test_what_is_changed_is_read_again_and_nothing_else_moves(hours: int, factor: float) -> None:
    document = stored()
    after = changed(f"tune.deadline+={hours}h", f"chat.eu.traffic*={factor!r}")
    moved = datetime(2026, 12, 5, tzinfo=UTC) + timedelta(hours=hours)
    assert after["workloads"][0].pop("deadline") == format_time(moved)
    document["workloads"][0].pop("deadline")
    peak = after["workloads"][1]["traffic"].pop("peak_requests_per_s")
    assert peak == pytest.approx(12 * factor)
    document["workloads"][1]["traffic"].pop("peak_requests_per_s")
    assert after == document

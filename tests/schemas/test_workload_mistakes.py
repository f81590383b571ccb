"""Mistakes in workloads documents: each names its field, what was found, and what to write instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload import Dataset, Training
from tests.schemas.test_workloads import CONTRACT, NOW, changed, problems, read, told

BURST_MISTAKES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"at": "9:00"}, "at", "9:00", "a time of day"),
    ({"at": "24:00"}, "at", "24:00", "23:59"),
    ({"minutes": 0}, "minutes", "0", "above 0"),
    ({"minutes": 1441}, "minutes", "1441", "at most 1440"),
    ({"days": ["monday"]}, "days/0", "monday", "mon"),
    ({"rate": 5}, "rate", "rate", "requests_per_s"),
]
BURST = {"at": "09:00", "minutes": 5, "requests_per_s": 20}
MISTAKES: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"workloads__0__deadline": "2027-01-20T00:00:00Z"},
        "/workloads/0/deadline",
        "2027-01-20",
        "by the horizon's end, 2026-12-23T00:00:00Z; nothing is planned after it, but horizon.days of 58",
    ),
    (
        {"workloads__2__earliest_start": "2026-11-20", "workloads__2__deadline": "2026-11-22"},
        "/workloads/2/deadline",
        "2026-11-22",
        "after the horizon's start",
    ),
    (
        {"workloads__2__input_tokens": 60_000},
        "/workloads/2/input_tokens",
        "60,200 tokens of input and output",
        "at most 40,960, the context of Qwen3-32B",
    ),
    (
        {
            "workloads__1__traffic": {
                "peak_requests_per_s": 1,
                "mix": [
                    {"share": 0.5, "input_tokens": 1000, "output_tokens": 100},
                    {"share": 0.5, "input_tokens": 131_000, "output_tokens": 100},
                ],
            }
        },
        "/workloads/1/traffic/mix/1/input_tokens",
        "131,100",
        "131,072",
    ),
    ({"policy__countries": ["UK"]}, "/policy/countries/0", "UK", "GB, the ISO 3166-1 code of United Kingdom"),
    ({"policy__countries": ["US", "Germany"]}, "/policy/countries/1", "Germany", "DE (Germany)"),
    ({"policy__countries": ["EU"]}, "/policy/countries/0", "EU", "geography: [eu]"),
    ({"policy__geography": ["us"], "policy__countries": ["DE"]}, "/policy/countries", "list of 1", "of us"),
    ({"policy__geography": ["emea"]}, "/policy/geography/0", "emea", "eu, eea, europe"),
    ({"policy__compliance": ["fedramp"]}, "/policy/compliance/0", "fedramp", "fedramp-high"),
    ({"policy__hosts": ["basement"]}, "/policy/hosts/0", "basement", "'datacenter' or 'community'"),
    ({"policy__gpus": "H1000"}, "/policy/gpus/0", "H1000", "nearest: H100"),
    (
        {"policy__gpus": {"exclude": ["RTX-7*"]}},
        "/policy/gpus/exclude/0",
        "RTX-7*",
        "a GPU of config/gpus.csv",
    ),
    ({"policy__gpus": {"vendor": "nvidea"}}, "/policy/gpus/vendor/0", "nvidea", "'nvidia'"),
    ({"policy__gpus": {"classes": []}}, "/policy/gpus/classes", "empty list", "at least 1"),
    ({"policy__gpus": {"min_memory_gb": 0}}, "/policy/gpus/min_memory_gb", "0", "a number above 0"),
    ({"policy__gpus": {"names": ["T4"]}}, "/policy/gpus/names", "names", "one of only, exclude"),
    ({"policy__min_reliability": 99}, "/policy/min_reliability", "99", "at most 1"),
    ({"policy__fleet": {"max_pools": 0}}, "/policy/fleet/max_pools", "0", "at least 1"),
    (
        {"workloads__1__starts": {"at": "+1d", "delay_usd_per_hour": 3}},
        "/workloads/1/starts/delay_usd_per_hour",
        "3",
        "waits for a run",
    ),
    ({"workloads__0__model": "Llama-3.1-8"}, "/workloads/0/model", "Llama-3.1-8", "Llama-3.1-8B"),
    ({"workloads__0__model": "model.json"}, "/workloads/0/model", "model.json", "named model"),
    ({"workloads__2__measured__0__gpu": "L5"}, "/workloads/2/measured/0/gpu", "L5", "L4"),
    ({"workloads__2__measured__0": {"gpu": "L4"}}, "/workloads/2/measured/0", "gpu", "tokens_per_s"),
    ({"workloads__0__deadline": "2026-11-23T00:00:00Z"}, "/workloads/0/deadline", "2026-11-23", "2026-11-24"),
    ({"workloads__2__deadline": "+1d"}, "/workloads/2/deadline", "+1d", "2026-11-25"),
    ({"workloads__0__tokens": -5}, "/workloads/0/tokens", "-5", "at least 1"),
    ({"workloads__0__tokens": 0.5}, "/workloads/0/tokens", "0.5", "at least 1"),
    ({"workloads__0__tokens": 3e6}, "/workloads/0/tokens", "3000000", "one step of 4e+06 tokens"),
    ({"workloads__2__requests": 0.5}, "/workloads/2/requests", "0.5", "at least 1"),
    ({"workloads__0__headroom": 10}, "/workloads/0/headroom", "10", "at most 1"),
    (
        {"workloads__0__checkpoint__every_minutes": 1e300},
        "/workloads/0/checkpoint/every_minutes",
        "",
        "at most",
    ),
    ({"workloads__0__dataset__gb": 1e300}, "/workloads/0/dataset/gb", "1e+300", "at most 1000000000"),
    ({"workloads__1__redundancy__zones": 101}, "/workloads/1/redundancy/zones", "101", "at most 100"),
    (
        {"workloads__1__redundancy__spare_replicas": 1e9},
        "/workloads/1/redundancy/spare_replicas",
        "",
        "at most 100",
    ),
    (
        {"workloads__1__traffic__peak_requests_per_s": 1e10},
        "/workloads/1/traffic/peak_requests_per_s",
        "",
        "at most",
    ),
    ({"workloads__1__slo__ttft_p95_ms": 0}, "/workloads/1/slo/ttft_p95_ms", "0", "above 0"),
    (
        {"workloads__2__measured__0__tokens_per_s": 1e300},
        "/workloads/2/measured/0/tokens_per_s",
        "",
        "at most",
    ),
    (
        {"workloads__2__measured__1": {"gpu": "L4", "tokens_per_s": 5}},
        "/workloads/2/measured/1/tokens_per_s",
        "5",
        "only one such measurement of 1 × L4",
    ),
    (
        {"workloads__0__measured": [{"gpu": "L4", "tokens_per_s": 1e6}]},
        "/workloads/0/measured/0/tokens_per_s",
        "1000000",
        "1 × L4",
    ),
    (
        {"workloads__0__measured": [{"gpu": "L4", "requests_per_s": 1}]},
        "/workloads/0/measured/0",
        "",
        "tokens_per_s",
    ),
    ({"policy__quotas": {"lamda": {"gpus": 8}}}, "/policy/quotas/lamda", "lamda", "nearest: lambda"),
    ({"policy__mix_sandbox": "maybe"}, "/policy/mix_sandbox", "maybe", "true or false"),
    (
        {"workloads__0__policy": {"mix_sandbox": True}},
        "/workloads/0/policy/mix_sandbox",
        "true",
        "the document's policy",
    ),
    ({"policy__quotas": {"lambda": {}}}, "/policy/quotas/lambda", "empty object", "gpus or nodes"),
    (
        {"policy__reoptimize": {"cooldown_hours": 1e300}},
        "/policy/reoptimize/cooldown_hours",
        "1e+300",
        "at most 43920",
    ),
    ({"workloads__0__tokens": "٣"}, "/workloads/0/tokens", "٣", "a number"),
    ({"budget__usd": "٣"}, "/budget/usd", "٣", "the digits 0 to 9"),
    ({"horizon__days": "٣"}, "/horizon/days", "٣", "a number"),
    ({"workloads__0__deadline": "+٣d"}, "/workloads/0/deadline", "٣", "an offset"),
    ({"workloads__0__dataset__provider": "asw"}, "/workloads/0/dataset/provider", "asw", "nearest: aws"),
    (
        {"workloads__1__weights": {"gb": 1, "provider": "lamda", "region": "x"}},
        "/workloads/1/weights/provider",
        "lamda",
        "nearest: lambda",
    ),
    ({"workloads__0__tokens": True}, "/workloads/0/tokens", "true", "a number"),
    ({"workloads__0__tokens": "many"}, "/workloads/0/tokens", "many", "a number"),
    ({"workloads__0__tokens": "1e999"}, "/workloads/0/tokens", "1e999", "finite"),
    ({"workloads__0__tokens": ...}, "/workloads/0/tokens", "nothing", "this field"),
    ({"workloads__0__tokenz": 1}, "/workloads/0/tokenz", "tokenz", "'tokens'"),
    ({"workloads__0__precision": "fp32"}, "/workloads/0/precision", "fp32", "bf16"),
    ({"workloads__1__precisions": []}, "/workloads/1/precisions", "empty list", "at least 1"),
    ({"workloads__1__precisions": ["fp7"]}, "/workloads/1/precisions/0", "fp7", "fp8"),
    ({"workloads__1__name": "pretrain-8b"}, "/workloads/1/name", "pretrain-8b", "no other"),
    ({"workloads__1__starts__after": "summaries"}, "/workloads/1/starts/after", "summaries", "pretrain-8b"),
    ({"workloads__1__starts__after": "gone"}, "/workloads/1/starts/after", "gone", "pretrain-8b"),
    ({"workloads__1__starts": {}}, "/workloads/1/starts", "empty object", "after"),
    ({"workloads__1__starts": "+31d"}, "/workloads/1/starts", "+31d", "horizon ends"),
    ({"workloads__1__starts": "soon"}, "/workloads/1/starts", "soon", "offset"),
    ({"workloads__1__traffic__hourly": [1, 2]}, "/workloads/1/traffic/shape", "diurnal", "hourly"),
    ({"workloads__1__traffic__shape": "hourly"}, "/workloads/1/traffic/hourly", "nothing", "168"),
    ({"workloads__1__traffic__peak_requests_per_s": ...}, "/workloads/1/traffic/peak_requests_per_s", "", ""),
    ({"workloads__1__traffic__trough_share": 1.5}, "/workloads/1/traffic/trough_share", "1.5", "at most 1"),
    ({"workloads__1__ends": "+0h"}, "/workloads/1/ends", "+0h", "after it starts"),
    ({"workloads__1__starts": "+4d", "workloads__1__ends": "+3d"}, "/workloads/1/ends", "+3d", "2026-11-27"),
    (
        {"workloads__1__traffic__time_zone": "Europe/Berlin"},
        "/workloads/1/traffic/time_zone",
        "Berlin",
        "peak_hour",
    ),
    (
        {"workloads__1__traffic__time_zone": "Europe/Berlim"},
        "/workloads/1/traffic/time_zone",
        "Berlim",
        "Europe/Berlin",
    ),
    ({"workloads__1__traffic__peak_hour": 9}, "/workloads/1/traffic/peak_hour", "9", "either"),
    ({"workloads__1__traffic__bursts": []}, "/workloads/1/traffic/bursts", "empty list", "at least 1"),
    *(
        (
            {"workloads__1__traffic__bursts": [{**BURST, **wrong}]},
            f"/workloads/1/traffic/bursts/0/{field}",
            found,
            expected,
        )
        for wrong, field, found, expected in BURST_MISTAKES
    ),
    (
        {"workloads__1__traffic__uncertainty": {"level": -0.1}},
        "/workloads/1/traffic/uncertainty/level",
        "-0.1",
        "at least 0",
    ),
    ({"workloads__0__gpus": {"min": 64, "max": 8}}, "/workloads/0/gpus/max", "8", "64"),
    ({"workloads__0__global_batch_tokens": 1}, "/workloads/0/global_batch_tokens", "1", "8192"),
    ({"workloads__0__policy": {"regions": []}}, "/workloads/0/policy/regions", "empty list", "at least 1"),
    ({"policy__tiers": ["weekly"]}, "/policy/tiers/0", "weekly", "on_demand"),
    ({"policy__providers__only": ["lamda"]}, "/policy/providers/only/0", "lamda", "lambda"),
    (
        {"workloads__0__policy": {"providers": {"exclude": ["-"]}}},
        "/workloads/0/policy/providers/exclude/0",
        "-",
        "a provider's key",
    ),
    ({"policy__countries": ["XX"]}, "/policy/countries/0", "XX", "alpha-2 code"),
    ({"policy__regoins": ["x"]}, "/policy/regoins", "regoins", "'regions'"),
    ({"budget__usd": "-1"}, "/budget/usd", "-1", "at least 0"),
    ({"budget__usd": "lots"}, "/budget/usd", "lots", "USD"),
    ({"horizon__start": "monday"}, "/horizon/start", "monday", "next-monday"),
    ({"horizon__start": "2026-11-23T00:00:00"}, "/horizon/start", "2026-11-23T00:00:00", "zone"),
    ({"horizon__start": "2025-01-01"}, "/horizon", "2025-01-31", "2026-11-23T09:30:00Z"),
    ({"horizon__days": 0}, "/horizon/days", "0", "above 0"),
    ({"horizon__days": 1e-9}, "/horizon/days", "1e-09", "at least 0.0417 (an hour)"),
    ({"workloads__0__kind": "mining"}, "/workloads/0/kind", "mining", "training"),
    ({"workloads__0__kind": ...}, "/workloads/0/kind", "nothing", "training"),
    ({"workloads": []}, "/workloads", "empty list", "at least 1"),
    ({"workloads": {"a": 1}}, "/workloads", "object", "a list"),
    ({"team": ...}, "/team", "nothing", "this field"),
    ({"team": 5}, "/team", "5", "text"),
]


@pytest.mark.parametrize(("change", "pointer", "found", "expected"), MISTAKES, ids=lambda v: str(v)[:40])
def test_each_mistake_names_field_found_and_expected(
    change: dict[str, Any], pointer: str, found: str, expected: str
) -> None:
    told = problems(changed(**change))
    hit = [problem for problem in told if problem.pointer == pointer]
    assert hit, told
    assert found in hit[0].found
    assert expected in hit[0].expected


def test_data_may_lie_in_storage_of_ones_own() -> None:
    (run, *_) = read_workloads(
        changed(workloads__0__dataset__provider="Own"), source="a plan", base=None, now=NOW
    ).workloads
    assert isinstance(run, Training)
    assert run.dataset is not None
    assert run.dataset.provider == "own"


def test_a_stored_document_keeps_a_provider_of_data_that_is_refused_today() -> None:
    text = changed(workloads__0__dataset__provider="our own")
    stored = read_workloads(text, source="a plan", base=None, now=NOW, stored=True)
    run = stored.workloads[0]
    assert isinstance(run, Training)
    assert run.dataset == Dataset(3000, "our own", "us-east-1")


def test_digits_of_other_scripts_are_no_number_in_yaml() -> None:
    text = CONTRACT.replace("tokens: 2.0e11", "tokens: ٣")
    assert [(one.pointer, one.found) for one in problems(text)] == [("/workloads/0/tokens", '"٣"')]


def test_every_problem_is_told_at_once_with_its_line() -> None:
    text = CONTRACT.replace("tokens: 2.0e11", "tokens: -1").replace("model: Qwen3-32B", "model: Qwen9")
    negative, unknown = problems(text)
    assert (negative.line, negative.column) == (20, 13)
    assert unknown.pointer == "/workloads/2/model"
    both = problems(
        CONTRACT.replace("model: Llama-3.1-8B", "model: Nope").replace("model: Qwen3-32B", "model: Qwen9")
    )
    assert [problem.line for problem in both] == [19, CONTRACT.splitlines().index("    model: Qwen3-32B") + 1]


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("team: a\nhorizon: {start: 2026-11-23\nworkloads: []\n", 3, 10),
        ("team: a\n\tdays: 3\n", 2, 1),
        ("team: 'open\n", 2, 1),
        ("a: 1\na: 2\n", 2, 1),
        ("team: !!python/object:os.system x\n", 1, 7),
        ("team: *nowhere\n", 1, 7),
    ],
)
def test_malformed_yaml_says_line_and_column(text: str, line: int, column: int) -> None:
    first = problems(text)[0]
    assert (first.line, first.column) == (line, column)


@pytest.mark.parametrize("text", ["", "5", "[]", "just words", "\x00", "[" * 5000, "{" * 5000])
def test_other_texts_are_refused_without_a_crash(text: str) -> None:
    assert problems(text)


def test_a_document_that_multiplies_itself_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "aliases" in problems("\n".join(lines))[0].found


@pytest.mark.parametrize(
    "said", ["Llama-3.1-8B", "llama-3.1-8b", "Llama 3.1 8B", "meta-llama/Llama-3.1-8B-Instruct"]
)
def test_a_model_is_known_by_its_usual_names(said: str) -> None:
    assert read(changed(workloads__0__model=said)).workloads[0].model.name == "Llama-3.1-8B"


def test_model_paths_are_read_relative_to_the_document(tmp_path: Path) -> None:
    config = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
        "intermediate_size": 128,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    request = read(changed(workloads__0__model="config.json"), base=tmp_path)
    assert request.workloads[0].model.layers == 2
    (tmp_path / "config.json").write_text("{}")
    (problem,) = problems(changed(workloads__0__model="config.json"), base=tmp_path)
    assert "Hugging Face" in problem.expected


ROUNDS: list[tuple[dict[str, Any], set[str]]] = [
    (
        {"workloads__0__deadlin": "+4d", "workloads__0__deadline": ..., "workloads__1__model": "Lama"},
        {"/workloads/0/deadlin", "/workloads/0/deadline", "/workloads/1/model"},
    ),
    (
        {"workloads__0__kind": "trainin", "workloads__0__model": "Lama", "workloads__2__deadline": "+9w"},
        {"/workloads/0/kind", "/workloads/0/model", "/workloads/2/deadline"},
    ),
    (
        {"horizon": 3, "policy__countries": ["UK"], "workloads__1__traffic": 4},
        {"/horizon", "/policy/countries/0", "/workloads/1/traffic"},
    ),
    ({"workloads": 4, "policy__countries": ["UK"]}, {"/workloads", "/policy/countries/0"}),
    ({"workloads__1__kind": "surfing"}, {"/workloads/1/kind"}),  # of a service, which has no deadline
    ({"workloads__0": 4, "workloads__2__model": "x"}, {"/workloads/0", "/workloads/2/model"}),
    (
        {"team": ..., "workloads__2__measured": [{"gpu": "L5", "tokns_per_s": 3}]},
        {"/team", "/workloads/2/measured/0/gpu", "/workloads/2/measured/0/tokns_per_s"},
    ),
    (
        {"workloads__0__tokens": "many", "workloads__0__dataset": {"gb": -1, "provider": "x", "region": "y"}},
        {"/workloads/0/tokens", "/workloads/0/dataset/gb", "/workloads/0/dataset/provider"},
    ),
]


@pytest.mark.parametrize(("changes", "pointers"), ROUNDS)
def test_wrong_fields_hide_no_unknown_words(changes: dict[str, Any], pointers: set[str]) -> None:
    assert told(changed(**changes)) == pointers


def _paths(value: Any, *at: str) -> Any:
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, inner in children:
        yield (*at, str(name))
        yield from _paths(inner, *at, str(name))


@pytest.mark.parametrize("value", [..., True, {"no": "such"}])
def test_one_wrong_field_causes_no_problem_elsewhere(value: Any) -> None:
    """Every field of the document in its turn, so that each stand-in proves to be one."""
    found = 0
    for path in _paths(yaml.load(CONTRACT, Loader=yaml.BaseLoader)):
        text = changed(**{"__".join(path): value})
        try:
            read(text)
        except InputError as error:
            found += 1
            at = "/" + "/".join(path)
            # A problem is that of the field, of what is in it, or of the object that lacks it.
            strange = [
                p.pointer
                for p in error.problems
                if not p.pointer.startswith(at) and not at.startswith(f"{p.pointer}/")
            ]
            beyond = at.removesuffix("/kind")
            if path[-1] == "after":
                beyond = at.removesuffix("/after")
            if path[-1] in ("name", "kind", "after"):
                strange = [p for p in strange if not p.startswith(beyond) and not p.endswith("/starts/after")]
            assert strange == [], (at, value)
    assert found > 20

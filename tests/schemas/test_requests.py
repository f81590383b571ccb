"""What workloads documents say of requests: sizes, prefix caches, drafts, formats."""

from __future__ import annotations

import json

import pytest

from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload import (
    Batch,
    PlanRequest,
    Precision,
    Serving,
    ServingEngine,
    SpeculativeDecoding,
    Training,
    TrainingStack,
)
from broker.domain.planning.workload_document import to_document
from tests.placement.market import T0

TEXT = """\
team: t
horizon: {start: now, days: 2}
workloads:
  - {name: chat, kind: serving, model: Llama-3.1-8B, prefix_cache_hit_share: 0.4,
     speculation: {drafted_tokens: 3, acceptance: 0.7},
     traffic: {peak_requests_per_s: 3, input_tokens: 900, output_tokens: 90},
     slo: {ttft_p95_ms: 900, itl_p95_ms: 90}}
  - {name: mixed, kind: serving, model: Llama-3.1-8B, precisions: [fp8, fp4], engine: sglang,
     traffic: {peak_requests_per_s: 3, mix: [{share: 0.75, input_tokens: 200, output_tokens: 100},
                                             {share: 0.25, input_tokens: 3000, output_tokens: 60}]},
     slo: {ttft_p95_ms: 900, itl_p95_ms: 90}}
  - {name: run, kind: training, model: Llama-3.1-8B, tokens: 1.0e9, sequence_length: 8192, software: fsdp,
     precision: fp4, global_batch_tokens: 1.0e6, deadline: +1d}
  - {name: files, kind: batch, model: Llama-3.1-8B, requests: 1000, input_tokens: 900, output_tokens: 90,
     deadline: +1d, prefix_cache_hit_share: 1, speculation: {drafted_tokens: 1, acceptance: 1, draft_cost: 0}}
"""


def read(text: str) -> PlanRequest:
    return read_workloads(text, source="w", base=None, now=T0)


def test_they_are_read_and_written() -> None:
    request = read(TEXT)
    chat, mixed, run, files = request.workloads
    assert isinstance(run, Training)
    assert isinstance(chat, Serving)
    assert isinstance(mixed, Serving)
    assert isinstance(files, Batch)
    assert (chat.prefix_cache_hit_share, files.prefix_cache_hit_share) == (0.4, 1.0)
    assert chat.speculation == SpeculativeDecoding(3, 0.7, 0.05)
    assert files.speculation == SpeculativeDecoding(1, 1.0, 0.0)
    assert run.software is TrainingStack.FSDP
    assert run.precision is Precision.FP4
    assert (chat.engine, mixed.engine) == (ServingEngine.VLLM, ServingEngine.SGLANG)
    assert mixed.precisions == (Precision.FP8, Precision.FP4)
    assert [size.share for size in mixed.traffic.mix] == [0.75, 0.25]
    assert (mixed.traffic.input_tokens, mixed.traffic.output_tokens) == (900, 90)
    assert read(json.dumps(to_document(request))) == request


@pytest.mark.parametrize(
    ("old", "new", "at", "expected"),
    [
        ("share: 0.4", "share: 1.4", "0/prefix_cache_hit_share", "at most 1"),
        ("acceptance: 0.7", "acceptance: 7", "0/speculation/acceptance", "at most 1"),
        ("drafted_tokens: 3", "drafted_tokens: 0", "0/speculation/drafted_tokens", "at least 1"),
        ("drafted_tokens: 3, acceptance: 0.7", "drafted_tokens: 3", "0/speculation/acceptance", ""),
        ("acceptance: 0.7", "acceptance: 0.7, draft: 0.1", "0/speculation/draft", ""),
        ("sglang", "vlllm", "1/engine", "vllm"),
        ("fsdp", "nemo", "2/software", "tuned"),
        ("fp4", "fp2", "1/precisions/1", "fp4"),
        ("share: 0.25", "share: 0.35", "1/traffic/mix", "shares that sum to 1"),
        ("share: 0.25", "share: 0", "1/traffic/mix/1/share", "above 0"),
        (
            "mix: [",
            "input_tokens: 5, mix: [",
            "1/traffic/input_tokens",
            "no length, because the sizes of the mix",
        ),
    ],
)
def test_what_cannot_be_is_told(old: str, new: str, at: str, expected: str) -> None:
    assert old in TEXT
    with pytest.raises(InputError) as error:
        read(TEXT.replace(old, new, 1))
    (problem,) = error.value.problems
    assert problem.pointer == f"/workloads/{at}"
    assert expected in problem.expected

"""Prefix caches and drafts in workloads documents."""

from __future__ import annotations

import json

import pytest

from api.schemas.workload_writer import to_document
from api.schemas.workloads import read_workloads
from broker.domain.errors import InputError
from broker.domain.workload import Batch, PlanRequest, Serving, SpeculativeDecoding
from tests.placement.market import T0

TEXT = """\
team: t
horizon: {start: now, days: 2}
workloads:
  - {name: chat, kind: serving, model: Llama-3.1-8B, prefix_cache_hit_share: 0.4,
     speculation: {drafted_tokens: 3, acceptance: 0.7},
     traffic: {peak_requests_per_s: 3, input_tokens: 900, output_tokens: 90},
     slo: {ttft_p95_ms: 900, itl_p95_ms: 90}}
  - {name: files, kind: batch, model: Llama-3.1-8B, requests: 1000, input_tokens: 900, output_tokens: 90,
     deadline: +1d, prefix_cache_hit_share: 1, speculation: {drafted_tokens: 1, acceptance: 1, draft_cost: 0}}
"""


def read(text: str) -> PlanRequest:
    return read_workloads(text, source="w", base=None, now=T0)


def test_they_are_read_and_written() -> None:
    request = read(TEXT)
    chat, files = request.workloads
    assert isinstance(chat, Serving)
    assert isinstance(files, Batch)
    assert (chat.prefix_cache_hit_share, files.prefix_cache_hit_share) == (0.4, 1.0)
    assert chat.speculation == SpeculativeDecoding(3, 0.7, 0.05)
    assert files.speculation == SpeculativeDecoding(1, 1.0, 0.0)
    assert read(json.dumps(to_document(request))) == request


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("share: 0.4", "share: 1.4", "prefix_cache_hit_share"),
        ("acceptance: 0.7", "acceptance: 7", "speculation/acceptance"),
        ("drafted_tokens: 3", "drafted_tokens: 0", "speculation/drafted_tokens"),
        ("drafted_tokens: 3, acceptance: 0.7", "drafted_tokens: 3", "speculation/acceptance"),
        ("acceptance: 0.7", "acceptance: 0.7, draft: 0.1", "speculation"),
    ],
)
def test_what_cannot_be_is_told(old: str, new: str, field: str) -> None:
    assert old in TEXT
    with pytest.raises(InputError) as error:
        read(TEXT.replace(old, new, 1))
    assert any(f"/workloads/0/{field}" in problem.pointer for problem in error.value.problems)

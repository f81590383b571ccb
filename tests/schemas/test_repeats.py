"""``repeat`` of runs and batches: each time is a workload of its own, and one row shows all of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from api.plan_sections import tables_of, timeline_of
from api.schemas.workloads.workloads import read_workloads
from api.sections import Cell
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.planning.workload import Batch, PlanRequest, Training
from broker.domain.planning.workload_document import to_document
from broker.domain.workloads.repeats import Repeat, is_repeated, series_of
from tests.depth import examples
from tests.placement.market import at, batch, offer, plan, request

NOW = datetime(2026, 11, 27, 15, 42, tzinfo=UTC)
NIGHT = {
    "name": "score",
    "kind": "batch",
    "model": "Llama-3.1-8B",
    "requests": 100_000,
    "input_tokens": 1000,
    "output_tokens": 100,
    "earliest_start": "+22h",
    "repeat": {"every": "1d", "times": 3, "within": "8h"},
}


def document(*rows: object, days: float = 5) -> str:
    return yaml.safe_dump(
        {"team": "legal", "horizon": {"start": "tomorrow", "days": days}, "workloads": [*rows]}
    )


def read(text: str) -> PlanRequest:
    return read_workloads(text, source="w.yaml", base=None, now=NOW)


def problems(text: str) -> tuple[FieldProblem, ...]:
    with pytest.raises(InputError) as caught:
        read(text)
    return tuple(caught.value.problems)


def without(row: dict[str, object], *names: str, **changes: object) -> dict[str, object]:
    return {name: value for name, value in {**row, **changes}.items() if name not in names}


def test_each_night_is_a_batch_with_its_own_hours() -> None:
    asked = read(document(NIGHT))
    start = asked.horizon.start
    rows = [w for w in asked.workloads if isinstance(w, Batch)]
    assert [w.name for w in rows] == ["score#1", "score#2", "score#3"]
    hours = timedelta(hours=1)
    assert [(w.earliest_start - start) / hours for w in rows] == [22, 46, 70]
    assert [(w.deadline - start) / hours for w in rows] == [30, 54, 78]
    assert all(w.repeat is None for w in rows)
    assert {series_of(w.name) for w in rows} == {"score"}
    assert read(json.dumps(to_document(asked))) == asked


def test_it_says_what_the_nights_written_out_say() -> None:
    """The three nights of a document that had to name each of them."""
    nights = [
        without(NIGHT, "repeat", name=f"n{n}", earliest_start=f"+{22 + 24 * n}h", deadline=f"+{30 + 24 * n}h")
        for n in range(3)
    ]
    by_hand, repeated = read(document(*nights)), read(document(NIGHT))
    for one, other in zip(by_hand.workloads, repeated.workloads, strict=True):
        assert isinstance(one, Batch)
        assert isinstance(other, Batch)
        assert (one.earliest_start, one.deadline) == (other.earliest_start, other.deadline)


def test_without_times_it_fills_the_horizon_and_the_deadline_may_be_that_of_the_first() -> None:
    told = without(NIGHT, repeat={"every": "1d"}, deadline="+30h")
    assert len(read(document(told, days=5)).workloads) == 4
    assert len(read(document(told, days=30)).workloads) == 29
    run = {
        "name": "tune", "kind": "training", "model": "Llama-3.1-8B", "tokens": 1e8, "sequence_length": 2048,
        "global_batch_tokens": 1e5, "repeat": {"every": "1w", "times": 2, "within": "12h"},
    }  # fmt: skip
    first, second = read(document(run, days=14)).workloads
    assert isinstance(first, Training)
    assert isinstance(second, Training)
    assert second.earliest_start - first.earliest_start == timedelta(weeks=1)
    assert first.deadline - first.earliest_start == timedelta(hours=12)


WRONG = [
    (without(NIGHT, repeat={"every": "1d", "times": 9, "within": "8h"}), "repeat/times", "at most 4"),
    (without(NIGHT, repeat={"every": "9d", "within": "8h"}), "repeat/every", "2 to 366 times"),
    (without(NIGHT, repeat={"every": "1m", "within": "8h"}), "repeat/every", "2 to 366 times"),
    (without(NIGHT, repeat={"every": "daily", "within": "8h"}), "repeat/every", "1d"),
    (without(NIGHT, repeat={"every": "0h", "within": "8h"}), "repeat/every", "a minute at least"),
    (without(NIGHT, repeat={"every": "1d", "times": 1, "within": "8h"}), "repeat/times", "at least 2"),
    (without(NIGHT, deadline="+30h"), "repeat/within", "either within"),
    (without(NIGHT, repeat={"every": "1d"}), "deadline", "this field"),
    (without(NIGHT, "repeat"), "deadline", "this field"),
    (without(NIGHT, name="score#1"), "name", "without #"),
    (without(NIGHT, repeat={"evry": "1d"}), "repeat/evry", "'every'"),
]


@pytest.mark.parametrize(("row", "pointer", "expected"), WRONG, ids=lambda one: str(one)[-40:])
def test_each_mistake_names_its_field(row: dict[str, object], pointer: str, expected: str) -> None:
    told = problems(document(row))
    assert [expected in one.expected for one in told if one.pointer == f"/workloads/0/{pointer}"] == [True], (
        told
    )


def test_a_time_is_no_name_of_another_workload_and_a_service_waits_for_one_time() -> None:
    again = without(NIGHT, "repeat", name="score#2", deadline="+30h")
    assert [one.pointer for one in problems(document(NIGHT, again))] == ["/workloads/1/name"]


@settings(deadline=None, max_examples=examples(40))
@given(st.integers(1, 72), st.integers(1, 40), st.integers(1, 40))
def test_every_time_lies_in_the_horizon_and_one_more_would_not(every: int, begin: int, within: int) -> None:
    room = timedelta(hours=240 - begin - within)
    fits = Repeat(timedelta(hours=every)).fitting(room)
    ends = [begin + within + every * n for n in range(fits + 1)]
    assert all(end <= 240 for end in ends[:-1])
    assert ends[-1] > 240


def test_the_times_of_a_plan_are_one_row() -> None:
    asked = request(
        *(batch(f"night#{n + 1}", earliest_start=at(24 * n), deadline=at(24 * n + 8)) for n in range(3)),
        batch("other", deadline=at(72)),
        hours=72,
    )
    found = plan(asked, [offer("a", "1.00", nodes=8)], time_limit_s=3.0)
    assert {p.workload for p in found.placements} == {"night#1", "night#2", "night#3", "other"}
    table = next(iter(tables_of(found)))
    names = [row[0].value if isinstance(row[0], Cell) else row[0] for row in table.rows]
    assert names == ["night", "other"]
    first = table.rows[0]
    assert isinstance(first[0], Cell)
    assert "3 times" in first[0].more
    cost = sum((p.cost_usd for p in found.placements if is_repeated(p.workload)), Decimal(0))
    assert isinstance(first[-1], Cell)
    assert first[-1].value == cost
    lines = [name for name, _ in timeline_of(found, asked.horizon, 80, 9) if name]
    assert lines == ["night", "other"]

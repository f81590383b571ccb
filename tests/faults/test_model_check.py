"""The protocol is right in every order of steps, and each of three design faults is found."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from broker.domain.holding.reservation import Idempotency
from tests.faults.profile import NIGHTLY
from tests.faults.search import Search, Verdict
from tests.faults.world import Design, Reply, Scenario

LEAST_RUNS = 600_000
MOST_CPU_S = 180.0
SHALLOW = {"ticks": 3, "passes": 1, "deaths": 1}
DEEP = {"ticks": 4, "passes": 2, "deaths": 1}
REPLIES = [(reply,) for reply in Reply] + [(Reply.LOST, Reply.LOST), (Reply.NOT_MADE, Reply.LOST)]
RELEASES = [(False, 0), (True, 0), (True, 1)]
"""Whether the user releases, and how many ticks a released lease is still shown."""

VISIBLE_AFTER = {  # ticks until a list shows what was made; past the settling time where nobody can ask
    Idempotency.TOKEN: (0, 1),
    Idempotency.TAG: (0, 1),
    Idempotency.NEITHER: (0, 3),
}


@pytest.fixture(autouse=True)
def _deep_searches() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(limit)


def scenarios(design: Design) -> Iterator[Scenario]:
    depth = DEEP if NIGHTLY and design is Design.SOUND else SHALLOW
    for idempotency, delays in VISIBLE_AFTER.items():
        for delay in delays:
            for replies in REPLIES if design is Design.SOUND else REPLIES[:1]:
                for releases, ends_after in RELEASES if design is Design.SOUND else RELEASES[:2]:
                    yield Scenario(idempotency, delay, ends_after, replies, releases, design, **depth)


def searched(design: Design) -> tuple[Verdict, float]:
    """All scenarios together, and the CPU time they took."""
    begun = time.process_time()
    found = [Search(scenario).verdict() for scenario in scenarios(design)]
    whole = Verdict(
        runs=sum(verdict.runs for verdict in found),
        wrong=sum(verdict.wrong for verdict in found),
        states=sum(verdict.states for verdict in found),
        example=next((verdict.example for verdict in found if verdict.wrong), ""),
    )
    took = time.process_time() - begun
    print(
        f"model check, {design}: {whole.runs:,} runs over {whole.states:,} states, "
        f"{whole.wrong:,} wrong ends, {took:.1f} s CPU"
    )
    return whole, took


def test_no_order_of_steps_ends_wrong() -> None:
    verdict, took = searched(Design.SOUND)
    assert verdict.wrong == 0, verdict.example
    assert verdict.runs >= LEAST_RUNS
    assert took < MOST_CPU_S


@pytest.mark.parametrize("design", [Design.NO_INTENT, Design.AGE_ONLY_SWEEP, Design.NO_FENCE])
def test_a_design_fault_is_found(design: Design) -> None:
    verdict, _ = searched(design)
    assert verdict.wrong > 0

"""A limit that counts work ends a search at the same step, however fast the machine is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from broker.domain.market.offer import Offer
from broker.domain.planning.workload import FleetLimits, Policy, Starts, Workload
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.placement import pipeline
from optimizer.placement.explain import fixes, trials
from optimizer.placement.explain.unplaced import explain_unplaced
from optimizer.placement.fleets.pool_search import SetSearch
from optimizer.placement.replan.warm import WarmStart
from optimizer.placement.runtime.stopwatch import ASK_S, CpuClock, Stopwatch, clock_of, never
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.solve import solve as plain_solve
from tests.placement.market import T0, offer, planner, request, serving, training

OFFERS = [offer(f"o{i}", f"{1 + i * 0.37:.2f}", nodes=2) for i in range(6)]
ASKED = request(
    *(training(f"r{i}", 6 + i) for i in range(4)), *(serving(f"s{i}", [1.0, 3.0, 2.0]) for i in range(4))
)


@pytest.mark.parametrize("limit_s", [0.03, 0.3, 3.0])
def test_equal_work_makes_equal_plans(limit_s: float) -> None:
    options = PlanOptions(limit_s, gap=0.0, baselines=False, limit_clock=LimitClock.WORK)
    first, second = (planner().plan(ASKED, OFFERS, T0, options) for _ in range(2))
    assert first == second
    assert first.solve_seconds == second.solve_seconds
    dearer = [
        replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour + i % 2) for i, o in enumerate(OFFERS)
    ]
    again = [planner().replan(ASKED, dearer, T0, options, WarmStart(first)) for _ in range(2)]
    assert again[0] == again[1]


def test_work_goes_on_with_questions_and_not_with_time() -> None:
    watch = Stopwatch(3 * ASK_S, clock_of(LimitClock.WORK))
    time.sleep(0.01)
    assert [watch.over() for _ in range(4)] == [False, False, True, True]
    assert watch.work_left() == 0.0
    assert Stopwatch(5.0, clock_of(LimitClock.WALL)).work_left() is None
    busy = Stopwatch(0.5, clock_of(LimitClock.CPU))
    time.sleep(0.2)
    assert busy.seconds < 0.1


class Hands:
    """Clocks by hand: seconds that passed, and those of the processor."""

    def __init__(self) -> None:
        self.passed_s = self.cpu_s = 100.0

    def go(self, passed_s: float, cpu_s: float) -> None:
        self.passed_s += passed_s
        self.cpu_s += cpu_s


def test_a_limit_of_cpu_time_waits_for_a_busy_machine_three_times_as_long_at_most() -> None:
    hands = Hands()
    clock = CpuClock(lambda: hands.cpu_s, lambda: hands.passed_s)
    watch = Stopwatch(10.0, clock)
    hands.go(4, 4)
    assert (watch.seconds, watch.left, clock.is_starved) == (4, 6, False)
    hands.go(8, 4)  # others have half of it
    assert (watch.seconds, watch.over(), clock.is_starved) == (8, False, False)
    hands.go(17.9, 0)  # and all of it
    assert (watch.over(), clock.is_starved) == (False, True)
    hands.go(0.2, 0)
    assert (watch.over(), watch.left) == (True, 0)
    assert clock.passed_s == pytest.approx(30.1)
    options = PlanOptions(10.0, label="plan-1")
    assert pipeline.limit_note(options, watch) == (
        "the time limit of 10 s, 30 s on a busy machine, ended the search; "
        "`broker plans plan-1 --continue` goes on from here"
    )


def test_threads_do_not_shorten_a_limit_of_cpu_time() -> None:
    hands = Hands()
    watch = Stopwatch(10.0, CpuClock(lambda: hands.cpu_s, lambda: hands.passed_s))
    hands.go(6, 12)
    assert watch.seconds == 6


MANY = [
    offer(f"o{i}", f"{1 + i * 0.01:.2f}", nodes=1, provider="lambda", region=f"r{i}", place=f"lambda/r{i}")
    for i in range(60)
]
"""A node at each of 60 places: two pools of the default limit serve 6 requests/s at most."""


def test_the_seconds_told_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by hand: telling what was left out takes 50 s, which the plan counts."""
    now_s = 0.0

    def told(*given: Any) -> Any:
        nonlocal now_s
        now_s += 50.0
        return explain_unplaced(*given)

    monkeypatch.setattr(pipeline, "clock_of", lambda _: lambda: now_s)
    monkeypatch.setattr(pipeline, "explain_unplaced", told)
    found = planner().plan(request(serving(hourly=[90.0])), MANY[:3], T0, PlanOptions(60.0, baselines=False))
    assert found.unplaced
    assert found.solve_seconds == 50.0


@pytest.mark.parametrize("serves", [False, True])
def test_a_plan_whose_time_is_over_tells_what_was_not_done(
    monkeypatch: pytest.MonkeyPatch, *, serves: bool
) -> None:
    """A clock by hand, which stands still until the search is over and then is past the limit."""
    now_s = 0.0

    def solve(search: Any) -> Any:
        nonlocal now_s
        found = plain_solve(search)
        now_s = 1000.0
        return found

    monkeypatch.setattr(pipeline, "clock_of", lambda _: lambda: now_s)
    monkeypatch.setattr(pipeline, "solve", solve)
    small: list[Workload] = [training(f"s{i:02}", 2, unplaced_usd=Decimal(5000)) for i in range(26)]
    small[-1] = serving("s25", unplaced_usd=Decimal(5000)) if serves else small[-1]
    large = [serving(f"z{i}", [9000.0], unplaced_usd=Decimal(1)) for i in range(8)]
    offers = [offer(f"o{i}", f"{1 + i * 0.01:.2f}", nodes=20) for i in range(3)]
    found = planner().plan(request(*small, *large), offers, T0, PlanOptions(60.0, 0.5, baselines=False))
    assert {p.workload for p in found.placements} == {one.name for one in small}
    assert len({p.workload for p in found.placements if not p.why.next_best}) == 6
    assert [note for note in found.notes if "time limit above" in note] == [
        f"next best ways were not looked for of 6 workloads{', nor what limits of fleets cost' * serves}; "
        "a time limit above 60 s has time for that",
        "changes that would let them in were not tried for 3 left-out workloads; "
        "a time limit above 60 s has time for that",
    ]
    assert len(found.unplaced) == 8
    assert all(one.nearest_fix for one in found.unplaced)


def left_out(offers: Sequence[Offer], count: int, limit_s: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many changes are tried for so many services that nothing carries."""
    opened = 0
    plain = trials.Trials.open

    def counted(self: Any, *given: Any) -> Any:
        nonlocal opened
        found = plain(self, *given)
        opened += found is not None
        return found

    with monkeypatch.context() as patched:
        patched.setattr(trials.Trials, "open", counted)
        asked = request(*(serving(f"s{i}", [500.0], zones=3, spare=1) for i in range(count)))
        options = PlanOptions(limit_s, baselines=False, limit_clock=LimitClock.WORK)
        assert len(planner().plan(asked, offers, T0, options).unplaced) == count
    return opened


def test_changes_are_tried_for_a_counted_share_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the limit, each left-out workload has its first few trials; a long one tries more."""
    short, long = (left_out(MANY, 3, limit_s, monkeypatch) for limit_s in (0.01, 300.0))
    assert short == 3 * TUNING.explain.least_trials
    assert long > short


def test_trying_a_change_proves_nothing_of_large_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial asks whether there is a way and at what cost; a proof of many nodes takes most of the work."""
    proofs = 0

    def refused(*_: Any) -> None:
        nonlocal proofs
        proofs += 1

    plain = fixes.Fixer.fixes

    def watched(self: Any, *given: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(SetSearch, "run", refused)
            return plain(self, *given)

    monkeypatch.setattr(fixes.Fixer, "fixes", watched)
    asked = request(serving(hourly=[9.0]))
    found = planner().plan(asked, MANY, T0, PlanOptions(30.0, baselines=False))
    assert [left.fixes != () for left in found.unplaced] == [True]
    assert not proofs


def test_only_first_fleets_on_few_pools_do_not_ask_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a plan is searched; those that tell of it have counted work, as sets of few pools have."""
    unlimited: list[bool] = []
    large: list[bool] = []
    plain_run = SetSearch.run

    def run(self: SetSearch) -> None:
        large.append(self.rules.pools > TUNING.fleets.term_pools)
        unlimited.append(self.out_of_time is never and large[-1])
        plain_run(self)

    def solve(search: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(SetSearch, "run", run)
            return plain_solve(search)

    monkeypatch.setattr(pipeline, "solve", solve)
    after_run = replace(serving("after", [2.0, 1.0]), starts=Starts("r0"))
    planner().plan(
        replace(ASKED, workloads=(*ASKED.workloads, after_run), policy=Policy(fleet=FleetLimits(4, 2))),
        OFFERS,
        T0,
        PlanOptions(6.0, 0.01, baselines=False),
    )
    assert any(large)
    assert not any(unlimited)

"""A new look always tries each workload elsewhere once; a guard alone cuts it off, and that is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal

import pytest

from broker.domain.planning.workload import FleetLimits, Policy, Starts
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.placement.replan.replan import Replanned
from optimizer.placement.replan.warm import WarmStart
from tests.placement.market import T0, offer, plan, planner, request, serving, total, training

OFFERS = [offer("a", "1.00"), offer("b", "1.10"), *(offer(f"c{i}", f"{1.2 + i / 10:.2f}") for i in range(4))]
ASKED = request(
    *(training(f"r{i}", 5 + i) for i in range(3)), *(serving(f"s{i}", [1.0, 3.0, 2.0]) for i in range(3))
)
OLD = plan(ASKED, OFFERS)
TRIPLED = [replace(o, price_usd_per_node_hour=Decimal("3.00")) if o.offer_id == "a" else o for o in OFFERS]
NAMES = {w.name for w in ASKED.workloads}


@dataclass
class Steps:
    """A wall clock that moves on by ``step_s`` whenever somebody reads it."""

    step_s: float
    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def look(wall: Callable[[], float], *, limit_s: float = 2.0, guard_s: float = 60.0) -> Replanned:
    options = PlanOptions(limit_s, 0.0, baselines=False, limit_clock=LimitClock.WORK, guard_s=guard_s)
    return planner(wall=wall).replan(ASKED, TRIPLED, T0, options, WarmStart(OLD))


def test_every_workload_leaves_a_price_that_tripled_whatever_the_limit() -> None:
    assert {p.offer_id for p in OLD.placements} == {"a"}
    found = look(Steps(0.0), limit_s=1e-6)
    assert found.moved == NAMES
    assert {p.offer_id for p in found.plan.placements} == {"b"}
    assert found.unfinished == ""


def test_fleets_on_many_pools_leave_it_too() -> None:
    """Their exact search may be long, so the first repair takes a coarse one."""
    asked = replace(ASKED, policy=Policy(fleet=FleetLimits(6, 2)))
    old = plan(asked, OFFERS)
    options = PlanOptions(1e-6, 0.0, baselines=False, limit_clock=LimitClock.WORK)
    found = planner().replan(asked, TRIPLED, T0, options, WarmStart(old))
    assert found.moved == NAMES
    assert total(found.plan) <= total(old) * Decimal("1.3")


def test_frozen_workloads_stay_and_their_followers_are_tried() -> None:
    follower = replace(serving("next", [2.0]), starts=Starts("r0"))
    asked = replace(ASKED, workloads=(*ASKED.workloads, follower))
    old = plan(asked, OFFERS)
    options = PlanOptions(1e-6, 0.0, baselines=False, limit_clock=LimitClock.WORK)
    warm = WarmStart(old, frozen=frozenset({"r0", "s1"}))
    found = planner().replan(asked, TRIPLED, T0, options, warm)
    assert {p.offer_id for name in ("r0", "s1") for p in found.plan.placements_of(name)} == {"a"}
    assert "next" in found.moved


def test_a_time_that_is_over_at_once_is_told_and_never_taken_for_an_answer() -> None:
    found = look(Steps(100.0))
    assert found.unfinished == "6 of 6 workloads and what waits for them were not tried elsewhere"
    assert not found.moved
    again = look(Steps(100.0), guard_s=1e9)
    assert again.unfinished == ""
    assert again.moved == NAMES


def test_a_counted_limit_makes_the_same_plan_however_slow_the_clock() -> None:
    alone, busy = look(Steps(0.0)), look(Steps(5.0), guard_s=1e9)
    assert (busy.unfinished, alone.unfinished) == ("", "")
    assert busy.plan == alone.plan


@pytest.mark.parametrize("end", [8, 12, 16, 24, 32, 48, 64, 128, 100_000])
def test_what_a_guard_leaves_is_told_at_any_instant(end: int) -> None:
    """Ended after so many readings, a look says that it is unfinished unless it is the undisturbed plan."""
    alone, found = look(Steps(0.0)), look(Steps(1.0), guard_s=float(end))
    if not found.unfinished:
        assert found.plan == alone.plan
    assert (total(found.plan) >= total(alone.plan)) or found.unfinished
    if end == 100_000:
        assert not found.unfinished
    if end == 8:
        assert "were not tried elsewhere" in found.unfinished

"""A document that cannot be planned in its limit is refused, with a limit that would do."""

from __future__ import annotations

import pytest

from broker.domain.basics.errors import InputError
from broker.domain.planning.planning_time import ALWAYS_PLANNED_WORKLOADS, require_time
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.placement.columns.fleet_pool import first_fleets
from optimizer.placement.pipeline import pace_of
from optimizer.placement.runtime.stopwatch import Pace, Stopwatch, WorkClock
from optimizer.placement.runtime.tuning import TUNING
from tests.placement.market import offer, plan, request, serving
from tests.placement.test_hourly_bound import candidates_of

OFFERS = [offer(f"o{i}", f"{1 + i / 100:.2f}", region=f"r{i}", nodes=50) for i in range(100)]


def many(count: int) -> PlanRequest:
    """So many small services."""
    return request(*(serving(f"chat-{i}", hourly=(1.0 + i / count,)) for i in range(count)), hours=4)


class Scripted:
    """A clock on which every question takes so long."""

    def __init__(self, step_s: float) -> None:
        self.step_s, self.now_s = step_s, 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_too_short_a_limit_is_refused_before_anything_is_done() -> None:
    with pytest.raises(InputError) as refused:
        plan(many(400), OFFERS, time_limit_s=2.0)
    (problem,) = refused.value.problems
    assert str(problem) == (
        "/time_limit_s: found 2 s for 400 workloads, "
        "expected at least 10 s, or a document with fewer workloads"
    )


def test_a_small_document_is_planned_in_any_limit() -> None:
    require_time(ALWAYS_PLANNED_WORKLOADS, 0.0)
    require_time(5_000, 100.0)
    with pytest.raises(InputError):
        require_time(5_000, 99.0)


@pytest.mark.parametrize("step_s", [0.5, 3.0])
def test_a_pace_that_is_too_slow_ends_the_search_for_a_first_plan(step_s: float) -> None:
    """120 services, each in a step of so long, have 100 s: at 3 s each the twentieth shows that it is not
    enough."""
    found = candidates_of(many(120), OFFERS)
    clock = Scripted(step_s)
    pace = Pace(Stopwatch(100.0, clock), 100.0, latest_s=100.0, then_s=10.0, workloads=120)

    def search() -> int:
        return len(first_fleets(found, {}, {}, lambda: True, quick=True, pace=pace))

    if step_s < 1:
        assert search() == 120
        return
    with pytest.raises(InputError, match=r"found 100 s for 120 workloads, expected at least 450 s"):
        search()
    assert clock.now_s == (TUNING.runtime.measured_steps + 2) * step_s


def test_hurried_fleets_serve_as_well_and_cost_little_more() -> None:
    found = candidates_of(many(30), OFFERS)

    def usd(*, hurried: bool) -> float:
        made = first_fleets(found, {}, {}, lambda: hurried, quick=True)
        assert {column.workload for column in made} == {f"chat-{i}" for i in range(30)}
        cheapest: dict[str, int] = {}
        for column in made:
            cheapest[column.workload] = min(column.total_cents, cheapest.get(column.workload, 10**12))
        return sum(cheapest.values()) / 100

    assert usd(hurried=False) <= usd(hurried=True) <= 1.2 * usd(hurried=False)


def test_counted_work_has_no_pace() -> None:
    watch = Stopwatch(60.0, WorkClock())
    asked = PlanOptions(time_limit_s=60.0, limit_clock=LimitClock.WORK)
    assert pace_of(many(200), asked, watch) is None
    assert pace_of(many(200), PlanOptions(time_limit_s=60.0), Stopwatch(60.0)) is not None
    assert pace_of(many(5), PlanOptions(time_limit_s=60.0), Stopwatch(60.0)) is None

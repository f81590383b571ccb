"""A search that its limit ended goes on from its plan and its bound."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from hypothesis import given
from hypothesis import strategies as st

from api.planning.planning_call import plan_call, replan_call
from broker.domain.planning.plan import Plan, PlanStatus
from broker.ports.planning import InForce, LimitClock, PlanOptions
from optimizer.placement.columns.carried import Past
from optimizer.placement.pipeline import LIMIT_NOTE
from optimizer.placement.problem.columns import in_cents
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.replan.replan import _no_dearer
from optimizer.placement.replan.warm import WarmStart
from tests.fakes.clock import NOON
from tests.placement.market import T0, offer, planner, request, serving, training
from tests.placement.test_replan import PROFILE, companies
from tests.services.test_later_refusals import a_gpu, chat

if TYPE_CHECKING:
    from optimizer.placement.columns.search import Search

OFFERS = [offer(f"o{i}", f"{1 + i * 0.37:.2f}", nodes=2) for i in range(6)]
ASKED = request(
    *(training(f"r{i}", 6 + i, unplaced_usd=Decimal(90)) for i in range(4)),
    *(serving(f"s{i}", [1.0, 3.0, 2.0], unplaced_usd=Decimal(400)) for i in range(4)),
)
SHORT = PlanOptions(0.03, gap=0.0, limit_clock=LimitClock.WORK, label="plan-1")


@PROFILE
@given(companies(), st.sampled_from([0.003, 0.03, 0.3]))
def test_on_the_same_market_nothing_gets_worse(company: tuple, limit_s: float) -> None:  # type: ignore[type-arg]
    asked, offers = company
    options = replace(SHORT, time_limit_s=limit_s)
    old = planner().plan(asked, offers, T0, options)
    warm = WarmStart(old, past=Past(asked, offers), is_continued=True)
    new = planner().replan(asked, offers, T0, options, warm).plan
    if old.bound_usd is None:
        return
    assert new.bound_usd is not None
    assert new.objective_usd <= old.objective_usd
    assert new.bound_usd >= old.bound_usd
    assert new.bound_usd <= new.objective_usd


def test_a_limit_that_ends_a_search_is_told_with_the_way_on() -> None:
    old = planner().plan(ASKED, OFFERS, T0, SHORT)
    assert old.status is PlanStatus.FEASIBLE
    way = "ended the search; `broker plans plan-1 --continue` goes on from here"
    assert [n for n in old.notes if n.startswith(LIMIT_NOTE)] == [f"the time limit of 0.03 s {way}"]
    alone = planner().plan(ASKED, OFFERS, T0, replace(SHORT, label=""))
    assert alone.notes[-1].endswith("ended the search; a longer limit may prove or save more")


def continued(limit_s: float) -> Plan:
    old = planner().plan(ASKED, OFFERS, T0, SHORT)
    warm = WarmStart(old, past=Past(ASKED, OFFERS), is_continued=True)
    options = replace(SHORT, time_limit_s=limit_s, label="plan-2")
    return planner().replan(ASKED, OFFERS, T0, options, warm).plan


def test_a_longer_search_tells_the_same_as_one_that_was_never_stopped() -> None:
    found = continued(60.0)
    whole = planner().plan(ASKED, OFFERS, T0, replace(SHORT, time_limit_s=60.0))
    assert found.cost_usd == whole.cost_usd
    assert [row.name for row in found.baselines] == [row.name for row in whole.baselines]
    assert not any(note.startswith(LIMIT_NOTE) for note in found.notes)


def test_a_dearer_end_leaves_the_plan_as_it_was_with_the_bound_of_the_search() -> None:
    old = planner().plan(ASKED, OFFERS, T0, SHORT)
    assert old.bound_usd is not None
    dearer = replace(old, plan_id="plan-new", cost_usd=old.cost_usd + 5, solve_seconds=2.0)
    bound_usd = old.bound_usd + Decimal("0.25")
    candidates = SimpleNamespace(problem=build_problem(ASKED, OFFERS, T0))
    search = cast("Search", SimpleNamespace(candidates=candidates, bound_cents=in_cents(bound_usd)))
    warm = WarmStart(old, past=Past(ASKED, OFFERS), is_continued=True)
    kept = _no_dearer(dearer, search, warm, SHORT)
    assert (kept.placements, kept.cost_usd, kept.bound_usd) == (old.placements, old.cost_usd, bound_usd)
    assert (kept.plan_id, kept.solve_seconds) == ("plan-new", 2.0)
    assert not any(note.startswith(LIMIT_NOTE) for note in kept.notes)
    # On another market the old plan says nothing of today's.
    assert _no_dearer(dearer, search, replace(warm, past=None), SHORT) is dearer


def test_the_planner_s_process_continues_a_plan() -> None:
    asked, offers = chat(), (a_gpu("a", "2.50"), a_gpu("b", "2.00"))
    options = PlanOptions(5.0, baselines=False)
    old = plan_call(asked, offers, NOON, options)
    new = replan_call(asked, offers, NOON, options, InForce(old, is_continued=True, same_market=True)).plan
    assert (new.cost_usd, new.status) == (old.cost_usd, old.status)
    assert new.bound_usd is not None
    assert old.bound_usd is not None
    assert new.bound_usd >= old.bound_usd

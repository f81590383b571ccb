"""A search that its limit ended goes on from its plan and its bound."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.planning.plan import PlanStatus
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.placement.columns.carried import Past
from optimizer.placement.pipeline import LIMIT_NOTE
from optimizer.placement.replan.replan import Replanned
from optimizer.placement.replan.warm import WarmStart
from tests.placement.market import T0, offer, planner, request, serving, training
from tests.placement.test_replan import PROFILE, companies

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


def continued(limit_s: float) -> tuple[Replanned, object]:
    old = planner().plan(ASKED, OFFERS, T0, SHORT)
    warm = WarmStart(old, past=Past(ASKED, OFFERS), is_continued=True)
    options = replace(SHORT, time_limit_s=limit_s, label="plan-2")
    return planner().replan(ASKED, OFFERS, T0, options, warm), old


def test_a_longer_search_tells_the_same_as_one_that_was_never_stopped() -> None:
    found, _ = continued(60.0)
    whole = planner().plan(ASKED, OFFERS, T0, replace(SHORT, time_limit_s=60.0))
    assert found.plan.cost_usd == whole.cost_usd
    assert [row.name for row in found.plan.baselines] == [row.name for row in whole.baselines]
    assert not any(note.startswith(LIMIT_NOTE) for note in found.plan.notes)

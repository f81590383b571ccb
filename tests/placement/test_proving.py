"""What is proven while a plan is told, and what is asked on at prices where time was short."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import pytest

from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan, PlanStatus
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions
from optimizer.placement.columns.candidates import build_candidates
from optimizer.placement.columns.column_pool import ColumnPool
from optimizer.placement.columns.dual import Dual
from optimizer.placement.columns.prices import Row, StockPrices
from optimizer.placement.columns.proving import Proving
from optimizer.placement.columns.search import Search
from optimizer.placement.pipeline import proven_on
from optimizer.placement.runtime.stopwatch import Stopwatch, never
from tests.placement.market import plan, weekly
from tests.placement.test_shared_bound import candidates_of

CROWD = 8
OPTIONS = PlanOptions(time_limit_s=30.0, gap=0.01, baselines=False)


def search_of(asked: PlanRequest, offers: list[Offer], seconds: float = 30.0) -> Search:
    return Search(candidates_of(asked, offers), Stopwatch(seconds), OPTIONS.gap, 1)


def proving_of(search: Search) -> Proving:
    """Towards a price of the cheapest commitment, of which everybody wants all that there is."""
    aim = StockPrices({Row(search.candidates.problem.index_of[("week", None, None)]): 0.2})
    pool, dual = ColumnPool(search.candidates.problem), Dual(search.candidates, {})
    return Proving(search, pool, dual, aim, CROWD)


@dataclass
class Later:
    """A proof that raises the bound by so much when it goes on."""

    search: Search
    cents: int
    remembered: bool = False

    def prove_in_background(self) -> None:
        raise AssertionError("nobody is idle here")

    def prove_on(self) -> None:
        self.search.bound_cents += self.cents
        self.search.prices = StockPrices({Row(0): 0.5})

    def remember(self) -> None:
        self.remembered = True


def told() -> tuple[Plan, Search]:
    asked, offers = weekly(2)
    found = plan(asked, offers, time_limit_s=30.0, gap=0.5)
    search = search_of(asked, offers)
    assert found.bound_usd is not None
    search.bound_cents = int(found.bound_usd * 100)
    return found, search


def test_what_is_proven_later_is_told() -> None:
    found, search = told()
    assert found.bound_usd is not None
    open_cents = int((found.cost_usd + found.penalty_usd) * 100) - search.bound_cents
    search.proof = later = Later(search, open_cents // 2)
    better = proven_on(found, search, OPTIONS, Stopwatch(30.0))
    assert better.bound_usd == found.bound_usd + Decimal(open_cents // 2) / 100
    assert better.gap == pytest.approx((found.gap or 0.0) / 2, rel=0.05)
    assert (better.cost_usd, better.placements) == (found.cost_usd, found.placements)
    assert better.scarcity_usd_per_node_hour == {"dearer": 0.5}
    assert later.remembered


def test_a_plan_without_a_bound_teaches_the_next_search_all_the_same() -> None:
    found, search = told()
    search.proof = later = Later(search, 100)
    missing = replace(found, bound_usd=None, gap=None, status=PlanStatus.INFEASIBLE)
    assert proven_on(missing, search, OPTIONS, Stopwatch(30.0)) is missing
    assert later.remembered


def test_no_later_bound_passes_the_plan() -> None:
    found, search = told()
    search.proof = Later(search, 10**9)
    better = proven_on(found, search, OPTIONS, Stopwatch(30.0))
    assert better.bound_usd == found.cost_usd + found.penalty_usd
    assert (better.gap, better.status) == (0.0, PlanStatus.OPTIMAL)


def test_a_search_without_rounds_has_nothing_to_add() -> None:
    found, search = told()
    assert proven_on(found, search, OPTIONS, Stopwatch(30.0)) is found


def test_what_was_not_asked_at_the_best_prices_is_asked_on() -> None:
    """A search that had no time for bounds knows what hours cost alone; later it asks for them."""
    asked, offers = weekly(CROWD)
    optional = tuple(replace(service, unplaced_usd=Decimal(5000)) for service in asked.workloads)
    search = search_of(replace(asked, workloads=optional), offers)
    candidates = build_candidates(search.candidates.problem, search.candidates.estimates)
    proof = proving_of(Search(candidates, Stopwatch(30.0), OPTIONS.gap, 1))
    prices, by_hours_usd = proof.centre.prices, proof.centre.total_usd
    proof.ask_on(never)
    assert proof.centre.prices is prices
    assert proof.centre.total_usd == pytest.approx(proving_of(search).centre.total_usd)
    assert proof.centre.total_usd > by_hours_usd > 0
    assert candidates.bounded == candidates.fleets.keys()


def test_prices_that_not_all_was_asked_at_are_asked_on() -> None:
    """Cut after the first answer, then finished when the plan was told."""
    search = search_of(*weekly(CROWD))
    proof = proving_of(search)
    answers = iter([False, False, True])
    assert not proof.prove_next(lambda: next(answers, True))
    cut = proof.centre.total_usd
    proof.prove_on()
    assert proof.centre.total_usd > cut
    assert all(proof.dual.is_answered(name, proof.centre.prices) for name in proof.candidates.fleets)
    assert search.bound_cents == proof.centre.cents

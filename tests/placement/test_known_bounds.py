"""What an earlier search proved holds later only as far as the market allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Stock
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Providers
from broker.ports.planning import PlanOptions
from optimizer.memo_cache import MOST_KINDS, MemoCache
from optimizer.performance.estimator import Estimator
from optimizer.placement.columns.candidates import Candidates, build_candidates
from optimizer.placement.columns.known_bounds import carry
from optimizer.placement.fleets.bound import FleetBound
from optimizer.placement.pipeline import make_plan
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.replan.warm import WarmStart
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, plan, planner, request, serving, total
from tests.placement.test_replan import companies

OPTIONS = PlanOptions(time_limit_s=20.0, gap=0.0, baselines=False)
CORE = cast("Estimator", FakeEstimator())
FACTORS = st.lists(st.sampled_from(["0.5", "0.8", "1.0", "1.0", "1.3"]), min_size=4, max_size=4)


def first_plan(asked: PlanRequest, offers: Sequence[Offer], memo: MemoCache) -> Plan:
    """A plan whose proofs ``memo`` keeps."""
    return make_plan(asked, offers, T0, OPTIONS, CORE, MovingTerms(), None, memo)


def carried(asked: PlanRequest, offers: Sequence[Offer], memo: MemoCache) -> Candidates:
    """Candidates of a later search with what still holds."""
    problem = build_problem(asked, offers, T0, MovingTerms(), memo)
    candidates = build_candidates(problem, build_estimates(problem, CORE))
    carry(candidates)
    return candidates


def least_usd(bound: FleetBound) -> float:
    """What is known of the one start of a service."""
    return max((usd for _, usd in bound.starts), default=0.0)


def repriced(offers: Sequence[Offer], factors: Sequence[str]) -> list[Offer]:
    return [
        replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour * Decimal(factor))
        for o, factor in zip(offers, factors, strict=False)
    ]


@settings(max_examples=12, derandomize=True, deadline=None)
@given(companies(), FACTORS)
def test_what_is_carried_over_is_no_more_than_a_service_costs_today(
    company: tuple[PlanRequest, list[Offer]], factors: list[str]
) -> None:
    asked, offers = company
    memo, now = MemoCache(), repriced(offers, factors)
    first_plan(asked, offers, memo)
    found = carried(asked, now, memo)
    for service in asked.workloads:
        if service.name in found.bounds:
            alone = plan(request(replace(service, unplaced_usd=None)), now)
            if not alone.unplaced:
                assert least_usd(found.bounds[service.name]) <= float(total(alone)) + 0.005


@settings(max_examples=7, derandomize=True, deadline=None)
@given(companies(), FACTORS)
def test_a_planner_that_remembers_proves_no_more_than_is_true(
    company: tuple[PlanRequest, list[Offer]], factors: list[str]
) -> None:
    asked, offers = company
    now, mind = repriced(offers, factors), planner()
    old = mind.plan(asked, offers, T0, OPTIONS)
    again = mind.replan(asked, now, T0, OPTIONS, WarmStart(old)).plan
    fresh = plan(asked, now)
    assert again.bound_usd is not None
    assert fresh.bound_usd is not None
    assert again.bound_usd <= total(fresh)
    assert fresh.bound_usd <= total(again)


def test_what_did_not_move_need_not_be_asked_again() -> None:
    offers = [offer("a", "1.00"), offer("b", "1.10")]
    asked, memo = request(serving("x", [3.0]), serving("y", [1.0])), MemoCache()
    old = first_plan(asked, offers, memo)
    found = carried(asked, [replace(o) for o in offers], memo)
    assert found.bounded == {"x", "y"}
    assert sum(least_usd(bound) for bound in found.bounds.values()) == pytest.approx(float(total(old)))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"price_usd_per_node_hour": Decimal("0.50")}, 0.5),
        ({"price_usd_per_node_hour": Decimal("1.50")}, 1.0),
        ({"stock": Stock(nodes=9)}, 0.0),
        ({"offer_id": "new"}, 0.0),
    ],
)
def test_how_much_holds_after_a_change(change: dict[str, object], part: float) -> None:
    one, asked, memo = offer("a", "1.00", nodes=3), request(serving("x", [3.0])), MemoCache()
    old = first_plan(asked, [one], memo)
    found = carried(asked, [replace(one, **change)], memo)  # type: ignore[arg-type]
    assert least_usd(found.bounds["x"]) == pytest.approx(part * float(total(old)))
    assert not found.bounded


def test_another_service_or_another_time_is_not_the_same() -> None:
    one, memo = offer("a", "1.00"), MemoCache()
    asked = request(serving("x", [3.0]))
    first_plan(asked, [one], memo)
    assert least_usd(carried(request(serving("x", [2.0])), [one], memo).bounds["x"]) == 0.0
    rules = replace(asked, policy=replace(asked.policy, providers=Providers(exclude=("z",))))
    assert least_usd(carried(rules, [one], memo).bounds["x"]) == 0.0


def test_recall_keeps_what_was_used_last() -> None:
    memo = MemoCache(most=2)
    made: list[int] = []

    def ask(question: int) -> int:
        def answer() -> int:
            made.append(question)
            return 10 * question

        return memo.once(question, answer)

    assert [ask(n) for n in (1, 2, 1, 3, 1, 2)] == [10, 20, 10, 30, 10, 20]
    assert made == [1, 2, 3, 2]
    for kind in range(MOST_KINDS + 1):
        memo.keep(kind, kind)
    assert memo.kept(0, int) is None
    assert memo.kept(1, int) == 1
    assert memo.kept(1, str) is None

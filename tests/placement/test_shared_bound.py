"""The bound over shared stock against enumeration: at any prices it is below every plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.workload import NO_LIMIT, FleetLimits, PlanRequest
from optimizer.performance.estimator import Estimator
from optimizer.placement.columns.candidates import Candidates, build_candidates
from optimizer.placement.columns.dual import Dual
from optimizer.placement.columns.prices import WHOLE_HORIZON, Row, StockPrices
from optimizer.placement.columns.run_pool import build_run_pools
from optimizer.placement.problem.columns import Column, Piece
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import build_problem
from tests.depth import examples
from tests.placement.brute_force import Spans, best_total, ways_of
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, at, offer, request, serving, training

PROFILE = settings(max_examples=examples(25), derandomize=True, deadline=None)


def candidates_of(asked: PlanRequest, offers: Sequence[Offer]) -> Candidates:
    problem = build_problem(asked, offers, T0)
    estimates = build_estimates(problem, cast("Estimator", FakeEstimator()))
    return build_candidates(problem, estimates, lambda: False)


def bound_usd(candidates: Candidates, prices: StockPrices) -> float:
    dual = Dual(candidates, build_run_pools(candidates))
    return dual.evaluate(prices, {}, 0.0, lambda: False).total_usd


@st.composite
def shared_problems(draw: st.DrawFn) -> tuple[PlanRequest, list[Offer]]:
    """Two services and a run over two offers with one or two nodes; commitments of every length."""
    demands = st.sampled_from([0.0, 0.0, 1.0, 2.5, 4.0, 6.0])
    services = [
        serving(
            f"s{i}",
            draw(st.lists(demands, min_size=4, max_size=4)),
            zones=draw(st.integers(1, 2)) if i == 0 else 1,
            spare=draw(st.integers(0, 1)),
            unplaced_usd=draw(st.sampled_from([Decimal("9.00"), Decimal("40.00")])),
        )
        for i in range(draw(st.integers(1, 2)))
    ]
    run = training("r", draw(st.sampled_from([1, 2])), deadline=at(4), unplaced_usd=Decimal("3.00"))
    offers = []
    for i in range(2):
        terms: dict[str, Any] = {"min_hours": draw(st.sampled_from([0.0, 0.0, 2.0, 4.0, 6.0]))}
        terms |= {"tier": Tier.COMMITTED if terms["min_hours"] else Tier.ON_DEMAND}
        price = draw(st.sampled_from(["0.50", "0.90", "1.37", "2.00", "3.10"]))
        zone = draw(st.sampled_from(["a", "b"]))
        gpu = draw(st.sampled_from(["BIG", "MID", "TINY"]))
        offers.append(offer(f"o{i}", price, gpu=gpu, nodes=draw(st.integers(1, 2)), zone=zone, **terms))
    lasting = [*services, run] if draw(st.booleans()) else services
    return request(*lasting, hours=4), offers


@st.composite
def stock_prices(draw: st.DrawFn) -> StockPrices:
    usd: dict[Row, float] = {}
    for index in range(2):
        usd[Row(index, WHOLE_HORIZON)] = draw(st.sampled_from([0.0, 0.05, 0.3, 0.9, 2.5]))
        usd[Row(index, draw(st.integers(0, 4 * 3600 - 1)))] = draw(st.sampled_from([0.0, 0.4, 2.0]))
    return StockPrices(usd)


@PROFILE
@given(shared_problems(), stock_prices())
def test_no_prices_prove_more_than_the_optimum(
    problem: tuple[PlanRequest, list[Offer]], prices: StockPrices
) -> None:
    asked, offers = problem
    best = best_total(asked, offers)
    assert best is not None
    assert bound_usd(candidates_of(asked, offers), prices) <= float(best) + 1e-6


@pytest.mark.parametrize("pools", [3, NO_LIMIT])
def test_a_dual_price_proves_that_one_node_cannot_serve_two(pools: int) -> None:
    """Two services of one node each for eight hours, one node at $0.50 and enough at $1.10. At a price of
    $0.60 on the first both nodes cost the same: 2 x 8.80, less 4.80 for the one that there is."""
    offers = [
        offer("scarce", "0.50", nodes=1, billing_increment_s=3600),
        *(offer(f"o{zone}", "1.10", zone=zone, billing_increment_s=3600) for zone in "abcde"),
    ]
    services = [serving(f"s{i}", [4.0], fleet=FleetLimits(pools, NO_LIMIT)) for i in range(2)]
    candidates = candidates_of(request(*services, hours=8), offers)
    assert bound_usd(candidates, StockPrices()) == pytest.approx(2 * 4.0, abs=0.1)
    prices = StockPrices({Row(candidates.problem.index_of[("scarce", None, None)]): 0.6})
    assert bound_usd(candidates, prices) == pytest.approx(2 * 8.8 - 4.8, abs=0.1)


@PROFILE
@given(shared_problems(), stock_prices())
def test_one_service_at_prices_costs_no_less_than_its_bound(
    problem: tuple[PlanRequest, list[Offer]], prices: StockPrices
) -> None:
    """Without the stock's worth: the least that is said of each service, against every fleet of it."""
    asked, offers = problem
    alone = replace(asked, workloads=asked.workloads[:1])
    candidates = candidates_of(alone, offers)
    told = Dual(candidates, {}).evaluate(prices, {}, 0.0, lambda: False).least_usd["s0"]
    priced = [float(cost) + charge(candidates, prices, held) for cost, held in service_ways(alone, offers)]
    assert told <= min(priced) + 1e-6


def service_ways(asked: PlanRequest, offers: Sequence[Offer]) -> list[tuple[Decimal, dict[int, Spans]]]:
    return list(ways_of(asked, offers, asked.workloads[0]))


def charge(candidates: Candidates, prices: StockPrices, held: dict[int, Spans]) -> float:
    pieces = tuple(
        Piece(o, 0, tuple((round(a * 3600), round(b * 3600), n) for a, b, n in spans), 0)
        for o, spans in held.items()
    )
    return prices.charge_usd(candidates.problem, Column("s0", pieces, 0))


def test_a_commitment_that_serves_one_half_dodges_its_price() -> None:
    """Owed $2 and not held at the middle: no dual price may make it dearer."""
    offers = [
        offer("o0", "0.50", nodes=1, tier=Tier.COMMITTED, min_hours=4.0),
        offer("o1", "3.10", nodes=1),
    ]
    asked = request(serving("s0", [4.0, 4.0, 0.0, 0.0]), hours=4)
    prices = StockPrices({Row(0): 2.5})
    dual = Dual(candidates_of(asked, offers), {})
    assert dual.evaluate(prices, {}, 0.0, lambda: False).least_usd["s0"] <= 2.0

"""Planning again from a plan that stands: it stays where nothing changed, and moves only for a saving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Stock, Tier
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions, Progress
from optimizer.placement.columns.carried import Past, carried_bound_usd, recosted_usd
from optimizer.placement.problem.problem import Problem
from optimizer.placement.replan.replan import Replanned
from optimizer.placement.replan.warm import WarmStart
from optimizer.placement.workers.worker_pool import WorkerPool
from tests.depth import examples
from tests.placement.market import T0, at, offer, plan, planner, request, serving, total, training

PROFILE = settings(max_examples=examples(6), derandomize=True, deadline=None)


def again(
    asked: PlanRequest, offers: Sequence[Offer], old: Plan, seen: list[Progress] | None = None, **warm: Any
) -> Replanned:
    options = PlanOptions(time_limit_s=120.0, gap=0.0, baselines=False)
    told = None if seen is None else seen.append
    return planner().replan(asked, offers, T0, options, WarmStart(old, **warm), told)


def dearer(offers: Sequence[Offer], offer_id: str, usd: str) -> list[Offer]:
    return [replace(o, price_usd_per_node_hour=Decimal(usd)) if o.offer_id == offer_id else o for o in offers]


@st.composite
def companies(draw: st.DrawFn) -> tuple[PlanRequest, list[Offer]]:
    prices = st.sampled_from(["0.50", "0.90", "1.37", "2.00", "3.10"])
    offers = [
        offer(f"o{i}", draw(prices), nodes=draw(st.integers(1, 3)), zone=draw(st.sampled_from(["a", "b"])))
        for i in range(draw(st.integers(2, 4)))
    ]
    if draw(st.booleans()):
        offers[0] = replace(offers[0], tier=Tier.COMMITTED, min_hours=48.0)
    runs = [training(f"r{i}", draw(st.integers(2, 9)), unplaced_usd=Decimal("90")) for i in range(2)]
    services = [
        serving(
            f"s{i}",
            draw(st.lists(st.sampled_from([1.0, 3.0, 6.0]), min_size=3, max_size=3)),
            zones=draw(st.integers(1, 2)),
            unplaced_usd=Decimal("400"),
        )
        for i in range(2)
    ]
    return request(*runs, *services), offers


@PROFILE
@given(companies())
def test_an_unchanged_market_changes_nothing(company: tuple[PlanRequest, list[Offer]]) -> None:
    asked, offers = company
    old = plan(asked, offers)
    found = again(asked, offers, old)
    assert total(found.plan) <= total(old)
    if total(found.plan) == total(old):
        assert not found.moved
        assert [p.segments for p in found.plan.placements] == [p.segments for p in old.placements]


@PROFILE
@given(companies(), st.sampled_from(["0.30", "1.00", "4.00"]), st.integers(0, 3))
def test_the_new_plan_is_never_dearer_than_staying(
    company: tuple[PlanRequest, list[Offer]], usd: str, which: int
) -> None:
    asked, offers = company
    old = plan(asked, offers)
    now = dearer(offers, f"o{which % len(offers)}", usd)
    seen: list[Progress] = []
    found = again(asked, now, old, seen)
    first = next(p for p in seen if p.stage == "re-costed" and p.incumbent_usd is not None)
    assert first.incumbent_usd is not None
    assert float(total(found.plan)) <= first.incumbent_usd + 0.005
    assert found.plan.bound_usd is not None
    assert found.plan.bound_usd <= total(found.plan)


def test_leaving_costs_hold_a_workload_until_the_saving_is_larger() -> None:
    offers = [offer("a", "1.00"), offer("b", "1.10")]
    asked = request(serving(hourly=[3.0]))
    old = plan(asked, offers)
    now = dearer(offers, "a", "1.30")
    moved = again(asked, now, old)
    assert {p.offer_id for p in moved.plan.placements} == {"b"}
    assert moved.moved == {"chat"}
    stays = again(asked, now, old, leaving_usd={"chat": Decimal("9.61")})
    assert {p.offer_id for p in stays.plan.placements} == {"a"}
    assert stays.kept == {"chat"}
    assert stays.plan.cost_usd == Decimal("62.40")
    assert stays.plan.penalty_usd == 0
    leaves = again(asked, now, old, leaving_usd={"chat": Decimal("9.59")})
    assert {p.offer_id for p in leaves.plan.placements} == {"b"}
    assert leaves.plan.cost_usd == Decimal("52.80")
    assert leaves.plan.penalty_usd == 0


def test_what_starts_before_the_frozen_instant_stays() -> None:
    offers = [offer("a", "1.00"), offer("b", "1.10")]
    asked = request(training("soon", 5), training("late", 5, earliest_start=at(20)))
    old = plan(asked, offers)
    found = again(asked, dearer(offers, "a", "2.00"), old, frozen_before=at(10))
    assert [p.offer_id for p in found.plan.placements_of("soon")] == ["a"]
    assert [p.offer_id for p in found.plan.placements_of("late")] == ["b"]


def test_a_running_service_is_not_frozen() -> None:
    offers = [offer("a", "1.00"), offer("b", "1.10")]
    asked = request(serving(hourly=[3.0]))
    found = again(asked, dearer(offers, "a", "2.00"), plan(asked, offers), frozen_before=at(10))
    assert {p.offer_id for p in found.plan.placements} == {"b"}


def test_what_can_no_longer_stand_is_placed_anew() -> None:
    offers = [offer("a", "1.00", nodes=2), offer("b", "1.10"), offer("c", "1.20")]
    asked = request(training("one", 5), training("two", 5), serving(hourly=[3.0]))
    old = plan(asked, offers)
    gone = [replace(o, stock=Stock(nodes=1)) if o.offer_id == "a" else o for o in offers if o.offer_id != "b"]
    found = again(asked, gone, old)
    assert not found.plan.unplaced
    assert {p.offer_id for p in found.plan.placements} == {"a", "c"}


def test_dual_prices_of_the_last_search_prove_at_once() -> None:
    offers = [offer("cheap", "1.00", nodes=1), offer("dear", "3.00")]
    asked = request(serving("x", [3.0]), serving("y", [3.0]))
    old = plan(asked, offers)
    assert old.scarcity_usd_per_node_hour == pytest.approx({"cheap": 2.0}, abs=1e-3)
    seen: list[Progress] = []
    found = again(asked, offers, old, seen)
    assert found.plan.cost_usd == Decimal("192.00")
    first = next(p for p in seen if p.stage == "bounded")
    assert first.bound_usd is not None
    assert 191.9 <= first.bound_usd <= 192.0


@PROFILE
@given(companies(), st.lists(st.sampled_from(["0.7", "0.95", "1.0", "1.2"]), min_size=4, max_size=4))
def test_the_bound_carried_over_is_below_what_is_proven_anew(
    company: tuple[PlanRequest, list[Offer]], factors: list[str]
) -> None:
    asked, offers = company
    old = plan(asked, offers)
    now = [
        replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour * Decimal(factor))
        for o, factor in zip(offers, factors, strict=False)
    ]
    carried = carried_bound_usd(old, Past(asked, offers), asked, now, T0)
    assert carried <= total(plan(asked, now))
    assert carried > 0 or old.bound_usd == 0


def test_a_bound_is_not_carried_over_to_another_market_or_request() -> None:
    offers = [offer("a", "1.00", nodes=1), offer("b", "1.10")]
    asked = request(serving(hourly=[3.0]))
    old, past = plan(asked, offers), Past(asked, offers)
    assert carried_bound_usd(old, past, asked, offers, T0) == old.bound_usd
    assert carried_bound_usd(old, past, asked, [*offers, offer("c", "0.10")], T0) == 0
    assert carried_bound_usd(old, past, asked, [offer("a", "1.00", nodes=2), offers[1]], T0) == 0
    assert carried_bound_usd(old, past, request(serving(hourly=[1.0])), offers, T0) == 0
    assert carried_bound_usd(old, past, asked, offers, at(1)) == 0
    assert recosted_usd(old, [offers[1]]) is None


def test_a_dearer_offer_beside_a_cheaper_one_with_room_still_stands() -> None:
    offers = [offer("a", "1.00"), offer("b", "1.10")]
    asked = request(serving("x", [3.0]), serving("y", [3.0]))
    first, second = plan(asked, offers[:1]), plan(asked, offers[1:])
    both = replace(
        first,
        placements=(*first.placements_of("x"), *second.placements_of("y")),
        cost_usd=(first.cost_usd + second.cost_usd) / 2,
    )
    found = again(asked, offers, both, leaving_usd={"y": Decimal(50)})
    assert found.kept == {"x", "y"}
    assert [p.offer_id for p in found.plan.placements_of("y")] == ["b"]
    mixed = replace(
        first,
        placements=tuple(
            replace(p, offer_id=name, workload="x")
            for name, p in zip(
                ("a", "b"), (*first.placements_of("x"), *first.placements_of("y")), strict=True
            )
        ),
    )
    stays = again(request(serving("x", [3.0])), offers, mixed, leaving_usd={"x": Decimal(500)})
    assert {p.offer_id for p in stays.plan.placements} == {"a", "b"}


def test_the_workers_of_a_repair_know_what_leaving_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [offer("a", "1.00"), offer("b", "1.10")]
    asked = request(serving("x", [3.0]))
    old, hired_for = plan(asked, offers), []

    @contextmanager
    def worker_pool(problem: Problem, processes: int) -> Iterator[WorkerPool]:
        hired_for.append((problem.held, processes))
        yield WorkerPool(problem)

    monkeypatch.setattr("optimizer.placement.replan.replan.worker_pool", worker_pool)
    monkeypatch.setattr(
        "optimizer.placement.replan.replan.processes_for", lambda _problem, options: options.workers
    )
    options = PlanOptions(time_limit_s=20.0, baselines=False, workers=3)
    planner().replan(asked, offers, T0, options, WarmStart(old, leaving_usd={"x": Decimal("5.00")}))
    [(held, processes)] = hired_for
    assert processes == 3
    assert held["x"].leaving_cents == 500

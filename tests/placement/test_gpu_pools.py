"""Sizes that are cut from one pool of GPUs are not counted twice."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import GpuPool, Offer, Stock
from broker.domain.planning.plan import PlanStatus
from broker.domain.planning.workload import PlanRequest
from optimizer.placement.fleets.model import fleets_apart
from optimizer.placement.problem.columns import Column, Piece
from optimizer.placement.problem.problem import Ints, build_problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.rules.check import check_plan
from tests.depth import examples
from tests.placement.brute_force import best_total
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, at, offer, plan, request, serving, total, training


def cut(name: str, usd: str, gpus: int, of: int, pool: str = "seller/us/h100") -> Offer:
    """An offer of so many GPUs a node out of a pool."""
    return replace(offer(name, usd, gpus=gpus), stock=Stock(nodes=of // gpus, pool=GpuPool(pool, of)))


def test_two_runs_at_once_do_not_share_the_same_gpus() -> None:
    sizes = [cut("one", "1.00", 1, 2), cut("two", "2.00", 2, 2)]
    dear = offer("dear", "5.00")
    runs = (
        training("a", 20, deadline=at(10)),
        training("b", 10, deadline=at(10)),
    )
    found = plan(request(*runs), [*sizes, dear])
    assert {p.workload: p.offer_id for p in found.placements} == {"a": "two", "b": "dear"}
    apart = [replace(one, stock=replace(one.stock, pool=None)) for one in sizes]
    assert {p.offer_id for p in plan(request(*runs), [*apart, dear]).placements} == {"two", "one"}


def test_who_holds_the_gpus_of_another_size_is_named() -> None:
    runs = (training("a", 20, deadline=at(10)), training("b", 10, deadline=at(10)))
    found = plan(request(*runs), [cut("one", "1.00", 1, 2), cut("two", "2.00", 2, 2), offer("dear", "5.00")])
    waiting = next(p for p in found.placements if p.workload == "b")
    assert waiting.why.binding[0].endswith("held by a")
    assert waiting.why.runner_up is not None
    assert "held by a" in waiting.why.runner_up.because


def test_a_run_waits_for_the_gpus_of_another_size() -> None:
    sizes = [cut("one", "1.00", 1, 2), cut("two", "2.00", 2, 2)]
    runs = (training("a", 20, deadline=at(10)), training("b", 10, deadline=at(24)))
    found = plan(request(*runs), [*sizes, offer("dear", "5.00")])
    assert {p.offer_id for p in found.placements} <= {"one", "two"}
    assert total(found) == Decimal("30.00")


def test_a_fleet_mixes_sizes_within_the_pool() -> None:
    sizes = [cut("one", "1.00", 1, 4), cut("four", "3.60", 4, 4)]
    asked = request(serving(hourly=[18.0]), hours=8)
    found = plan(asked, [*sizes, offer("dear", "5.00")])
    assert {p.offer_id for p in found.placements} == {"four", "dear"}
    assert found.status is not PlanStatus.INFEASIBLE


def test_a_fleet_does_not_take_one_gpu_at_two_sellers() -> None:
    """Two replicas are needed. A machine of one GPU is sold twice; by hand, the second replica is dear."""
    sold = [
        replace(cut("own", "1.00", 1, 1, "hall/machine"), provider="lambda"),
        replace(cut("again", "1.10", 1, 1, "hall/machine"), provider="vultr"),
        offer("dear", "5.00", nodes=2),
    ]
    found = plan(request(serving(hourly=[6.0]), hours=8), sold)
    assert {p.offer_id for p in found.placements} == {"own", "dear"}
    assert total(found) == Decimal("48.00")
    for placement in found.placements:
        # Nobody stands against that fleet: it is no way at all, so it is not told as one.
        assert not any(way.more_usd < 0 for way in placement.why.next_best)
        assert not any("limits it" in says for says in placement.why.sentences)


def test_a_search_that_takes_gpus_twice_is_made_again_without_either_size() -> None:
    """A search knows the stock of each offer alone, so its cheapest fleet takes four GPUs of two."""
    asked = request(serving(hourly=[6.0]), hours=8)
    problem = build_problem(asked, [cut("a", "2.00", 2, 2), cut("b", "2.10", 2, 2), offer("c", "5.00")], T0)
    names = [one.offer_id for one in problem.table.offers]
    usd = {"a": 2, "b": 3, "c": 5}

    def fleet(*chosen: str) -> Column:
        pieces = tuple(Piece(names.index(one), 0, ((0, 8 * 3600, 1),), 800 * usd[one]) for one in chosen)
        return Column("chat", pieces, sum(piece.cost_cents for piece in pieces))

    def search(free: Ints) -> list[Column]:
        left = [one for one in "abc" if free[names.index(one)]]
        return [fleet(*left[:2])] if len(left) > 1 else []

    found = fleets_apart(problem, problem.table.stock_nodes, search)
    fitting = [column for column in found if Ledger(problem).fits(column)]
    assert min(fitting, key=lambda column: column.total_cents) == fleet("a", "c")


def test_the_checker_counts_gpus_over_all_sizes() -> None:
    offers = [cut("one", "1.00", 1, 3), cut("two", "2.00", 2, 3)]
    asked = request(training("a", 20, deadline=at(10)), training("b", 10, deadline=at(10)))
    found = plan(asked, offers)
    assert {p.offer_id for p in found.placements} == {"one", "two"}
    short = [replace(one, stock=replace(one.stock, pool=GpuPool("seller/us/h100", 2))) for one in offers]
    (violation,) = check_plan(found, asked, short, FakeEstimator())  # type: ignore[arg-type]
    assert "3 GPUs held" in violation
    assert "2 in the pool" in violation


prices = st.sampled_from(["0.50", "0.90", "1.00", "1.37"])


@st.composite
def problems(draw: st.DrawFn) -> tuple[PlanRequest, list[Offer]]:
    runs = [
        training(
            f"run{i}",
            draw(st.sampled_from([2, 4])),
            deadline=at(draw(st.integers(5, 9))),
            unplaced_usd=draw(st.sampled_from([None, Decimal("6.00")])),
        )
        for i in range(draw(st.integers(2, 3)))
    ]
    gpus = draw(st.integers(2, 3))
    sizes = [cut(f"x{size}", str(Decimal(draw(prices)) * size), size, gpus) for size in (1, 2)]
    return request(*runs, hours=12), [*sizes, offer("dear", "3.10", nodes=1)]


@settings(max_examples=examples(15), derandomize=True, deadline=None)
@given(problems())
def test_the_bound_holds_and_every_plan_passes_the_checker(problem: tuple[PlanRequest, list[Offer]]) -> None:
    asked, offers = problem
    best = best_total(asked, offers)
    found = plan(asked, offers)
    if best is None or found.bound_usd is None:
        assert found.status is PlanStatus.INFEASIBLE
        return
    assert found.bound_usd <= best <= total(found)

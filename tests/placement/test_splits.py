"""Runs in two parts: as cheap as any split by hand, never above the bound, and every lie is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Dataset, PlanRequest
from optimizer.performance.estimator import Estimator
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.runs.builder import build_run_candidates
from optimizer.placement.runs.columns import build_run_column
from tests.depth import examples
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, at, offer, plan, planner, request, serving, total, training, window

PROFILE = settings(derandomize=True, deadline=None)
STARTUP = FakeEstimator(startup_hours=1.0)
Listing = tuple[int, int, str]


def listing(name: str, start: int, hours: int, usd: str) -> Offer:
    terms = window(WindowKind.LISTED, (start, start + hours, 1))
    return offer(name, usd, tier=Tier.WINDOW, window=terms)


def split() -> tuple[Plan, PlanRequest, list[Offer]]:
    """A run of 10 h and its start-ups over two windows, and a service after it."""
    run = training("run", 10, deadline=at(14), interruptible=True)
    offers = [listing("w", 0, 6, "1.00"), listing("x", 8, 6, "1.00"), offer("b", "3.00")]
    asked = request(run, serving(starts_after="run"), hours=20)
    return plan(asked, offers, estimator=STARTUP), asked, offers


def test_both_parts_are_told_and_what_waits_starts_after_the_last() -> None:
    found, _, _ = split()
    first, second, chat = found.placements
    assert [p.offer_id for p in (first, second)] == ["w", "x"]
    assert [p.work_share for p in (first, second)] == [pytest.approx(0.5), pytest.approx(0.5)]
    assert [p.estimate["hours"] for p in (first, second)] == [pytest.approx(6), pytest.approx(6)]
    assert chat.segments[0].start <= at(14) < chat.segments[-1].end
    assert any("part 1 of 2, with 50 % of the work" in words for words in first.why.binding)
    use = second.window_use
    assert use is not None
    assert (use.wanted.start, use.wanted.end) == (at(8), at(14))


def test_the_check_finds_every_lie_about_parts() -> None:
    found, asked, offers = split()
    check = planner(STARTUP).check
    assert not check(found, asked, offers)
    first, second, *rest = found.placements
    shorter = replace(second.estimate, value={**second.estimate.value, "hours": 4.0})
    for wrong in (
        (first,),
        (second, first),
        (first, second, second),
        (replace(first, work_share=0.4), second),
        (first, replace(second, work_share=1.0)),
        (first, replace(second, estimate=shorter)),
    ):
        assert check(replace(found, placements=(*wrong, *rest)), asked, offers), wrong
    rigid = training("run", 10, deadline=at(14))
    whole = replace(asked, workloads=(rigid, asked.workloads[1]))
    assert any("not interruptible" in words for words in check(found, whole, offers))


def test_what_a_split_is_taken_to_cost_is_what_it_costs() -> None:
    """Several nodes, menus of windows, start-ups, rounded hours and copies: to a cent on each side."""
    offers = [
        offer("l", "1.30", joined=8, tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 7, 4))),
        offer("s", "0.90", joined=8, tier=Tier.WINDOW, window=window(WindowKind.SLOTS, (9, 30, 8))),
        offer("d", "1.10", joined=8, provider="aws"),
        offer("m", "2.10", gpu="MID", joined=8, min_hours=3.0),
    ]
    run = training("run", 70.3, deadline=at(30), interruptible=True, dataset=Dataset(30, "aws", "us-east"))
    terms = MovingTerms(egress_usd_per_gb={"aws": Decimal("0.09")})
    problem = build_problem(request(run), offers, T0, terms)
    estimates = build_estimates(problem, cast("Estimator", STARTUP))
    found = build_run_candidates(problem, estimates, run)
    made = 0
    for index in np.flatnonzero(found.split >= 0):
        column = build_run_column(problem, estimates, found, int(index))
        if column is not None:
            made += 1
            assert abs(column.cost_cents / 100 - found.cost_usd[index]) <= 0.0151
            assert abs(column.end_s - found.end_s[index]) <= 1.0
    assert made > 20
    assert len({int(n) for n in found.nodes[found.split >= 0]}) > 1


def by_hand(hours: int, deadline: int, windows: Sequence[Listing], usd: Decimal | None) -> Iterator[Decimal]:
    """Every way on whole hours: whole or in two parts, on listed windows and on demand from the start."""
    paid = [(start, length, length * Decimal(price)) for start, length, price in windows]
    if usd is not None and hours <= deadline:
        yield hours * usd
    for start, length, cost in paid:
        can = min(length, deadline - start)
        if can >= hours:
            yield cost
        for work in range(1, min(can, hours - 1) + 1):
            left = hours - work
            if usd is not None and (start + work + left <= deadline or left <= start):
                yield cost + left * usd
            for later, size, other in paid:
                if later >= start + work and min(size, deadline - later) >= left:
                    yield cost + other


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, list[Listing], Decimal | None]:
    listed = st.tuples(st.integers(0, 10), st.integers(2, 7), st.sampled_from(["0.50", "1.00", "1.40"]))
    windows = draw(st.lists(listed, min_size=1, max_size=3))
    usd = draw(st.sampled_from([None, Decimal("0.90"), Decimal("2.00")]))
    return draw(st.integers(4, 9)), draw(st.integers(8, 18)), windows, usd


def compare(hours: int, deadline: int, windows: Sequence[Listing], usd: Decimal | None) -> None:
    offers = [listing(f"w{i}", *one) for i, one in enumerate(windows)]
    offers += [offer("b", str(usd))] if usd is not None else []
    run = training("run", hours, deadline=at(deadline), interruptible=True, unplaced_usd=Decimal(500))
    found = plan(request(run), offers)
    assert total(found) == min([*by_hand(hours, deadline, windows, usd), Decimal(500)])
    assert found.bound_usd is not None
    assert found.bound_usd <= total(found)


def test_the_bound_knows_of_three_parts() -> None:
    """By hand: 12 hours of work fill three windows of 4 hours at $1.00, and the planner knows two parts."""
    offers = [listing(f"w{i}", 6 * i, 4, "1.00") for i in range(3)] + [offer("b", "3.00")]
    found = plan(request(training("run", 12, deadline=at(16), interruptible=True)), offers)
    assert total(found) == Decimal("28.00")
    assert found.bound_usd is not None
    assert Decimal("11.90") <= found.bound_usd <= Decimal("12.00")


@settings(PROFILE, max_examples=examples(12))
@given(cases())
def test_two_parts_are_as_cheap_as_any_by_hand(case: tuple[int, int, list[Listing], Decimal | None]) -> None:
    compare(*case)


@pytest.mark.slow
@settings(PROFILE, max_examples=400)
@given(cases())
def test_hundreds_of_splits_are_as_cheap_as_any_by_hand(
    case: tuple[int, int, list[Listing], Decimal | None],
) -> None:
    compare(*case)


@settings(PROFILE, max_examples=examples(8))
@given(cases(), st.integers(0, 2))
def test_runs_that_share_windows_stay_within_the_bound(
    case: tuple[int, int, list[Listing], Decimal | None], spare: int
) -> None:
    hours, deadline, windows, usd = case
    offers = [listing(f"w{i}", *one) for i, one in enumerate(windows)]
    offers += [offer("b", str(usd or 3), nodes=1 + spare)]
    asked = [
        training(f"run{i}", hours + i, deadline=at(deadline), interruptible=free, unplaced_usd=Decimal(90))
        for i, free in enumerate((True, True, False))
    ]
    found = plan(request(*asked), offers)
    rigid = plan(request(*(replace(run, interruptible=False) for run in asked)), offers)
    assert found.bound_usd is not None
    assert rigid.bound_usd is not None
    assert found.bound_usd <= total(found)
    assert found.bound_usd <= total(rigid)

"""The same promises as in ``test_properties`` with data to copy, runs in parts, quotas and windows too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Dataset, PlanRequest, Policy, Quota, Training, Workload
from broker.ports.planning import LimitClock
from tests.placement.market import at, offer, plan, request, serving, total, training, window
from tests.placement.test_properties import least, never_dearer

PROFILE = settings(derandomize=True, deadline=None)
SECONDS = 0.8
HOURS = 16
FREE = MovingTerms(staging_gbit_s=1e9)
DATA = (None, Dataset(20, "aws", "us-east"), Dataset(5, "gcp", "us-east"))


@dataclass(frozen=True)
class Problem:
    """A request over a market, with what copies cost."""

    asked: PlanRequest
    offers: tuple[Offer, ...]
    terms: MovingTerms

    def planned(self) -> Plan:
        return plan(
            self.asked, self.offers, terms=self.terms, time_limit_s=SECONDS, limit_clock=LimitClock.CPU
        )


def egress(usd: str) -> MovingTerms:
    return replace(FREE, egress_usd_per_gb={"aws": Decimal(usd), "gcp": Decimal(usd)})


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Two runs, of which one may be split, a service after one of them, quotas, and a window among offers."""
    providers = st.sampled_from(["aws", "gcp", "lambda"])
    prices = st.sampled_from(["0.40", "0.90", "1.30"])
    stock = st.sampled_from([1, 2, None])
    offers = [
        offer(f"o{i}", draw(prices), provider=draw(providers), nodes=draw(stock), zone="ab"[i % 2])
        for i in range(3)
    ]
    start = draw(st.integers(0, 6))
    listed = window(WindowKind.LISTED, (start, start + draw(st.integers(3, 8)), 1))
    offers.append(offer("w", draw(prices), provider=draw(providers), tier=Tier.WINDOW, window=listed))
    runs = [
        training(
            f"run{i}",
            draw(st.integers(3, 7)),
            deadline=at(draw(st.integers(10, 14))),
            interruptible=i == 0,
            dataset=draw(st.sampled_from(DATA)),
            unplaced_usd=Decimal("30.00"),
        )
        for i in range(2)
    ]
    demand = draw(st.lists(st.sampled_from([0.5, 4.0, 7.0]), min_size=HOURS, max_size=HOURS))
    chat = serving("chat", demand, unplaced_usd=Decimal("90.00"), starts_after="run0")
    quota = draw(st.sampled_from([(), (Quota("lambda", 1),), (Quota("aws", nodes=2), Quota("gcp", 3))]))
    workloads: tuple[Workload, ...] = (*runs, chat)
    return Problem(
        request(*workloads, hours=HOURS, policy=Policy(quotas=quota)), tuple(offers), egress("0.09")
    )


def dearer_market(one: Problem) -> Problem:
    first, *rest = one.offers
    price = first.price_usd_per_node_hour * 3
    return replace(one, offers=(replace(first, price_usd_per_node_hour=price), *rest))


def dearer_copies(one: Problem) -> Problem:
    return replace(one, terms=egress("0.30"))


def less_stock(one: Problem) -> Problem:
    return replace(one, offers=tuple(replace(o, stock=replace(o.stock, nodes=1)) for o in one.offers))


def sooner(one: Problem) -> Problem:
    return _each_run(one, lambda run: replace(run, deadline=run.deadline.replace(hour=run.deadline.hour - 2)))


def uninterrupted(one: Problem) -> Problem:
    return _each_run(one, lambda run: replace(run, interruptible=False))


def smaller_quotas(one: Problem) -> Problem:
    quotas = (Quota("lambda", 1, 1), Quota("aws", 1, 1), Quota("gcp", 1, 1))
    return replace(one, asked=replace(one.asked, policy=Policy(quotas=quotas)))


def _each_run(one: Problem, change: Callable[[Training], Training]) -> Problem:
    workloads = tuple(change(w) if isinstance(w, Training) else w for w in one.asked.workloads)
    return replace(one, asked=replace(one.asked, workloads=workloads))


WORSE = (dearer_market, dearer_copies, less_stock, sooner, uninterrupted, smaller_quotas)


def worse_is_never_cheaper(problem: Problem, worsen: Callable[[Problem], Problem]) -> None:
    worse = worsen(problem)
    never_dearer(problem.planned(), worse.planned())


@pytest.mark.parametrize("worsen", WORSE)
@settings(PROFILE, max_examples=2)
@given(problem=problems())
def test_a_worse_problem_is_never_cheaper(worsen: Callable[[Problem], Problem], problem: Problem) -> None:
    worse_is_never_cheaper(problem, worsen)


def permuted_and_scaled(problem: Problem) -> None:
    turned = replace(
        problem,
        asked=replace(problem.asked, workloads=tuple(reversed(problem.asked.workloads))),
        offers=tuple(reversed(problem.offers)),
    )
    priced = (replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour * 10) for o in problem.offers)
    left = (replace(w, unplaced_usd=(w.unplaced_usd or Decimal(0)) * 10) for w in problem.asked.workloads)
    tenfold = Problem(replace(problem.asked, workloads=tuple(left)), tuple(priced), egress("0.90"))
    plain, other, times = problem.planned(), turned.planned(), tenfold.planned()
    never_dearer(other, plain)
    never_dearer(plain, other)
    # Copies are whole cents each: a tenth of a cent of each is lost or won.
    slack = Decimal("0.05") * 4
    assert least(times) <= total(plain) * 10 + slack
    assert least(plain) * 10 <= total(times) + slack
    if plain.gap == 0 and times.gap == 0:
        assert abs(total(times) - total(plain) * 10) <= slack


@settings(PROFILE, max_examples=2)
@given(problems())
def test_order_and_scale_change_nothing(problem: Problem) -> None:
    permuted_and_scaled(problem)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("worsen", WORSE)
@settings(PROFILE, max_examples=40)
@given(problem=problems())
def test_many_worse_problems_are_never_cheaper(
    worsen: Callable[[Problem], Problem], problem: Problem
) -> None:
    worse_is_never_cheaper(problem, worsen)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(PROFILE, max_examples=40)
@given(problems())
def test_many_orders_and_scales_change_nothing(problem: Problem) -> None:
    permuted_and_scaled(problem)

"""The least of a fleet by shared prices: no holding is charged more than it pays, no fleet costs less."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer.placement.fleet_bound import bound_fleet
from optimizer.placement.fleet_covers import cover_columns
from optimizer.placement.fleet_dual import build_dual
from optimizer.placement.fleet_menu import STEPS, Menu, build_menu
from optimizer.placement.hour_covers import hour_covers, least_usd, zone_states
from optimizer.placement.hour_prices import (
    SPARED_PARTS,
    USUAL,
    hour_classes,
    sharing,
    start_prices,
    valid_prices,
)
from optimizer.placement.ladders import free_nodes

from broker.domain.offer import Offer, Tier
from broker.domain.workload import PlanRequest
from optimizer.placement.estimates import build_estimates
from optimizer.placement.fleet_cases import build_fleet_case
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.holding import due_s
from optimizer.placement.prices import counted_midway, horizon_hours, middle_s
from optimizer.placement.problem import Problem, build_problem
from optimizer.placement.stock import Ledger
from optimizer.placement.units import FleetCase, surcharged
from tests.depth import examples
from tests.placement.brute_force import fleet_ways
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, request, serving

PROFILE = settings(max_examples=examples(30), derandomize=True, deadline=None)

usd = st.sampled_from([0.5, 1.0, 1.3, 2.2])


@st.composite
def menus(draw: st.DrawFn, most_units: int = 4) -> Menu:
    count = draw(st.integers(1, most_units))

    def column(values: st.SearchStrategy[float], kind: type) -> np.ndarray:
        return np.array([draw(values) for _ in range(count)], dtype=kind)

    steps, price, spare = column(st.integers(1, 400), int), column(usd, float), draw(st.booleans())
    replicas = column(st.integers(1, 3), int)
    size = steps / replicas if spare else np.zeros(count)
    hours = 72.0
    term = column(st.sampled_from([0.0, 0.0, 5.0, 24.0, 30.5, 72.0]), float)
    menu = Menu(
        unit=np.arange(count),
        kind=np.arange(count),
        steps=steps,
        net=np.ceil(steps - size).astype(int),
        size=size,
        zone=column(st.integers(0, 3), int),
        most=column(st.integers(1, 2), int),
        usd=price,
        surcharge_usd=np.zeros(count),
        lead_h=column(st.sampled_from([0.0, 0.2, 1.0, 2.0]), float),
        term_h=term,
        whole_usd=price * np.maximum(hours, term),
    )
    return menu.take(np.argsort(menu.size, kind="stable"))


def _cheapest(menu: Menu, price: np.ndarray, need: int, zones: int) -> float:
    """Every count of every unit; the spares are those of the largest replica."""
    best = np.inf
    for counts in itertools.product(*(range(int(most) + 1) for most in menu.most)):
        held = np.array(counts)
        if not held.any():
            continue
        largest = float(menu.size[held > 0].max())
        lead = int(np.flatnonzero((held > 0) & (menu.size == largest))[-1])
        net = int(held @ menu.steps) - int(menu.steps[lead]) + int(menu.net[lead])
        if net >= need and len(set(menu.zone[held > 0])) >= zones:
            best = min(best, float(held @ price))
    return best


@PROFILE
@given(menus(), st.lists(st.integers(0, STEPS), min_size=1, max_size=3), st.integers(1, 2))
def test_covers_are_the_cheapest_and_reach_what_they_say(menu: Menu, needs: list[int], zones: int) -> None:
    _check_covers(menu, needs, zones)


@PROFILE
@given(menus(2), st.lists(st.integers(0, STEPS), min_size=1, max_size=3), st.integers(1, 2))
def test_alike_units_at_other_prices_are_told_apart(menu: Menu, needs: list[int], zones: int) -> None:
    twice = menu.take(np.repeat(np.arange(len(menu)), 2))
    _check_covers(replace(twice, zone=np.arange(len(twice)) % 3), needs, zones)
    _check_covers(twice, needs, zones)


def _check_covers(menu: Menu, needs: list[int], zones: int) -> None:
    rng = np.random.default_rng(len(needs) + int(menu.steps.sum()))
    prices = menu.usd[:, None] * rng.uniform(0.2, 2.0, (len(menu), len(needs)))
    states = zone_states(menu, zones)
    found = hour_covers(menu, states, prices, np.array(needs))
    assert least_usd(menu, states, prices, np.array(needs)) == pytest.approx(found.usd)
    for hour, need in enumerate(needs):
        expected = _cheapest(menu, prices[:, hour], need, zones)
        assert found.usd[hour] <= expected + 1e-9
        # Up to three zones are told apart: the drawn ones are four.
        if zones == 1 or len(set(menu.zone)) <= 3:
            assert found.usd[hour] == pytest.approx(expected)
        if np.isfinite(found.usd[hour]):
            assert found.counts[hour] @ prices[:, hour] == pytest.approx(found.usd[hour])
            assert (found.counts[hour] <= menu.most).all()


demands = st.one_of(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), min_size=24, max_size=24).map(lambda day: day * 3),
    st.lists(st.sampled_from([0.0, 1.0, 4.0]), min_size=3, max_size=72),
)


@PROFILE
@given(menus(), demands, st.sampled_from([1.0, 0.8, 1.9]), st.integers(0, 1000))
def test_no_holding_is_charged_more_than_it_pays(
    menu: Menu, demand: list[float], first: float, seed: int
) -> None:
    lengths = np.ones(len(demand))
    lengths[0] = first
    whole = float(lengths.sum())
    menu = menu.take(np.arange(len(menu)))
    whole_usd = menu.usd * np.maximum(whole, menu.term_h)
    menu = Menu(**{**{n: getattr(menu, n) for n in menu.__slots__}, "whole_usd": whole_usd})
    needs = np.round(np.array(demand) * 100).astype(int)
    classes = hour_classes(np.array(demand), lengths, needs, 24.0)
    share = sharing(menu, classes)
    rng = np.random.default_rng(seed)
    wish = share.near(share.flat() * rng.uniform(0, 3, (len(menu), len(classes.hours))))
    for spared in ((1.0,), SPARED_PARTS):
        hourly = valid_prices(menu, share, wish, spared)[classes.day, :, classes.of].T * lengths
        for unit in range(len(menu)):
            _check_every_holding(menu, unit, hourly[unit], lengths)


def test_a_start_is_charged_where_the_peak_needs_it() -> None:
    """Units by the hour keep the shape of their prices on all later days, whatever the first hours allow."""
    hours = np.arange(72)
    demand = np.where(hours % 24 < 12, 5.0, 1.0)
    menu = Menu(
        unit=np.arange(1), kind=np.arange(1), steps=np.ones(1, dtype=int), net=np.ones(1, dtype=int),
        size=np.zeros(1), zone=np.zeros(1, dtype=int), most=np.ones(1, dtype=int), usd=np.array([2.0]),
        surcharge_usd=np.zeros(1), lead_h=np.array([1.5]), term_h=np.zeros(1), whole_usd=np.array([144.0]),
    )  # fmt: skip
    classes = hour_classes(demand, np.ones(72), demand.astype(int), 24.0)
    wish = np.array([[2.0 - 3.0 / 12, 2.0 + 3.0 / 12]])
    valid = start_prices(menu, np.arange(1), wish, classes)
    charged = valid[classes.day, :, classes.of].T
    _check_every_holding(menu, 0, charged[0], np.ones(72))
    assert valid[USUAL] == pytest.approx(wish)
    assert charged.sum() >= 144.0 - 3.1


def _check_every_holding(menu: Menu, unit: int, charged: np.ndarray, lengths: np.ndarray) -> None:
    price, term, lead = menu.usd[unit], float(menu.term_h[unit]), float(menu.lead_h[unit])
    for begin in range(len(charged)):
        for end in range(begin + 1, len(charged) + 1):
            held = float(lengths[begin:end].sum())
            paid = price * max(term, held + (lead if begin and not term else 0.0))
            assert charged[begin:end].sum() <= paid + 1e-6


@st.composite
def committed_services(draw: st.DrawFn) -> tuple[PlanRequest, Sequence[Offer], dict[int, float]]:
    """Two offers with minimum terms shorter and longer than four hours, and prices of scarcity."""
    service = serving(
        hourly=draw(st.lists(st.sampled_from([0.5, 2.5, 4.0, 6.0]), min_size=4, max_size=4)),
        zones=draw(st.integers(1, 2)),
        spare=draw(st.integers(0, 2)),
    )
    offers = []
    for i in range(2):
        term = draw(st.sampled_from([0.0, 2.0, 3.0, 6.0]))
        offers.append(
            offer(
                f"o{i}",
                draw(st.sampled_from(["0.50", "0.90", "1.37", "2.49"])),
                gpu=draw(st.sampled_from(["BIG", "MID", "TINY"])),
                nodes=draw(st.integers(1, 2)),
                zone=draw(st.sampled_from(["a", "b"])),
                tier=Tier.COMMITTED if term else Tier.ON_DEMAND,
                min_hours=term,
                billing_increment_s=draw(st.sampled_from([1, 600, 3600])),
            )
        )
    scarce = {i: draw(st.sampled_from([0.0, 0.0, 0.4, 3.0])) for i in range(2)}
    return request(service, hours=4), offers, scarce


def _case(asked: PlanRequest, offers: Sequence[Offer]) -> tuple[Problem, FleetCase]:
    problem = build_problem(asked, offers, T0)
    (service,) = problem.services()
    return problem, build_fleet_case(problem, build_estimates(problem, FakeEstimator()), service)  # type: ignore[arg-type]


def _use(problem: Problem, offer: int, spans: Sequence[tuple[float, float, int]]) -> float:
    """Node-hours that a price of scarcity is asked for, counted as in ``prices``."""
    if counted_midway(problem, offer):
        middle = middle_s(problem) / 3600
        return horizon_hours(problem) * sum(n for a, b, n in spans if a <= middle < b)
    return sum(n * (b - a) for a, b, n in spans)


def _least(problem: Problem, case: FleetCase) -> float:
    bound = bound_fleet(problem, case)
    return bound.from_due(due_s(problem, time_of(problem, case, None), False, bound.longest_cold_s))


CommittedService = tuple[PlanRequest, Sequence[Offer], dict[int, float]]


@PROFILE
@given(committed_services())
def test_the_bound_holds_with_terms_zones_spares_and_prices_of_scarcity(problem: CommittedService) -> None:
    no_fleet_costs_less(problem, _least)


def no_fleet_costs_less(problem: CommittedService, least_usd: Callable[[Problem, FleetCase], float]) -> None:
    """Every fleet there is costs at least the bound, and with prices of scarcity the bound at these."""
    asked, offers, scarce = problem
    built, case = _case(asked, offers)
    if case.log.obstacle is not None:
        return
    least = least_usd(built, case)
    steered = least_usd(built, surcharged(case, scarce))
    for cost, held in fleet_ways(asked, offers):
        use = sum(scarce[o] * _use(built, o, spans) for o, spans in held.items())
        assert least <= float(cost) + 0.011
        assert steered <= float(cost) + use + 0.011


def test_a_larger_replica_is_spared_only_in_the_hours_that_it_joins() -> None:
    """Two commitments meet three hours alone; in the fourth a unit with a larger replica joins them."""
    service = serving(hourly=[0.5, 0.5, 2.5, 4.0], zones=1, spare=1)
    offers = [
        offer("large", "0.50", nodes=1, billing_increment_s=1),
        offer("kept", "0.50", gpu="MID", nodes=2, tier=Tier.COMMITTED, min_hours=6.0, billing_increment_s=1),
    ]
    asked = request(service, hours=4)
    problem, case = _case(asked, offers)
    cheapest = min(float(cost) for cost, _ in fleet_ways(asked, offers))
    assert cheapest == pytest.approx(6.58)
    assert cheapest - 0.01 <= _least(problem, case) <= cheapest + 0.005


def _diurnal(trough: float, peak: float, hours: int) -> list[float]:
    wave = (1 + np.cos(2 * np.pi * (np.arange(hours) - 14) / 24)) / 2
    return [float(trough + (peak - trough) * part) for part in wave]


def test_weekly_terms_are_no_longer_cheap_for_the_peak_alone() -> None:
    service = serving(hourly=_diurnal(3.0, 7.5, 24))
    offers = [
        offer("week", "0.80", tier=Tier.COMMITTED, min_hours=168.0, billing_increment_s=3600),
        offer("free", "1.90", billing_increment_s=3600),
    ]
    problem, case = _case(request(service, hours=720), offers)
    dual = build_dual(problem, case, 0, np.ones(720))
    columns = list(cover_columns(problem, _with(case, dual.covers), free_nodes(problem), [None]))
    cheapest = min(column.total_cents for column in columns) / 100
    assert cheapest <= 2 * 0.80 * 720
    by_the_hour = 0.80 * sum(2 if rate > 4 else 1 for rate in service.traffic.hourly_requests_per_s) * 30
    assert by_the_hour < dual.least_usd <= cheapest
    assert dual.least_usd >= 0.94 * cheapest


def _with(case: FleetCase, covers: np.ndarray) -> FleetCase:
    return replace(case, covers=covers)


@PROFILE
@given(committed_services())
def test_fleets_from_covers_fit_the_stock(
    problem: tuple[PlanRequest, Sequence[Offer], dict[int, float]],
) -> None:
    asked, offers, _ = problem
    built, case = _case(asked, offers)
    if case.log.obstacle is not None:
        return
    bound = bound_fleet(built, case)
    for column in cover_columns(built, _with(case, bound.covers), free_nodes(built), [None]):
        assert Ledger(built).fits(column)
        assert Decimal(column.cost_cents) / 100 >= Decimal(f"{_least(built, case):.6f}") - Decimal("0.02")


def test_the_menu_keeps_what_nothing_beats() -> None:
    service = serving(hourly=[3.0, 7.0])
    offers = [
        offer("cheap", "1.00", nodes=1),
        offer("same", "1.20"),
        offer("worse", "1.30", gpu="MID"),
        offer("small", "0.40", gpu="TINY", nodes=1),
    ]
    problem, case = _case(request(service, hours=48), offers)
    menu = build_menu(problem, case, 48.0)
    kept = {problem.table.offers[int(case.units.offer[u])].offer_id for u in menu.unit}
    assert kept == {"cheap", "same", "small"}

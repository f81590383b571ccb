"""A service that ends: nothing is held from then on, and a shorter horizon is the same plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.window import Segment
from broker.domain.planning.workload import Serving, Starts
from broker.domain.workloads.bursts import Burst
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.ports.planning import LimitClock
from tests.depth import examples
from tests.placement.market import at, offer, plan, planner, request, serving, total, training

RATES = st.lists(st.sampled_from([0.0, 1.0, 3.0, 5.0]), min_size=6, max_size=6).filter(any)
PRICES = st.lists(st.sampled_from(["0.70", "1.00", "1.30"]), min_size=2, max_size=3)


def market(prices: list[str], increment_s: int = 3600) -> list:  # type: ignore[type-arg]
    return [
        offer(f"o{n}", price, nodes=4, zone=f"z{n}", billing_increment_s=increment_s)
        for n, price in enumerate(prices)
    ]


@settings(deadline=None, max_examples=examples(12))
@given(RATES, PRICES, st.integers(1, 6), st.sampled_from([1, 2]))
def test_an_end_is_a_shorter_horizon(rates: list[float], prices: list[str], hours: int, zones: int) -> None:
    zones = min(zones, len(prices))
    service = serving(hourly=rates, zones=zones)
    short = plan(request(service, hours=hours), market(prices), time_limit_s=2.0)
    ended = plan(request(replace(service, ends=at(hours)), hours=12), market(prices), time_limit_s=2.0)
    assert total(ended) == total(short)
    assert all(s.end <= at(hours) for p in ended.placements for s in p.segments)


@pytest.mark.parametrize("minutes", [10, 30, 59])
def test_an_end_within_an_hour_is_exact_and_its_bound_holds(minutes: int) -> None:
    end = at(5) + timedelta(minutes=minutes)
    service = replace(serving(hourly=[3.0]), ends=end)
    found = plan(request(service, hours=12), market(["1.00"], increment_s=60), time_limit_s=2.0)
    assert max(s.end for p in found.placements for s in p.segments) == end
    assert found.bound_usd is not None
    assert total(found) - Decimal("0.01") <= found.bound_usd <= total(found)


def test_the_checker_finds_a_fleet_that_leaves_before_the_end() -> None:
    service = replace(serving(hourly=[3.0]), ends=at(8))
    asked, offers = request(service, hours=24), market(["1.00"])
    found = plan(asked, offers, time_limit_s=2.0)
    (placed,) = found.placements
    (held,) = placed.segments
    cut = replace(placed, segments=(Segment(held.start, at(7), held.nodes),))
    wrong = planner().check(replace(found, placements=(cut,)), asked, offers)
    assert any(at(7).isoformat() in words for words in wrong)
    assert planner().check(found, request(replace(service, ends=at(9)), hours=24), offers)


def test_a_service_that_would_start_after_its_end_is_not_placed() -> None:
    run = training("run", 10, deadline=at(14))
    service = serving(hourly=[3.0], starts_after="run", ends=at(2), unplaced_usd=Decimal(5))
    found = plan(request(run, service, hours=24), [offer("a", "1.00")])
    assert [placement.workload for placement in found.placements] == ["run"]
    assert found.penalty_usd in (0, 5)


def test_the_wait_of_a_service_counts_the_hours_to_its_end() -> None:
    run = training("run", 10, deadline=at(14))
    service = serving(hourly=[3.0], starts_after="run", ends=at(20))
    asked, offers = request(run, service, hours=48), [offer("a", "1.00")]
    found = plan(asked, offers)
    assert not planner().check(found, asked, offers)
    (wait,) = found.waits
    cost = sum((p.cost_usd for p in found.placements_of("chat")), Decimal(0))
    hours = Decimal((at(20) - wait.start).total_seconds()) / 3600
    assert wait.usd_per_hour == pytest.approx(2 * cost / hours, abs=Decimal("0.00001"))


def bursty(*bursts: Burst, base: float = 0.0) -> Serving:
    traffic = Traffic(100, 100, TrafficShape.FLAT, base, bursts=bursts)
    return replace(serving(), traffic=traffic)


@settings(deadline=None, max_examples=examples(10))
@given(st.integers(0, 20), st.integers(1, 200), st.sampled_from([3.0, 9.0]), st.sampled_from([0.0, 1.0]))
def test_bursts_hold_what_their_hours_would(hour: int, minutes: int, rate: float, base: float) -> None:
    """The same service by hours: each hour that a burst touches asks for its rate."""
    touched = range(hour, hour + -(-minutes // 60))
    by_hours = [max(base, rate) if h in touched else base for h in range(24)]
    burst = Burst(f"{hour:02}:00", minutes, rate)
    prices = ["0.70", "1.30"]
    one = plan(request(bursty(burst, base=base), hours=24), market(prices), time_limit_s=2.0)
    other = plan(request(serving(hourly=by_hours), hours=24), market(prices), time_limit_s=2.0)
    assert total(one) == total(other)


def test_a_million_tokens_cost_by_the_mean_rate_of_a_burst() -> None:
    """Five minutes of an hour carry a twelfth of the tokens that the whole hour would."""
    offers, limit = market(["1.00"]), LimitClock.WORK
    short, long = (
        plan(request(bursty(Burst("09:00", minutes, 3.0)), hours=24), offers, limit_clock=limit)
        for minutes in (5, 60)
    )
    assert total(short) == total(long)

    def usd_per_million(found: object) -> float:
        words = " ".join(str(sentence) for p in found.placements for sentence in p.why.sentences)  # type: ignore[attr-defined]
        return float(words.split("of this traffic cost $")[1].split(",")[0])

    assert usd_per_million(short) == pytest.approx(12 * usd_per_million(long), rel=0.01)


@pytest.mark.parametrize(("hour", "start"), [(4, 10), (10, 10), (16, 16)])
def test_a_service_after_a_run_and_at_a_time_starts_at_the_later(hour: int, start: int) -> None:
    """A run of ten hours ends at 10:00; weights load before a later time."""
    service = serving(hourly=[3.0], starts_after="run", starts_at=at(hour))
    asked = request(training("run", 10, deadline=at(14)), service, hours=24)
    offers = [offer("a", "1.00", billing_increment_s=60)]
    found = plan(asked, offers)
    (wait,) = found.waits
    (placed,) = found.placements_of("chat")
    assert wait.start == at(start)
    assert wait.delay_usd == 0
    held = placed.segments[0].start
    assert held == (at(10) if start == 10 else at(start) - timedelta(minutes=10))
    later = replace(service, starts=replace(service.starts, at=at(start + 2)))
    assert total(plan(request(asked.workloads[0], later, hours=24), offers)) < total(found)
    early = replace(service, starts=replace(service.starts, at=at(start - 2)))
    wrong = planner().check(found, request(asked.workloads[0], early, hours=24), offers)
    assert bool(wrong) == (start > 10)


def test_a_run_that_ended_leaves_the_later_of_its_end_and_the_time() -> None:
    both = Starts("run", at(16), Decimal(1))
    assert both.without_run(at(10)) == Starts(None, at(16), Decimal(1))
    assert both.without_run(at(20)).at == at(20)
    assert both.without_run(None).at == at(16)
    assert Starts("run").without_run(None) == Starts()

"""An offer that ends before the horizon serves until it ends, and others take over: as cheap as by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.plan import Obstacle, Plan, PlanStatus
from broker.domain.planning.workload import NO_LIMIT, FleetLimits, PlanRequest
from tests.placement.brute_force import best_total
from tests.placement.market import T0, at, offer, plan, planner, request, serving, total

ANY = FleetLimits(4, 4)
DAY = [3.0] * 24


def held_until(found: Plan) -> dict[str, float]:
    return {p.offer_id: (p.segments[-1].end - T0) / timedelta(hours=1) for p in found.placements}


@pytest.mark.parametrize("seed", range(16))
def test_no_fleet_by_hand_is_cheaper(seed: int) -> None:
    """One offer ends on the hour, sometimes two; another stays, at the same place or elsewhere."""
    lots = random.Random(seed)
    rates = [lots.choice([0.0, 3.0, 3.0, 5.0]) for _ in range(4)]
    rates[lots.randrange(4)] = 3.0
    ends = [at(lots.choice([1, 2, 3])), lots.choice([None, at(3)]), None]
    offers = [
        offer(
            name,
            lots.choice(["0.70", "1.00", "1.30", "2.20"]),
            provider=seller,
            zone=lots.choice(["a", "b"]),
            nodes=1,
            available_until=until,
            billing_increment_s=lots.choice([60, 3600]),
        )
        for name, seller, until in zip("abc", ("vast", "runpod", "lambda"), ends, strict=True)
    ]
    asked = request(serving("chat", rates, fleet=ANY), hours=4)
    best, found = best_total(asked, offers), plan(asked, offers, time_limit_s=2.0)
    if best is None:
        assert found.status is PlanStatus.INFEASIBLE
        return
    assert found.bound_usd is not None
    assert found.bound_usd <= best == total(found)


def test_an_offer_that_ends_within_an_hour_is_held_to_its_full_hours_and_bounded_by_all_of_them() -> None:
    """By hand: 14 hours at $1.00 and 10 h 10 min at $5.00. With 14.5 hours it were $2.00 less."""
    offers = [
        offer("ends", "1.00", provider="vast", available_until=at(14.5), billing_increment_s=60),
        offer("stays", "5.00", billing_increment_s=60),
    ]
    found = plan(request(serving(hourly=DAY), hours=24), offers, time_limit_s=2.0)
    assert held_until(found) == {"ends": 14.0, "stays": 24.0}
    assert total(found) == Decimal("64.83")
    assert found.bound_usd is not None
    assert found.bound_usd <= Decimal("62.83")


def test_what_an_offer_is_sold_for_by_the_month_does_not_outlast_it() -> None:
    """A minimum term of two days on an offer of ten hours: it is owed, and not worth it."""
    offers = [
        offer("ends", "1.00", tier=Tier.COMMITTED, min_hours=48.0, available_until=at(10)),
        offer("stays", "1.50", billing_increment_s=3600, provider="runpod"),
    ]
    found = plan(request(serving(hourly=DAY), hours=24), offers, time_limit_s=2.0)
    assert held_until(found) == {"stays": 24.0}
    assert found.bound_usd is not None
    assert found.bound_usd <= total(found) == Decimal("36.00")


def test_where_every_offer_ends_the_reason_is_that() -> None:
    offers = [offer(name, "1.00", provider="vast", available_until=at(10)) for name in ("a", "b")]
    found = plan(request(serving(hourly=DAY, unplaced_usd=Decimal(900)), hours=24), offers, time_limit_s=2.0)
    assert [row.reason for row in found.unplaced] == [Obstacle.AVAILABILITY]


def test_on_any_number_of_pools_an_ending_offer_is_handed_over_too() -> None:
    """By hand: 10 hours at $1.00, and 14 hours and ten minutes at $2.00."""
    offers = [
        offer("ends", "1.00", provider="vast", available_until=at(10), billing_increment_s=60),
        *(
            offer(f"o{n}", "2.00", provider="runpod", zone=f"z{n}", billing_increment_s=60, nodes=1)
            for n in range(6)
        ),
    ]
    service = serving(hourly=DAY, fleet=FleetLimits(NO_LIMIT, NO_LIMIT))
    found = plan(request(service, hours=24), offers, time_limit_s=2.0)
    assert total(found) == Decimal("38.33")


def test_the_reasons_name_the_end_and_who_takes_over() -> None:
    offers = [offer("ends", "1.00", provider="vast", available_until=at(15)), offer("stays", "5.00")]
    found = plan(request(serving(hourly=DAY), hours=24), offers, time_limit_s=2.0)
    told = {p.offer_id: p.why.binding for p in found.placements}
    assert "vast offers it until 23 Nov 15:00 UTC: others serve what is asked after that" in told["ends"]
    assert "1 node is held once, for 15 h" in told["ends"]
    assert not any("throughout" in words for words in told["stays"])


def test_the_check_finds_what_is_held_longer_than_an_offer_is_there() -> None:
    asked = request(serving(hourly=DAY), hours=24)
    offers = [offer("ends", "1.00", provider="vast", available_until=at(15)), offer("stays", "5.00")]
    found = plan(asked, offers, time_limit_s=2.0)
    assert not planner().check(found, asked, offers)
    sooner = [replace(offers[0], available_until=at(14)), offers[1]]
    assert any("but the offer ends at" in words for words in planner().check(found, asked, sooner))


def _flat(hours: int) -> tuple[PlanRequest, list[Offer]]:
    offers = [offer("ends", "1.00", provider="vast", available_until=at(47)), offer("stays", "5.00")]
    return request(serving(hourly=[3.0]), hours=hours), offers


def test_one_more_day_of_a_flat_service_costs_no_more_than_a_day() -> None:
    """The second day passes the offer's end by an hour. That hour and a start are billed as two, at $5.00."""
    one, two = (total(plan(*_flat(hours), time_limit_s=2.0)) for hours in (24, 48))
    assert one == Decimal("24.00")
    assert two == Decimal("47.00") + 2 * Decimal("5.00")


@pytest.mark.parametrize("seed", range(8))
def test_an_offer_that_ends_never_makes_a_plan_dearer(seed: int) -> None:
    lots = random.Random(seed)
    rates = [lots.choice([0.0, 1.0, 3.0, 5.0, 9.0]) for _ in range(24)]
    rates[3] = 3.0
    offers = [
        offer(name, lots.choice(["0.90", "1.00", "1.30"]), nodes=4, zone=name, billing_increment_s=3600)
        for name in ("a", "b", "c")
    ]
    asked = request(
        serving(hourly=rates, zones=lots.choice([1, 2]), spare=lots.choice([0, 1])),
        hours=24,
    )
    ends = offer(
        "ends", "0.40", nodes=3, zone=lots.choice(["a", "d"]), provider="vast",
        available_until=at(lots.choice([5, 11.5, 20])),
    )  # fmt: skip
    before, after = plan(asked, offers, time_limit_s=2.0), plan(asked, [*offers, ends], time_limit_s=5.0)
    assert after.bound_usd is not None
    assert after.bound_usd <= total(after) <= total(before) * Decimal("1.01")

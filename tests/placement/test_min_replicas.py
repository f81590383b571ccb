"""Replicas that are held without requests: exact by hand, on top of them spares and places, and checked."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.basics.window import Segment
from broker.domain.planning.plan import PlanStatus
from broker.domain.planning.workload import FleetLimits
from broker.ports.planning import PlanOptions
from optimizer.placement.replan.warm import WarmStart
from tests.placement.market import at, offer, plan, planner, request, serving, total

ANY = FleetLimits(4, 4)
OFFICE = [0.0] * 8 + [3.0] * 8 + [0.0] * 8


def test_one_replica_is_held_through_the_night() -> None:
    offers = [offer("a", "1.00")]
    none, one = (
        plan(request(serving(hourly=OFFICE, min_replicas=least), hours=24), offers) for least in (0, 1)
    )
    assert total(none) == 9
    assert total(one) == 24
    assert one.status is PlanStatus.OPTIMAL
    assert [(s.start, s.end) for s in one.placements[0].segments] == [(at(0), at(24))]


@pytest.mark.parametrize(("zones", "spare", "least", "held"), [(1, 0, 3, 3), (1, 1, 2, 3), (2, 0, 1, 2)])
def test_spares_and_places_come_on_top(zones: int, spare: int, least: int, held: int) -> None:
    """A replica carries 4 requests/s, so that an hour of 3 needs one, and the night as many as are asked."""
    service = serving(hourly=OFFICE, zones=zones, spare=spare, min_replicas=least, fleet=ANY)
    offers = [offer(name, "1.00", zone=name, nodes=4) for name in ("a", "b")]
    asked = request(service, hours=24)
    found = plan(asked, offers)
    assert found.status is PlanStatus.OPTIMAL
    assert total(found) == 24 * held
    first, *rest = found.placements
    (whole,) = first.segments
    fewer = [Segment(at(0), at(20), whole.nodes)]
    fewer += [Segment(at(20), at(24), whole.nodes - 1)] if whole.nodes > 1 else []
    cut = replace(first, segments=tuple(fewer))
    wrong = planner().check(replace(found, placements=(cut, *rest)), asked, offers)
    assert any(at(20).isoformat() in words for words in wrong)


@pytest.mark.parametrize("seed", range(8))
def test_a_night_costs_what_a_little_traffic_would(seed: int) -> None:
    """An hour that asks for n replicas of one kind is an hour of more than n − 1 times what one carries."""
    lots = random.Random(seed)
    least, spare = lots.choice([1, 2, 3]), lots.choice([0, 1])
    rates = [lots.choice([0.0, 2.0, 7.0, 12.0]) for _ in range(8)]
    offers = [
        offer(
            name,
            lots.choice(["0.70", "1.00", "1.30"]),
            zone=name,
            nodes=8,
            billing_increment_s=lots.choice([60, 3600]),
        )
        for name in ("a", "b")
    ]
    replica = 4.0  # requests/s of a BIG GPU
    asked = request(serving(hourly=rates, spare=spare, min_replicas=least), hours=8)
    same = [max(rate, (least - 1) * replica + 0.5) for rate in rates]
    plain = request(serving(hourly=same, spare=spare), hours=8)
    assert total(plan(asked, offers)) == total(plan(plain, offers))


def test_planned_again_the_night_stays_held() -> None:
    asked = request(serving(hourly=OFFICE, min_replicas=1), hours=24)
    offers = [offer("a", "1.00")]
    options = PlanOptions(time_limit_s=2.0, baselines=False)
    again = planner().replan(asked, offers, at(18), options, WarmStart(plan(asked, offers))).plan
    assert total(again) == Decimal(6)

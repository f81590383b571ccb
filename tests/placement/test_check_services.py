"""The checker on services at the edge: fleets over time, places, spares, waits, pools and quotas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.window import Segment, Window
from broker.domain.market.offer import Offer
from broker.domain.planning.workload import FleetLimits, HeldNodes, Policy, Quota, Redundancy, Survival
from broker.domain.workloads.traffic import Traffic, TrafficShape
from optimizer.placement.rules import pools, quotas, serving, waiting
from tests.placement.market import at, offer, request
from tests.placement.market import serving as a_service
from tests.placement.test_check_edges import judge, refusals, span
from tests.placement.test_check_rules import Checked, run_plan, service_plan, waiting_plan

SECOND = timedelta(seconds=1)
RATES = {"BIG": (4.0, 600.0), "TINY": (1.0, 300.0)}
"""Requests/s of a replica, and seconds of its cold start."""
Fleet = tuple[Offer, Sequence[Segment]]


def fleet(*rows: Fleet, hourly: Sequence[float] = (8.0,), hours: float = 4, **changes: object) -> Checked:
    """A service on these holdings, one replica a node, whatever the planner would say."""
    found, _, _ = service_plan()
    template = found.placements[0]
    placements = []
    for sold, segments in rows:
        rate, cold = RATES[sold.sku.gpu]
        told = {"requests_per_s_per_replica": rate, "cold_start_s": cold}
        estimate = replace(template.estimate, value={**template.estimate.value, **told})
        nodes = max(segment.nodes for segment in segments)
        placements.append(
            replace(
                template,
                offer_id=sold.offer_id,
                estimate=estimate,
                segments=tuple(segments),
                nodes=nodes,
                gpus=nodes,
                replicas=nodes,
            )
        )
    asked = request(replace(a_service(hourly=hourly), **changes), hours=hours)  # type: ignore[arg-type]
    return replace(found, placements=tuple(placements)), asked, [sold for sold, _ in rows]


def sold(place: str, gpu: str = "BIG") -> Offer:
    return offer(f"{place}-{gpu}", "1.00", gpu=gpu, zone=place)


A, B, C = sold("a"), sold("b"), sold("c")
TINY = sold("a", "TINY")


@pytest.mark.parametrize(
    ("hourly", "words"),
    [
        ((8.0, 8.0, 4.0, 4.0), None),
        ((8.0, 8.0, 4.1, 4.0), "at 2026-11-23T02:00:00+00:00 4.0000 requests/s are left"),
    ],
)
def test_nodes_that_were_given_back_serve_nobody(hourly: tuple[float, ...], words: str | None) -> None:
    judge(refusals(serving, fleet((A, [span(0, 2, 2), span(2, 4, 1)]), hourly=hourly)), words)


def test_a_node_that_is_held_for_less_than_its_cold_start_changes_nothing() -> None:
    """For five minutes of its ten, beside two that serve."""
    brief = [Segment(at(2), at(2) + timedelta(minutes=5), 1)]
    assert refusals(serving, fleet((A, [span(0, 4, 2)]), (B, brief))) == []


def test_a_node_that_is_never_ready_puts_off_no_traffic() -> None:
    """A big one for five minutes of its ten: small ones could be there after five, and are due then."""
    never = [Segment(at(0), at(0) + timedelta(minutes=5), 1)]
    late = [Segment(at(0) + timedelta(minutes=5), at(4), 8)]
    words = "at 2026-11-23T00:05:00+00:00"
    judge(refusals(serving, fleet((A, never), (TINY, late))), words)
    assert refusals(serving, fleet((A, never), (TINY, [span(0, 4, 8)]))) == []


def test_traffic_is_due_when_the_slowest_of_the_first_nodes_is_there() -> None:
    assert refusals(serving, fleet((A, [span(0, 4)]), (TINY, [span(0, 4, 4)]))) == []


@pytest.mark.parametrize(
    ("late_s", "words"), [(0, None), (1, "at 2026-11-23T00:10:00+00:00 replicas stand in 0 zones")]
)
def test_the_first_instant_that_is_due_counts(late_s: int, words: str | None) -> None:
    late = [Segment(at(0) + late_s * SECOND, at(4), 2)]
    judge(refusals(serving, fleet((A, late))), words)


def test_a_plan_that_is_made_within_a_second_begins_with_the_next() -> None:
    found, asked, offers = fleet((A, [Segment(at(0) + SECOND, at(4), 2)]))
    made = replace(found, as_of=at(0) + SECOND / 2)
    assert refusals(serving, (made, asked, offers)) == []
    judge(refusals(serving, (found, asked, offers)), "at 2026-11-23T00:10:00")


def test_a_spare_is_one_of_the_largest_that_still_stand() -> None:
    """Six small ones, and a big one that is given back after two hours: five requests/s are left of six."""
    rows: tuple[Fleet, ...] = ((TINY, [span(0, 4, 6)]), (A, [span(0, 2)]))
    spare = Redundancy(1, 1)
    for hourly, words in (((5.0,), None), ((6.0, 6.0, 5.0, 5.0), None), ((5.0, 5.0, 5.1, 5.0), "5.0000")):
        judge(refusals(serving, fleet(*rows, hourly=hourly, redundancy=spare)), words)
    judge(refusals(serving, fleet(*rows, hourly=(6.1,), redundancy=spare)), "6.0000 requests/s are left")


def test_what_is_left_may_be_exactly_nothing_where_nothing_is_asked() -> None:
    checked = fleet((A, [span(0, 1, 2), span(1, 2)]), hourly=(4.0, 0.0), hours=2, redundancy=Redundancy(1, 1))
    assert refusals(serving, checked) == []


@pytest.mark.parametrize(
    ("tiny_until", "words"),
    [(4, None), (2, "at 2026-11-23T02:00:00+00:00 replicas stand in 1 zones, 2 are asked")],
)
def test_a_place_counts_while_a_replica_stands_there_however_small(
    tiny_until: float, words: str | None
) -> None:
    rows: tuple[Fleet, ...] = ((B, [span(0, 4, 2)]), (TINY, [span(0, tiny_until)]))
    judge(refusals(serving, fleet(*rows, redundancy=Redundancy(2, 0, Survival.REPLICA))), words)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((2, 1, 1), None),
        ((3, 2, 0), "stand in 2 zones that each carry 25% of the demand, 3 are asked"),
        ((4, 1, 0), "stand in 2 zones that each carry 25% of the demand, 3 are asked"),
    ],
)
def test_each_of_three_places_carries_half_of_what_may_be_lost(
    nodes: tuple[int, int, int], words: str | None
) -> None:
    """16 requests/s, half of which must survive: each of the other two carries four."""
    small = sold("c", "TINY")
    rows: list[Fleet] = [(A, [span(0, 4, nodes[0])]), (B, [span(0, 4, nodes[1])])]
    rows.append((C, [span(0, 4, nodes[2])]) if nodes[2] else (small, [span(0, 4, 3)]))
    loss = Redundancy(3, 0, Survival.ZONE, 0.5)
    judge(refusals(serving, fleet(*rows, hourly=(16.0,), redundancy=loss)), words)


def test_a_single_place_that_may_be_lost_leaves_nothing() -> None:
    loss = Redundancy(1, 0, Survival.ZONE, 0.5)
    said = refusals(serving, fleet((A, [span(0, 4, 2)]), redundancy=loss))
    judge(said, "0.0000 requests/s are left without the largest zone, 4.0000 are asked")


def test_demand_of_a_long_list_is_that_of_its_own_hour() -> None:
    """Four requests/s, but eight in the thirtieth hour alone."""
    hourly = [4.0] * 48
    assert refusals(serving, fleet((A, [span(0, 48)]), hourly=hourly, hours=48)) == []
    hourly[30] = 8.0
    said = refusals(serving, fleet((A, [span(0, 48)]), hourly=hourly, hours=48))
    judge(said, "at 2026-11-24T06:00:00")


def test_demand_of_a_day_comes_back_every_24_hours() -> None:
    """It peaks an hour after midnight; the second node is given back after a day."""
    traffic = Traffic(100, 100, TrafficShape.DIURNAL, 4.02, trough_share=0.3, peak_hour_utc=1)
    rows = (A, [span(0, 24, 2), span(24, 48)])
    judge(refusals(serving, fleet(rows, hours=48, traffic=traffic)), "at 2026-11-24T01:00:00")


@pytest.mark.parametrize(("kinds", "words"), [(2, None), (1, "runs on 2 kinds of GPU, 1 are allowed")])
def test_as_many_kinds_of_gpu_as_are_allowed(kinds: int, words: str | None) -> None:
    rows: tuple[Fleet, ...] = ((A, [span(0, 4)]), (TINY, [span(0, 4)]))
    found, asked, offers = fleet(*rows, fleet=FleetLimits(9, kinds))
    first, second = found.placements
    told = replace(found, placements=(first, replace(second, gpu="TINY")))
    judge(refusals(pools, (told, asked, offers)), words)


def waits(**changes: object) -> Checked:
    found, asked, offers = waiting_plan()
    (wait,) = found.waits
    told = replace(wait, **changes)  # type: ignore[arg-type]
    return replace(found, waits=(told,), delay_usd=told.delay_usd), asked, offers


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"start": at(10) + SECOND, "usd_per_hour": Decimal("2.000056")}, None),
        (
            {
                "start": at(10) - SECOND,
                "earliest_start": at(10) - SECOND,
                "usd_per_hour": Decimal("1.999944"),
            },
            None,
        ),
        ({"start": at(10) + 2 * SECOND, "usd_per_hour": Decimal("2.000112")}, "starts at"),
        ({"earliest_start": at(10) + SECOND}, "is outside the possible starts"),
        ({"earliest_start": at(0), "delay_usd": Decimal(20)}, None),
        ({"earliest_start": at(0) - SECOND, "delay_usd": Decimal(20)}, "is outside the possible starts"),
        ({"usd_per_hour": Decimal("2.000002")}, None),
        ({"usd_per_hour": Decimal("2.000003")}, "usd_per_hour is"),
        ({"earliest_start": at(5), "delay_usd": Decimal("10.01")}, None),
        ({"earliest_start": at(5), "delay_usd": Decimal("10.02")}, "delay_usd is 10.02, expected 10"),
        ({"earliest_start": at(5), "delay_usd": Decimal(0)}, "delay_usd is 0, expected 10"),
        ({"after": "other"}, "waits for 'other'"),
    ],
)
def test_a_wait_is_right_to_a_second_and_a_cent(changes: dict[str, object], words: str | None) -> None:
    """The run ends at the tenth hour. An hour of the service costs a dollar, and one of its delay two."""
    judge(refusals(waiting, waits(**changes)), words)


def before(provider: str, start: float, end: float, nodes: int = 1, *, own: bool = True) -> HeldNodes:
    return HeldNodes(provider, Window(at(start), at(end)), nodes, nodes, own)


@pytest.mark.parametrize(
    ("held", "limit", "words"),
    [
        ((), 1, None),
        ((), 0, "1 nodes held at"),
        ((before("lambda", 0, 5),), 2, None),
        ((before("lambda", 0, 5),), 1, "2 nodes held at 2026-11-23T00:00:00+00:00, 1 allowed"),
        ((before("lambda", 4, 5, 3),), 3, "4 nodes held at 2026-11-23T04:00:00+00:00, 3 allowed"),
        ((before("lambda", -5, 0, 3),), 1, None),
        ((before("lambda", 10, 12, 3),), 1, None),  # what is not planned anew breaks nothing by itself
        ((before("aws", 0, 5, 3),), 1, None),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_what_was_held_before_counts_at_its_provider_while_it_is_held(
    held: tuple[HeldNodes, ...], limit: int, words: str | None, own: bool
) -> None:
    """One node of lambda from the start to the tenth hour; a team's quota counts its own alone."""
    found, asked, offers = run_plan()
    rows = tuple(replace(row, is_own=own) for row in held)
    whole = replace(asked, held=rows, quotas=(Quota("lambda", nodes=limit),))
    judge(refusals(quotas, (found, whole, offers)), words)
    team = replace(asked, held=rows, policy=Policy(quotas=(Quota("lambda", nodes=limit),)))
    judge(refusals(quotas, (found, team, offers)), words if own or not held else None)

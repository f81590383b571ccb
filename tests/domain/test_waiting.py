"""What a delay costs a service that waits for a run: in hours, beside a move, in the plan of both."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.market.offer import Offer
from broker.domain.moving.merging import merged
from broker.domain.moving.move_cost_benefit import MoveContext
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.reoptimizing import decide_moves
from broker.domain.planning.delay_cost import average_usd_per_hour, wait_of
from broker.domain.planning.plan import Plan, Wait
from broker.domain.planning.workload import PlanRequest, Serving, Starts, WorkloadKind
from broker.domain.workloads.reoptimize_policy import MoveRules
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_request, a_segment, an_offer

HOUR = timedelta(hours=1)
EAGER = MoveRules(min_saving_usd=Decimal(0), min_saving_share=Decimal(0), cooldown=timedelta(0))
A, B = an_offer("a", "10"), an_offer("b", "5")
ALIKE = an_offer("alike", "10")


def waiting_request() -> PlanRequest:
    run, service = a_request().workloads
    assert isinstance(service, Serving)
    return replace(a_request(), workloads=(run, replace(service, starts=Starts("train"))))


def planned(run: Offer, service: Offer, start: float, usd_per_hour: str) -> Plan:
    """A run of ten hours from ``start``, and the service from its end to the end of 48 hours."""
    placements = (
        a_placement(run, [a_segment(start, start + 10)], "train", WorkloadKind.TRAINING),
        a_placement(service, [a_segment(start + 10, 48)], "chat", WorkloadKind.SERVING),
    )
    rate, end = Decimal(usd_per_hour), NOON + (start + 10) * HOUR
    wait = Wait("chat", "train", NOON + 10 * HOUR, end, rate, rate * Decimal(start))
    return replace(a_plan(*placements), waits=(wait,), delay_usd=wait.delay_usd)


def test_the_average_counts_the_hours_to_the_horizon_s_end() -> None:
    assert average_usd_per_hour(Decimal(38), NOON, NOON + 19 * HOUR) == 2
    assert average_usd_per_hour(Decimal(1), NOON, NOON + 3 * HOUR) == Decimal("0.333333")
    assert average_usd_per_hour(Decimal(1), NOON, NOON) == 0


def test_a_wait_is_priced_by_the_document_or_by_twice_the_average() -> None:
    service = waiting_request().workload("chat")
    assert isinstance(service, Serving)
    times = (NOON, NOON + 6 * HOUR, NOON + 30 * HOUR)
    assert wait_of(service, Decimal(48), *times).delay_usd == 24
    priced = replace(service, starts=replace(service.starts, delay_usd_per_hour=Decimal("0.50")))
    assert wait_of(priced, Decimal(48), *times).delay_usd == 3
    assert wait_of(service, Decimal(48), NOON + 9 * HOUR, *times[1:]).delay_usd == 0


@pytest.mark.parametrize("service", [A, ALIKE], ids=["keeps its place", "moves"])
@pytest.mark.parametrize(("usd_per_hour", "moves"), [("10", True), ("12", True), ("13", False)])
def test_a_cheaper_run_that_ends_later_must_pay_for_the_delay(
    service: Offer, usd_per_hour: str, moves: bool
) -> None:
    """The run saves 50 and ends 20 hours later. An hour of the service costs 10: of what an hour of delay
    costs, the rest counts, 0, 40 or 60."""
    old, new = planned(A, A, 0, usd_per_hour), planned(B, service, 20, usd_per_hour)
    offers = {offer.offer_id: offer for offer in (A, B, ALIKE)}
    prices = {key: offer.price_usd_per_node_hour for key, offer in offers.items()}
    seen = MoveContext(waiting_request(), old, (), offers, prices, NOON - HOUR)
    found = decide_moves(seen, new, {"train": EAGER, "chat": EAGER}, MovingTerms())
    assert ("train" in found.moved) is moves
    assert ("train" in found.held_back) is not moves


def test_the_plan_of_both_waits_as_its_run_does() -> None:
    old, new = planned(A, A, 0, "10"), planned(B, ALIKE, 20, "10")
    assert merged(old, new, {"train"}, waiting_request()).delay_usd == 200
    assert merged(old, new, {"chat"}, waiting_request()).delay_usd == 0

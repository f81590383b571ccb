"""What is said of the next best way is true, and it never is cheaper and free."""

from __future__ import annotations

import re
from decimal import Decimal

from hypothesis import given, settings

from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import GpuRange, PlanRequest
from tests.depth import examples
from tests.placement.market import at, offer, plan, request, serving, training
from tests.placement.test_optimality import PROFILE, run_problems


def _because(found: Plan, workload: str) -> str:
    (placed,) = found.placements_of(workload)
    assert placed.why.runner_up is not None
    return placed.why.runner_up.because


def test_a_dearer_way_says_by_how_much() -> None:
    found = plan(request(training(gpu_hours=10)), [offer("a", "1.00"), offer("b", "1.20")])
    assert _because(found, "run") == "costs $2.00 more (20.0 %)"


def test_a_way_that_ends_late_says_what_lateness_costs() -> None:
    offers = [offer("fast", "3.00"), offer("slow", "1.00", gpu="MID")]
    run = training(gpu_hours=10, deadline=at(22), late_usd_per_hour=Decimal("7.00"))
    found = plan(request(run), offers)
    assert found.placements[0].offer_id == "fast"
    assert _because(found, "run") == "costs $5.00 less to hold but ends 3.0 h late, which costs $21.00"


def test_a_cheaper_way_names_who_holds_its_nodes() -> None:
    offers = [offer("cheap", "1.00", nodes=1), offer("dear", "2.00")]
    found = plan(request(training("long", 20, deadline=at(20)), training("short", 5, deadline=at(6))), offers)
    assert [p.offer_id for p in found.placements] == ["cheap", "dear"]
    assert _because(found, "short") == "costs $5.00 less, but its nodes are held by long"
    assert found.placements_of("short")[0].why.binding[0] == "1 cheaper offer of 2 is held by long"


def test_the_same_price_is_said_to_be_the_same() -> None:
    found = plan(request(training(gpu_hours=10)), [offer("a", "1.00"), offer("b", "1.00")])
    assert _because(found, "run") == "costs the same"


def test_a_run_that_ends_elsewhere_says_what_its_service_then_costs() -> None:
    offers = [offer("a", "1.00"), offer("b", "1.10", gpu="MID", nodes=1)]
    at_average = request(training(gpu_hours=10), serving(starts_after="run"), hours=40)
    service = serving(starts_after="run", delay_usd_per_hour=Decimal("3.00"))
    priced = request(training(gpu_hours=10), service, hours=40)
    for asked, usd in ((at_average, "15.00"), (priced, "30.00")):
        text = _because(plan(asked, offers), "run")
        later = rf"costs \$\S+ more, but ends 15.0 h later: what waits for it then costs \${usd} more"
        assert re.fullmatch(later, text)


def test_the_budget_is_named_when_it_stands_against_the_next_best() -> None:
    run = training(gpu_hours=10, deadline=at(8), late_usd_per_hour=Decimal("5.00"))
    offers = [offer("slow", "1.00"), offer("fast", "3.00", gpus=2)]
    found = plan(request(run, budget_usd=Decimal("14.00")), offers)
    assert found.placements[0].offer_id == "slow"
    assert _because(found, "run") == "costs $5.00 less, but passes the budget by $1.00"


def test_how_a_fleet_is_held_is_said_in_plain_words() -> None:
    (flat,) = plan(request(serving(hourly=[3.0])), [offer("a", "1.00")]).placements
    assert "1 node is held throughout" in flat.why.binding
    (wavy,) = plan(
        request(serving(hourly=[3.0] * 12 + [7.0] * 12), hours=24), [offer("a", "1.00")]
    ).placements
    assert "1 to 2 nodes are held, following traffic" in wavy.why.binding


def test_dropped_offers_are_told_in_plain_words() -> None:
    offers = [offer("pair", "1.00", gpus=2, joined=4), offer("one", "0.10"), offer("x", "0.1", gpu="NONE")]
    (placed,) = plan(request(training(gpu_hours=10, gpus=GpuRange(8))), offers).placements
    assert placed.why.binding[-1] == "the gates dropped 1 offer of GPUs without figures, 1 without a fabric"
    assert placed.why.binding[1] == "4 nodes are the fewest with the asked 8 GPUs"


def _others_hold_it(found: Plan, placed: Placement) -> bool:
    assert placed.why.runner_up is not None
    named = placed.why.runner_up.because.split("held by ")[-1].split(", ")
    return all(
        any(p.offer_id == placed.why.runner_up.offer_id for p in found.placements_of(name)) for name in named
    )


@settings(PROFILE, max_examples=examples(15))
@given(run_problems())
def test_no_runner_up_is_cheaper_and_free(problem: tuple[PlanRequest, list[Offer]]) -> None:
    found = plan(*problem, gap=0.5)
    for placed in found.placements:
        second = placed.why.runner_up
        if second is not None and " less, but" in second.because:
            assert _others_hold_it(found, placed)

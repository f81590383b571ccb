"""What differs between two plans, reckoned by hand and by sampling."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.window import Segment
from broker.domain.planning.comparison import AssumedPrices, differences_between, outcomes_of
from broker.domain.planning.plan import Obstacle, Placement, Unplaced
from broker.domain.planning.workload import WorkloadKind
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_request, an_offer

HOUR = timedelta(hours=1)


def held(provider_offer: str, *steps: tuple[int, int, int], workload: str = "train") -> Placement:
    segments = [Segment(NOON + start * HOUR, NOON + end * HOUR, nodes) for start, end, nodes in steps]
    kind = WorkloadKind.TRAINING if workload == "train" else WorkloadKind.SERVING
    return a_placement(an_offer(provider_offer, "10"), segments, workload, kind)


def test_a_plan_beside_itself_differs_in_nothing() -> None:
    plan = a_plan(held("a", (0, 10, 2)), held("b", (0, 48, 1), workload="serve"))
    assert differences_between(outcomes_of(plan), outcomes_of(plan)) == ()


def test_each_difference_is_told_with_its_figure() -> None:
    base = a_plan(held("a", (0, 10, 2)), held("b", (0, 48, 1), workload="serve"))
    later = a_plan(held("a", (24, 34, 2)), held("b", (0, 48, 1), workload="serve"))
    (one,) = differences_between(outcomes_of(base), outcomes_of(later))
    assert (one.workload, one.difference_usd) == ("train", Decimal(0))
    assert one.says == "it starts 24.0 h later; it ends 24.0 h later"

    dearer = replace(base.placements[0], region="elsewhere", cost_usd=base.placements[0].cost_usd + 5)
    (moved,) = differences_between(outcomes_of(base), outcomes_of(a_plan(dearer, base.placements[1])))
    assert moved.difference_usd == Decimal(5)
    taken, given_up, cost = moved.says.split("; ")
    assert (taken[:15], "in elsewhere" in taken) == ("it takes 2 × 8 ", True)
    assert (given_up[:18], "in elsewhere" in given_up) == ("it gives up 2 × 8 ", False)
    assert cost == "it costs $5.00 more"

    wider = replace(base.placements[0], nodes=3, gpus=24)
    (grown,) = differences_between(outcomes_of(base), outcomes_of(a_plan(wider, base.placements[1])))
    assert grown.says.startswith("it goes from 2 to 3 × 8 ")


def test_what_is_left_out_saves_its_cost() -> None:
    base = a_plan(held("a", (0, 10, 2)), held("b", (0, 48, 1), workload="serve"))
    rest = a_plan(base.placements[1], unplaced=(Unplaced("train", Obstacle.DEADLINE, "later"),))
    (one,) = differences_between(outcomes_of(base), outcomes_of(rest))
    assert (one.says, one.difference_usd) == ("it is left out: deadline", -base.placements[0].cost_usd)
    (back,) = differences_between(outcomes_of(rest), outcomes_of(base))
    assert back.says.startswith("it is placed on 2 × 8")
    assert back.difference_usd == base.placements[0].cost_usd
    gone = a_plan(base.placements[1])
    (absent,) = differences_between(outcomes_of(base), outcomes_of(gone))
    assert absent.says == "it is not in the document"


def test_margins_are_what_is_left_of_deadline_and_latency() -> None:
    request = a_request()
    run, service = request.workloads
    placements = [held("a", (0, 10, 2)), held("b", (0, 48, 1), workload=service.name)]
    placements[0] = replace(placements[0], workload=run.name)
    value = {"ttft_p95_ms": 150.0, "itl_p95_ms": 10.0}
    estimate = replace(placements[1].estimate, value=value, low=value, high=value)
    placements[1] = replace(placements[1], estimate=estimate)
    train, serve = outcomes_of(a_plan(*placements), request)
    assert train.margin == (run.deadline - (NOON + 10 * HOUR)) / HOUR  # type: ignore[union-attr]
    slo = service.slo  # type: ignore[union-attr]
    tightest = max(150 / (slo.ttft_p95_ms or 1e9), 10 / (slo.itl_p95_ms or 1e9))
    assert serve.margin == pytest.approx(1 - tightest, abs=1e-4)
    assert outcomes_of(a_plan(*placements))[0].margin is None


steps = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=4)


@given(st.lists(steps, min_size=1, max_size=3))
def test_peak_and_gpu_hours_are_those_of_every_hour(drawn: list[list[tuple[int, int, int]]]) -> None:
    placements = []
    for number, rows in enumerate(drawn):
        clock, segments = 0, []
        for wait, length, nodes in rows:
            segments.append((clock + wait, clock + wait + length, nodes))
            clock += wait + length
        placements.append(held(f"offer-{number}", *segments))
    (outcome,) = outcomes_of(a_plan(*placements))
    by_hour = [
        sum(
            8 * segment.nodes
            for p in placements
            for segment in p.segments
            if segment.start <= NOON + hour * HOUR < segment.end
        )
        for hour in range(120)
    ]
    assert outcome.gpus == max(by_hour)
    assert outcome.gpu_hours == sum(by_hour)


@given(st.decimals("0.01", "10", places=2), st.booleans())
def test_assumed_prices_scale_every_price_of_the_provider_and_no_other(factor: Decimal, one: bool) -> None:
    ours, theirs = an_offer("a", "10"), replace(an_offer("b", "4"), provider="other", upfront_usd=Decimal(7))
    assumed = AssumedPrices(factor, ours.provider if one else None)
    first, second = assumed.applied((ours, theirs))
    assert first.price_usd_per_node_hour == 10 * factor
    assert (second.price_usd_per_node_hour, second.upfront_usd) == (
        (4, 7) if one else (4 * factor, 7 * factor)
    )

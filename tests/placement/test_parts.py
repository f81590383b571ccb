"""Batches in parts: what a cover costs, what no cover costs less than, and what the checker says of parts."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from broker.domain.market.offer import GpuPool, NativePrice, Offer, Stock, Tier, WindowKind
from broker.domain.planning.plan import Obstacle, Plan
from broker.domain.planning.workload import Batch, Policy, Quota
from broker.ports.planning import PlanOptions
from optimizer.placement.replan.warm import WarmStart
from tests.placement import market
from tests.placement.market import T0, at, batch, plan, planner, request, total, window

FULL = 4 * (10 * 3600 - 600)
"""Requests that a BIG node answers in ten hours: four a second after ten minutes of cold start."""
FREE = Policy(premium=0.0)


def offer(name: str, usd: str, **changes: Any) -> Offer:
    """An offer that is billed by the second."""
    return market.offer(name, usd, **{"billing_increment_s": 1, **changes})


def halves(**changes: Any) -> Batch:
    """More than one node answers in ten hours."""
    return batch(requests=200_000, deadline=at(10), **changes)


def solved(asked: Batch, offers: list[Offer], policy: Policy = FREE, **options: Any) -> Plan:
    return plan(request(asked, policy=policy), offers, **options)


def held(found: Plan) -> dict[str, tuple[int, float]]:
    return {p.offer_id: (p.nodes, p.requests or 0.0) for p in found.placements}


def test_the_cheap_node_is_filled_and_the_rest_goes_elsewhere() -> None:
    found = solved(halves(), [offer("cheap", "1.00", nodes=1), offer("dear", "2.00")])
    # 58,400 requests are left: 14,600 s at four a second and 600 s of cold start, at 2.00 an hour.
    assert held(found) == {"cheap": (1, FULL), "dear": (1, 200_000 - FULL)}
    assert found.cost_usd == Decimal("10.00") + Decimal("8.44")
    assert found.bound_usd is not None
    assert found.bound_usd >= found.cost_usd - Decimal("0.01")
    first, second = found.placements
    assert (first.work_share, first.first_request, second.first_request) == (FULL / 200_000, 0.0, FULL)
    assert second.estimate["hours"] == pytest.approx(15_200 / 3600)


def test_one_part_stays_whole() -> None:
    found = solved(halves(parts=1), [offer("cheap", "1.00", nodes=1), offer("dear", "2.00")])
    # Two nodes answer 200,000 requests in 25,600 s.
    assert held(found) == {"dear": (2, 200_000)}
    assert found.cost_usd == Decimal("28.44")


def test_two_parts_are_no_three() -> None:
    offers = [offer("a", "1.00", nodes=1), offer("b", "1.10", nodes=1), offer("c", "1.20", nodes=1)]
    asked = batch(requests=350_000, deadline=at(10))
    assert len(solved(asked, offers).placements) == 3
    assert solved(replace(asked, parts=2), offers).unplaced[0].workload == "batch"


def test_parts_make_possible_what_no_offer_can_do_alone() -> None:
    offers = [offer("a", "1.00", nodes=1), offer("b", "1.00", nodes=1)]
    assert not solved(halves(), offers).unplaced
    (left_out,) = solved(halves(parts=1), offers).unplaced
    assert left_out.reason is Obstacle.DEADLINE


def test_a_premium_keeps_it_together() -> None:
    offers = [offer("cheap", "1.99", nodes=1), offer("dear", "2.00")]
    assert len(solved(halves(), offers).placements) == 2
    kept = solved(halves(), offers, Policy(premium=0.01), gap=0.02)
    assert held(kept) == {"dear": (2, 200_000)}


def test_sizes_of_one_machine_are_no_two_machines() -> None:
    pool = GpuPool("machine", 2)
    offers = [
        offer("one", "1.00", stock=Stock(nodes=2, pool=pool)),
        offer("two", "1.90", gpus=2, stock=Stock(nodes=1, pool=pool)),
        offer("dear", "5.00"),
    ]
    found = solved(batch(requests=3 * FULL, deadline=at(10)), offers)
    gpus = sum(p.gpus for p in found.placements if p.offer_id != "dear")
    assert gpus == 2
    assert found.bound_usd is not None
    assert found.bound_usd >= total(found) * Decimal("0.99")


def test_a_quota_holds_over_all_parts() -> None:
    offers = [offer(name, "1.00", nodes=1) for name in "abcd"] + [offer("else", "3.00", provider="runpod")]
    asked = batch(requests=3 * FULL, deadline=at(10))
    found = solved(asked, offers, replace(FREE, quotas=(Quota("lambda", nodes=2),)))
    assert sum(p.nodes for p in found.placements if p.provider == "lambda") == 2


def test_spot_pays_for_interruptions() -> None:
    spot = offer("spot", "1.00", tier=Tier.SPOT, interruptions_per_hour=0.5)
    asked = batch(requests=4 * 3600, deadline=at(10), chunk_minutes=50)
    found = solved(asked, [spot, offer("dear", "9.00")])
    # Half an hour of each held hour is lost: 50 minutes of work and 10 of start, once in two hours.
    assert found.placements[0].estimate["hours"] == pytest.approx((3600 + 600) / 0.5 / 3600)
    assert found.cost_usd == Decimal("2.33")
    steady = solved(replace(asked, interruptible=False), [spot, offer("dear", "9.00")])
    assert held(steady) == {"dear": (1, 4 * 3600)}
    assert solved(asked, [spot], replace(FREE, tiers=(Tier.ON_DEMAND,))).unplaced[0].reason is Obstacle.TIER


def test_a_window_and_the_rest_by_the_hour() -> None:
    listed = window(WindowKind.LISTED, (2, 8, 1))
    sold = offer("w", "1.00", tier=Tier.WINDOW, upfront_usd=Decimal(6), nodes=1, window=listed)
    found = solved(halves(), [sold, offer("dear", "4.00")])
    answered = 4 * (6 * 3600 - 600)
    assert held(found)["w"] == (1, answered)
    # The rest: 116,000 requests, 29,000 s and a cold start.
    assert found.cost_usd == Decimal("6.00") + Decimal("32.89")


def test_two_batches_share_the_cheap_node() -> None:
    offers = [offer("cheap", "1.00", nodes=1), offer("dear", "2.00")]
    both = request(halves(), replace(halves(), name="other"), policy=FREE)
    found = plan(both, offers)
    assert sum(p.nodes for p in found.placements if p.offer_id == "cheap") <= 1
    assert found.bound_usd is not None
    # 400,000 requests: ten hours of the cheap node, and 258,400 on dear ones, each with its start.
    assert Decimal("45.8") < found.bound_usd <= total(found) < Decimal("47.3")


def _parts(found: Plan, *shares: float) -> Plan:
    """The plan of one placement in parts of these shares, as told by somebody."""
    (placement,) = found.placements
    asked = placement.requests or 0.0
    made, before = [], 0.0
    for share in shares:
        part = replace(placement, work_share=share, requests=share * asked, first_request=before)
        before += share * asked
        made.append(part)
    return replace(found, placements=tuple(made))


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((0.5, 0.4), "answer 180000.000000 requests, 200000 are asked"),
        ((0.5, 0.6), "answer 220000.000000 requests"),
        ((0.5, 0.5), "estimate value hours"),
    ],
)
def test_the_checker_adds_the_parts_up(shares: tuple[float, ...], words: str) -> None:
    asked, offers = request(halves(), policy=FREE), [offer("node", "1.00")]
    said = "\n".join(planner().check(_parts(plan(asked, offers), *shares), asked, offers))
    assert words in said


def test_the_checker_counts_parts_and_refuses_gaps() -> None:
    asked, offers = request(halves(), policy=FREE), [offer("cheap", "1.00", nodes=1), offer("dear", "2.00")]
    found = plan(asked, offers)
    assert not planner().check(found, asked, offers)
    two = request(halves(parts=1), policy=FREE)
    assert "at most 1" in "\n".join(planner().check(found, two, offers))
    first, second = found.placements
    moved = replace(found, placements=(first, replace(second, first_request=FULL - 1)))
    assert "begins after request" in "\n".join(planner().check(moved, asked, offers))
    fewer = replace(found, placements=(first, replace(second, requests=1.0)))
    assert "its share of the work" in "\n".join(planner().check(fewer, asked, offers))


def test_a_plan_in_parts_stands_when_it_is_made_again() -> None:
    asked, offers = request(halves(), policy=FREE), [offer("cheap", "1.00", nodes=1), offer("dear", "2.00")]
    found = plan(asked, offers)
    options = PlanOptions(time_limit_s=20.0, gap=0.0, baselines=False)
    again = planner().replan(asked, offers, T0, options, WarmStart(found))
    assert held(again.plan) == held(found)
    assert again.kept == {"batch"}


def drawn(seed: int) -> tuple[Batch, list[Offer]]:
    lots = random.Random(seed)
    offers = [
        offer(
            f"o{number}",
            f"{lots.uniform(0.5, 3):.2f}",
            gpu=lots.choice(["BIG", "MID", "TINY"]),
            nodes=lots.choice([1, 1, 2, 3]),
            provider=lots.choice(["lambda", "runpod"]),
        )
        for number in range(4)
    ]
    return batch(requests=lots.choice([50_000, 200_000, 400_000]), deadline=at(lots.choice([8, 16]))), offers


RATES = {"BIG": (4.0, 600.0), "MID": (2.5, 600.0), "TINY": (1.0, 300.0)}


def best_by_hand(asked: Batch, offers: list[Offer]) -> float | None:
    """The least of all counts of nodes: all but those of one offer work to the deadline."""
    span_s = (asked.deadline - asked.earliest_start).total_seconds()
    best = None
    for counts in product(*(range((one.stock.nodes or 0) + 1) for one in offers)):
        for last, count in enumerate(counts):
            if not count:
                continue
            usd, left = 0.0, asked.requests
            for number, (one, nodes) in enumerate(zip(offers, counts, strict=True)):
                rate, cold_s = RATES[one.sku.gpu]
                full = nodes - (number == last)
                usd += full * float(one.price_usd_per_node_hour) * span_s / 3600
                left -= full * rate * (span_s - cold_s)
            rate, cold_s = RATES[offers[last].sku.gpu]
            needed = cold_s + max(0.0, left) / rate
            if left <= rate * (span_s - cold_s):
                usd += float(offers[last].price_usd_per_node_hour) * needed / 3600
                best = usd if best is None else min(best, usd)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_cover_by_hand_costs_less(seed: int) -> None:
    asked, offers = drawn(seed)
    found, best = solved(asked, offers), best_by_hand(asked, offers)
    assert (best is None) == bool(found.unplaced)
    if best is not None:
        assert found.bound_usd is not None
        assert float(found.bound_usd) <= best + 0.01
        assert float(total(found)) <= best * 1.004 + 0.02


@pytest.mark.parametrize("seed", range(8))
def test_a_freer_question_never_costs_more(seed: int) -> None:
    asked, offers = drawn(seed)
    plenty = [*offers, offer("plenty", "4.00")]
    free, whole = solved(asked, plenty), solved(replace(asked, parts=1), plenty)
    more = solved(asked, [*plenty, offer("more", "0.80", nodes=1)])
    assert total(free) <= total(whole)
    assert total(more) <= total(free) + Decimal("0.01")
    assert free.bound_usd is not None
    assert free.bound_usd <= total(whole)


@pytest.mark.parametrize("seed", range(4))
def test_quarters_cost_what_the_whole_costs_but_for_their_starts(seed: int) -> None:
    """Four batches of a quarter each, told by hand, are one batch: they differ by cold starts and cents."""
    asked, offers = drawn(seed)
    plenty = [*offers, offer("plenty", "4.00")]
    quarter = replace(asked, requests=asked.requests / 4)
    quarters = request(*(replace(quarter, name=f"q{number}") for number in range(4)), policy=FREE)
    whole, apart = solved(asked, plenty), plan(quarters, plenty, time_limit_s=5.0)
    starts = 4 * 600 / 3600 * 4.0
    assert float(total(whole)) <= float(total(apart)) + 0.05
    assert float(total(apart)) <= float(total(whole)) * 1.02 + starts


def test_an_offer_of_lots_is_bought_in_lots() -> None:
    slots = window(WindowKind.SLOTS, (0, 24, 8), lot_nodes=2, step_hours=1.0)
    lots = offer("lots", "1.00", tier=Tier.WINDOW, nodes=8, window=slots)
    found = solved(batch(requests=3 * FULL, deadline=at(10)), [lots, offer("dear", "6.00")])
    assert all(p.nodes % 2 == 0 for p in found.placements if p.offer_id == "lots")


def test_prices_in_other_words() -> None:
    """An offer's native price plays no part."""
    one = offer("cheap", "1.00", nodes=1)
    other = replace(one, native=NativePrice(Decimal("0.90"), "EUR", "node_hour"))
    dear = offer("dear", "2.00")
    assert solved(halves(), [one, dear]).cost_usd == solved(halves(), [other, dear]).cost_usd

"""The price of confidence: the same document at four confidences, counted by hand on windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.basics.confidence import quantile_factor
from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.planning.plan import ConfidencePrice, Obstacle, Plan, Unplaced
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions
from optimizer.confidence_prices import LEVELS, confidence_prices
from tests.placement.market import T0, offer, plan, planner, request, training, window

OPTIONS = PlanOptions(time_limit_s=240, gap=0.0, baselines=False)
SURE_HOURS = [10 * quantile_factor(0.1, level) for level in LEVELS]
"""Of a run of ten hours whose P90 is 10 % longer."""


def windows(*hours: float) -> list[Offer]:
    """A window for each length in hours, at a dollar an hour."""
    return [
        offer(f"w{each}", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, each, 1)))
        for each in hours
    ]


def priced(offers: list[Offer], confidence: float) -> tuple[Plan, tuple[ConfidencePrice, ...]]:
    asked = request(training(confidence=confidence))
    made = plan(asked, offers)
    return made, planner().price_confidence(made, asked, offers, T0, OPTIONS)


@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_each_confidence_costs_the_window_that_is_long_enough_for_it(confidence: float) -> None:
    assert [round(hours, 1) for hours in SURE_HOURS] == [10.0, 10.6, 11.0, 11.3]
    made, rows = priced(windows(10, 10.8, 11.1, 11.5), confidence)
    assert [row.confidence for row in rows] == list(LEVELS)
    assert [row.cost_usd for row in rows] == [Decimal(usd) for usd in ("10.00", "10.80", "11.10", "11.50")]
    assert made.cost_usd == rows[LEVELS.index(confidence)].cost_usd
    assert all(row.chance is not None and row.chance >= row.confidence for row in rows)
    assert all((row.expected_cost_usd or 0) >= (row.cost_usd or 0) for row in rows)


def test_where_no_window_is_long_enough_nothing_is_priced() -> None:
    _, rows = priced(windows(10, 10.8), 0.5)
    assert [row.cost_usd for row in rows] == [Decimal("10.00"), Decimal("10.80"), None, None]
    assert [row.unplaced for row in rows] == [(), (), ("run",), ("run",)]


def test_an_open_gap_never_makes_less_confidence_dearer() -> None:
    """A search that ended early found the plan of 0.8 dearer than that of 0.9, which holds with 0.8 too."""
    made = plan(request(training(confidence=0.5)), windows(10))
    costs: Iterator[str] = iter(("10.00", "14.00", "12.00", "13.00"))

    def planned(_: PlanRequest) -> Plan:
        return replace(made, cost_usd=Decimal(next(costs)))

    rows = confidence_prices(request(training()), (), planned)
    assert [str(row.cost_usd) for row in rows] == ["10.00", "12.00", "12.00", "13.00"]


def test_a_plan_that_is_surer_than_it_was_planned_for_is_one_for_more_confidence_too() -> None:
    """The plan of 0.8 holds with 0.93 at $11, that of 0.9 with 0.91 at $12."""
    made = plan(request(training(confidence=0.5)), windows(10))
    found: Iterator[tuple[str, float]] = iter(
        (("10.00", 0.5), ("11.00", 0.93), ("12.00", 0.91), ("13.00", 0.96))
    )

    def planned(_: PlanRequest) -> Plan:
        usd, chance = next(found)
        placements = tuple(replace(one, chance=chance) for one in made.placements)
        return replace(made, cost_usd=Decimal(usd), placements=placements)

    rows = confidence_prices(request(training()), (), planned)
    assert [str(row.cost_usd) for row in rows] == ["10.00", "11.00", "11.00", "13.00"]
    assert [row.chance for row in rows] == [0.5, 0.93, 0.93, 0.96]


def test_what_the_plan_leaves_out_may_be_left_out() -> None:
    made = plan(request(training(confidence=0.5)), windows(10))
    without = replace(made, unplaced=(Unplaced("dear", Obstacle.PRICE, ""),))
    rows = confidence_prices(request(training()), {"dear"}, lambda _: without)
    assert {(row.cost_usd, row.unplaced) for row in rows} == {(made.cost_usd, ("dear",))}

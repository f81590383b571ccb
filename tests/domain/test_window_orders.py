"""What a wish for one offer must be before it is sent."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.window_orders import find_order_problems
from broker.domain.market.offer import WindowTerms
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms

HOUR = timedelta(hours=1)
SELLERS = [listed_terms(NOON, 4, 8), slot_terms(NOON, 4, 8)]


def said(terms: WindowTerms, nodes: int) -> list[str]:
    intent = Intent(an_offer(window=terms), nodes, NOON, NOON + 4 * HOUR)
    return [str(problem) for problem in find_order_problems(intent, NOON, HOUR)]


@pytest.mark.parametrize("terms", SELLERS)
def test_a_count_off_the_menu_is_refused_by_name(terms: WindowTerms) -> None:
    menu = replace(terms, node_counts=(1, 2, 4))
    assert said(menu, 4) == []
    (problem,) = said(menu, 3)
    assert (
        problem
        == "/nodes: found 3, expected one of 1, 2, 4, as this provider sells; the next larger count is 4"
    )
    assert "one of 1, 2, 4, as this provider sells" in said(menu, 5)[0]


@pytest.mark.parametrize("terms", SELLERS)
def test_a_part_of_a_lot_is_refused_by_name(terms: WindowTerms) -> None:
    lots = replace(terms, lot_nodes=3)
    assert said(lots, 6) == []
    (problem,) = said(lots, 4)
    assert "a multiple of 3, as this provider sells; the next larger count is 6" in problem

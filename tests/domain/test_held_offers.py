"""What is left to plan with of offers that a seller refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.reconciling.held_offers import less_refused
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer

A, B = an_offer("a"), an_offer("b")
HELD = HeldCapacity("chat", A, 2, NOON, NOON + timedelta(hours=8))


@pytest.mark.parametrize(
    ("held", "refused", "nodes"),
    [
        ((), set(), {"a": 100, "b": 100}),
        ((), {"a"}, {"b": 100}),
        ((HELD,), set(), {"a": 100, "b": 100}),
        ((HELD,), {"a"}, {"a": 2, "b": 100}),
        ((HELD, replace(HELD, nodes=3)), {"a"}, {"a": 5, "b": 100}),
        ((HELD,), {"a", "b"}, {"a": 2}),
        ((replace(HELD, is_bought=False),), {"a"}, {"b": 100}),
    ],
)
def test_of_a_refused_offer_only_what_is_bought_can_be_kept(
    held: tuple[HeldCapacity, ...], refused: set[str], nodes: dict[str, int]
) -> None:
    found = less_refused((A, B), held, frozenset(refused))
    assert {offer.offer_id: offer.stock.nodes for offer in found} == nodes

"""What is left to plan with: of what is ours, of what others have ordered, of what a seller refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.domain.basics.window import Window
from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.holding.reservation import Reservation, Unit, UnitState
from broker.domain.market.offer import GpuPool, Offer, Stock, WindowTerms
from broker.domain.reconciling.held_offers import less_others, less_refused, with_held
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, slot_terms
from tests.store.examples import reservation

LATER = Window(NOON, NOON + timedelta(days=7))
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


def in_pool(name: str, gpus: int | None) -> Offer:
    """Four nodes of eight GPUs, out of a pool."""
    return replace(an_offer(name), stock=Stock(nodes=4, pool=GpuPool("hall", gpus)))


def order(offer: Offer, nodes: int) -> Reservation:
    """Nodes that are ordered, and not yet at the seller."""
    unit = Unit(0, "tag", nodes, UnitState.PLANNED)
    return replace(reservation("rsv"), offer=offer, nodes=nodes, units=(unit,))


@pytest.mark.parametrize(("after_s", "nodes"), [(-1, 102), (0, 102), (1, 100)])
def test_what_was_bought_after_the_count_is_in_the_count_still(after_s: int, nodes: int) -> None:
    held = replace(HELD, start=A.observed_at + timedelta(seconds=after_s))
    (found,) = with_held([A], [held])
    assert (found.stock.nodes, found.stock.held_nodes) == (nodes, 0)
    (uncounted,) = with_held([replace(A, stock=Stock())], [held])
    assert (uncounted.stock.nodes, uncounted.stock.held_nodes) == (None, 2), (
        "nobody counts it, and it is ours"
    )


def test_own_gpus_are_added_to_what_is_counted_of_their_pool() -> None:
    mine, other, uncounted = in_pool("a", 32), in_pool("b", 32), in_pool("c", None)
    found = with_held([mine, other, uncounted], [replace(HELD, offer=mine)])
    assert [(o.stock.nodes, o.stock.pool and o.stock.pool.gpus) for o in found] == [
        (6, 48),
        (4, 48),
        (4, None),
    ]


def test_what_others_have_ordered_is_off_their_offer_and_its_pool() -> None:
    mine, other, apart = in_pool("a", 32), in_pool("b", 32), an_offer("c", stock=3)
    found = less_others([mine, other, apart], [order(mine, 3)], LATER)
    assert {o.offer_id: (o.stock.nodes, o.stock.pool and o.stock.pool.gpus) for o in found} == {
        "a": (1, 8),
        "b": (1, 8),
        "c": (3, None),
    }
    assert less_others([apart, A], [order(apart, 3)], LATER) == (A,)
    elsewhere = replace(mine, stock=replace(mine.stock, pool=GpuPool("yard", 32)))
    assert less_others([elsewhere], [order(other, 3)], LATER) == (elsewhere,)


@pytest.mark.parametrize(("window", "nodes"), [(None, 4), (slot_terms(NOON, 24 * 14), 1)])
def test_an_order_after_the_time_asked_for_takes_from_windows_alone(
    window: WindowTerms | None, nodes: int
) -> None:
    """Three of four nodes are ordered for the eighth day; a window may be sold up to then and beyond."""
    offer = an_offer("w", stock=4, window=window)
    day = timedelta(days=1)
    later = replace(order(offer, 3), start=LATER.end + day, end=LATER.end + 2 * day)
    (found,) = less_others([offer], [later], LATER)
    assert found.stock.nodes == nodes

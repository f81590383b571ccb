"""If nobody says how many nodes exist, no more are held than may be assumed, and the plan states the
assumption.

An offer is uncounted if neither its seller nor its pool gives a number and no window says what is free.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from broker.domain.market.offer import Offer, StockLevel, WindowKind
from broker.domain.planning.effective_rules import assumed_nodes
from optimizer.placement.rules.case import Case

Steps = Mapping[datetime, int]


def violations(case: Case) -> Iterator[str]:
    """Uncounted offers and pools that are held beyond the assumption, and misstated assumptions."""
    assumed = assumed_nodes(case.request)
    sizes: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in case.offers.values():
        if offer.stock.pool is not None:
            sizes[offer.stock.pool.pool_id].append(offer)
    uncounted = {pool_id for pool_id, cut in sizes.items() if _is_uncounted_pool(cut)}
    changes = _changes(case)
    expected = {}
    for offer_id, steps in changes.items():
        offer = case.offers[offer_id]
        if _is_counted(offer) or (offer.stock.pool and offer.stock.pool.pool_id not in uncounted):
            continue
        expected[offer_id] = _most(steps)
        limit = assumed + offer.stock.held_nodes
        if expected[offer_id] > limit:
            yield f"offer {offer_id}: {expected[offer_id]} nodes held, {limit} assumed: nobody counts them"
    for pool_id in sorted(uncounted):
        held, limit = _most(_of_pool(sizes[pool_id], changes)), _gpus(sizes[pool_id], assumed)
        if held > limit:
            yield f"pool {pool_id}: {held} GPUs held, {limit} assumed: nobody counts them"
    yield from _told(case, expected)


def _told(case: Case, expected: Mapping[str, int]) -> Iterator[str]:
    told = Counter(one.offer_id for one in case.plan.assumptions)
    yield from (f"assumptions name {offer_id} {n} times" for offer_id, n in told.items() if n > 1)
    found = {one.offer_id: one.nodes for one in case.plan.assumptions}
    for offer_id in sorted({*found, *expected}):
        if found.get(offer_id) != expected.get(offer_id):
            yield (
                f"assumptions: {found.get(offer_id, 'nothing')} is said of {offer_id}, "
                f"expected {expected.get(offer_id, 'nothing')}"
            )


def _is_counted(offer: Offer) -> bool:
    terms = offer.window
    says_free = terms is not None and terms.kind is not WindowKind.REQUEST and bool(terms.segments)
    return offer.stock.nodes is not None or offer.stock.level is StockLevel.NONE or says_free


def _is_uncounted_pool(sizes: Iterable[Offer]) -> bool:
    """Whether none of the pool's offers says how many GPUs it has."""
    return all(offer.stock.pool is not None and offer.stock.pool.gpus is None for offer in sizes)


def _gpus(sizes: Iterable[Offer], assumed: int) -> int:
    """GPUs of the largest size, stated or assumed, plus those held already."""
    largest = held = 0
    for offer in sizes:
        nodes = assumed if offer.stock.nodes is None else offer.stock.nodes
        largest = max(largest, nodes * offer.sku.gpus_per_node)
        held += offer.stock.held_nodes * offer.sku.gpus_per_node
    return largest + held


def _changes(case: Case) -> Mapping[str, Counter[datetime]]:
    """Change in each offer's held nodes at each instant."""
    found: defaultdict[str, Counter[datetime]] = defaultdict(Counter)
    for _, placement, _, offer in case.known():
        for segment in placement.segments:
            found[offer.offer_id][segment.start] += segment.nodes
            found[offer.offer_id][segment.end] -= segment.nodes
    return found


def _of_pool(sizes: Iterable[Offer], changes: Mapping[str, Steps]) -> Steps:
    """The same in GPUs, summed over all sizes of a pool."""
    found: Counter[datetime] = Counter()
    for offer in sizes:
        for at, nodes in changes.get(offer.offer_id, {}).items():
            found[at] += nodes * offer.sku.gpus_per_node
    return found


def _most(steps: Steps) -> int:
    level = most = 0
    for at in sorted(steps):
        level += steps[at]
        most = max(most, level)
    return most

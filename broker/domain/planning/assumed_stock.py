"""Assumed stock of offers whose provider states no number of nodes. Pure.

A stated number, a pool's size and a window's free nodes are used as they are. Of any other offer a plan
assumes at most ``assumed_nodes`` nodes, in addition to those that are held already. Offers that share GPUs of
unknown number are assumed together: as many GPUs as the largest of them would have alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from broker.domain.market.offer import Offer, StockLevel, WindowKind
from broker.domain.planning.plan import Assumption, Placement


def is_counted(offer: Offer) -> bool:
    """Whether the stock is known: a number, no stock, the size of a pool, or a window's free nodes."""
    stock, terms = offer.stock, offer.window
    if stock.nodes is not None or stock.level is StockLevel.NONE:
        return True
    if stock.pool is not None and stock.pool.gpus is not None:
        return True
    return terms is not None and terms.kind is not WindowKind.REQUEST and bool(terms.segments)


def most_nodes(offer: Offer, assumed_nodes: int) -> int:
    """Nodes that a plan may hold at once of an offer with unknown stock."""
    return assumed_nodes + offer.stock.held_nodes


def most_gpus(sizes: Sequence[Offer], assumed_nodes: int) -> int:
    """GPUs that a plan may hold at once of a pool of unknown size; ``sizes`` are all offers of the pool."""
    counted = (o.stock.nodes if o.stock.nodes is not None else assumed_nodes for o in sizes)
    alone = max(n * o.sku.gpus_per_node for n, o in zip(counted, sizes, strict=True))
    return alone + sum(o.stock.held_nodes * o.sku.gpus_per_node for o in sizes)


def assumptions_of(
    placements: Iterable[Placement], offers: Iterable[Offer], assumed_nodes: int
) -> tuple[Assumption, ...]:
    """One assumption for each offer with unknown stock, in the order in which placements use them."""
    known = {offer.offer_id: offer for offer in offers}
    sizes: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in known.values():
        if offer.stock.pool is not None:
            sizes[offer.stock.pool.pool_id].append(offer)
    found = []
    for offer_id, nodes in nodes_at_once(placements).items():
        offer = known[offer_id]
        if is_counted(offer):
            continue
        pool = offer.stock.pool
        mates = sizes[pool.pool_id] if pool is not None else []
        found.append(Assumption(offer_id, nodes, _said(offer, mates, assumed_nodes)))
    return tuple(found)


def nodes_at_once(placements: Iterable[Placement]) -> Mapping[str, int]:
    """The peak number of nodes that placements hold at once, by offer id."""
    changes: defaultdict[str, Counter[datetime]] = defaultdict(Counter)
    for placement in placements:
        for segment in placement.segments:
            changes[placement.offer_id][segment.start] += segment.nodes
            changes[placement.offer_id][segment.end] -= segment.nodes
    return {offer_id: _highest(steps) for offer_id, steps in changes.items()}


def _highest(steps: Mapping[datetime, int]) -> int:
    level = most = 0
    for at in sorted(steps):
        level += steps[at]
        most = max(most, level)
    return most


def _said(offer: Offer, sizes: Sequence[Offer], assumed_nodes: int) -> str:
    """The assumption as text: what the provider states, and what the plan assumes."""
    level, held = offer.stock.level, offer.stock.held_nodes
    said = "some stock" if level is StockLevel.SOME else f"stock {level}"
    word = "no stock" if level is StockLevel.UNKNOWN else f"{said} and no number"
    beside = f" beside the {held} that are held" if held else ""
    most = f"the plan assumes at most {assumed_nodes} nodes{beside}"
    if len(sizes) > 1:
        most += f", and {most_gpus(sizes, assumed_nodes)} GPUs in all {len(sizes)} offers that share them"
    return f"{offer.provider} states {word}; {most}"

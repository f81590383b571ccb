"""Stock of offers as a team can plan with it, which includes the capacity that it holds already. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from broker.domain.basics.window import Window
from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.holding.reservation import Reservation
from broker.domain.market.offer import Offer, Stock, StockLevel
from broker.domain.reconciling.fallback_offer import less_held


def with_held(offers: Iterable[Offer], held: Iterable[HeldCapacity]) -> tuple[Offer, ...]:
    """``offers`` whose stock includes the nodes in ``held``, which providers no longer count.

    A node that was bought after its offer was observed is still in the stated stock and is not added. If the
    provider states no stock, held nodes are added to the assumed ones (``held_nodes``). Of an offer that is
    no longer on sale exactly the held nodes are available.
    """
    rows = [one for one in held if one.is_bought]
    known = {offer.offer_id: offer for offer in offers}
    nodes: Counter[str] = Counter()
    ours: Counter[str] = Counter()
    pools: Counter[str] = Counter()
    for one in rows:
        ours[one.offer.offer_id] += one.nodes
        offer = known.get(one.offer.offer_id)
        if offer is not None and one.start > offer.observed_at:
            continue
        nodes[one.offer.offer_id] += one.nodes
        pool = one.offer.stock.pool
        if pool is not None:
            pools[pool.pool_id] += one.nodes * one.offer.sku.gpus_per_node
    over = (one.offer for one in rows if one.offer.offer_id not in known)
    gone = {offer.offer_id: offer.sized(None, None) for offer in over}
    found = [_with(o, nodes[o.offer_id], ours[o.offer_id], pools) for o in known.values()]
    return (*found, *(_alone(offer, nodes[key]) for key, offer in gone.items()))


def less_others(offers: Iterable[Offer], others: Iterable[Reservation], during: Window) -> tuple[Offer, ...]:
    """``offers`` with the least stock that the open reservations ``others`` leave at any instant of
    ``during``, counted as for an order: what is bought later counts too.

    A window may be sold beyond ``during``, so that later reservations count for it as well.
    """
    rows = tuple(others)
    taken = {row.offer.offer_id for row in rows}
    pools = {row.offer.stock.pool.pool_id for row in rows if row.offer.stock.pool is not None}
    left = (
        less_held(o, rows, during.start, during.end if o.window is None else None)
        if o.offer_id in taken or (o.stock.pool is not None and o.stock.pool.pool_id in pools)
        else o
        for o in offers
    )
    return tuple(offer for offer in left if offer is not None)


def less_refused(
    offers: Iterable[Offer], held: Iterable[HeldCapacity], refused: frozenset[str]
) -> tuple[Offer, ...]:
    """``offers``, where the stock of ``refused`` ids is only what is bought already."""
    bought: Counter[str] = Counter()
    for one in held:
        if one.is_bought:
            bought[one.offer.offer_id] += one.nodes
    return tuple(
        _alone(offer, bought[offer.offer_id]) if offer.offer_id in refused else offer
        for offer in offers
        if offer.offer_id not in refused or bought[offer.offer_id]
    )


def _with(offer: Offer, nodes: int, ours: int, pools: Counter[str]) -> Offer:
    """``offer`` with held capacity added to its stock.

    ``nodes`` of the held nodes (``ours``) are missing in the stated stock; ``pools`` has the GPUs that are
    missing by pool.
    """
    stock = offer.stock
    if stock.pool is not None and stock.pool.gpus is not None and pools[stock.pool.pool_id]:
        pool = replace(stock.pool, gpus=stock.pool.gpus + pools[stock.pool.pool_id])
        stock = replace(stock, pool=pool)
    if nodes and stock.level is StockLevel.NONE:
        stock = replace(stock, level=StockLevel.LOW, nodes=nodes)
    elif nodes and stock.nodes is not None:
        stock = replace(stock, nodes=stock.nodes + nodes)
    elif ours and stock.nodes is None:
        stock = replace(stock, held_nodes=ours)
    return offer if stock is offer.stock else replace(offer, stock=stock)


def _alone(offer: Offer, nodes: int) -> Offer:
    return replace(offer, stock=Stock(StockLevel.LOW, nodes))

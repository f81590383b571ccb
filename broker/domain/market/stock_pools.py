"""Pools of GPUs that several offers share: what is bought from one offer is missing in the others. Pure.

Offers of different sizes on one machine share a pool that their adapter names. All other offers of the same
GPU at the same place and in the same tier share one pool too, whoever sells them. The name of such a pool
consists of place, GPU and tier, so that offers of different sellers get the same pool.

The size of a pool is a conservative estimate. Each node size of a seller shows a part of its stock, so the
seller's statement is its largest one; of several sellers' statements the smallest counts. The size is None if
no seller states it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from broker.domain.basics.copies import copy_with
from broker.domain.market.offer import GpuPool, HostKind, Offer, OfferBatch, Stock, Tier, fewest_gpus
from broker.domain.market.operators import Operators
from broker.domain.market.seller_mode import SellerMode


def sited(batch: OfferBatch, operators: Operators, mode: SellerMode | None = None) -> OfferBatch:
    """The offers that an adapter parsed, each with its place, host and pool, of a seller of this ``mode``."""
    return replace(batch, offers=pooled(batch.offers, operators.sites(batch.offers), mode))


def pooled(
    offers: Iterable[Offer],
    sites: Iterable[tuple[str, HostKind | None]] | None = None,
    mode: SellerMode | None = None,
) -> tuple[Offer, ...]:
    """The offers of one provider's round with place, host and pool.

    ``sites`` are their places and hosts, ``mode`` that of their seller (None: keep those of the offers).
    Windows get no pool, because their stock is their own. Pools that an adapter named are kept.
    """
    whole = tuple(offers)
    where = [(offer.place, offer.host) for offer in whole] if sites is None else sites
    rows = [
        (offer, place, host, _stock_name(place, offer, host) if _is_stock(offer) else None)
        for offer, (place, host) in zip(whole, where, strict=True)
    ]
    most: dict[str, int] = {}
    for offer, _, _, name in rows:
        gpus = _gpus_in_stock(offer)
        if name is not None and gpus is not None:
            most[name] = max(gpus, most.get(name, gpus))
    pools = {name: GpuPool(name, most.get(name)) for *_, name in rows if name is not None}
    return tuple(
        copy_with(
            offer,
            place=place,
            host=host,
            stock=offer.stock if name is None else _stock_in(offer.stock, pools[name]),
            mode=mode or offer.mode,
        )
        for offer, place, host, name in rows
    )


def shared(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The offers of a whole market with consistent pools.

    All offers of a pool state the same size. An offer that shares its GPUs with no other has no pool.
    """
    rows = list(offers)
    said: defaultdict[str, list[int | None]] = defaultdict(list)
    for offer in rows:
        if offer.stock.pool is not None:
            said[offer.stock.pool.pool_id].append(offer.stock.pool.gpus)
    return shared_in(rows, said)


def shared_in(offers: Iterable[Offer], said: Mapping[str, Sequence[int | None]]) -> tuple[Offer, ...]:
    """Some ``offers`` of a market with consistent pools, as by ``shared``.

    ``said`` has by pool the sizes that all offers of the market in this pool state.
    """
    return tuple(_told(offer, said) for offer in offers)


def _told(offer: Offer, said: Mapping[str, Sequence[int | None]]) -> Offer:
    pool = offer.stock.pool
    if pool is None:
        return offer
    words = said[pool.pool_id]
    if len(words) == 1 and pool.gpus in (None, _gpus_in_stock(offer)):
        return _in_pool(offer, None)
    gpus = fewest_gpus(words)
    return offer if gpus == pool.gpus else _in_pool(offer, GpuPool(pool.pool_id, gpus))


def _gpus_in_stock(offer: Offer) -> int | None:
    return None if offer.stock.nodes is None else offer.stock.nodes * offer.sku.gpus_per_node


def _stock_name(place: str, offer: Offer, host: HostKind | None) -> str:
    """The name of the pool of an offer whose adapter names none: place, GPU and tier.

    Commitments share the pool of on-demand capacity. Spot capacity and community hosts have their own pools.
    """
    tier = Tier.SPOT if offer.tier is Tier.SPOT else Tier.ON_DEMAND
    whose = "/community" if host is HostKind.COMMUNITY else ""
    return f"{place}/{offer.sku.gpu}/{tier}{whose}"


def _is_stock(offer: Offer) -> bool:
    return offer.stock.pool is None and offer.window is None


def _in_pool(offer: Offer, pool: GpuPool | None) -> Offer:
    return copy_with(offer, stock=_stock_in(offer.stock, pool))


def _stock_in(stock: Stock, pool: GpuPool | None) -> Stock:
    return Stock(stock.level, stock.nodes, pool, stock.held_nodes)

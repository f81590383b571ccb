"""Offers that are cut from the same GPUs: what one of them takes, the others lack. Pure.

Sizes of one machine share a pool that their adapter names. Everything else that is sold of one GPU, at one
place and in one way, is one stock: the sizes of one seller, and what others sell of the same data centre. The
name of such a pool says just that, so that offers of different sellers meet in it without knowing each other.

How many GPUs a pool has is the smallest credible statement. One seller's sizes are each a part of its stock,
so that its statement is the largest of them; of several sellers' statements the smallest counts. None: nobody
counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from broker.domain.basics.copies import copy_with
from broker.domain.market.offer import GpuPool, HostKind, Offer, Stock, Tier, fewest_gpus


def pooled(
    offers: Iterable[Offer], sites: Iterable[tuple[str, HostKind | None]] | None = None
) -> tuple[Offer, ...]:
    """The offers of one provider's round, each at its place and host of ``sites`` (None: its own) and with
    its pool; windows have their own stock and none. Pools that an adapter named stay as they are.
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
        )
        for offer, place, host, name in rows
    )


def shared(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The offers of a whole market: every pool of several says the same count in each of them, and what
    shares its GPUs with nothing has no pool.
    """
    rows = list(offers)
    said: defaultdict[str, list[int | None]] = defaultdict(list)
    for offer in rows:
        if offer.stock.pool is not None:
            said[offer.stock.pool.pool_id].append(offer.stock.pool.gpus)
    return shared_in(rows, said)


def shared_in(offers: Iterable[Offer], said: Mapping[str, Sequence[int | None]]) -> tuple[Offer, ...]:
    """The same of some offers of a market. ``said``: what each offer of the market in one of their pools
    says of its GPUs, by pool."""
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
    """The name of the stock that an offer without a machine of its own is cut from: place, GPU, tier.

    Commitments are cut from what is sold on demand; what is taken back at any time is apart, and so is what
    does not stand in the data centre.
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

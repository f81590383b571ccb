"""The chance that an order of a node succeeds at an unknown moment. Pure.

Other customers take and return nodes, so the stock at an unknown moment differs from that of the last poll.
It is taken as Poisson distributed with a constant mean. Of the mean nothing is known but the n nodes that
were seen, so it has Jeffreys' prior, and the predictive distribution of the stock is negative binomial. An
order finds nothing with the probability of zero, which is 0.5^(n + 1/2): 35 % after one node was seen, 9 %
after three. Where a seller states no number of nodes, the GPUs of the offer's pool say how many there are,
and where these are not known either, it is the fewest that fit the seller's word. Where there is stock, an
order succeeds as often as our launches did at this seller.
"""

from __future__ import annotations

from broker.domain.market.launch_statistics import LAUNCH_PRIOR, StatisticsLevel
from broker.domain.market.offer import Offer, StockLevel

FEWEST_NODES = {
    StockLevel.NONE: 0,
    StockLevel.LOW: 1,
    StockLevel.SOME: 2,
    StockLevel.UNKNOWN: 2,
    StockLevel.MEDIUM: 4,
    StockLevel.HIGH: 8,
}
STEP = 0.05


def launch_chance_of(offer: Offer) -> float:
    """The chance that one node of ``offer`` can be had at an unknown moment, to the nearest ``STEP``.

    A stated chance counts as it is. Launches of this very offer met its stock too, so their share is enough.
    """
    if offer.launch_chance is not None:
        return offer.launch_chance
    learned = offer.learned or LAUNCH_PRIOR
    chance = learned.success_share
    if learned.basis is not StatisticsLevel.OFFER:
        chance *= 1.0 - 0.5 ** (nodes_seen(offer) + 0.5)
    return round(round(chance / STEP) * STEP, 2)


def nodes_seen(offer: Offer) -> int:
    """Nodes of the offer that were on sale when it was polled: as stated, else as many as the GPUs of its
    pool make, else the fewest of its level.
    """
    stock = offer.stock
    if stock.nodes is not None:
        return stock.nodes
    if stock.pool is not None and stock.pool.gpus is not None:
        return stock.pool.gpus // offer.sku.gpus_per_node
    return FEWEST_NODES[stock.level]

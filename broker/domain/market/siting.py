"""What a provider's round says of where its offers stand, and of what they are cut from: pure.

The one step between an adapter's offers and everything else: adapters hand over what a payload says.
"""

from __future__ import annotations

from dataclasses import replace

from broker.domain.market.offer import OfferBatch
from broker.domain.market.operators import Operators
from broker.domain.market.stock_pools import pooled


def sited(batch: OfferBatch, operators: Operators) -> OfferBatch:
    """``batch`` with places, hosts and pools."""
    return replace(batch, offers=pooled(batch.offers, operators.sites(batch.offers)))

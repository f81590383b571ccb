"""Adds places, hosts and pools to the offers that an adapter parsed. Pure."""

from __future__ import annotations

from dataclasses import replace

from broker.domain.market.offer import OfferBatch
from broker.domain.market.operators import Operators
from broker.domain.market.stock_pools import pooled


def sited(batch: OfferBatch, operators: Operators) -> OfferBatch:
    """``batch`` with the place, host and pool of each offer."""
    return replace(batch, offers=pooled(batch.offers, operators.sites(batch.offers)))

"""Contract prices, which replace providers' list prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from fnmatch import fnmatchcase

from broker.domain.market.offer import ContractTerms, Offer, Tier

ONE = Decimal(1)


@dataclass(frozen=True, slots=True)
class ContractPrice:
    """A contract's price on the days from ``since`` to ``until`` (both included).

    ``sku`` and ``region`` are patterns (``*`` matches any); ``tier`` None matches any. Either
    ``discount_share`` is taken off the list price, or ``usd_per_node_hour`` replaces it.
    """

    contract: str
    provider: str
    sku: str
    region: str
    tier: Tier | None
    since: date
    until: date
    discount_share: Decimal | None = None
    usd_per_node_hour: Decimal | None = None

    def __post_init__(self) -> None:
        if (self.discount_share is None) == (self.usd_per_node_hour is None):
            raise ValueError("a contract price needs either discount_share or usd_per_node_hour, not both")

    def covers(self, offer: Offer, day: date) -> bool:
        """Whether the contract applies to ``offer`` on ``day``."""
        return (
            self.provider == offer.provider
            and self.since <= day <= self.until
            and self.tier in (None, offer.tier)
            and fnmatchcase(offer.sku.name, self.sku)
            and fnmatchcase(offer.region, self.region)
        )

    def share_of_list(self, offer: Offer) -> Decimal:
        """The contract price as a share of the list price."""
        if self.usd_per_node_hour is not None:
            return self.usd_per_node_hour / offer.price_usd_per_node_hour
        return ONE - (self.discount_share or Decimal(0))


def with_contract_prices(
    offers: Iterable[Offer], contracts: Sequence[ContractPrice], at: datetime
) -> tuple[Offer, ...]:
    """``offers`` at their effective prices: the cheapest contract that covers the offer, else the list price.

    A contract price also applies if it is above the list price, since it was agreed.
    """
    day = at.date()
    return tuple(_priced(offer, contracts, day) for offer in offers)


def _priced(offer: Offer, contracts: Sequence[ContractPrice], day: date) -> Offer:
    covering = [contract for contract in contracts if contract.covers(offer, day)]
    if not covering:
        return offer
    best = min(covering, key=lambda contract: contract.share_of_list(offer))
    share = best.share_of_list(offer)
    fixed = best.usd_per_node_hour
    return replace(
        offer,
        price_usd_per_node_hour=fixed if fixed is not None else offer.price_usd_per_node_hour * share,
        upfront_usd=None if offer.upfront_usd is None else offer.upfront_usd * share,
        contract=ContractTerms(best.contract, offer.price_usd_per_node_hour, offer.upfront_usd),
    )

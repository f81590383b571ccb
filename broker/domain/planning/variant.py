"""A variant: a plan that answers "what if", made from another plan's document with one change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from broker.domain.market.offer import Offer


@dataclass(frozen=True, slots=True)
class AssumedPrices:
    """Prices that a variant assumes: ``factor`` times today's, of ``provider`` (None: of every provider)."""

    factor: Decimal
    provider: str | None = None

    def applied(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """``offers`` at the assumed prices."""
        return tuple(self._at(offer) for offer in offers)

    def _at(self, offer: Offer) -> Offer:
        if self.provider not in (None, offer.provider):
            return offer
        upfront = None if offer.upfront_usd is None else offer.upfront_usd * self.factor
        price = offer.price_usd_per_node_hour * self.factor
        return replace(offer, price_usd_per_node_hour=price, upfront_usd=upfront)


@dataclass(frozen=True, slots=True)
class Variant:
    """The place of a plan in a comparison.

    ``based_on`` is the plan whose document was changed, ``name`` the name of the change, ``position`` its
    place in the comparison from 0. With ``prices`` the plan is hypothetical and cannot be bought.
    """

    comparison_id: str
    based_on: str
    name: str
    position: int
    prices: AssumedPrices | None = None

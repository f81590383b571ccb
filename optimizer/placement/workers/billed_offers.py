"""Offers as arrays of the fields that billing and services use, small enough to be sent to a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import overload

from broker.domain.market.offer import NativePrice, Offer, Tier
from broker.domain.market.sku import Sku

NEVER_SEEN = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BilledOffers(Sequence[Offer]):
    """Offers without windows. An ``Offer`` with provider, region, place, price and billing terms is built
    when it is read; its other fields are left out.
    """

    places: tuple[tuple[str, str, str], ...]
    place_of: tuple[int, ...]
    sku: Sku
    usd: tuple[Decimal, ...]
    upfront_usd: tuple[Decimal | None, ...]
    min_hours: tuple[float, ...]
    increment_s: tuple[int, ...]

    @classmethod
    def of(cls, offers: Sequence[Offer]) -> BilledOffers:
        """The arrays of ``offers``."""
        numbers: dict[tuple[str, str, str], int] = {}
        where = ((o.provider, o.region, o.place) for o in offers)
        place_of = tuple(numbers.setdefault(one, len(numbers)) for one in where)
        return cls(
            places=tuple(numbers),
            place_of=place_of,
            sku=offers[0].sku,
            usd=tuple(o.price_usd_per_node_hour for o in offers),
            upfront_usd=tuple(o.upfront_usd for o in offers),
            min_hours=tuple(o.min_hours for o in offers),
            increment_s=tuple(o.billing_increment_s for o in offers),
        )

    def __len__(self) -> int:
        return len(self.usd)

    @overload
    def __getitem__(self, index: int) -> Offer: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Offer, ...]: ...

    def __getitem__(self, index: int | slice) -> Offer | tuple[Offer, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        provider, region, place = self.places[self.place_of[index]]
        return Offer(
            offer_id=str(index),
            provider=provider,
            sku=self.sku,
            region=region,
            place=place,
            tier=Tier.ON_DEMAND,
            price_usd_per_node_hour=self.usd[index],
            observed_at=NEVER_SEEN,
            source="",
            native=NativePrice(self.usd[index], "USD", "hour"),
            upfront_usd=self.upfront_usd[index],
            min_hours=self.min_hours[index],
            billing_increment_s=self.increment_s[index],
        )

    def __iter__(self) -> Iterator[Offer]:
        return (self[index] for index in range(len(self)))

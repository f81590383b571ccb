"""Ports of price history: the market as it was known at any time, and daily statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import date, datetime
from typing import Protocol

from broker.domain.basics.access import TeamScope
from broker.domain.basics.window import Window
from broker.domain.market.market import PricePoint
from broker.domain.market.offer import Offer
from broker.domain.market.price_days import Closes, PriceDay, SkuDay
from broker.ports.unit_of_work import UnitOfWork


class PriceRepository(Protocol):
    """The price history. The offer repository appends its points in each poll round."""

    async def find_known_at(
        self, at: datetime, *, gpu: str | None = None, tier: str | None = None, provider: str | None = None
    ) -> tuple[Offer, ...]:
        """The market as it was known at ``at``, cheapest per GPU-hour first.

        Price and stock are those known at ``at``. All other fields of an offer are as they were last seen.
        """
        ...

    async def find_points(self, offer_ids: Collection[str], window: Window) -> tuple[PricePoint, ...]:
        """Points of several offers in ``window`` by offer and time, including those in force at its start."""
        ...

    async def find_offers_known_in(
        self, window: Window, *, gpu: str | None = None, provider: str | None = None
    ) -> tuple[Offer, ...]:
        """Every offer with a known price in ``window``, as it was last seen."""
        ...

    async def find_days(self, offer_id: str, days: Sequence[date], now: datetime) -> tuple[PriceDay, ...]:
        """Statistics of those ``days`` (in order) on which the offer was on sale; today up to ``now``."""
        ...

    async def find_sku_days(
        self, gpu: str, tier: str, days: Sequence[date], now: datetime, *, by_provider: bool
    ) -> tuple[SkuDay, ...]:
        """Daily statistics of a GPU in one tier, over all providers or for each; today up to ``now``."""
        ...

    async def find_closes(
        self,
        days: Sequence[date],
        *,
        offer_ids: Collection[str] | None = None,
        gpu: str | None = None,
        tier: str | None = None,
        limit: int = 200,
    ) -> tuple[Closes, ...]:
        """Prices at the ends of ``days`` (in order) of the named offers.

        Without names it returns at most ``limit`` matching offers with a summarised day: an even sample that
        is the same in every call until another day is summarised.
        """
        ...

    async def find_summarised_until(self) -> date | None:
        """The first UTC day that is not summarised yet; None before the first summary."""
        ...

    async def find_next_day(self) -> date | None:
        """The day to summarise next, at first the day of the first point; None without any points."""
        ...

    async def summarise(self, day: date) -> int:
        """Stores the statistics of a past day for every changed offer and every SKU; returns their number."""
        ...

    async def thin(self, before: date) -> int:
        """Keeps only the last point per offer and summarised day before ``before``; returns how many it
        removed.
        """
        ...

    async def forget(self, before: date) -> int:
        """Removes points before ``before`` except those still in force; returns how many it removed."""
        ...


class PriceUnitOfWork(UnitOfWork, Protocol):
    """A unit of work with the repository of price history."""

    prices: PriceRepository


PriceUnits = Callable[[TeamScope], PriceUnitOfWork]

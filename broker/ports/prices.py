"""Ports of price history: what was known of the market, when, and what became of it by day."""

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
    """The history of prices; its points are appended by the rounds of the offer repository."""

    async def find_known_at(
        self, at: datetime, *, gpu: str | None = None, tier: str | None = None, provider: str | None = None
    ) -> tuple[Offer, ...]:
        """The market as it was known at ``at``, cheapest per GPU-hour first: nothing learned later is in it.

        Of an offer that is gone or has changed otherwise, everything but price and stock is as it was last.
        """
        ...

    async def find_points(self, offer_ids: Collection[str], window: Window) -> tuple[PricePoint, ...]:
        """Points of several offers in ``window``, by offer and time, led by those in force at its start."""
        ...

    async def find_offers_known_in(
        self, window: Window, *, gpu: str | None = None, provider: str | None = None
    ) -> tuple[Offer, ...]:
        """Every offer of which a price is known in ``window``, as it was last."""
        ...

    async def find_days(self, offer_id: str, days: Sequence[date], now: datetime) -> tuple[PriceDay, ...]:
        """Figures of each of ``days`` (in order) on which the offer was on sale; today up to ``now``."""
        ...

    async def find_sku_days(
        self, gpu: str, tier: str, days: Sequence[date], now: datetime, *, by_provider: bool
    ) -> tuple[SkuDay, ...]:
        """Figures of a GPU in one tier, of all sellers or of each, by day; today up to ``now``."""
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
        """Prices at the ends of ``days`` (in order) of the named offers, or of at most ``limit`` that fit and
        have a summarised day: evenly drawn, the same in every call until another day is summarised."""
        ...

    async def find_summarised_until(self) -> date | None:
        """The first UTC day that is not summarised; None before the first summary."""
        ...

    async def find_next_day(self) -> date | None:
        """The day to summarise next: that one, or the day of the first point; None without any."""
        ...

    async def summarise(self, day: date) -> int:
        """Stores figures of a day that is over, of every offer that changed and of every SKU; how many."""
        ...

    async def thin(self, before: date) -> int:
        """Leaves of each offer and summarised day before ``before`` the last point; how many went."""
        ...

    async def forget(self, before: date) -> int:
        """Removes what is older, but for what is still in force; how many points went."""
        ...


class PriceUnitOfWork(UnitOfWork, Protocol):
    """A transaction that reaches price history too."""

    prices: PriceRepository


PriceUnits = Callable[[TeamScope], PriceUnitOfWork]

"""Cached sums of settled spend, which are exact until the roll-up is written again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple

from broker.domain.basics.access import TeamScope
from broker.domain.basics.money import CENT
from broker.domain.basics.window import Window
from broker.domain.market.offer import Tier
from broker.domain.spend.spend import Charge, ChargeBasis, Commitment, CostView, Interval, period_of
from broker.domain.spend.spend_cells import Amounts, CellKey
from broker.lru_cache import LruCache
from broker.ports.unit_of_work import UnitOfWork

MOST_SUMS = 200_000
"""Size of the cache, in sums: about 50 MB."""

Days = tuple[date, date]
Words = tuple[tuple[str, str], ...]
"""Filter: names of NARROWED_BY with their required values."""


class SumKey(NamedTuple):
    """Key of a sum in a summary."""

    period: datetime
    group: str
    basis: ChargeBasis
    commitment: Commitment


class SumQuestion(NamedTuple):
    """A query for sums. ``days`` None: all. ``narrowed``: only charges with these values."""

    scope: TeamScope
    days: Days | None
    interval: Interval
    group_by: str
    view: CostView
    narrowed: Words = ()


Sums = Mapping[SumKey, Decimal]


class SettledReader:
    """Reads the roll-up, once per query and generation.

    The result is consistent only if the roll-up still has the same generation afterwards; the caller checks
    that.
    """

    def __init__(self) -> None:
        self._generation = -1
        self._sums = LruCache[Sums](MOST_SUMS, len)
        self._cells = LruCache[Mapping[CellKey, Amounts]](MOST_SUMS, len)
        self._charges: dict[TeamScope, tuple[Charge, ...]] = {}

    async def find(self, uow: UnitOfWork, asked: SumQuestion, generation: int) -> Sums:
        """Sums of settled charges, ordered by period and group."""
        self._begin(generation)
        kept = self._sums.find(asked)
        if kept is not None:
            return kept
        found = await _find(uow, asked)
        return self._sums.keep(asked, found) if generation == self._generation else found

    async def find_cells(
        self, uow: UnitOfWork, days: Days | None, generation: int
    ) -> Mapping[CellKey, Amounts]:
        """Amounts of settled charges of all ``days`` together, by cell."""
        self._begin(generation)
        kept = self._cells.find((uow.scope, days))
        if kept is not None:
            return kept
        found = await uow.rollups.find_cells(days)
        return self._cells.keep((uow.scope, days), found) if generation == self._generation else found

    async def find_charges(self, uow: UnitOfWork, generation: int) -> tuple[Charge, ...]:
        """All settled charges, summed by day and team."""
        self._begin(generation)
        kept = self._charges.get(uow.scope)
        if kept is not None:
            return kept
        asked = SumQuestion(uow.scope, None, Interval.DAY, "team", CostView.AMORTIZED)
        sums = await self.find(uow, asked, generation)
        found = tuple(day_charge(key.period, key.group, usd) for key, usd in sums.items())
        if generation == self._generation:
            self._charges[uow.scope] = found
        return found

    def _begin(self, generation: int) -> None:
        if generation != self._generation:
            self._sums.clear()
            self._cells.clear()
            self._charges.clear()
            self._generation = generation


def day_charge(
    midnight: datetime,
    team: str,
    usd: Decimal,
    basis: ChargeBasis = ChargeBasis.ACTUAL,
    reservation_id: str | None = None,
    *,
    is_open_ended: bool = False,
) -> Charge:
    """A charge that sums charges of one day and team; all other fields have placeholders."""
    return Charge(
        window=Window(midnight, midnight + timedelta(days=1)),
        team=team,
        workload="-",
        kind=None,
        provider="-",
        sku="-",
        tier=Tier.ON_DEMAND,
        usd=usd,
        basis=basis,
        reservation_id=reservation_id,
        is_open_ended=is_open_ended,
    )


async def _find(uow: UnitOfWork, asked: SumQuestion) -> Sums:
    rows = await uow.rollups.find_sums(asked.days, asked.group_by, dict(asked.narrowed))
    cents: dict[tuple[datetime, str], int] = {}
    periods = {day: period_of(midnight(day), asked.interval) for day in {row.day for row in rows}}
    cash = asked.view is CostView.CASH
    for row in rows:
        key = periods[row.day], row.group
        cents[key] = cents.get(key, 0) + (row.cash_cents if cash else row.cents)
    return {
        SumKey(*key, ChargeBasis.ACTUAL, Commitment.COMMITTED): cents[key] * CENT
        for key in sorted(cents)
        if cents[key]
    }


def midnight(day: date) -> datetime:
    """The first instant of a UTC day."""
    return datetime.combine(day, time(), UTC)

"""Uncertainty of projected spend: quantiles from simulated prices, run times and traffic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.access import require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window, instant_words
from broker.domain.spend.intervals import (
    CERTAIN,
    DAY,
    AmountsByLine,
    Quantiles,
    RiskLine,
    amounts_by_line,
    day_number,
    lines_of,
    parted,
)
from broker.domain.spend.spend import Charge, ChargeBasis, Interval, next_period, period_of
from broker.lru_cache import LruCache
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.services.spend.spend_futures import LONGEST_DAYS, MOST_KEPT, SEED, SpendFutures
from broker.services.spend.summaries import Summaries, is_whole_days
from broker.services.spend.unsettled_spend import UnsettledSpend

MOST_PERIODS = 3_660
"""Ten years by day. Memory grows with the number of periods times the number of simulated futures."""


@dataclass(frozen=True, slots=True)
class PeriodInterval:
    """One period: its expected spend (actual and projected), and quantiles of it and of the running sum."""

    period: datetime
    expected_usd: Decimal
    quantiles: Quantiles
    running: Quantiles


@dataclass(frozen=True, slots=True)
class SpendInterval:
    """Quantiles by period, and of the total."""

    periods: tuple[PeriodInterval, ...]
    expected_usd: Decimal
    total: Quantiles


class IntervalsService:
    """Use cases of quantiles of spend."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        futures: SpendFutures,
        summaries: Summaries | None = None,
    ) -> None:
        self._units = units
        self._futures = futures
        self._summaries = summaries or Summaries(units, clock)
        self._amounts = LruCache[AmountsByLine](MOST_KEPT)
        self._known = LruCache[tuple[RiskLine, ...]](MOST_KEPT)

    async def find(
        self,
        caller: Caller,
        window: Window,
        interval: Interval = Interval.DAY,
        team: str | None = None,
        seed: int = SEED,
    ) -> SpendInterval:
        """P10, P50 and P90 of spend in every period of ``window``. Actual charges are certain.

        Raises InputError for more than ``MOST_PERIODS`` periods.
        """
        require_scope(caller, Scope.SPEND_READ)
        spans = _spans(window, interval)
        scope = scope_of(caller, team)
        settled, live = await self._summaries.find_both(scope, window.end)
        now = live.at
        days = min(LONGEST_DAYS, day_number(window.end, now) + 1)
        known, others = self._lines(live)
        async with self._units(scope) as uow:
            futures = await self._futures.find(uow, (*known, *others), now, days, seed)
        simulated = self._futures.simulate(known, others, futures, _periods(spans, now, days), seed)
        if is_whole_days(window):
            charges = self._summaries.days_of(scope, settled, live)
        else:
            charges = (*settled, *live.charges)
        certain = _sums((c for c in charges if c.basis is ChargeBasis.ACTUAL), spans, now)
        coming = _sums((c for c in charges if c.basis is ChargeBasis.PROJECTED), spans, now)
        expected = [owed_usd + coming_usd for owed_usd, coming_usd in zip(certain, coming, strict=True)]
        periods, so_far = [], ZERO
        for index, span in enumerate(spans):
            so_far += certain[index]
            quantiles = _at(simulated.by_period, index).plus(certain[index])
            running = _at(simulated.running, index).plus(so_far)
            periods.append(PeriodInterval(span.start, expected[index], quantiles, running))
        return SpendInterval(tuple(periods), sum(expected, ZERO), simulated.total.plus(so_far))

    def _lines(self, live: UnsettledSpend) -> tuple[tuple[RiskLine, ...], tuple[RiskLine, ...]]:
        """Uncertain charges: those that are constant until midnight, and the others."""
        steady = self._amounts.once(live.token, lambda: amounts_by_line(live.steady.charges, live.at))
        still, others = parted(steady, amounts_by_line(live.moving.charges, live.at))
        key = (live.token, frozenset(others))
        known = self._known.once(key, lambda: lines_of(still, live.plans))
        return known, lines_of(others, live.plans)


def _spans(window: Window, interval: Interval) -> tuple[Window, ...]:
    """``window`` cut at the edges of days, weeks or months."""
    found: list[Window] = []
    start = window.start
    while start < window.end:
        if len(found) == MOST_PERIODS:
            problem = FieldProblem(
                "/to",
                instant_words(window.end),
                f"an end with at most {MOST_PERIODS} periods of one {interval}",
            )
            raise InputError("interval", (problem,))
        end = min(next_period(period_of(start, interval), interval), window.end)
        found.append(Window(start, end))
        start = end
    return tuple(found)


def _periods(spans: Sequence[Window], now: datetime, days: int) -> tuple[int, ...]:
    """For each of ``days`` days from today the index of the span in which it begins; -1 for none."""
    today = period_of(now, Interval.DAY)
    starts, found = [span.start for span in spans], []
    for day in range(days):
        at = today + day * DAY
        index = bisect_right(starts, at) - 1
        found.append(index if index >= 0 and spans[index].contains(at) else -1)
    return tuple(found)


def _sums(charges: Iterable[Charge], spans: Sequence[Window], now: datetime) -> list[Decimal]:
    """USD by span. Projected charges before today count today, as in the simulation."""
    today, sums = period_of(now, Interval.DAY), [ZERO] * len(spans)
    starts = [span.start for span in spans]
    known: dict[datetime, int] = {}
    for charge in charges:
        at = charge.window.start
        if charge.basis is ChargeBasis.PROJECTED:
            at = max(at, today)
        if at not in known:
            index = bisect_right(starts, at) - 1
            known[at] = index if index >= 0 and spans[index].contains(at) else -1
        if known[at] >= 0:
            sums[known[at]] += charge.usd
    return sums


def _at(quantiles: Sequence[Quantiles], index: int) -> Quantiles:
    """Quantiles of a span; zero for spans before today or after the last simulated day."""
    return quantiles[index] if index < len(quantiles) else CERTAIN

"""Price forecasts by a moving-block bootstrap (Künsch 1989). Pure.

The history is a series of log price changes from one UTC midnight to the next. A simulated path joins blocks
of several consecutive days of it, which keeps short-term correlation. Each path draws from a single history:
the offer's own, that of an offer of its family (same GPU, tier and class of provider), or that of any offer
of the market. The more of its own history an offer has, the more paths use it. Because a path keeps to one
history, stable and volatile prices are not mixed. Equal seeds draw the same days for every offer, which keeps
correlation between offers.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from random import Random

from broker.domain.market.offer import Tier

HOURS_PER_DAY = 24.0


@dataclass(frozen=True, slots=True)
class Family:
    """A group of offers whose prices are expected to behave alike."""

    gpu: str
    tier: Tier
    provider_class: str


class HistorySource(StrEnum):
    """The history that a simulated path draws from."""

    OFFER = "offer"
    FAMILY = "family"
    MARKET = "market"


@dataclass(frozen=True, slots=True)
class ForecastRules:
    """Parameters of the bootstrap.

    ``block_days`` is the length of a block. With ``own_days`` days of its own history an offer takes half of
    its paths from it; with ``family_offers`` offers in its family half of the other paths come from the
    family. Another offer's history is used only if it has at least ``least_days`` days. ``paths`` is the
    number of simulated paths from which quantiles are taken.
    """

    block_days: int = 7
    own_days: int = 30
    family_offers: int = 3
    least_days: int = 7
    paths: int = 1000


@dataclass(frozen=True, slots=True)
class DailyPrices:
    """Micro-USD per node-hour at consecutive UTC midnights; None where the offer was not on sale."""

    offer_id: str
    family: Family
    micro_usd: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile: with probability ``share`` the price is at most ``micro_usd`` per node-hour."""

    share: float
    micro_usd: int


@dataclass(frozen=True, slots=True)
class PriceForecast:
    """Quantiles of the price ``hours`` from now, in ascending order."""

    hours: float
    quantiles: tuple[Quantile, ...]

    def at(self, share: float) -> int:
        """The quantile of ``share`` in micro-USD per node-hour. Raises KeyError if it was not computed."""
        return {quantile.share: quantile.micro_usd for quantile in self.quantiles}[share]


@dataclass(frozen=True, slots=True)
class ForecastBasis:
    """The basis of a forecast: the share of paths from each history, and how much history there is."""

    shares: Mapping[HistorySource, float]
    own_days: int
    family_offers: int
    market_offers: int

    @property
    def basis(self) -> HistorySource:
        """The history that most paths draw from."""
        return max(self.shares, key=lambda basis: self.shares[basis])


LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


class Forecaster:
    """Simulates price paths from a market's history."""

    def __init__(self, past: Iterable[DailyPrices], rules: ForecastRules | None = None) -> None:
        self._rules = rules or ForecastRules()
        self._own: dict[str, _Past] = {}
        self._families: defaultdict[Family, list[_Past]] = defaultdict(list)
        self._market: list[_Past] = []
        for prices in sorted(past, key=lambda prices: prices.offer_id):
            found = _past_of(prices.micro_usd)
            if found.days:
                self._own[prices.offer_id] = found
            if found.days >= self._rules.least_days:
                self._families[prices.family].append(found)
                self._market.append(found)

    def basis_of(self, offer_id: str, family: Family) -> ForecastBasis | None:
        """The basis of an offer's forecast; None without any history."""
        own, kin = self._own.get(offer_id), self._families.get(family, [])
        if own is None and not self._market:
            return None
        own_days = own.days if own is not None else 0
        of_own = own_days / (own_days + self._rules.own_days)
        of_kin = len(kin) / (len(kin) + self._rules.family_offers)
        if not self._market:
            of_own = 1.0
        shares = {
            HistorySource.OFFER: of_own,
            HistorySource.FAMILY: (1 - of_own) * of_kin,
            HistorySource.MARKET: (1 - of_own) * (1 - of_kin),
        }
        return ForecastBasis(shares, own_days, len(kin), len(self._market))

    def factors(
        self, offer_id: str, family: Family, days: int, paths: int, seed: int
    ) -> tuple[array[float], ...]:
        """``paths`` simulated paths, each as factors of today's price after 0, 1, … ``days`` days.

        Empty without any history. With the same seed a longer path begins with the shorter one.
        """
        basis = self.basis_of(offer_id, family)
        if basis is None:
            return ()
        return tuple(self._future(offer_id, family, basis, days, seed, n) for n in range(paths))

    def paths(
        self, offer_id: str, family: Family, micro_usd: int, days: int, paths: int, seed: int
    ) -> tuple[tuple[int, ...], ...]:
        """``factors`` applied to today's price ``micro_usd``: paths in micro-USD per node-hour."""
        return tuple(
            tuple(round(micro_usd * factor) for factor in future)
            for future in self.factors(offer_id, family, days, paths, seed)
        )

    def forecasts(
        self,
        offer_id: str,
        family: Family,
        micro_usd: int,
        hours: Sequence[float],
        *,
        levels: Sequence[float] = LEVELS,
        seed: int = 1,
    ) -> tuple[PriceForecast, ...]:
        """Forecasts of a price of ``micro_usd`` today after each of ``hours``; empty without any history.

        The daily change happens at a uniformly distributed time of the day.
        """
        days = math.ceil(max(hours, default=0.0) / HOURS_PER_DAY)
        futures = self.factors(offer_id, family, days, self._rules.paths, seed)
        if not futures:
            return ()
        return tuple(_forecast_after(micro_usd, futures, after, sorted(levels)) for after in hours)

    def _future(
        self, offer_id: str, family: Family, basis: ForecastBasis, days: int, seed: int, number: int
    ) -> array[float]:
        lots = Random(f"{seed}/{number}")  # noqa: S311  repeatable draws, no secrets
        past = self._followed(offer_id, family, basis, lots.random(), lots.random())
        block = min(self._rules.block_days, past.days)
        logs = array("d", [0.0])
        while len(logs) <= days:
            past.append_block(logs, lots.random(), block)
        return array("d", map(math.exp, logs[: days + 1]))

    def _followed(
        self, offer_id: str, family: Family, basis: ForecastBasis, which: float, whose: float
    ) -> _Past:
        shares = basis.shares
        if which < shares[HistorySource.OFFER]:
            return self._own[offer_id]
        of_kin = which < shares[HistorySource.OFFER] + shares[HistorySource.FAMILY]
        pasts = self._families[family] if of_kin else self._market
        return pasts[int(whose * len(pasts))]


@dataclass(frozen=True, slots=True, eq=False)
class _Past:
    """A history as the cumulative sum of daily log changes, with a leading zero."""

    sums: array[float]

    @property
    def days(self) -> int:
        return len(self.sums) - 1

    def append_block(self, logs: array[float], lot: float, length: int) -> None:
        """Appends a block of ``length`` days to ``logs``. ``lot`` in [0, 1) draws where the block begins."""
        first = int(lot * (self.days - length + 1))
        base = logs[-1] - self.sums[first]
        logs.extend(base + value for value in self.sums[first + 1 : first + length + 1])


def _past_of(micro_usd: Sequence[int | None]) -> _Past:
    changes = (math.log(after / before) for before, after in pairwise(micro_usd) if before and after)
    return _Past(array("d", accumulate(changes, initial=0.0)))


def _forecast_after(
    micro_usd: int, futures: Sequence[array[float]], hours: float, levels: Sequence[float]
) -> PriceForecast:
    whole, part = divmod(hours / HOURS_PER_DAY, 1)
    changed = round(part * len(futures))
    # The paths are in random order, so the first ones are as good a sample as any.
    found = sorted(
        future[int(whole) + (1 if number < changed else 0)] for number, future in enumerate(futures)
    )
    return PriceForecast(
        hours,
        tuple(
            Quantile(share, round(micro_usd * found[max(0, math.ceil(share * len(found)) - 1)]))
            for share in levels
        ),
    )

"""What a price may be later, from what prices did before; pure.

The past is cut into changes from one UTC midnight to the next. A future is put together from pieces of it, a
few days long, so that what follows what stays so (moving-block bootstrap: Künsch 1989). Whose past: mostly
the offer's own, the more of it there is; else that of its family (same GPU, tier and class of provider); else
the whole market's. One future follows one past throughout, so that a price that never moved and one that
moves daily stay apart. Equal seeds draw the same days for every offer: what moved together moves together.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import accumulate, pairwise
from random import Random

from broker.domain.basics.money import to_micro_usd
from broker.domain.basics.window import Window
from broker.domain.market.market import PricePoint
from broker.domain.market.offer import Tier

DAY = timedelta(days=1)
HOURS_PER_DAY = 24.0


@dataclass(frozen=True, slots=True)
class Family:
    """Offers whose prices may be expected to move alike."""

    gpu: str
    tier: Tier
    provider_class: str


class Basis(StrEnum):
    """Whose past a future follows."""

    OFFER = "offer"
    FAMILY = "family"
    MARKET = "market"


@dataclass(frozen=True, slots=True)
class ForecastRules:
    """How a past is used.

    ``block_days``: length of a piece. ``own_days``: with so many known days an offer's own past makes half of
    its futures; ``family_offers``: with so many known offers a family makes half of the others.
    ``least_days`` that the past of another offer must have to be borrowed. ``paths``: futures that quantiles
    are taken of.
    """

    block_days: int = 7
    own_days: int = 30
    family_offers: int = 3
    least_days: int = 7
    paths: int = 1000


@dataclass(frozen=True, slots=True)
class DailyPrices:
    """Micro-USD per node-hour in force at one UTC midnight after the other; None: not on sale."""

    offer_id: str
    family: Family
    micro_usd: tuple[int | None, ...]


def daily_prices(offer_id: str, family: Family, points: Sequence[PricePoint], known: Window) -> DailyPrices:
    """The prices at the midnights of ``known``, of points in the order of time."""
    found: list[int | None] = []
    times = [point.at for point in points]
    for midnight in midnights(known):
        before = bisect_right(times, midnight)
        point = points[before - 1] if before else None
        found.append(to_micro_usd(point.price_usd_per_node_hour) if point and point.available else None)
    return DailyPrices(offer_id, family, tuple(found))


def midnights(known: Window) -> tuple[datetime, ...]:
    """Every UTC midnight from the first to the last in ``known``, its end included."""
    first = known.start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = first if first == known.start else first + DAY
    return tuple(first + DAY * n for n in range((known.end - first) // DAY + 1))


@dataclass(frozen=True, slots=True)
class Quantile:
    """With probability ``share`` the price is at most so much. Micro-USD per node-hour."""

    share: float
    micro_usd: int


@dataclass(frozen=True, slots=True)
class PriceForecast:
    """What the price may be ``hours`` from now: quantiles, the least first."""

    hours: float
    quantiles: tuple[Quantile, ...]

    def at(self, share: float) -> int:
        """The quantile of ``share``, micro-USD per node-hour; KeyError when it was not asked for."""
        return {quantile.share: quantile.micro_usd for quantile in self.quantiles}[share]


@dataclass(frozen=True, slots=True)
class ForecastBasis:
    """What a forecast rests on: the share of futures that follow each past, and how much of it is known."""

    shares: Mapping[Basis, float]
    own_days: int
    family_offers: int
    market_offers: int

    @property
    def basis(self) -> Basis:
        """The past that most futures follow."""
        return max(self.shares, key=lambda basis: self.shares[basis])


LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


class Forecaster:
    """Futures from the known past of a market."""

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

    def grounds(self, offer_id: str, family: Family) -> ForecastBasis | None:
        """What the futures of an offer rest on; None: no history at all."""
        own, kin = self._own.get(offer_id), self._families.get(family, [])
        if own is None and not self._market:
            return None
        own_days = own.days if own is not None else 0
        of_own = own_days / (own_days + self._rules.own_days)
        of_kin = len(kin) / (len(kin) + self._rules.family_offers)
        if not self._market:
            of_own = 1.0
        shares = {
            Basis.OFFER: of_own,
            Basis.FAMILY: (1 - of_own) * of_kin,
            Basis.MARKET: (1 - of_own) * (1 - of_kin),
        }
        return ForecastBasis(shares, own_days, len(kin), len(self._market))

    def factors(
        self, offer_id: str, family: Family, days: int, paths: int, seed: int
    ) -> tuple[array[float], ...]:
        """``paths`` futures of a price, each as factors of today's after 0, 1, … ``days`` days.

        None of them without any history: an empty tuple. A longer future begins as the shorter does.
        """
        grounds = self.grounds(offer_id, family)
        if grounds is None:
            return ()
        return tuple(self._future(offer_id, family, grounds, days, seed, n) for n in range(paths))

    def paths(
        self, offer_id: str, family: Family, micro_usd: int, days: int, paths: int, seed: int
    ) -> tuple[tuple[int, ...], ...]:
        """The same as prices, micro-USD per node-hour, from ``micro_usd`` today."""
        return tuple(
            tuple(round(micro_usd * factor) for factor in future)
            for future in self.factors(offer_id, family, days, paths, seed)
        )

    def outlooks(
        self,
        offer_id: str,
        family: Family,
        micro_usd: int,
        hours: Sequence[float],
        *,
        levels: Sequence[float] = LEVELS,
        seed: int = 1,
    ) -> tuple[PriceForecast, ...]:
        """What a price of ``micro_usd`` today may be after each of ``hours``; none without any history.

        Within a day the price changes at an instant that is drawn evenly.
        """
        days = math.ceil(max(hours, default=0.0) / HOURS_PER_DAY)
        futures = self.factors(offer_id, family, days, self._rules.paths, seed)
        if not futures:
            return ()
        return tuple(_outlook(micro_usd, futures, after, sorted(levels)) for after in hours)

    def _future(
        self, offer_id: str, family: Family, grounds: ForecastBasis, days: int, seed: int, number: int
    ) -> array[float]:
        lots = Random(f"{seed}/{number}")  # noqa: S311  repeatable draws, no secrets
        past = self._followed(offer_id, family, grounds, lots.random(), lots.random())
        block = min(self._rules.block_days, past.days)
        logs = array("d", [0.0])
        while len(logs) <= days:
            past.append_block(logs, lots.random(), block)
        return array("d", map(math.exp, logs[: days + 1]))

    def _followed(
        self, offer_id: str, family: Family, grounds: ForecastBasis, which: float, whose: float
    ) -> _Past:
        shares = grounds.shares
        if which < shares[Basis.OFFER]:
            return self._own[offer_id]
        of_kin = which < shares[Basis.OFFER] + shares[Basis.FAMILY]
        pasts = self._families[family] if of_kin else self._market
        return pasts[int(whose * len(pasts))]


@dataclass(frozen=True, slots=True, eq=False)
class _Past:
    """Logarithms of changes day by day, summed up from the first: one value more than there are changes."""

    sums: array[float]

    @property
    def days(self) -> int:
        return len(self.sums) - 1

    def append_block(self, logs: array[float], lot: float, length: int) -> None:
        """Goes on from the last of ``logs`` as the days from a drawn one on went."""
        first = int(lot * (self.days - length + 1))
        base = logs[-1] - self.sums[first]
        logs.extend(base + value for value in self.sums[first + 1 : first + length + 1])


def _past_of(micro_usd: Sequence[int | None]) -> _Past:
    changes = (math.log(after / before) for before, after in pairwise(micro_usd) if before and after)
    return _Past(array("d", accumulate(changes, initial=0.0)))


def _outlook(
    micro_usd: int, futures: Sequence[array[float]], hours: float, levels: Sequence[float]
) -> PriceForecast:
    whole, part = divmod(hours / HOURS_PER_DAY, 1)
    changed = round(part * len(futures))
    # Which futures have changed by then has nothing to do with how: they are in no order.
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

"""Daily price statistics: of one offer, and of a GPU across providers. Pure.

The statistics of a UTC day cover the prices while the offer was on sale, including the price at midnight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from statistics import median_low
from typing import NamedTuple

from broker.domain.basics.window import Window

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


class PriceMark(NamedTuple):
    """The price of an offer from ``at`` on, in micro-USD per node-hour, and whether it is on sale."""

    at: datetime
    micro_usd: int
    on_sale: bool


@dataclass(frozen=True, slots=True)
class PriceDay:
    """Prices of one offer on one UTC day, in micro-USD per node-hour.

    ``median`` is weighted by time on sale, which is ``seconds`` in total. ``changes`` is the number of price
    points in the day. ``last`` and ``on_sale`` are the price and the state at the end of the day.
    """

    day: date
    least: int
    median: int
    most: int
    last: int
    seconds: int
    changes: int
    on_sale: bool


@dataclass(frozen=True, slots=True)
class SkuDay:
    """Prices of a GPU in one tier on one UTC day, in micro-USD per GPU-hour.

    They cover the offers of ``provider`` (None: of all providers). ``median`` is the median of the offers'
    medians.
    """

    gpu: str
    tier: str
    day: date
    provider: str | None
    least: int
    median: int
    most: int
    offers: int
    providers: int


@dataclass(frozen=True, slots=True)
class Closes:
    """Prices of an offer at the end of consecutive days, in micro-USD per node-hour; None if not on sale."""

    offer_id: str
    provider: str
    gpu: str
    tier: str
    micro_usd: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class SoldDay:
    """The daily statistics of an offer, with the attributes by which they are grouped."""

    provider: str
    gpu: str
    tier: str
    gpus_per_node: int
    day: PriceDay


def start_of(day: date) -> datetime:
    """The first instant of ``day`` in UTC."""
    return datetime.combine(day, time(), UTC)


def days_in(window: Window) -> tuple[date, ...]:
    """Every UTC day that ``window`` touches."""
    first, last = window.start.date(), (window.end - timedelta(microseconds=1)).date()
    return tuple(first + timedelta(days=n) for n in range((last - first).days + 1))


def price_day(
    day: date, before: PriceMark | None, within: Sequence[PriceMark], until: datetime | None = None
) -> PriceDay | None:
    """Statistics of a day from the price in force at its start (``before``) and the marks ``within`` it.

    Marks must be in order of time. ``until`` is given if the day is not over. The result is None if there is
    no mark within the day and the offer was not on sale.
    """
    start = start_of(day)
    end = start + DAY if until is None else min(until, start + DAY)
    if not within:
        seconds = max(0, (end - start) // SECOND)
        return None if before is None or not before.on_sale else stayed(day, before.micro_usd, seconds)
    marks = list(within) if before is None else [before._replace(at=start), *within]
    held: defaultdict[int, int] = defaultdict(int)
    for mark, then in zip(marks, [*(m.at for m in marks[1:]), end], strict=True):
        if mark.on_sale and then > mark.at:
            held[mark.micro_usd] += (then - mark.at) // SECOND
    last = marks[-1]
    prices = sorted(held) or [last.micro_usd]
    return PriceDay(
        day=day,
        least=prices[0],
        median=_middle(held) if held else last.micro_usd,
        most=prices[-1],
        last=last.micro_usd,
        seconds=sum(held.values()),
        changes=len(within),
        on_sale=last.on_sale,
    )


def stayed(day: date, micro_usd: int, seconds: int = DAY // SECOND) -> PriceDay:
    """Statistics of a day on which the price did not change."""
    return PriceDay(day, micro_usd, micro_usd, micro_usd, micro_usd, seconds, 0, on_sale=True)


def _middle(held: dict[int, int]) -> int:
    half, passed = sum(held.values()) / 2, 0
    for price in sorted(held):
        passed += held[price]
        if passed >= half:
            return price
    return max(held)


def price_days(marks: Sequence[PriceMark], days: Iterable[date], until: datetime) -> Iterator[PriceDay]:
    """Statistics of those ``days`` that have any, up to ``until``; marks must be in order of time."""
    before, rest = None, list(reversed(marks))
    for day in days:
        start, within = start_of(day), []
        while rest and rest[-1].at < start:
            before = rest.pop()
        if start >= until:
            return
        while rest and rest[-1].at < min(start + DAY, until):
            within.append(rest.pop())
        found = price_day(day, before, within, until)
        if found is not None:
            yield found
        before = within[-1] if within else before


def filled(known: Sequence[PriceDay], days: Iterable[date]) -> Iterator[PriceDay]:
    """Statistics of each of ``days``; between the ``known`` days the price did not change.

    ``known`` are the days with a change, in order, and the last one before ``days``. Days on which the offer
    was never on sale are left out.
    """
    rest, last = list(reversed(known)), None
    for day in days:
        while rest and rest[-1].day <= day:
            last = rest.pop()
        if last is None:
            continue
        if last.day == day:
            if last.seconds:
                yield last
        elif last.on_sale:
            yield stayed(day, last.last)


def closes(known: Sequence[PriceDay], days: Iterable[date]) -> Iterator[int | None]:
    """The price at the end of each of ``days``; ``known`` as for ``filled``."""
    rest, last = list(reversed(known)), None
    for day in days:
        while rest and rest[-1].day <= day:
            last = rest.pop()
        yield last.last if last is not None and last.on_sale else None


def sku_days(sold: Iterable[SoldDay]) -> tuple[SkuDay, ...]:
    """Statistics by GPU, tier and day, for each provider and for all together.

    Days of old offers whose GPU is unknown are left out.
    """
    groups: defaultdict[tuple[str, str, date, str | None], list[SoldDay]] = defaultdict(list)
    for one in sold:
        if one.day.seconds and one.gpu and one.gpus_per_node > 0:
            for provider in (one.provider, None):
                groups[one.gpu, one.tier, one.day.day, provider].append(one)
    return tuple(
        SkuDay(
            gpu=gpu,
            tier=tier,
            day=day,
            provider=provider,
            least=min(one.day.least // one.gpus_per_node for one in many),
            median=median_low(one.day.median // one.gpus_per_node for one in many),
            most=max(one.day.most // one.gpus_per_node for one in many),
            offers=len(many),
            providers=len({one.provider for one in many}),
        )
        for (gpu, tier, day, provider), many in groups.items()
    )

"""Billing: the only place that turns held segments into cost.

Rules (contract, section 4): node *k* is held while at least *k* nodes are. The billing increment
and the minimum term apply to each such holding. A term that runs past the horizon is owed in full.
A ``listed`` window is sold per node and per segment, always whole, at that segment's share of
``upfront_usd``, which buys all nodes of all segments; increments and minimum terms do not apply.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise

from broker.domain.basics.money import ZERO, split_cents, to_cents
from broker.domain.basics.window import Segment, Window
from broker.domain.market.offer import Offer

SECONDS_PER_HOUR = 3600
MICROS_PER_SECOND = 1_000_000
MICROS_PER_HOUR = SECONDS_PER_HOUR * MICROS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Meter:
    """Billing of one node that is held without a break. Times are microseconds since the holding began.

    The provider bills in advance: at the start the first block (the minimum term, rounded up to increments),
    then each increment as it begins. A block of more than an hour is *prepaid*: its cost is amortized over
    the whole block, even if the node is released earlier. The cost of a shorter block accrues at its start.
    """

    least_us: int
    step_us: int

    @classmethod
    def of(cls, offer: Offer) -> Meter:
        """The meter of an offer that is not a window."""
        least_us = round(offer.min_hours * MICROS_PER_HOUR)
        return cls(least_us, max(1, offer.billing_increment_s) * MICROS_PER_SECOND)

    @property
    def first_us(self) -> int:
        """Length of the first block."""
        return max(self.step_us, self.billed_us(0))

    def billed_us(self, held_us: int) -> int:
        """Time that has been billed after the node was held for ``held_us``."""
        return -(-max(held_us, self.least_us) // self.step_us) * self.step_us

    def amortized_us(self, held_us: int) -> int:
        """Time whose cost has accrued by ``held_us``: prepaid blocks by elapsed time, others in full."""
        block = self.prepaid_block(held_us - 1)
        return self.billed_us(held_us) if block is None else held_us

    def paid_us(self, held_us: int) -> int:
        """Time that is paid for at ``held_us``: up to the end of a prepaid block, else up to ``held_us``."""
        block = self.prepaid_block(max(0, held_us - 1))
        return held_us if block is None else min(block[1], self.billed_us(held_us))

    def prepaid_block(self, at_us: int) -> tuple[int, int] | None:
        """Start and end of the block that contains ``at_us``; None if it is at most an hour long."""
        first_us = self.first_us
        length_us = first_us if at_us < first_us else self.step_us
        if length_us <= MICROS_PER_HOUR:
            return None
        start_us = 0 if at_us < first_us else first_us + (at_us - first_us) // length_us * length_us
        return start_us, start_us + length_us


@dataclass(frozen=True, slots=True, order=True)
class Holding:
    """``nodes`` nodes held without a break over ``window``."""

    window: Window
    nodes: int


@dataclass(frozen=True, slots=True)
class Block:
    """A prepaid block of each of ``nodes`` nodes, billed together: ``usd`` (whole cents) at ``at``.

    The nodes are held until ``until``, which may be before the end of the block.
    """

    at: datetime
    until: datetime
    nodes: int
    usd: Decimal


def holdings(segments: Sequence[Segment]) -> tuple[Holding, ...]:
    """The uninterrupted holdings of each node in a step function; equal holdings are counted together.

    Raises ValueError if segments overlap.
    """
    ordered = sorted(segments)
    for before, after in pairwise(ordered):
        if after.start < before.end:
            raise ValueError(f"segments overlap at {after.start.isoformat()}")
    found: Counter[Window] = Counter()
    open_since: list[datetime] = []
    last_end: datetime | None = None
    for segment in ordered:
        still_held = segment.nodes if segment.start == last_end else 0
        while len(open_since) > still_held:
            found[Window(open_since.pop(), _require(last_end))] += 1
        while len(open_since) < segment.nodes:
            open_since.append(segment.start)
        last_end = segment.end
    while open_since:
        found[Window(open_since.pop(), _require(last_end))] += 1
    return tuple(sorted(Holding(window, nodes) for window, nodes in found.items()))


def billed_seconds(offer: Offer, window: Window) -> int:
    """Seconds billed for one node held over ``window``: at least the minimum term, in whole increments."""
    held_us = window.duration // timedelta(microseconds=1)
    return Meter.of(offer).billed_us(held_us) // MICROS_PER_SECOND


def holding_cost_usd(offer: Offer, segments: Sequence[Segment]) -> Decimal:
    """Exact cost in USD of ``segments`` held on ``offer``; the caller rounds to cents."""
    if offer.is_sold_whole:
        return _listed_cost_usd(offer, segments)
    cost = ZERO
    for holding in holdings(segments):
        seconds = billed_seconds(offer, holding.window)
        cost += holding.nodes * (
            offer.price_usd_per_node_hour * seconds / SECONDS_PER_HOUR + (offer.upfront_usd or ZERO)
        )
    return cost


def billed_ahead(offer: Offer, segments: Sequence[Segment], cost_usd: Decimal) -> tuple[Block, ...]:
    """The prepaid blocks in the bill ``cost_usd`` (whole cents) of ``segments``, oldest first.

    The rest of the bill accrues as it is used. A window has no blocks, because it is billed whole.
    """
    if offer.window is not None:
        return ()
    found: defaultdict[tuple[datetime, datetime], list[tuple[int, Decimal]]] = defaultdict(list)
    for holding in holdings(segments):
        for window, usd in _prepaid(offer, holding):
            found[window.start, window.end].append((holding.nodes, usd))
    blocks, exact, before, left = [], ZERO, ZERO, _node_seconds(segments)
    for (at, until), rows in sorted(found.items()):
        nodes = sum(count for count, _ in rows)
        exact += sum((usd for _, usd in rows), ZERO)
        left -= nodes * ((until - at) // timedelta(seconds=1))
        total = min(to_cents(exact), cost_usd) if left else cost_usd
        blocks.append(Block(at, until, nodes, total - before))
        before = total
    return tuple(blocks)


def _prepaid(offer: Offer, holding: Holding) -> Iterator[tuple[Window, Decimal]]:
    """The prepaid blocks of ``holding``, each cut to the time it is held, and their exact cost in USD."""
    meter, start = Meter.of(offer), holding.window.start
    held_us, at_us = holding.window.duration // timedelta(microseconds=1), 0
    fee_usd = offer.upfront_usd or ZERO
    while at_us < held_us and (block := meter.prepaid_block(at_us)) is not None:
        end_us = min(block[1], held_us)
        window = Window(start + timedelta(microseconds=at_us), start + timedelta(microseconds=end_us))
        usd = offer.price_usd_per_node_hour * (block[1] - block[0]) / MICROS_PER_HOUR + fee_usd
        yield window, holding.nodes * usd
        at_us, fee_usd = block[1], ZERO


def _listed_cost_usd(offer: Offer, segments: Sequence[Segment]) -> Decimal:
    bought = _node_seconds(segments)
    if offer.upfront_usd is None:
        return offer.price_usd_per_node_hour * bought / SECONDS_PER_HOUR
    assert offer.window is not None
    return offer.upfront_usd * bought / _node_seconds(offer.window.segments)


def _node_seconds(segments: Iterable[Segment]) -> int:
    return sum(s.nodes * ((s.end - s.start) // timedelta(seconds=1)) for s in segments)


def node_hours(segments: Iterable[Segment]) -> float:
    """Node-hours of a step function."""
    return _node_seconds(segments) / SECONDS_PER_HOUR


def days(window: Window) -> Iterator[Window]:
    """``window`` cut at UTC midnights."""
    start = window.start
    while start < window.end:
        end = min(datetime.combine(start.date() + timedelta(days=1), time(), UTC), window.end)
        yield Window(start, end)
        start = end


def spread_by_day(cost_usd: Decimal, segments: Sequence[Segment]) -> tuple[tuple[Window, Decimal], ...]:
    """``cost_usd`` (whole cents) spread over the UTC days of ``segments`` in proportion to node-hours.

    The parts sum to it exactly. Days on which nothing is held are left out. Each window runs from the first
    to the last held instant of its day.
    """
    rows = held_by_day(segments)
    shares = split_cents(cost_usd, [held for _, held in rows]) if rows else ()
    return tuple((window, usd) for (window, _), usd in zip(rows, shares, strict=True))


def held_by_day(segments: Sequence[Segment]) -> tuple[tuple[Window, int], ...]:
    """For each UTC day of ``segments``: from the first to the last held instant, and node-seconds."""
    by_day: dict[date, tuple[Window, int]] = {}
    for segment in sorted(segments):
        for part in days(segment.window):
            day = part.start.date()
            seconds = (part.end - part.start) // timedelta(seconds=1) * segment.nodes
            if day in by_day:
                window, before = by_day[day]
                by_day[day] = (Window(window.start, part.end), before + seconds)
            else:
                by_day[day] = (part, seconds)
    return tuple(by_day.values())


def _require(instant: datetime | None) -> datetime:
    assert instant is not None
    return instant

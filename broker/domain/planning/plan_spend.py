"""The spend lines of a plan: the cost of each placement by day, with exact sums. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.market.billing import spread_by_day
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Placement, SpendKind, SpendLine

SpendKey = tuple[datetime, str, str, Tier, SpendKind, str]
Part = tuple[datetime, datetime, Decimal]


def spend_lines(placements: Iterable[Placement]) -> tuple[SpendLine, ...]:
    """Spend lines by day, workload, provider and tier; egress has separate lines, by who bills it."""
    merged: defaultdict[SpendKey, list[Part]] = defaultdict(list)
    for placement in placements:
        for key, part in _parts(placement):
            merged[key].append(part)
    return tuple(
        SpendLine(
            start=min(start for start, _, _ in parts),
            end=max(end for _, end, _ in parts),
            workload=workload,
            provider=provider,
            tier=tier,
            usd=sum((usd for _, _, usd in parts), ZERO),
            kind=kind,
            billed_by=billed_by or None,
        )
        for (_, workload, provider, tier, kind, billed_by), parts in sorted(
            merged.items(), key=lambda item: item[0]
        )
    )


def _parts(placement: Placement) -> Iterator[tuple[SpendKey, Part]]:
    """The spend of one placement: capacity by day, and transfers on the first day."""
    rows = spread_by_day(placement.capacity_usd, placement.segments)
    for window, usd in rows:
        yield _key(placement, window.start, SpendKind.CAPACITY, ""), (window.start, window.end, usd)
    for transfer in placement.transfers:
        if transfer.usd:
            first, _ = rows[0]
            key = _key(placement, first.start, SpendKind.EGRESS, transfer.provider)
            yield key, (first.start, first.end, transfer.usd)


def _key(placement: Placement, start: datetime, kind: SpendKind, billed_by: str) -> SpendKey:
    day = start.replace(hour=0, minute=0, second=0, microsecond=0)
    return day, placement.workload, placement.provider, placement.tier, kind, billed_by

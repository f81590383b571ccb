"""Data is copied once to each place that needs it, at its price, and has spend lines for exactly those
copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.market.billing import days
from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import checkpoint_gb, finished_weights_gb
from broker.domain.planning.plan import SpendKind
from broker.domain.planning.transfer import Place, Transfer, TransferKind
from broker.domain.planning.workload import Dataset, OwnData, Serving, Training, Workload
from optimizer.placement.rules.case import Case

HOUR = timedelta(hours=1)
LineKey = tuple[str, str, str, str, date]
Part = tuple[datetime, datetime, Decimal]


def violations(case: Case) -> Iterator[str]:
    """Recomputes the transfers of each placement and the spend lines of egress."""
    for rows in case.placed.values():
        seen: set[Place] = set()
        for index, (where, placement, workload, offer) in enumerate(rows):
            before = rows[index - 1][3] if index else None
            expected = (
                *_expected(case, workload, offer, seen),
                *_checkpoint(case, workload, before, offer),
            )
            if placement.transfers != expected:
                yield f"{where}: transfers are {_said(placement.transfers)}, expected {_said(expected)}"
    yield from _lines(case)


def _expected(case: Case, workload: Workload, offer: Offer, seen: set[Place]) -> Iterator[Transfer]:
    """A run's data set if it lies elsewhere; a service's weights if copying them costs anything."""
    to = Place.of(offer)
    if to in seen:
        return
    seen.add(to)
    if isinstance(workload, Training):
        data, what = workload.dataset, TransferKind.DATASET
    elif isinstance(workload, Serving):
        data, what = _weights(case, workload), TransferKind.WEIGHTS
    else:
        return
    if data is not None and not data.place.is_at(to):
        usd = case.terms.transfer_usd(data.place, to, data.gb)
        hours = case.terms.staging(data.place, to, data.gb) / HOUR
        yield Transfer(what, data.gb, data.provider, data.region, usd, hours)


def _checkpoint(case: Case, workload: Workload, before: Offer | None, offer: Offer) -> Iterator[Transfer]:
    """The copy of a run's checkpoint from the place of its previous part."""
    if before is None or not isinstance(workload, Training):
        return
    source, to = Place.of(before), Place.of(offer)
    if not source.is_at(to):
        gb = checkpoint_gb(workload)
        usd, hours = case.terms.transfer_usd(source, to, gb), case.terms.staging(source, to, gb) / HOUR
        yield Transfer(TransferKind.CHECKPOINT, gb, source.provider, source.region, usd, hours)


def _weights(case: Case, service: Serving) -> Dataset | None:
    if service.starts_after is None:
        return service.weights
    for _, _, run, offer in case.placed.get(service.starts_after, ())[-1:]:
        place = Place.of(offer)
        if not case.terms.is_free(place):
            return OwnData(finished_weights_gb(run), place.provider, place.region, place.operator)
    return service.weights


def _lines(case: Case) -> Iterator[str]:
    """Copies that cost something have a line on the first day of their placement, under the provider that
    bills them.
    """
    expected: defaultdict[LineKey, list[Part]] = defaultdict(list)
    for _, placement, _, _ in case.known():
        first = next(days(min(placement.segments).window))
        ends = [
            day.end
            for s in placement.segments
            for day in days(s.window)
            if day.start.date() == first.start.date()
        ]
        for transfer in placement.transfers:
            if transfer.usd:
                who = (placement.workload, placement.provider, placement.tier, transfer.provider)
                expected[*who, first.start.date()].append((first.start, max(ends), transfer.usd))
    told: defaultdict[LineKey, list[Part]] = defaultdict(list)
    for line in case.plan.spend:
        if line.kind is SpendKind.EGRESS:
            who = (line.workload, line.provider, line.tier, line.billed_by or "")
            told[*who, line.start.date()].append((line.start, line.end, line.usd))
    for key in {**expected, **told}:
        rows = expected.get(key, [])
        usd = sum((part for _, _, part in rows), ZERO)
        merged = [(min(a for a, _, _ in rows), max(b for _, b, _ in rows), usd)] if rows else []
        if told.get(key, []) != merged:
            workload, provider, _, billed_by, day = key
            yield f"egress of {workload} to {provider} on {day}, by {billed_by}: expected one line of {usd}"


def _said(transfers: tuple[Transfer, ...]) -> str:
    words = (f"{one.gb:g} GB of {one.what} from {one.provider} at {one.usd} USD" for one in transfers)
    return ", ".join(words) or "none"

"""Windows as an iCalendar (RFC 5545): what a plan holds and what is reserved, for people's calendars.

An event is one time in which a workload holds nodes of one offer. Its UID stays the same while offer,
workload and begin do, so that a calendar changes an event in place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from icalendar import Calendar, Event

from api.export.targets import Exported
from api.export.workload_facts import Facts
from api.promise_words import state_word
from api.schemas.base.times import format_time
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.window import Segment
from broker.domain.holding.capacity_promise import promise_of
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.planning.plan import Placement, Plan

MEDIA_TYPE = "text/calendar; charset=utf-8"
PRODUCT = "-//gpu-capacity-broker//windows//EN"
REFRESH = timedelta(hours=1)
INSTANT = timedelta(microseconds=1)
MOST_IDS = 4


def ical_files(plan: Plan, facts: Facts, source: str, *, reserved: bool = False) -> Exported:
    """One calendar with the windows of a plan, reserved or not. InputError if it places nothing."""
    if not plan.placements:
        nothing = FieldProblem("/placements", "none", "a plan that places a workload")
        raise InputError(source, (nothing,))
    return Exported({f"{plan.plan_id}.ics": plan_calendar(plan)})


def plan_calendar(plan: Plan, rows: Iterable[Reservation] = (), now: datetime | None = None) -> str:
    """The times in which each placement of a plan would hold nodes; once it is reserved, those of its
    reservations ``rows``, with what is promised of them at ``now``.
    """
    reserved = [row for row in rows if was_reserved(row)]
    if reserved:
        at = now or plan.as_of
        return _calendar(f"Plan {plan.plan_id}", [_reserved(one, at) for one in _spells_of(reserved, at)])
    events = [
        _event(
            (placement.workload, placement.offer_id, spell[0].start),
            plan.as_of,
            spell[0].start,
            spell[-1].end,
            f"{placement.workload}: {_range([one.nodes for one in spell])} × "
            f"{placement.gpus // placement.nodes} {placement.gpu}",
            f"{placement.provider} {placement.zone or placement.region}",
            f"Planned by {plan.plan_id}, {placement.sku}, {str(placement.tier).replace('_', ' ')}; "
            f"{_part(plan, placement)}{_live(placement, spell[0].start)}"
            f"the whole placement costs ${placement.cost_usd:,.2f}",
            "TENTATIVE",
        )
        for placement in plan.placements
        for spell in _spells(placement)
    ]
    return _calendar(f"Plan {plan.plan_id}", events)


def _part(plan: Plan, placement: Placement) -> str:
    part = plan.part_of(placement)
    return f"{part}; " if part else ""


def _live(placement: Placement, start: datetime) -> str:
    """From when a service answers, at the first of its spells."""
    live = placement.live_from
    first = placement.segments[0].start
    return f"live from {format_time(live)}; " if live is not None and start == first else ""


def _spells(placement: Placement) -> list[list[Segment]]:
    """Segments that follow one another without a gap."""
    ordered = sorted(placement.segments, key=lambda segment: segment.start)
    spells = [[ordered[0]]]
    for before, after in pairwise(ordered):
        if after.start > before.end:
            spells.append([])
        spells[-1].append(after)
    return spells


def _range(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return str(most) if least == most else f"{least} to {most}"


def reservations_calendar(rows: Iterable[Reservation], now: datetime) -> str:
    """The times of reservations; those of one workload at one offer from one begin to one end are one event.

    Each says what is promised of it at ``now``: ``held``, ``holding`` or ``ordered at its start``. An order
    that failed is left out. One without an end is an event at its begin, which says so.
    """
    alike: dict[tuple[object, ...], list[Reservation]] = {}
    for row in filter(was_reserved, rows):
        end = row.released_at or row.end
        alike.setdefault((row.workload, row.offer.offer_id, row.start, end), []).append(row)
    return _calendar("Reserved GPU capacity", [_reserved(group, now) for group in alike.values()])


def _spells_of(rows: Iterable[Reservation], now: datetime) -> Iterator[list[Reservation]]:
    """Reservations of one workload at one offer with one promise that follow one another without a gap."""
    alike: dict[tuple[object, ...], list[Reservation]] = {}
    for row in sorted(rows, key=lambda row: row.start):
        alike.setdefault((row.workload, row.offer.offer_id, _word(row, now)), []).append(row)
    for group in alike.values():
        spell: list[Reservation] = []
        for row in group:
            ends = [_end_of(one) for one in spell]
            if ends and not any(end is None or row.start <= end for end in ends):
                yield spell
                spell = []
            spell.append(row)
        yield spell


def _reserved(group: Sequence[Reservation], now: datetime) -> Event:
    """One event of reservations of one workload at one offer."""
    first, ends = group[0], [_end_of(row) for row in group]
    start = min(row.start for row in group)
    end = None if None in ends else max(end for end in ends if end is not None)
    changes = sorted({row.start for row in group} | {one for one in ends if one is not None and one != end})
    sizes = [sum(row.nodes for row in group if _holds(row, at)) for at in changes]
    offer, until = first.offer, "" if end is not None else "; held until it is released"
    words = ", ".join(sorted({_word(row, now) for row in group}))
    ids = [row.reservation_id for row in group]
    told = ", ".join(ids) if len(ids) <= MOST_IDS else f"{len(ids)} reservations from {ids[0]} on"
    return _event(
        (first.workload or "", offer.offer_id, start),
        max(row.created_at for row in group),
        start,
        end,
        f"{first.workload or 'no workload'}: {_range(sizes)} × {offer.sku.gpus_per_node} {offer.sku.gpu}",
        f"{offer.provider} {offer.zone or offer.region}",
        f"Reserved, {words}{until}: {told}",
        "CANCELLED" if end is not None and end <= start else "CONFIRMED",
    )


def _word(row: Reservation, now: datetime) -> str:
    return state_word(row, promise_of(row, now))


def _end_of(row: Reservation) -> datetime | None:
    return row.released_at or row.end


def _holds(row: Reservation, at: datetime) -> bool:
    end = _end_of(row)
    return row.start <= at and (end is None or at < max(end, row.start + INSTANT))


def was_reserved(row: Reservation) -> bool:
    """Whether it was ever more than an order that failed."""
    return row.state is not ReservationState.FAILED


def _event(
    key: tuple[object, ...],
    stamp: datetime,
    start: datetime,
    end: datetime | None,
    summary: str,
    location: str,
    description: str,
    status: str,
) -> Event:
    event = Event()
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    event.add("uid", f"{digest}@gpu-capacity-broker")
    event.add("dtstamp", stamp)
    event.add("dtstart", start)
    if end is not None:
        event.add("dtend", max(start, end))
    event.add("summary", summary)
    event.add("location", location)
    event.add("description", description)
    event.add("status", status)
    event.add("transp", "TRANSPARENT")  # it makes nobody busy
    return event


def _calendar(name: str, events: Iterable[Event]) -> str:
    calendar = Calendar()
    calendar.add("prodid", PRODUCT)
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-calname", name)
    calendar.add("refresh-interval", REFRESH, parameters={"VALUE": "DURATION"})
    for event in events:
        calendar.add_component(event)
    return str(calendar.to_ical(), encoding="utf-8")

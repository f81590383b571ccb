"""Windows as an iCalendar (RFC 5545): what a plan holds and what is reserved, for people's calendars.

An event is one time in which a workload holds nodes of one offer. Its UID stays the same while offer,
workload and begin do, so that a calendar changes an event in place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from icalendar import Calendar, Event

from api.export.targets import Exported
from api.export.workload_facts import Facts
from api.promise_words import state_word
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.window import Segment
from broker.domain.holding.capacity_promise import promise_of
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.planning.plan import Placement, Plan

MEDIA_TYPE = "text/calendar; charset=utf-8"
PRODUCT = "-//gpu-capacity-broker//windows//EN"
REFRESH = timedelta(hours=1)


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
        return reservations_calendar(reserved, now or plan.as_of, f"Plan {plan.plan_id}")
    events = [
        _event(
            (placement.workload, placement.offer_id, spell[0].start),
            plan.as_of,
            spell[0].start,
            spell[-1].end,
            f"{placement.workload}: {_nodes(spell)} × {placement.gpus // placement.nodes} {placement.gpu}",
            f"{placement.provider} {placement.zone or placement.region}",
            f"Planned by {plan.plan_id}, {placement.sku}, {str(placement.tier).replace('_', ' ')}; "
            f"{_part(plan, placement)}the whole placement costs ${placement.cost_usd:,.2f}",
            "TENTATIVE",
        )
        for placement in plan.placements
        for spell in _spells(placement)
    ]
    return _calendar(f"Plan {plan.plan_id}", events)


def _part(plan: Plan, placement: Placement) -> str:
    part = plan.part_of(placement)
    return f"{part}; " if part else ""


def _spells(placement: Placement) -> list[list[Segment]]:
    """Segments that follow one another without a gap."""
    ordered = sorted(placement.segments, key=lambda segment: segment.start)
    spells = [[ordered[0]]]
    for before, after in pairwise(ordered):
        if after.start > before.end:
            spells.append([])
        spells[-1].append(after)
    return spells


def _nodes(segments: Sequence[Segment]) -> str:
    least, most = (pick(segment.nodes for segment in segments) for pick in (min, max))
    return str(most) if least == most else f"{least} to {most}"


def reservations_calendar(
    rows: Iterable[Reservation], now: datetime, name: str = "Reserved GPU capacity"
) -> str:
    """The times of reservations; those of one workload at one offer from one begin to one end are one event.

    Each says what is promised of it at ``now``: ``held``, ``holding`` or ``ordered at its start``. An order
    that failed is left out. One without an end is an event at its begin, which says so.
    """
    alike: dict[tuple[object, ...], list[Reservation]] = {}
    for row in rows:
        if was_reserved(row):
            end = row.released_at or row.end
            alike.setdefault((row.workload or "", row.offer.offer_id, row.start, end), []).append(row)
    events = []
    for (workload, offer_id, start, _), group in alike.items():
        first, nodes = group[0], sum(row.nodes for row in group)
        end = first.released_at or first.end
        offer, until = first.offer, "" if end is not None else "; held until it is released"
        states = ", ".join(sorted({state_word(row, promise_of(row, now)) for row in group}))
        events.append(
            _event(
                (workload, offer_id, start),
                max(row.created_at for row in group),
                first.start,
                end,
                f"{workload or 'no workload'}: {nodes} × {offer.sku.gpus_per_node} {offer.sku.gpu}",
                f"{offer.provider} {offer.zone or offer.region}",
                f"Reserved, {states}{until}: {', '.join(row.reservation_id for row in group)}",
                "CANCELLED" if end is not None and end <= start else "CONFIRMED",
            )
        )
    return _calendar(name, events)


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

"""Shortfalls: hours in which a workload lacks nodes because providers refuse them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from broker.domain.holding.back_off import next_try_at
from broker.domain.holding.cost_of_keeping import waits_after_refusal
from broker.domain.holding.holding_orders import FOREVER
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Of the ``nodes`` that ``workload`` needs over ``[start, end)``, ``nodes_short`` are refused.

    ``end`` None means until they are bought. ``reservation_ids`` are the refused reservations. ``said`` has
    each provider with its latest answer. ``next_try_at`` is the earliest next try; None: in the next pass.
    """

    team: str
    plan_id: str | None
    workload: str | None
    start: datetime
    end: datetime | None
    nodes_short: int
    nodes: int
    reservation_ids: tuple[str, ...]
    said: tuple[tuple[str, str], ...]
    next_try_at: datetime | None = None

    def __str__(self) -> str:
        who = self.workload or "a reservation"
        span = f"from {_moment(self.start)} " + ("on" if self.end is None else f"to {self._until()}")
        refused = ", ".join(f"at {provider} ({words})" for provider, words in self.said)
        return f"{who} is short of {self.nodes_short} of {self.nodes} nodes {span}: refused {refused}"

    def _until(self) -> str:
        assert self.end is not None
        same_day = self.start.date() == self.end.date()
        return f"{self.end:%H:%M} UTC" if same_day else _moment(self.end)


def as_refused(reservation: Reservation) -> Reservation:
    """A reservation that was released for a price above its limit, in the form of a refused one."""
    units = tuple(replace(unit, state=UnitState.PLANNED) for unit in reservation.units)
    return replace(
        reservation, state=ReservationState.SCHEDULED, units=units, tries=max(1, reservation.tries)
    )


def find_shortfalls(reservations: Iterable[Reservation], now: datetime) -> tuple[Shortfall, ...]:
    """The shortfalls of all workloads from ``now`` on, earliest first.

    ``nodes`` counts all nodes that the workload holds or waits for at the time. Consecutive times with equal
    shortfalls are joined.
    """
    groups: dict[tuple[str, str | None, str | None], list[Reservation]] = {}
    for row in reservations:
        if row.is_open and row.state is not ReservationState.RELEASING:
            alone = row.reservation_id if row.workload is None else row.workload
            groups.setdefault((row.team, row.plan_id, alone), []).append(row)
    found = [one for rows in groups.values() for one in _of_one(rows, now)]
    return tuple(sorted(found, key=lambda one: (one.start, one.workload or "")))


def refused_workloads(reservations: Iterable[Reservation], now: datetime) -> dict[str, str]:
    """Workloads that lack nodes, each with its first shortfall as text."""
    found: dict[str, str] = {}
    for one in find_shortfalls(reservations, now):
        if one.workload is not None:
            found.setdefault(one.workload, str(one))
    return found


def shortfall_at(shortfalls: Iterable[Shortfall], at: datetime) -> Shortfall | None:
    """The shortfall that covers the instant ``at``; None if there is none."""
    return next((one for one in shortfalls if one.start <= at < (one.end or FOREVER)), None)


def _of_one(rows: Sequence[Reservation], now: datetime) -> list[Shortfall]:
    refused = [row for row in rows if waits_after_refusal(row)]
    if not refused:
        return []
    spans = [(max(row.start, now), row.ends_at or FOREVER) for row in rows]
    instants = sorted({at for span in spans for at in span if at >= now})
    found: list[Shortfall] = []
    for start, end in pairwise(instants):
        here = [row for row, span in zip(rows, spans, strict=True) if span[0] <= start < span[1]]
        one = _between(here, start, end)
        if one is None:
            continue
        if found and _continues(found[-1], one):
            one = _joined(found.pop(), one)
        found.append(one)
    return found


def _between(rows: Sequence[Reservation], start: datetime, end: datetime) -> Shortfall | None:
    refused = [row for row in rows if waits_after_refusal(row)]
    if not refused:
        return None
    first = refused[0]
    tries = [at for row in refused if (at := next_try_at(row)) is not None]
    return Shortfall(
        team=first.team,
        plan_id=first.plan_id,
        workload=first.workload,
        start=start,
        end=None if end == FOREVER else end,
        nodes_short=sum(_nodes(row, UnitState.PLANNED) for row in refused),
        nodes=sum(_nodes(row, *UnitState) - _nodes(row, UnitState.GONE) for row in rows),
        reservation_ids=tuple(row.reservation_id for row in refused),
        said=tuple(dict.fromkeys((row.offer.provider, _words(row)) for row in refused)),
        next_try_at=min(tries, default=None),
    )


def _nodes(row: Reservation, *states: UnitState) -> int:
    return sum(unit.nodes for unit in row.units if unit.state in states)


def _words(row: Reservation) -> str:
    return row.reason.removeprefix(f"{row.offer.provider}: ")


def _continues(one: Shortfall, other: Shortfall) -> bool:
    return _told(one) == _told(other) and one.end == other.start


def _told(one: Shortfall) -> tuple[object, ...]:
    return one.nodes_short, one.nodes, one.reservation_ids, one.said


def _joined(one: Shortfall, other: Shortfall) -> Shortfall:
    tries = [at for at in (one.next_try_at, other.next_try_at) if at is not None]
    return replace(one, end=other.end, next_try_at=min(tries, default=None))


def _moment(at: datetime) -> str:
    return f"{at.day} {at:%b %H:%M} UTC"

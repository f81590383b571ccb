"""The part of a reserved plan whose machines are held now, as ``broker hosts`` lists them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from api.export.hosts import hosts_of
from api.export.targets import Skipped
from api.figures import day_and_time
from api.promise_words import states_words
from api.schemas.holding.reservation import ReservationForm
from broker.domain.basics.errors import FieldProblem
from broker.domain.holding.reservation import OPEN_STATES
from broker.domain.planning.plan import Placement, Plan


@dataclass(frozen=True, slots=True)
class HeldPart:
    """``plan`` with the placements that have a machine now. ``skipped``: the others. ``notes``: placements of
    which a part is not held yet.
    """

    plan: Plan
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


def held_part(plan: Plan, rows: Iterable[ReservationForm], now: datetime) -> HeldPart:
    """What of ``plan`` runs at ``now`` on machines of its reservations ``rows``."""
    every = tuple(rows)
    entered = {host.reservation_id for host in hosts_of(every)}
    placements, skipped, notes = [], [], []
    for at, placement in enumerate(plan.placements):
        own = _rows_of(placement, every)
        states = states_words(own, now, _moment) or "not reserved"
        if entered.isdisjoint(row.reservation_id for row in own):
            expected = f"a machine that `broker hosts {plan.plan_id}` lists; export it once there is one"
            found = _no_address(own, now) or states
            skipped.append(Skipped(placement.workload, (FieldProblem(f"/placements/{at}", found, expected),)))
            continue
        placements.append(placement)
        if not entered.issuperset(row.reservation_id for row in own):
            notes.append(f"{placement.workload}: of its orders {states}; its files count all of them")
    return HeldPart(replace(plan, placements=tuple(placements)), tuple(skipped), tuple(notes))


def _rows_of(placement: Placement, rows: Sequence[ReservationForm]) -> list[ReservationForm]:
    """The reservations of a placement: of its offer, else of the offers that were taken in its place.

    What is over is left out unless all of them are.
    """
    alike = [row for row in rows if row.workload == placement.workload]
    own = [row for row in alike if row.offer_id == placement.offer_id]
    for some in (own, alike):
        if still_open := [row for row in some if row.state in OPEN_STATES]:
            return still_open
    return own


def _no_address(rows: Iterable[ReservationForm], now: datetime) -> str:
    """Why machines that are bought cannot be entered yet; empty if none is bought."""
    for row in rows:
        for unit in row.units:
            if unit.reference and unit.access_reason:
                return f"held from {_moment(row.start)} on" if row.start > now else unit.access_reason
    return ""


def _moment(at: datetime) -> str:
    return f"{day_and_time(at)} UTC"

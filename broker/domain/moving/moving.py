"""Make before break: when the old capacity of a move may be released, and the cost of the overlap. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Generic, Protocol, TypeVar

from broker.domain.basics.money import ZERO, to_cents, usd_words
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.market.offer import Offer
from broker.domain.reconciling.reconciling_actions import (
    BeginRelease,
)

IN_USE = frozenset({ReservationState.HELD, ReservationState.ACTIVE})
READY_FOR_LATER = frozenset({ReservationState.SCHEDULED, ReservationState.HELD, ReservationState.ACTIVE})
HOUR_S = Decimal(3600)


class Holds(Protocol):
    """A holding of nodes of an offer."""

    @property
    def offer(self) -> Offer:
        """The ordered offer."""
        ...

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        ...

    @property
    def start(self) -> datetime:
        """Start of the holding."""
        ...

    @property
    def end(self) -> datetime | None:
        """The ordered end; None: until released."""
        ...


H = TypeVar("H", bound=Holds)


@dataclass(frozen=True, slots=True)
class Change(Generic[H]):
    """A change of holdings: ``wanted`` is bought, and ``leaving`` is released once that is usable."""

    wanted: tuple[Intent, ...]
    leaving: tuple[H, ...]


def find_change(held: Iterable[H], intents: Iterable[Intent]) -> Change[H]:
    """The change from ``held`` to ``intents``. A holding that matches an intent stays.

    A holding that has begun matches an intent that starts first of all intents; any other must have the same
    start as its intent.
    """
    wanted, leaving = list(intents), []
    begin = min((intent.start for intent in wanted), default=None)
    for row in held:
        same = next((intent for intent in wanted if _is_same(intent, row, begin)), None)
        if same is None:
            leaving.append(row)
        else:
            wanted.remove(same)
    return Change(tuple(wanted), tuple(leaving))


def _is_same(intent: Intent, row: Holds, begin: datetime | None) -> bool:
    begun = begin is not None and row.start <= begin == intent.start
    alike = (intent.offer.sized_id, intent.nodes, intent.end) == (row.offer.sized_id, row.nodes, row.end)
    return alike and (begun or intent.start == row.start)


def successors_of(reservation: Reservation, rows: Iterable[Reservation]) -> tuple[Reservation, ...]:
    """Those of the open ``rows`` that replace ``reservation``."""
    return tuple(
        row
        for row in rows
        if reservation.reservation_id in row.replaces and row.state is not ReservationState.RELEASING
    )


def handover(
    reservation: Reservation,
    successors: Sequence[Reservation],
    seen: Sequence[Reservation],
    now: datetime,
) -> BeginRelease | None:
    """The release of ``reservation`` once its ``successors`` can take over; None before that.

    ``seen`` are successors whose providers list all of their leases now. A successor that should have started
    must be usable; the others must at least be bought or scheduled. Capacity in use is released only if some
    successor is usable.
    """
    if not successors or not reservation.is_open or reservation.state is ReservationState.RELEASING:
        return None
    usable = [row for row in seen if row.state is ReservationState.ACTIVE]
    due = [row for row in successors if row.start <= now]
    ready = all(row in usable for row in due) and all(row.state in READY_FOR_LATER for row in successors)
    in_use = reservation.state in IN_USE and reservation.start <= now
    if not ready or (in_use and not usable):
        return None
    names = ", ".join(row.reservation_id for row in successors)
    both, usd = overlap(reservation, usable, now)
    minutes = both // timedelta(minutes=1)
    return BeginRelease(f"moved to {names}; both were held for {minutes} min, {usd_words(usd)}")


def overlap(
    reservation: Reservation, usable: Iterable[Reservation], now: datetime
) -> tuple[timedelta, Decimal]:
    """How long ``reservation`` and its successors were held together, and its cost for that time in USD."""
    bought = [
        unit.ordered_at
        for row in usable
        for unit in row.units
        if unit.ordered_at is not None and unit.state is UnitState.HELD
    ]
    held = sum(unit.nodes for unit in reservation.units if unit.state is UnitState.HELD)
    if not bought or not held:
        return timedelta(0), ZERO
    both = max(now - max(min(bought), reservation.start), timedelta(0))
    hours = Decimal(both // timedelta(seconds=1)) / HOUR_S
    return both, to_cents(rate_usd_per_node_hour(reservation) * held * hours)


class OpenRows:
    """Open reservations as read at one instant, indexed by id, plan and replaced reservation."""

    def __init__(self, rows: Sequence[Reservation]) -> None:
        self._by_id = {row.reservation_id: row for row in rows}
        self._bundles: defaultdict[object, list[Reservation]] = defaultdict(list)
        self._successors: defaultdict[str, list[Reservation]] = defaultdict(list)
        for row in rows:
            self._bundles[row.plan_id, row.replaces].append(row)
            for name in row.replaces:
                self._successors[name].append(row)

    def find(self, reservation_id: str) -> Reservation | None:
        """The open reservation with this id; None if there is none."""
        return self._by_id.get(reservation_id)

    def siblings(self, reservation: Reservation) -> tuple[Reservation, ...]:
        """Reservations that are held together with ``reservation`` or not at all; empty without a plan."""
        if reservation.plan_id is None:
            return ()
        bundle = self._bundles.get((reservation.plan_id, reservation.replaces), ())
        return tuple(row for row in bundle if is_beside(row, reservation))

    def successors(self, reservation: Reservation) -> tuple[Reservation, ...]:
        """The open reservations that replace ``reservation``."""
        return successors_of(reservation, self._successors.get(reservation.reservation_id, ()))


def is_beside(other: Reservation, first: Reservation) -> bool:
    """Whether both belong to the same plan and move, so that neither is held without the other."""
    same = (other.plan_id, other.replaces) == (first.plan_id, first.replaces)
    return same and other.reservation_id != first.reservation_id

"""Reservations that are one thing to a reader: a workload's nodes of one offer, as many as its traffic needs.

Pages, the command line and ``GET /v1/reservations/fleets`` tell a fleet in one line: how many nodes it has,
how many it has next, and in how many steps. R is a reservation as the domain or as the API has it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar

from api.schemas.base.forms import write
from api.schemas.holding.reservation import FleetForm, ReservationForm
from broker.domain.basics.money import ZERO
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.holding.reservation import OPEN_STATES, Reservation, ReservationState
from broker.domain.spend.charging import reservation_charges
from broker.domain.spend.spend import ChargeBasis

FIRST_TOLD = (
    ReservationState.UNKNOWN,
    ReservationState.PENDING,
    ReservationState.ACTIVE,
    ReservationState.HELD,
    ReservationState.SCHEDULED,
    ReservationState.RELEASING,
)
"""Of the states of what is open, the one that says most comes first."""


R = TypeVar("R", Reservation, ReservationForm)


@dataclass(frozen=True, slots=True)
class Line(Generic[R]):
    """``rows`` in the order of their time, as one.

    ``nodes``: planned now; at the ``next`` instant it is another number of nodes (None: it stays so).
    ``most``: the most nodes at once, ``least`` the fewest from the first start to the last end. ``end`` None:
    until released.
    """

    rows: tuple[R, ...]
    nodes: int
    next: tuple[datetime, int] | None
    least: int
    most: int
    end: datetime | None

    @property
    def first(self) -> R:
        """The one that tells what all of them are: the first that says most of where they stand."""
        return min(self.rows, key=_rank)

    @property
    def start(self) -> datetime:
        """When the first begins."""
        return self.rows[0].start

    @property
    def state(self) -> ReservationState:
        """Where what says most stands."""
        return self.first.state


def lines_of(rows: Iterable[R], offer_of: Callable[[R], Hashable], now: datetime) -> tuple[Line[R], ...]:
    """Rows that belong together, in the order that each first appears in.

    What is open of a workload on an offer is one; what is over is apart, by how and why it ended.
    """
    groups: dict[tuple[Hashable, ...], list[R]] = {}
    for row in rows:
        how = None if row.state in OPEN_STATES else (row.state, row.reason)
        key = (row.plan_id or row.reservation_id, row.workload, offer_of(row), how)
        groups.setdefault(key, []).append(row)
    return tuple(_line(group, now) for group in groups.values())


def most_nodes(rows: Iterable[R]) -> int:
    """The most nodes that ``rows`` have at once."""
    every = tuple(rows)
    return max((_nodes_at(every, row.start) for row in every), default=0)


def fleets(rows: Iterable[Reservation], now: datetime) -> tuple[Line[Reservation], ...]:
    """``rows`` as lines; see ``lines_of``."""
    return lines_of(rows, lambda row: row.offer.offer_id, now)


@dataclass(frozen=True, slots=True)
class _ToldFleet:
    """A fleet with its money."""

    line: Line[Reservation]
    price_usd_per_node_hour: Decimal
    owed_usd: Decimal
    expected_usd: Decimal
    reservation_ids: tuple[str, ...]


def fleet_to_document(line: Line[Reservation], now: datetime) -> dict[str, Any]:
    """The JSON form of ``line`` as plain data."""
    charges = reservation_charges(line.rows, {}, now)
    told = _ToldFleet(
        line=line,
        price_usd_per_node_hour=rate_usd_per_node_hour(line.first),
        owed_usd=sum((charge.usd for charge in charges if charge.basis is ChargeBasis.ACTUAL), ZERO),
        expected_usd=sum((charge.usd for charge in charges if charge.basis is ChargeBasis.PROJECTED), ZERO),
        reservation_ids=tuple(one.reservation_id for one in line.rows),
    )
    return write(FleetForm, told)


def _line(group: Sequence[R], now: datetime) -> Line[R]:
    rows = tuple(sorted(group, key=lambda row: row.start))
    ends = [row.end for row in rows if row.end is not None]
    end = max(ends) if len(ends) == len(rows) else None
    changes = sorted({row.start for row in rows} | set(ends))
    nodes = _nodes_at(rows, now)
    sizes = [_nodes_at(rows, at) for at in changes if end is None or at < end]
    coming = ((at, _nodes_at(rows, at)) for at in changes if at > now)
    following = next(((at, size) for at, size in coming if size != nodes), None)
    return Line(rows, nodes, following, min(sizes), max(sizes), end)


def _nodes_at(rows: Iterable[R], at: datetime) -> int:
    return sum(row.nodes for row in rows if row.start <= at and (row.end is None or at < row.end))


def _rank(row: Reservation | ReservationForm) -> tuple[int, datetime]:
    told = FIRST_TOLD.index(row.state) if row.state in FIRST_TOLD else len(FIRST_TOLD)
    return told, row.start

"""Fleets: all reservations of one workload for one offer, whose number of nodes follows the traffic.

Pages, the command line and ``GET /v1/reservations/fleets`` show a fleet as one item: its nodes now, the next
change, and the number of steps. R is a reservation of the domain or of the API.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar

from api.figures import plural
from api.promise_words import (
    counted_words,
    lacks_nodes,
    promise_told,
    promises_words,
    state_note,
    state_word,
)
from api.schemas.base.forms import write
from api.schemas.holding.reservation import FleetForm, ReservationForm, StartupRunForm
from broker.domain.holding.capacity_promise import CapacityPromise
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.holding.reservation import OPEN_STATES, Reservation, ReservationState
from broker.domain.holding.startup_run import StartupRun, StartupState
from broker.domain.spend.charging import reservation_charges
from broker.domain.spend.spend import ChargeBasis

BY_SIGNIFICANCE = (
    ReservationState.UNKNOWN,
    ReservationState.PENDING,
    ReservationState.ACTIVE,
    ReservationState.HELD,
    ReservationState.SCHEDULED,
    ReservationState.RELEASING,
)
"""Open states; the most significant comes first."""

R = TypeVar("R", Reservation, ReservationForm)


@dataclass(frozen=True, slots=True)
class ReservedFleet(Generic[R]):
    """``rows`` in the order of their start, as one fleet.

    ``nodes`` is the planned number now, which changes at ``next`` (None: no change). ``most`` is the most
    nodes at once, ``least`` the fewest between the first start and the last end. ``end`` None: until
    released. ``promises`` is what is promised of each row.
    """

    rows: tuple[R, ...]
    nodes: int
    next: tuple[datetime, int] | None
    least: int
    most: int
    end: datetime | None
    promises: tuple[CapacityPromise | None, ...]

    @property
    def first(self) -> R:
        """The earliest reservation in the most significant state; it represents the fleet."""
        return min(self.rows, key=_rank)

    @property
    def start(self) -> datetime:
        """When the first reservation begins."""
        return self.rows[0].start

    @property
    def state(self) -> ReservationState:
        """The most significant state."""
        return self.first.state

    @property
    def is_open(self) -> bool:
        """Whether something of it can be released: it is neither over nor being released."""
        return any(
            row.state in OPEN_STATES and row.state is not ReservationState.RELEASING for row in self.rows
        )

    @property
    def promise(self) -> CapacityPromise | None:
        """What is promised of the most significant row."""
        return self.promises[self.rows.index(self.first)]

    @property
    def word(self) -> str:
        """The state for readers; see ``state_word``."""
        return state_word(self.first, self.promise)

    def note(self, moment: Callable[[datetime], str], chance: str = "") -> str:
        """What stands beneath ``word``; see ``state_note``."""
        return state_note(self.first, self.promise, moment, chance)


def count_words(lines: Iterable[ReservedFleet[R]], noun: str = "fleet") -> str:
    """How many fleets there are in each state, such as ``2 fleets: 1 active, 1 released``.

    It says of how many reservations where there are more of these.
    """
    every = tuple(lines)
    told = counted_words(line.word for line in every)
    reservations = sum(len(line.rows) for line in every)
    steps = f" of {reservations:,} reservations" if reservations > len(every) else ""
    return f"{len(every):,} {noun}{'' if len(every) == 1 else 's'}{steps}: {told}"


def start_words(run: StartupRun | StartupRunForm) -> str:
    """How the start of a unit's machines stands, in words."""
    words = {
        StartupState.ORDERED: "it goes with the order, and its seller does not tell how it ends",
        StartupState.WAITING: "the broker runs it over SSH once the machines answer",
        StartupState.RUNNING: "it runs, begun by the broker over SSH",
        StartupState.DONE: "it ended without an error",
        StartupState.FAILED: "it could not be run to its end",
        StartupState.IMPOSSIBLE: "it is not run here",
    }
    failed = run.state is StartupState.FAILED and run.exit_code is not None
    return f"it failed with exit code {run.exit_code}" if failed else words[run.state]


def nodes_words(fleet: ReservedFleet[R]) -> str:
    """``16``, or ``3 of 16`` of a fleet of one reservation of which nodes are missing."""
    return f"{fleet.first.nodes_held} of {fleet.most}" if lacks_nodes(fleet.first) else str(fleet.most)


def size_words(fleet: ReservedFleet[R], moment: Callable[[datetime], str]) -> str:
    """How many nodes a line has now and next: ``4 nodes now, 6 from 27 Nov 18:00``."""
    if fleet.state not in OPEN_STATES or len(fleet.rows) == 1:
        return f"{nodes_words(fleet)} node{'' if fleet.most == 1 else 's'}"
    words = plural(fleet.nodes, "node")
    if fleet.next is None:
        return words
    at, nodes = fleet.next
    return f"{words} now, {nodes} from {moment(at)}" if nodes else f"{words} until {moment(at)}"


def steps_words(fleet: ReservedFleet[R]) -> str:
    """In how many steps, between which sizes, and what is promised of them where it differs; empty for a
    single one."""
    if len(fleet.rows) == 1:
        return ""
    sizes = f"{fleet.least} to {fleet.most}" if fleet.least != fleet.most else f"{fleet.most}"
    words = f"{sizes} nodes, {len(fleet.rows)} steps"
    return words if len(set(fleet.promises)) == 1 else f"{words}: {promises_words(fleet.promises)}"


def grouped_fleets(
    rows: Iterable[R], offer_of: Callable[[R], Hashable], now: datetime
) -> tuple[ReservedFleet[R], ...]:
    """Reservations as fleets, in the order in which each fleet first appears.

    Open reservations of a workload for an offer are one fleet. Those that are over are separate, by how and
    why they ended.
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


def fleets(rows: Iterable[Reservation], now: datetime) -> tuple[ReservedFleet[Reservation], ...]:
    """``rows`` as fleets by the offer's id; see ``grouped_fleets``."""
    return grouped_fleets(rows, lambda row: row.offer.offer_id, now)


@dataclass(frozen=True, slots=True)
class FleetMoney:
    """What a fleet has cost until now, and what is expected until its end, in USD.

    ``expected_usd`` is zero for reservations without an end.
    """

    owed_usd: Decimal
    expected_usd: Decimal


def money_of(fleet: ReservedFleet[Reservation], now: datetime) -> FleetMoney:
    """The money of ``fleet``."""
    sums: defaultdict[ChargeBasis, Decimal] = defaultdict(Decimal)
    for charge in reservation_charges(fleet.rows, {}, now):
        sums[charge.basis] += charge.usd
    return FleetMoney(sums[ChargeBasis.ACTUAL], sums[ChargeBasis.PROJECTED])


@dataclass(frozen=True, slots=True)
class _FleetWithMoney:
    """A fleet with its costs."""

    fleet: ReservedFleet[Reservation]
    money: FleetMoney
    price_usd_per_node_hour: Decimal
    reservation_ids: tuple[str, ...]
    promises: Mapping[str, int]


def fleet_to_document(fleet: ReservedFleet[Reservation], now: datetime) -> dict[str, Any]:
    """The JSON form of ``fleet`` as plain data."""
    told = _FleetWithMoney(
        fleet=fleet,
        money=money_of(fleet, now),
        price_usd_per_node_hour=rate_usd_per_node_hour(fleet.first),
        reservation_ids=tuple(one.reservation_id for one in fleet.rows),
        promises={str(one): fleet.promises.count(one) for one in CapacityPromise},
    )
    return write(FleetForm, told)


def _line(group: Sequence[R], now: datetime) -> ReservedFleet[R]:
    rows = tuple(sorted(group, key=lambda row: row.start))
    ends = [row.end for row in rows if row.end is not None]
    end = max(ends) if len(ends) == len(rows) else None
    changes = sorted({row.start for row in rows} | set(ends))
    nodes = _nodes_at(rows, now)
    sizes = [_nodes_at(rows, at) for at in changes if end is None or at < end]
    coming = ((at, _nodes_at(rows, at)) for at in changes if at > now)
    following = next(((at, size) for at, size in coming if size != nodes), None)
    promises = tuple(promise_told(row, now) for row in rows)
    return ReservedFleet(rows, nodes, following, min(sizes), max(sizes), end, promises)


def _nodes_at(rows: Iterable[R], at: datetime) -> int:
    return sum(row.nodes for row in rows if row.start <= at and (row.end is None or at < row.end))


def _rank(row: Reservation | ReservationForm) -> tuple[int, datetime]:
    told = BY_SIGNIFICANCE.index(row.state) if row.state in BY_SIGNIFICANCE else len(BY_SIGNIFICANCE)
    return told, row.start

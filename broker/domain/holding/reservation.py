"""A reservation: an intent that becomes a lease, until it is released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.errors import Conflict
from broker.domain.basics.machines import Access, Machine, PublicKey
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Segment, Window, Wish
from broker.domain.holding.machine_setup import NO_SETUP, MachineSetup
from broker.domain.holding.startup_run import StartupRun
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer
from broker.domain.market.window_grid import usable_window
from broker.domain.planning.window_use import WindowUse, use_of
from broker.domain.workloads.startup import Container


class ReservationState(StrEnum):
    """State of a reservation.

    ``pending``: the intent is stored, and the order is not sent or not answered yet. ``held``: the provider
    accepted the order, but the capacity is not usable yet. ``scheduled``: it starts later. ``active``: the
    capacity is usable. ``releasing``: the release was requested but is not confirmed. ``unknown``: the order
    was sent and its answer was lost.
    """

    PENDING = "pending"
    HELD = "held"
    SCHEDULED = "scheduled"
    ACTIVE = "active"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"
    UNKNOWN = "unknown"


_NEXT: dict[ReservationState, frozenset[ReservationState]] = {
    ReservationState.PENDING: frozenset(
        {
            ReservationState.HELD,
            ReservationState.SCHEDULED,
            ReservationState.ACTIVE,
            ReservationState.FAILED,
            ReservationState.UNKNOWN,
            ReservationState.RELEASING,
        }
    ),
    ReservationState.UNKNOWN: frozenset(
        {
            ReservationState.PENDING,
            ReservationState.HELD,
            ReservationState.SCHEDULED,
            ReservationState.ACTIVE,
            ReservationState.FAILED,
            ReservationState.RELEASING,
        }
    ),
    ReservationState.SCHEDULED: frozenset(
        {
            ReservationState.PENDING,
            ReservationState.HELD,
            ReservationState.ACTIVE,
            ReservationState.RELEASING,
            ReservationState.FAILED,
        }
    ),
    ReservationState.HELD: frozenset(
        {
            ReservationState.SCHEDULED,
            ReservationState.ACTIVE,
            ReservationState.RELEASING,
            ReservationState.FAILED,
        }
    ),
    ReservationState.ACTIVE: frozenset({ReservationState.RELEASING, ReservationState.RELEASED}),
    ReservationState.RELEASING: frozenset({ReservationState.RELEASED}),
    ReservationState.RELEASED: frozenset(),
    ReservationState.FAILED: frozenset(),
}

OPEN_STATES = frozenset(
    {
        ReservationState.PENDING,
        ReservationState.HELD,
        ReservationState.SCHEDULED,
        ReservationState.ACTIVE,
        ReservationState.RELEASING,
        ReservationState.UNKNOWN,
    }
)


class UnitState(StrEnum):
    """State of one unit of a reservation.

    ``planned``: not ordered yet. ``ordering``: the order was or is being sent, and no answer is stored.
    ``held``: bought. ``gone``: it ended or never existed.
    """

    PLANNED = "planned"
    ORDERING = "ordering"
    HELD = "held"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Unit:
    """What one provider call buys: a node, or a block of nodes.

    ``tag`` is the name that the broker gives the unit before the call and by which it finds the unit again:
    ``broker-<install>-<reservation>-<ordinal>-<attempt>``. ``reference`` is the provider's own id.
    Times: ``began_at`` is the begin of billing, if the provider states it; ``leaving_at`` is when its release
    was first requested; ``seen_at`` is when the reconciler last saw it running; ``gone_at`` is the best known
    time of its end (see ``ending``), at which its billing stops while that of other units continues.
    Money: ``paid_usd`` is the provider's bill for a window (None: not stated, so the offer's price applies),
    and zero for a unit that never came up. ``credit_usd`` is the refund or resale of a window that was left
    early; a fee for leaving is negative. ``price_usd_per_node_hour`` is the hourly rate outside windows: with
    ``is_price_confirmed`` as reported for the lease, else as quoted just before the order (None: neither is
    known, so the offer's price applies).
    Access: ``machines`` are its nodes where the provider says how they are entered; ``access_note`` says why
    it does not, or where to look. Both are as last listed. ``startup``: the start of its machines (None:
    none was asked for, or nothing is known of it).
    """

    ordinal: int
    tag: str
    nodes: int
    state: UnitState
    reference: str | None = None
    ordered_at: datetime | None = None
    gone_at: datetime | None = None
    paid_usd: Decimal | None = None
    credit_usd: Decimal | None = None
    began_at: datetime | None = None
    leaving_at: datetime | None = None
    seen_at: datetime | None = field(default=None, compare=False)
    price_usd_per_node_hour: Decimal | None = None
    is_price_confirmed: bool = False
    machines: tuple[Machine, ...] = field(default=(), compare=False)
    access_note: str = field(default="", compare=False)
    startup: StartupRun | None = None

    @property
    def reachable_at(self) -> datetime | None:
        """When the last of its machines first answered; None until all did."""
        seen = [machine.reachable_at for machine in self.machines]
        known = [at for at in seen if at is not None]
        return max(known) if known and len(known) == len(seen) else None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes of one offer for a window of time. ``end`` None means until released.

    ``offer`` is the offer as it was observed when it was ordered. ``version`` is the optimistic lock of every
    write. Three times differ: ``requested`` was asked for (None: the same as ordered), ``start`` and ``end``
    were ordered, and ``granted`` was confirmed by the provider (None: not yet). ``replaces`` names the
    reservations that are released once this one is usable. ``limit_usd_per_node_hour`` is the highest price
    to accept (None: no limit). ``tries`` counts the failures in a row of the current order or release;
    ``tried_at`` is the time of the last one. ``setup``: the keys and the start of its machines.
    """

    reservation_id: str
    team: str
    state: ReservationState
    offer: Offer
    nodes: int
    start: datetime
    end: datetime | None
    units: tuple[Unit, ...]
    created_at: datetime
    workload: str | None = None
    plan_id: str | None = None
    reason: str = ""
    requested_by: str = ""
    active_at: datetime | None = None
    released_at: datetime | None = None
    requested: Wish | None = None
    granted: Window | None = None
    replaces: tuple[str, ...] = ()
    limit_usd_per_node_hour: Decimal | None = None
    tries: int = 0
    tried_at: datetime | None = None
    version: int = 0
    setup: MachineSetup = NO_SETUP

    @property
    def provider_references(self) -> tuple[str, ...]:
        """The provider's own ids, one per unit that was bought."""
        return tuple(unit.reference for unit in self.units if unit.reference is not None)

    @property
    def wish(self) -> Wish:
        """The time that was asked for."""
        return self.requested or Wish(self.start, self.end)

    @property
    def is_held_early(self) -> bool:
        """Whether it is held before the time that was asked for, so that nobody else takes it."""
        return self.offer.window is None and self.start < self.wish.start

    @property
    def ends_at(self) -> datetime | None:
        """When it ends; for a window that began when capacity appeared, the end that the provider granted."""
        terms = self.offer.window
        return (
            self.granted.end if terms is not None and terms.waits and self.granted is not None else self.end
        )

    @property
    def usable(self) -> Window | None:
        """The granted (else the ordered) time, minus the provider's teardown at its end.

        None if it has no end, or if nothing is left.
        """
        window = self.granted or Wish(self.start, self.end).window
        return usable_window(window, self.offer.window) if window is not None else None

    @property
    def use(self) -> WindowUse | None:
        """How much of a bought window is wanted; None outside windows."""
        wanted = self.wish.window
        if self.offer.window is None or self.end is None or wanted is None:
            return None
        segment = Segment(self.start, self.end, self.nodes)
        if usable_window(segment.window, self.offer.window) is None:
            return None
        cost_usd = sum((self._window_usd(unit) for unit in self.units), ZERO)
        return use_of(self.offer.window, (segment,), wanted, cost_usd)

    def _window_usd(self, unit: Unit) -> Decimal:
        """Total cost of a window's unit in USD; a contract price overrides the provider's bill."""
        if unit.paid_usd is not None and self.offer.contract is None:
            return unit.paid_usd
        assert self.end is not None
        return holding_cost_usd(self.offer, (Segment(self.start, self.end, unit.nodes),))

    @property
    def news(self) -> dict[str, object]:
        """What events about it tell."""
        return {
            "reservation_id": self.reservation_id,
            "state": self.state.value,
            "plan_id": self.plan_id,
            "reason": self.reason,
        }

    @property
    def is_open(self) -> bool:
        """Whether it is not over yet, so that the broker may still have to act on it."""
        return self.state in OPEN_STATES

    @property
    def open_units(self) -> tuple[Unit, ...]:
        """The units that are not gone."""
        return tuple(unit for unit in self.units if unit.state is not UnitState.GONE)

    @property
    def nodes_held(self) -> int:
        """The nodes that are bought."""
        return sum(unit.nodes for unit in self.units if unit.state is UnitState.HELD)

    @property
    def not_tried(self) -> bool:
        """Whether it failed without an order, as another part of what it belongs to was refused."""
        ordered = any(unit.ordered_at is not None or unit.reference is not None for unit in self.units)
        return self.state is ReservationState.FAILED and not ordered

    def moved_to(self, state: ReservationState, reason: str = "") -> Reservation:
        """The reservation in ``state``. Raises Conflict if the state machine has no such transition."""
        if state is not self.state and state not in _NEXT[self.state]:
            raise Conflict(f"reservation {self.reservation_id} cannot go from {self.state} to {state}")
        return replace(self, state=state, reason=reason or self.reason)

    def with_unit(self, unit: Unit) -> Reservation:
        """The reservation with the unit of the same ordinal replaced."""
        return replace(self, units=tuple(unit if u.ordinal == unit.ordinal else u for u in self.units))


class PriceBasis(StrEnum):
    """Source of the price at which a reservation is billed.

    ``confirmed``: the provider reports what it charges for every unit that was bought. ``estimated``: the
    price before the order, because the provider has not reported another one. ``contract``: a contract price.
    """

    CONFIRMED = "confirmed"
    ESTIMATED = "estimated"
    CONTRACT = "contract"


class Idempotency(StrEnum):
    """How a repeated order is kept from buying twice.

    ``token``: the provider accepts an idempotency token, so the same call may be repeated. ``tag``: list the
    leases by tag (or name) first, and adopt a match. ``neither``: do not repeat the order but buy elsewhere;
    the search for orphaned leases cleans up.
    """

    TOKEN = "token"  # noqa: S105  a word, not a secret
    TAG = "tag"
    NEITHER = "neither"


class LeaseState(StrEnum):
    """A provider's state of a lease in our terms; a state that we do not know is UNKNOWN."""

    PROVISIONING = "provisioning"
    SCHEDULED = "scheduled"
    ACTIVE = "active"
    ENDING = "ending"
    ENDED = "ended"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Order:
    """What to buy with one call. ``window`` None means from now until released.

    ``wait_s`` is how long capacity may take to appear, for windows that begin when it does.
    ``limit_usd_per_node_hour`` is the highest price to accept (None: no limit, for a contract price).
    ``quoted_usd_per_node_hour`` is the provider's price just before the order (None: not asked).
    ``keys`` are the public SSH keys of those who enter the machine, and ``script`` is the shell script of its
    first start, with secrets (empty: none). ``network`` has the seller's ids, by kind, of the network that
    was made for its machines (empty: none was).
    ``container``: what a seller of containers starts in place of
    its own image and the script. ``server_port``: the port of a server that others are to reach (None: none).
    """

    tag: str
    offer: Offer
    nodes: int
    window: Window | None = None
    wait_s: int = 0
    limit_usd_per_node_hour: Decimal | None = None
    quoted_usd_per_node_hour: Decimal | None = None
    keys: tuple[PublicKey, ...] = ()
    script: str = field(default="", repr=False)
    network: Mapping[str, str] = field(default_factory=dict, hash=False)
    container: Container | None = None
    server_port: int | None = None

    @property
    def bid_usd_per_node_hour(self) -> Decimal:
        """What to bid where the bid is what is paid: the price just before the order, at most the limit."""
        price = self.quoted_usd_per_node_hour or self.offer.price_usd_per_node_hour
        return price if self.limit_usd_per_node_hour is None else min(price, self.limit_usd_per_node_hour)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the provider's API shows it.

    The following are None if the provider does not state them. ``billed_usd`` is the total bill of a lease
    that is paid at once. ``credit_usd`` is the refund after an early end; a fee is negative. ``began_at`` and
    ``ended_at`` are the begin and end of billing. ``price_usd_per_node_hour`` is the rate of an hourly lease.
    ``machines`` is how its nodes are entered, in the provider's order (empty: not said, or not yet).
    ``access_note`` says where to look if the provider never says it.
    """

    provider: str
    reference: str
    state: LeaseState
    tag: str | None = None
    nodes: int = 1
    sku: str = ""
    region: str = ""
    window: Window | None = None
    detail: str = ""
    billed_usd: Decimal | None = None
    credit_usd: Decimal | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    price_usd_per_node_hour: Decimal | None = None
    machines: tuple[Access, ...] = ()
    access_note: str = ""

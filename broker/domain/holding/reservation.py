"""A reservation: an intent that becomes a lease, until it is released."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.errors import Conflict
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Segment, Window, Wish
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer
from broker.domain.market.window_grid import usable_window
from broker.domain.planning.window_use import WindowUse, use_of


class ReservationState(StrEnum):
    """Where a reservation stands.

    ``pending``: intent stored, provider not asked yet or being asked. ``held``: the provider took the
    order, capacity is not usable yet. ``scheduled``: it starts later. ``active``: usable.
    ``releasing``: release asked, not yet seen gone. ``unknown``: a buy whose answer was lost.
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
    """Where one provider call of a reservation stands.

    ``planned``: not asked yet. ``ordering``: intent stored, the answer is not. ``held``: bought.
    ``gone``: ended or never came to be.
    """

    PLANNED = "planned"
    ORDERING = "ordering"
    HELD = "held"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Unit:
    """What one provider call buys: a node, or a block of nodes.

    ``tag`` is made by the broker before the call and is how the unit is found again:
    ``broker-<install>-<reservation>-<ordinal>-<attempt>``. ``reference`` is the provider's own id.
    ``began_at``: since when its seller counts it, where it says so. ``leaving_at``: when its end was first
    asked for. ``seen_at``: when its provider last showed it running, which passes of the reconciler note.
    ``gone_at``: when it ended, as well as is known (see ``ending``), so that the bill of the others
    goes on without it. ``paid_usd``: of a window what the seller billed (None: it does not say, the offer's
    price counts); of anything zero where it never came up. ``credit_usd``: what leaving a window early gave
    back (a resale, a refund; below zero a charge for leaving). ``price_usd_per_node_hour``: what the seller
    charges for it, outside windows; its own word when ``is_price_confirmed``, else what it quoted just before
    the order (None: neither is known, the offer's price counts).
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


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes of one offer, wanted over a window. ``end`` None: until released.

    ``offer`` is the observation that was ordered; ``version`` guards every write. Three times stand apart:
    ``requested`` is what somebody asked for (None: exactly ``start`` and ``end``), ``start`` and ``end`` are
    ordered, ``granted`` is what the seller gave (None: it has not said yet). ``replaces``: the reservations
    whose place it takes once it can be used. ``limit_usd_per_node_hour``: the most that its seller may charge
    (None: whatever it asks). ``tries``: how often in a row what it asks for now, an order or its end, came to
    nothing; ``tried_at``: the last time.
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

    @property
    def provider_references(self) -> tuple[str, ...]:
        """The provider's own ids, one a node or one a block."""
        return tuple(unit.reference for unit in self.units if unit.reference is not None)

    @property
    def wish(self) -> Wish:
        """What was asked for."""
        return self.requested or Wish(self.start, self.end)

    @property
    def ends_at(self) -> datetime | None:
        """When its time is over; what began when capacity appeared lasts from then for what was bought."""
        terms = self.offer.window
        return (
            self.granted.end if terms is not None and terms.waits and self.granted is not None else self.end
        )

    @property
    def usable(self) -> Window | None:
        """The granted time, else the ordered one, less the seller's teardown; None: until released."""
        window = self.granted or Wish(self.start, self.end).window
        return usable_window(window, self.offer.window) if window is not None else None

    @property
    def use(self) -> WindowUse | None:
        """What of a bought window is wanted; None outside windows."""
        wanted = self.wish.window
        if self.offer.window is None or self.end is None or wanted is None:
            return None
        segment = Segment(self.start, self.end, self.nodes)
        if usable_window(segment.window, self.offer.window) is None:
            return None
        cost_usd = sum((self._window_usd(unit) for unit in self.units), ZERO)
        return use_of(self.offer.window, (segment,), wanted, cost_usd)

    def _window_usd(self, unit: Unit) -> Decimal:
        """What a unit of a window costs as a whole; a contract counts for more than the seller's bill."""
        if unit.paid_usd is not None and self.offer.contract is None:
            return unit.paid_usd
        assert self.end is not None
        return holding_cost_usd(self.offer, (Segment(self.start, self.end, unit.nodes),))

    @property
    def is_open(self) -> bool:
        """Whether the broker still has to act on it."""
        return self.state in OPEN_STATES

    def moved_to(self, state: ReservationState, reason: str = "") -> Reservation:
        """The reservation in ``state``; Conflict where the state machine has no such step."""
        if state is not self.state and state not in _NEXT[self.state]:
            raise Conflict(f"reservation {self.reservation_id} cannot go from {self.state} to {state}")
        return replace(self, state=state, reason=reason or self.reason)

    def with_unit(self, unit: Unit) -> Reservation:
        """The reservation with the unit of the same ordinal replaced."""
        return replace(self, units=tuple(unit if u.ordinal == unit.ordinal else u for u in self.units))


class PriceBasis(StrEnum):
    """Whence the price at which a reservation is billed.

    ``confirmed``: its seller says what it charges for everything that is bought. ``estimated``: what it asked
    before the order, as its API tells no more, or has not yet. ``contract``: a contract fixes it.
    """

    CONFIRMED = "confirmed"
    ESTIMATED = "estimated"
    CONTRACT = "contract"


class Idempotency(StrEnum):
    """How a repeated order is kept from buying twice.

    ``token``: the same call again is safe. ``tag``: list by tag (or name) first, adopt what is found.
    ``neither``: fail closed, go elsewhere; a sweep cleans up.
    """

    TOKEN = "token"  # noqa: S105  a word, not a secret
    TAG = "tag"
    NEITHER = "neither"


class LeaseState(StrEnum):
    """A provider's word on something it holds for us, in our terms; unheard-of words are UNKNOWN."""

    PROVISIONING = "provisioning"
    SCHEDULED = "scheduled"
    ACTIVE = "active"
    ENDING = "ending"
    ENDED = "ended"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Order:
    """What to buy with one call. ``window`` None: now, until released.

    ``wait_s``: how long capacity may take to appear, for offers that begin when it does.
    ``limit_usd_per_node_hour``: the most that may be paid (None: the offer's price and a little tolerance).
    """

    tag: str
    offer: Offer
    nodes: int
    window: Window | None = None
    wait_s: int = 0
    limit_usd_per_node_hour: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Something a provider holds for us, as its API shows it.

    ``billed_usd``: what it cost as a whole, where it was paid at once. ``credit_usd``: what its seller gave
    back when it was left early (below zero: a charge for leaving). ``began_at`` and ``ended_at``: from when
    until when its seller counts it, where the seller says so. ``price_usd_per_node_hour``: what it is charged
    at, of leases by the hour, where the seller says so.
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

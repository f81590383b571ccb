"""What the broker does next about one reservation: pure, from its row and what the provider shows.

A pass lists the cloud first and reads the rows after it, so that every lease of the list had its
intent stored before. ``decide`` names one action; ``broker.leasing`` acts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker.domain.holding_orders import bought_later, ends_by_itself, order_at, rank_of
from broker.domain.identity import is_ours, next_tag
from broker.domain.reservation import (
    Idempotency,
    Lease,
    LeaseState,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.window import Window

DEAD = frozenset({LeaseState.ENDED, LeaseState.FAILED})
UNBOUGHT = frozenset({ReservationState.PENDING, ReservationState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Sight:
    """What one pass sees. ``leases``: the provider's list, with what a second look found.

    ``settle``: how long an unanswered order may be in flight or not yet listed.
    ``quiet_since``: the last step that anybody made for this reservation or its plan.
    ``behind``: a sibling of the same plan must be bought first.
    """

    now: datetime
    leases: Sequence[Lease]
    idempotency: Idempotency
    settle: timedelta
    quiet_since: datetime
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do now."""


@dataclass(frozen=True, slots=True)
class Buy:
    """Order what is planned."""


@dataclass(frozen=True, slots=True)
class Resend:
    """The same call again: its token makes it safe."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """The lost answer was found: keep ``lease``, release ``extras``."""

    ordinal: int
    lease: Lease
    extras: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """The order surely came to nothing: plan another attempt under a new tag."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """It cannot be held. ``whole_plan``: nothing else of its plan stays held either."""

    reason: str
    whole_plan: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Units that the provider no longer holds, or that nobody can tell it does."""

    ordinals: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MoveTo:
    """The provider shows another state."""

    state: ReservationState


@dataclass(frozen=True, slots=True)
class Grant:
    """The provider shows another window than it showed before, or shows one at last."""

    window: Window


@dataclass(frozen=True, slots=True)
class BeginRelease:
    """Its time is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Ask the provider for the end of ``leases``."""

    leases: tuple[Lease, ...]


Action = Wait | Buy | Resend | Adopt | Retry | Abandon | Lost | MoveTo | Grant | BeginRelease | Release


def decide(reservation: Reservation, sight: Sight) -> Action:
    """The one next action for ``reservation``."""
    if not reservation.is_open:
        return Wait()
    if reservation.state is ReservationState.RELEASING:
        return _decide_releasing(reservation, sight)
    if reservation.ends_at is not None and reservation.ends_at <= sight.now:
        return _decide_past_end(reservation)
    for unit in reservation.units:
        if unit.state is UnitState.ORDERING:
            return _decide_doubtful(reservation, unit, sight)
    lost = tuple(
        unit.ordinal
        for unit in reservation.units
        if unit.state is UnitState.HELD and lease_of(unit, sight.leases) is None
    )
    if lost:
        return Lost(lost, _last_words(reservation, lost, sight.leases))
    return _decide_settled(reservation, sight)


def _last_words(reservation: Reservation, ordinals: Sequence[int], leases: Sequence[Lease]) -> str:
    """What the provider says of leases that ended, if it says anything."""
    references = {reservation.units[ordinal].reference for ordinal in ordinals}
    words = [lease.detail for lease in leases if lease.reference in references and lease.detail]
    return f"ended at the provider: {words[0]}" if words else "ended at the provider"


def _decide_releasing(reservation: Reservation, sight: Sight) -> Action:
    gone, live = [], []
    for unit in reservation.units:
        lease = lease_of(unit, sight.leases)
        if unit.state is UnitState.GONE:
            continue
        if unit.state is UnitState.ORDERING and lease is not None:
            return _adopt(unit, sight)
        in_flight = unit.state is UnitState.ORDERING and not _has_settled(unit, sight)
        if lease is not None:
            live.append(lease)
        elif not in_flight:
            gone.append(unit.ordinal)
    if gone or all(unit.state is UnitState.GONE for unit in reservation.units):
        return Lost(tuple(gone), reservation.reason)
    early = reservation.ends_at is not None and sight.now < reservation.ends_at
    if early and ends_by_itself(reservation.offer):
        return Wait()
    endable = tuple(lease for lease in live if lease.state is not LeaseState.ENDING)
    return Release(endable) if endable else Wait()


def _decide_past_end(reservation: Reservation) -> Action:
    if any(unit.state in (UnitState.HELD, UnitState.ORDERING) for unit in reservation.units):
        return BeginRelease("its time is over")
    return Abandon(reservation.reason or "its time passed before it was bought", whole_plan=False)


def _decide_doubtful(reservation: Reservation, unit: Unit, sight: Sight) -> Action:
    settled = _has_settled(unit, sight)
    if reservation.state is not ReservationState.UNKNOWN and not settled:
        return Wait()
    if lease_of(unit, sight.leases) is not None:
        return _adopt(unit, sight)
    if sight.idempotency is Idempotency.TOKEN:
        died = any(lease.tag == unit.tag for lease in sight.leases)
        return Retry(unit.ordinal) if died else Resend(unit.ordinal)
    if not settled:
        return Wait()
    if sight.idempotency is Idempotency.TAG:
        return Retry(unit.ordinal)
    return Lost((unit.ordinal,), "the answer was lost, and this provider cannot say what became of the order")


def _decide_settled(reservation: Reservation, sight: Sight) -> Action:
    """No order is open and every held unit is live."""
    states = {unit.state for unit in reservation.units}
    unfinished = reservation.state in UNBOUGHT or reservation.state is ReservationState.HELD
    if states == {UnitState.GONE} or (unfinished and UnitState.GONE in states):
        return Abandon(reservation.reason, whole_plan=is_first_purchase(reservation))
    if UnitState.PLANNED in states:
        return Buy() if _may_buy(reservation, sight) else Wait()
    granted = granted_window(reservation, sight.leases)
    if granted is not None and granted != reservation.granted:
        return Grant(granted)
    target = settled_state(reservation, sight.leases, sight.now)
    if target is reservation.state or reservation.state is ReservationState.ACTIVE:
        return Wait()
    return MoveTo(target)


def _may_buy(reservation: Reservation, sight: Sight) -> bool:
    if reservation.state is ReservationState.SCHEDULED:
        return order_at(reservation.offer, reservation.start) <= sight.now
    if reservation.state is ReservationState.UNKNOWN:
        return not sight.behind
    return not sight.behind and sight.now - sight.quiet_since >= sight.settle


def settled_state(reservation: Reservation, leases: Sequence[Lease], now: datetime) -> ReservationState:
    """State of a reservation whose units are all held or gone, by what the provider shows."""
    terms, is_ahead = reservation.offer.window, now < reservation.start
    if terms is not None and not terms.waits and is_ahead:
        return ReservationState.SCHEDULED
    seen = [lease_of(unit, leases) for unit in reservation.units if unit.state is UnitState.HELD]
    if all(lease is not None and lease.state is LeaseState.ACTIVE for lease in seen):
        return ReservationState.ACTIVE
    return ReservationState.SCHEDULED if terms is not None and is_ahead else ReservationState.HELD


def granted_window(reservation: Reservation, leases: Sequence[Lease]) -> Window | None:
    """The time that every held unit has; None while a seller has not granted any."""
    seen = [lease_of(unit, leases) for unit in reservation.units if unit.state is UnitState.HELD]
    windows = [lease.window for lease in seen if lease is not None and _is_granted(lease)]
    spans = [window for window in windows if window is not None]
    if not spans:
        return None
    start, end = max(window.start for window in spans), min(window.end for window in spans)
    return Window(start, end) if start < end else None


def _is_granted(lease: Lease) -> bool:
    return lease.state in (LeaseState.SCHEDULED, LeaseState.ACTIVE)


def is_first_purchase(reservation: Reservation) -> bool:
    """Whether it is bought with its plan, all or nothing, and not when its time comes."""
    if reservation.state not in UNBOUGHT and reservation.state is not ReservationState.HELD:
        return False
    return not bought_later(reservation.offer, reservation.start, reservation.created_at)


def lease_of(unit: Unit, leases: Iterable[Lease]) -> Lease | None:
    """The live lease of ``unit``: by its reference, or by its tag while the answer is not known."""
    for lease in leases:
        matches = lease.tag == unit.tag if unit.reference is None else lease.reference == unit.reference
        if matches and lease.state not in DEAD:
            return lease
    return None


def _adopt(unit: Unit, sight: Sight) -> Adopt:
    """Providers list oldest first; the oldest lease of the tag is kept."""
    found = [lease for lease in sight.leases if lease.tag == unit.tag and lease.state not in DEAD]
    return Adopt(unit.ordinal, found[0], tuple(found[1:]))


def _has_settled(unit: Unit, sight: Sight) -> bool:
    return unit.ordered_at is None or sight.now - unit.ordered_at >= sight.settle


def quiet_since(reservation: Reservation, siblings: Iterable[Reservation]) -> datetime:
    """The last step of a reservation or of its plan: while somebody still buys, nobody else does."""
    steps = [reservation.created_at]
    for other in (reservation, *siblings):
        steps.extend(unit.ordered_at for unit in other.units if unit.ordered_at is not None)
    return max(steps)


def is_behind(reservation: Reservation, siblings: Iterable[Reservation]) -> bool:
    """Whether a sibling that must be bought first has not been bought yet."""
    rank = rank_of(reservation)
    return any(
        other.state in UNBOUGHT and is_first_purchase(other) and rank_of(other) < rank for other in siblings
    )


def find_strays(
    leases: Iterable[Lease], reservations: Sequence[Reservation], install_id: str
) -> tuple[Lease, ...]:
    """Live leases with a tag of ours that no open intent is for, and doubles of what is held.

    ``reservations``: the open ones of the provider, read after the list was made.
    """
    units = [unit for r in reservations for unit in r.units if unit.state is not UnitState.GONE]
    referenced = {unit.reference for unit in units if unit.reference is not None}
    awaited = {unit.tag for unit in units if unit.reference is None}
    return tuple(
        lease
        for lease in leases
        if is_ours(lease.tag, install_id)
        and lease.state not in DEAD
        and lease.state is not LeaseState.ENDING
        and lease.reference not in referenced
        and lease.tag not in awaited
    )


def let_go(reservation: Reservation, reason: str, now: datetime, *, wanted: bool) -> Reservation:
    """``reservation`` on its way out: planned units end at once, ordered ones must be released.

    ``wanted``: somebody asked for the end, which is a release; else what never became active failed.
    """
    units = tuple(
        replace(unit, state=UnitState.GONE) if unit.state is UnitState.PLANNED else unit
        for unit in reservation.units
    )
    left = replace(reservation, units=units)
    if any(unit.state is not UnitState.GONE for unit in units):
        return left.moved_to(ReservationState.RELEASING, reason)
    if wanted or reservation.state in (ReservationState.ACTIVE, ReservationState.RELEASING):
        return ended(left.moved_to(ReservationState.RELEASING, reason), now)
    return replace(left.moved_to(ReservationState.FAILED, reason), released_at=now)


def without(reservation: Reservation, ordinals: Sequence[int], reason: str, now: datetime) -> Reservation:
    """``reservation`` after the provider showed units gone; ended when nothing of it is left."""
    for unit in reservation.units:
        if unit.ordinal in ordinals:
            reservation = reservation.with_unit(replace(unit, state=UnitState.GONE, gone_at=now))
    if any(unit.state is not UnitState.GONE for unit in reservation.units):
        return replace(reservation, reason=reason or reservation.reason)
    if reservation.state in (ReservationState.ACTIVE, ReservationState.RELEASING):
        return ended(reservation, now, reason)
    return replace(reservation, reason=reason or reservation.reason)


def ended(reservation: Reservation, now: datetime, reason: str = "") -> Reservation:
    """``reservation`` released at ``now``."""
    return replace(reservation.moved_to(ReservationState.RELEASED, reason), released_at=now)


def replanned(unit: Unit) -> Unit:
    """``unit`` ready for another attempt, under a tag that was never used."""
    return replace(unit, state=UnitState.PLANNED, tag=next_tag(unit.tag), reference=None)

"""Decides the next action for a reservation from its row and the provider's list of leases. Pure.

A pass of the reconciler lists the provider's leases first and reads the rows afterwards, so the intent of
every listed lease is among the rows. ``decide`` returns one action, and
``broker.services.holding.lease_service`` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from broker.domain.basics.identity import is_ours, next_tag
from broker.domain.basics.window import Window
from broker.domain.holding.back_off import is_hopeless, is_too_early, untried
from broker.domain.holding.holding_orders import bought_later, ends_by_itself, order_at, rank_of
from broker.domain.holding.lease_money import above_limit, has_news_of_money
from broker.domain.holding.reservation import (
    Idempotency,
    Lease,
    LeaseState,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.reconciling.ending import end_times
from broker.domain.reconciling.reconciling_actions import (
    Abandon,
    Action,
    Adopt,
    BeginRelease,
    Book,
    Buy,
    Grant,
    Lost,
    MoveTo,
    ReconcileInput,
    Release,
    Resend,
    Retry,
    Wait,
)
from broker.domain.reconciling.releases import because

DEAD = frozenset({LeaseState.ENDED, LeaseState.FAILED})
OVER = "its time is over"
WITH_THE_REST = "given back with the rest of its plan"
"""Reason of reservations that are released because another one of their plan was refused."""
LOST_FOR_GOOD = "the answer was lost, and this provider cannot tell whether it carried out the order"
OVERDUE = timedelta(hours=1)
"""A window that ends by itself is released if the provider still lists it this long after its end."""
UNBOUGHT = frozenset({ReservationState.PENDING, ReservationState.UNKNOWN})


def decide(reservation: Reservation, sight: ReconcileInput) -> Action:
    """The next action for ``reservation``."""
    if not reservation.is_open:
        return Wait()
    if reservation.state is ReservationState.RELEASING:
        return _decide_releasing(reservation, sight)
    if reservation.ends_at is not None and reservation.ends_at <= sight.now:
        return _decide_past_end(reservation, sight)
    for unit in reservation.units:
        if unit.state is UnitState.ORDERING:
            return _decide_doubtful(reservation, unit, sight)
    return _decide_missing(reservation, sight) or _decide_settled(reservation, sight)


def missing_units(reservation: Reservation, leases: Sequence[Lease]) -> tuple[Unit, ...]:
    """Held units without a live lease in ``leases``."""
    held = (unit for unit in reservation.units if unit.state is UnitState.HELD)
    return tuple(unit for unit in held if lease_of(unit, leases) is None)


def _decide_missing(reservation: Reservation, sight: ReconcileInput) -> Action | None:
    """The action for missing leases; None if none is missing.

    A unit is lost if it is certainly gone; if it was missing only once, the reconciler waits and looks again.
    """
    missing = missing_units(reservation, sight.leases)
    if not missing:
        return None
    lost = tuple(unit for unit in missing if _is_gone(unit, sight))
    if not lost:
        return Wait()
    ordinals = tuple(unit.ordinal for unit in lost)
    return Lost(ordinals, _last_words(reservation, ordinals, sight), _ends(reservation, ordinals, sight))


def _is_gone(unit: Unit, sight: ReconcileInput) -> bool:
    """Whether the lease is certainly gone.

    Either the provider lists it as ended, or it was missing in two lists that are ``second_look`` apart.
    """
    shown = any(lease.reference == unit.reference for lease in sight.leases)
    if shown or sight.missed is None:
        return True
    since = sight.missed.get(unit.ordinal)
    return since is not None and sight.now - since >= sight.second_look


def _ends(
    reservation: Reservation, ordinals: Iterable[int], sight: ReconcileInput
) -> tuple[tuple[int, datetime], ...]:
    return tuple(end_times(reservation, ordinals, sight.leases, sight.missed or {}).items())


def is_taken_back(reservation: Reservation, now: datetime) -> bool:
    """Whether the provider of a window may have taken it back as agreed, in the teardown before its end."""
    terms, end = reservation.offer.window, reservation.ends_at
    return terms is not None and end is not None and now >= end - timedelta(seconds=terms.teardown_s)


def _last_words(reservation: Reservation, ordinals: Sequence[int], sight: ReconcileInput) -> str:
    """The reason for lost units, with the provider's own explanation if there is one."""
    if is_taken_back(reservation, sight.now):
        return OVER
    leases = sight.leases
    references = {reservation.units[ordinal].reference for ordinal in ordinals}
    words = [lease.detail for lease in leases if lease.reference in references and lease.detail]
    return f"ended at the provider: {words[0]}" if words else "ended at the provider"


def _decide_releasing(reservation: Reservation, sight: ReconcileInput) -> Action:
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
        elif not in_flight and (unit.state is not UnitState.HELD or _is_gone(unit, sight)):
            gone.append(unit.ordinal)
    if gone or all(unit.state is UnitState.GONE for unit in reservation.units):
        return Lost(tuple(gone), _why_released(reservation), _ends(reservation, gone, sight))
    if _will_end_by_itself(reservation, sight.now):
        return Wait()
    endable = tuple(lease for lease in live if lease.state is not LeaseState.ENDING)
    return Release(endable) if endable and not is_too_early(reservation, sight.now) else Wait()


def _why_released(reservation: Reservation) -> str:
    if not reservation.tries:
        return reservation.reason
    times = "once" if reservation.tries == 1 else f"{reservation.tries} times"
    return because(reservation, f"released after {reservation.offer.provider} had refused {times}")


def _will_end_by_itself(reservation: Reservation, now: datetime) -> bool:
    """Whether the lease ends by itself and its end is not overdue."""
    end = reservation.ends_at
    return end is not None and now < end + OVERDUE and ends_by_itself(reservation.offer)


def _decide_past_end(reservation: Reservation, sight: ReconcileInput) -> Action:
    states = {unit.state for unit in reservation.units}
    if UnitState.ORDERING not in states and _will_end_by_itself(reservation, sight.now):
        if UnitState.HELD in states:
            return _decide_missing(reservation, sight) or Wait()
    elif states & {UnitState.HELD, UnitState.ORDERING}:
        return BeginRelease(OVER)
    return Abandon(reservation.reason or "its time was over before it was bought", whole_plan=False)


def _decide_doubtful(reservation: Reservation, unit: Unit, sight: ReconcileInput) -> Action:
    settled = _has_settled(unit, sight)
    if reservation.state is not ReservationState.UNKNOWN and not settled:
        return Wait()
    if lease_of(unit, sight.leases) is not None:
        return _adopt(unit, sight)
    if sight.idempotency is Idempotency.TOKEN:
        if any(lease.tag == unit.tag for lease in sight.leases):
            return Retry(unit.ordinal)
        return Wait() if is_too_early(reservation, sight.now) else Resend(unit.ordinal)
    if not settled:
        return Wait()
    if sight.idempotency is Idempotency.TAG:
        return Retry(unit.ordinal)
    words = f"{LOST_FOR_GOOD}: {reservation.reason}" if reservation.reason else LOST_FOR_GOOD
    return Lost((unit.ordinal,), words)


def _decide_settled(reservation: Reservation, sight: ReconcileInput) -> Action:
    """The action if no order is open and every held unit has a live lease."""
    states = {unit.state for unit in reservation.units}
    unfinished = reservation.state in UNBOUGHT or reservation.state is ReservationState.HELD
    if states == {UnitState.GONE} or (unfinished and UnitState.GONE in states):
        return Abandon(reservation.reason, whole_plan=is_first_purchase(reservation))
    if UnitState.PLANNED in states and is_hopeless(reservation, sight.now):
        return Abandon(reservation.reason, whole_plan=False)
    if UnitState.PLANNED in states:
        return Buy() if _may_buy(reservation, sight) else Wait()
    granted = granted_window(reservation, sight.leases)
    if granted is not None and granted != reservation.granted:
        return Grant(granted)
    if has_news_of_money(reservation, sight.leases) or above_limit(reservation) is not None:
        return Book()
    target = settled_state(reservation, sight.leases, sight.now)
    if target is reservation.state or reservation.state is ReservationState.ACTIVE:
        return Wait()
    return MoveTo(target)


def _may_buy(reservation: Reservation, sight: ReconcileInput) -> bool:
    if is_too_early(reservation, sight.now):
        return False
    if reservation.state is ReservationState.SCHEDULED:
        return is_due(reservation, sight.now)
    if reservation.state is ReservationState.UNKNOWN:
        return not sight.behind
    return not sight.behind and sight.now - sight.quiet_since >= sight.order_grace


def is_due(reservation: Reservation, now: datetime) -> bool:
    """Whether what is ordered at its start may be ordered; True for all that does not wait for its start."""
    waits = reservation.state is ReservationState.SCHEDULED
    return not waits or order_at(reservation.offer, reservation.start) <= now


def settled_state(reservation: Reservation, leases: Sequence[Lease], now: datetime) -> ReservationState:
    """The state of a reservation whose units are all held or gone, from the provider's leases."""
    terms, is_ahead = reservation.offer.window, now < reservation.start
    if terms is not None and not terms.waits and is_ahead:
        return ReservationState.SCHEDULED
    seen = [lease_of(unit, leases) for unit in reservation.units if unit.state is UnitState.HELD]
    if all(lease is not None and lease.state is LeaseState.ACTIVE for lease in seen):
        return ReservationState.ACTIVE
    return ReservationState.SCHEDULED if terms is not None and is_ahead else ReservationState.HELD


def granted_window(reservation: Reservation, leases: Sequence[Lease]) -> Window | None:
    """The time that the provider granted to all held units together; None if it has not granted any."""
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
    """Whether it is not bought yet and is part of the first, all-or-nothing purchase of its plan."""
    if reservation.state not in UNBOUGHT and reservation.state is not ReservationState.HELD:
        return False
    return not bought_later(reservation.offer, reservation.start, reservation.created_at)


def lease_of(unit: Unit, leases: Iterable[Lease]) -> Lease | None:
    """The live lease of ``unit``, found by its reference or, before the answer is known, by its tag."""
    for lease in leases:
        matches = lease.tag == unit.tag if unit.reference is None else lease.reference == unit.reference
        if matches and lease.state not in DEAD:
            return lease
    return None


def _adopt(unit: Unit, sight: ReconcileInput) -> Adopt:
    """Adopts the oldest lease with the unit's tag, since providers list the oldest first."""
    found = [lease for lease in sight.leases if lease.tag == unit.tag and lease.state not in DEAD]
    return Adopt(unit.ordinal, found[0], tuple(found[1:]))


def _has_settled(unit: Unit, sight: ReconcileInput) -> bool:
    return unit.ordered_at is None or sight.now - unit.ordered_at >= sight.order_grace


def quiet_since(reservation: Reservation, siblings: Iterable[Reservation]) -> datetime:
    """The time of the last order of a reservation or its siblings.

    The reconciler waits after it, so that it does not buy while another worker still does.
    """
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


def find_orphaned_leases(
    leases: Iterable[Lease], reservations: Sequence[Reservation], install_id: str
) -> tuple[Lease, ...]:
    """Live leases that carry our tag but match no open reservation, including duplicates.

    ``reservations`` are the provider's open ones, which must be read after the leases were listed.
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
    """``reservation`` at the begin of its release: planned units end at once, and ordered ones are released.

    ``wanted``: a caller requested the release. Otherwise a reservation that was never active has failed.
    """
    units = tuple(_on_its_way_out(unit, now) for unit in reservation.units)
    left = untried(replace(reservation, units=units))
    if any(unit.state is not UnitState.GONE for unit in units):
        return left.moved_to(ReservationState.RELEASING, reason)
    if wanted or reservation.state in (ReservationState.ACTIVE, ReservationState.RELEASING):
        return ended(left.moved_to(ReservationState.RELEASING, reason), now)
    return replace(left.moved_to(ReservationState.FAILED, reason), released_at=now)


def _on_its_way_out(unit: Unit, now: datetime) -> Unit:
    if unit.state is UnitState.PLANNED:
        return replace(unit, state=UnitState.GONE)
    return unit if unit.state is UnitState.GONE else replace(unit, leaving_at=now)


def ended(reservation: Reservation, now: datetime, reason: str = "") -> Reservation:
    """``reservation`` in the state released, since ``now``."""
    return replace(reservation.moved_to(ReservationState.RELEASED, reason), released_at=now)


def replanned(unit: Unit) -> Unit:
    """``unit`` ready for another attempt, with a new tag."""
    return replace(unit, state=UnitState.PLANNED, tag=next_tag(unit.tag), reference=None)

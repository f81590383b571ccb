"""The order of a unit, the lease to end, and the reservation after each step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.holding.back_off import untried
from broker.domain.holding.reservation import (
    Lease,
    LeaseState,
    Order,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.holding.startup_run import StartupState
from broker.domain.reconciling.ending import never_came_up
from broker.domain.reconciling.reconciling import (
    ended,
    settled_state,
)
from broker.domain.workloads.startup import StartupSecrets, container_of, startup_script


def order_of(reservation: Reservation, unit: Unit, now: datetime, secrets: StartupSecrets) -> Order:
    """The order for ``unit``, at list price. ``secrets`` are for the start of its machines, which goes with
    the order unless the broker runs it over SSH.

    Raises OrderRejected if that start needs a secret that the reservation's team cannot use.
    """
    provider, run = reservation.offer.provider, unit.startup
    startup = reservation.setup.startup if run is None or run.state is StartupState.ORDERED else None
    for name in () if startup is None else startup.secret_names:
        if why := secrets.why_not(name, reservation.team):
            raise OrderRejected(provider, f"nothing was ordered: {why}")
    mine = secrets.of_team(reservation.team)
    window, wait = None, timedelta(0)
    if reservation.offer.window is not None and reservation.end is not None:
        window = Window(reservation.start, reservation.end)
        wait = max(wait, min(reservation.offer.window.longest_wait, reservation.start - now))
    return Order(
        tag=unit.tag,
        offer=reservation.offer.at_list_price(),
        nodes=unit.nodes,
        window=window,
        wait_s=wait // timedelta(seconds=1),
        limit_usd_per_node_hour=None if reservation.offer.contract else reservation.limit_usd_per_node_hour,
        quoted_usd_per_node_hour=None if reservation.offer.contract else unit.price_usd_per_node_hour,
        keys=reservation.setup.keys,
        script=startup_script(startup, mine),
        container=container_of(startup, mine),
        server_port=None if reservation.setup.served is None else reservation.setup.served.port,
    )


def lease_for(reservation: Reservation, unit: Unit) -> Lease:
    """The lease of a held unit as our own row knows it, which is enough to end it."""
    assert unit.reference is not None
    return Lease(
        provider=reservation.offer.provider,
        reference=unit.reference,
        state=LeaseState.UNKNOWN,
        tag=unit.tag,
        nodes=unit.nodes,
        sku=reservation.offer.sku.name,
        region=reservation.offer.region,
    )


def progressed(row: Reservation, leases: Sequence[Lease], now: datetime) -> Reservation:
    """``row`` in the state that follows from its units; a row that is being released keeps its state."""
    if row.state is ReservationState.RELEASING:
        return row
    if any(unit.state is not UnitState.HELD for unit in row.units):
        in_doubt = any(unit.state is UnitState.ORDERING for unit in row.units)
        return row if in_doubt else row.moved_to(ReservationState.PENDING)
    return in_state(row, settled_state(row, leases, now), now)


def in_state(row: Reservation, state: ReservationState, now: datetime) -> Reservation:
    """``row`` in ``state``, with its failed tries and reason reset. ``active_at`` is set only once."""
    active_at = row.active_at or (now if state is ReservationState.ACTIVE else None)
    return replace(untried(row.moved_to(state)), active_at=active_at, reason="")


def without(
    reservation: Reservation,
    ordinals: Sequence[int],
    reason: str,
    now: datetime,
    at: Mapping[int, datetime] | None = None,
    leases: Sequence[Lease] = (),
) -> Reservation:
    """``reservation`` after some units are gone; it is ended if no unit is left.

    ``at`` is when each of these units ended (default: ``now``). ``leases`` are as the provider last showed
    them.
    """
    for unit in reservation.units:
        if unit.ordinal in ordinals:
            paid = ZERO if never_came_up(reservation, unit, leases) else unit.paid_usd
            gone_at = (at or {}).get(unit.ordinal, now)
            gone = replace(unit, state=UnitState.GONE, gone_at=gone_at, paid_usd=paid)
            reservation = reservation.with_unit(gone)
    if any(unit.state is not UnitState.GONE for unit in reservation.units):
        return replace(reservation, reason=reason or reservation.reason)
    if reservation.state in (ReservationState.ACTIVE, ReservationState.RELEASING):
        return ended(reservation, now, reason)
    return replace(reservation, reason=reason or reservation.reason)

"""What sellers say of money: since when they count, what they billed for windows, what leaving gave back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.domain.reservation import Lease, Reservation


def has_news_of_money(reservation: Reservation, leases: Iterable[Lease]) -> bool:
    """Whether ``leases`` show another bill of a window than the one that is stored."""
    if reservation.offer.window is None:
        return False
    billed = {lease.reference: lease.billed_usd for lease in leases if lease.billed_usd is not None}
    return any(billed.get(unit.reference or "", unit.paid_usd) != unit.paid_usd for unit in reservation.units)


def with_money(reservation: Reservation, leases: Iterable[Lease]) -> Reservation:
    """``reservation`` with what its seller says: since when it counts; of windows the bill and the credit."""
    shown = {lease.reference: lease for lease in leases}
    for unit in reservation.units:
        lease = shown.get(unit.reference or "")
        if lease is None:
            continue
        if reservation.offer.window is None:
            reservation = reservation.with_unit(replace(unit, began_at=lease.began_at or unit.began_at))
        else:
            paid = unit.paid_usd if lease.billed_usd is None else lease.billed_usd
            credit = unit.credit_usd if lease.credit_usd is None else lease.credit_usd
            reservation = reservation.with_unit(replace(unit, paid_usd=paid, credit_usd=credit))
    return reservation

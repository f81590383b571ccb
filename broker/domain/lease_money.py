"""What the sellers of windows say of money: what they billed, and what leaving early gave back."""

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
    """``reservation`` with what the sellers of its windows say that they billed and gave back."""
    if reservation.offer.window is None:
        return reservation
    shown = {lease.reference: lease for lease in leases}
    for unit in reservation.units:
        lease = shown.get(unit.reference or "")
        if lease is not None:
            paid = unit.paid_usd if lease.billed_usd is None else lease.billed_usd
            credit = unit.credit_usd if lease.credit_usd is None else lease.credit_usd
            reservation = reservation.with_unit(replace(unit, paid_usd=paid, credit_usd=credit))
    return reservation

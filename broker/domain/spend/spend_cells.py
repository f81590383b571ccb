"""Charges summed by day and by what they are grouped by: what a roll-up stores, in whole cents.

A cell keeps what counts on its day when spread over use (``cents``) and when it is paid (``cash_cents``), so
a window has one more cell, on the day of its purchase. A closed month keeps the cells that it was closed
with; what its bills came to differ by since is a correction, on the first day of the first open month.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date
from typing import NamedTuple

from broker.domain.basics.money import CENT
from broker.domain.basics.window import Window
from broker.domain.market.offer import Tier
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.spend import Charge, ChargeBasis


class CellKey(NamedTuple):
    """What a charge is grouped by, as words; ``correction``: of a month that was closed before."""

    team: str
    workload: str
    kind: str
    provider: str
    sku: str
    tier: str
    offer_id: str
    gpu: str
    region: str
    correction: bool = False


class Amounts(NamedTuple):
    """Sums of a cell."""

    cents: int = 0
    cash_cents: int = 0
    gpu_seconds: int = 0
    idle_gpu_seconds: int = 0
    idle_cents: int = 0

    def plus(self, other: Amounts) -> Amounts:
        """Both."""
        cents, cash_cents, gpu_seconds, idle_gpu_seconds, idle_cents = other
        return Amounts(
            self.cents + cents,
            self.cash_cents + cash_cents,
            self.gpu_seconds + gpu_seconds,
            self.idle_gpu_seconds + idle_gpu_seconds,
            self.idle_cents + idle_cents,
        )

    def minus(self, other: Amounts) -> Amounts:
        """This without the other."""
        return self.plus(Amounts(*(-amount for amount in other)))


NOTHING = Amounts()
Cells = Mapping[tuple[date, CellKey], Amounts]


def cells_of(charges: Iterable[Charge]) -> Cells:
    """Charges as cells."""
    found: defaultdict[tuple[date, CellKey], Amounts] = defaultdict(Amounts)
    for charge in charges:
        key = key_of(charge)
        at, cents = charge.window.start.date(), int(charge.usd / CENT)
        ahead = charge.paid_at is not None
        spread = Amounts(
            cents,
            0 if ahead else cents,
            charge.gpu_seconds,
            charge.idle_gpu_seconds,
            int(charge.idle_usd / CENT),
        )
        found[at, key] = found[at, key].plus(spread) if (at, key) in found else spread
        if charge.paid_at is not None:
            paid = charge.paid_at.date(), key
            found[paid] = found[paid].plus(Amounts(cash_cents=cents))
    return {key: amounts for key, amounts in found.items() if amounts != NOTHING}


def key_of(charge: Charge) -> CellKey:
    """The key of a charge's cell."""
    return CellKey(
        charge.team,
        charge.workload,
        "-" if charge.kind is None else charge.kind.value,
        charge.provider,
        charge.sku,
        charge.tier.value,
        charge.offer_id,
        charge.gpu,
        charge.region,
    )


def cell_charge(key: CellKey, amounts: Amounts, window: Window) -> Charge:
    """The owed money of a cell as one charge of ``window``, spread over use."""
    return Charge(
        window=window,
        team=key.team,
        workload=key.workload,
        kind=None if key.kind == "-" else WorkloadKind(key.kind),
        provider=key.provider,
        sku=key.sku,
        tier=Tier(key.tier),
        usd=amounts.cents * CENT,
        basis=ChargeBasis.ACTUAL,
        offer_id=key.offer_id,
        gpu=key.gpu,
        region=key.region,
        gpu_seconds=amounts.gpu_seconds,
        idle_gpu_seconds=amounts.idle_gpu_seconds,
        idle_usd=amounts.idle_cents * CENT,
    )


def reported(live: Cells, booked: Cells, closed_until: date | None) -> Cells:
    """A bill as it is reported: days before ``closed_until`` as ``booked``, later ones as they are, and one
    correction a key for what the closed days have come to since. Sums are those of ``live``."""
    if closed_until is None:
        return live
    found: defaultdict[tuple[date, CellKey], Amounts] = defaultdict(Amounts)
    owed: defaultdict[CellKey, Amounts] = defaultdict(Amounts)
    for (day, key), amounts in live.items():
        if day < closed_until:
            owed[key] = owed[key].plus(amounts)
        else:
            found[day, key] = amounts
    for (day, key), amounts in booked.items():
        if day < closed_until:
            found[day, key] = amounts
            plain = key._replace(correction=False)
            owed[plain] = owed[plain].minus(amounts)
    for key, amounts in owed.items():
        if amounts != NOTHING:
            found[closed_until, key._replace(correction=True)] = amounts
    return dict(found)


def kept_before(cells: Cells, day: date) -> Cells:
    """Those of earlier days."""
    return {key: amounts for key, amounts in cells.items() if key[0] < day}


def difference(new: Cells, old: Cells) -> dict[tuple[date, CellKey], Amounts]:
    """What has to be added to ``old`` to get ``new``."""
    keys = {*new, *old}
    found = {key: new.get(key, NOTHING).minus(old.get(key, NOTHING)) for key in keys}
    return {key: amounts for key, amounts in found.items() if amounts != NOTHING}

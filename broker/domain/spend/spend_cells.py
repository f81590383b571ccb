"""The cells of a roll-up: charges summed by day and by the fields that reports group by, in whole cents.

A cell has the amortized cost of its day (``cents``) and the cost that is billed on it (``cash_cents``), so a
window also has a cell on the day of its purchase. The cells of a closed month do not change. Later
differences are booked as a correction on the first day of the first open month.
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
    """The fields by which charges are grouped. ``correction`` marks a correction of a closed month."""

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
    """The amounts of a cell."""

    cents: int = 0
    cash_cents: int = 0
    gpu_seconds: int = 0
    idle_gpu_seconds: int = 0
    idle_cents: int = 0

    def plus(self, other: Amounts) -> Amounts:
        """The sum of both."""
        cents, cash_cents, gpu_seconds, idle_gpu_seconds, idle_cents = other
        return Amounts(
            self.cents + cents,
            self.cash_cents + cash_cents,
            self.gpu_seconds + gpu_seconds,
            self.idle_gpu_seconds + idle_gpu_seconds,
            self.idle_cents + idle_cents,
        )

    def minus(self, other: Amounts) -> Amounts:
        """The difference of both."""
        return self.plus(Amounts(*(-amount for amount in other)))


NOTHING = Amounts()
Cells = Mapping[tuple[date, CellKey], Amounts]


def cells_of(charges: Iterable[Charge]) -> Cells:
    """``charges`` summed into cells."""
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
    """The amortized cost of a cell as one actual charge in ``window``."""
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
    """The cells as they are reported.

    Days before ``closed_until`` are as ``booked`` at the close, and later days as in ``live``. One correction
    per key covers the difference of the closed days, so the totals are those of ``live``.
    """
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
    """The cells of days before ``day``."""
    return {key: amounts for key, amounts in cells.items() if key[0] < day}


def difference(new: Cells, old: Cells) -> dict[tuple[date, CellKey], Amounts]:
    """The amounts to add to ``old`` to get ``new``."""
    keys = {*new, *old}
    found = {key: new.get(key, NOTHING).minus(old.get(key, NOTHING)) for key in keys}
    return {key: amounts for key, amounts in found.items() if amounts != NOTHING}

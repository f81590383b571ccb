"""FOCUS rows of open months, with Correction rows for later changes of closed months."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import CENT, ZERO
from broker.domain.focus.columns import FocusRow
from broker.domain.focus.rows import correction_row, focus_rows
from broker.domain.holding.reservation import Reservation

Costs = tuple[Decimal, Decimal]
"""Billed and effective cost in USD."""
NO_COSTS = (ZERO, ZERO)


def costs_of(row: FocusRow) -> Costs:
    """The billed and the effective (amortized) cost of a row in USD, in which older rows are as a whole."""
    billed = row.get("x_BilledCostUsd", row["BilledCost"])
    effective = row.get("x_EffectiveCostUsd", row["EffectiveCost"])
    assert isinstance(billed, Decimal)
    assert isinstance(effective, Decimal)
    return billed, effective


def start_of(row: FocusRow) -> datetime:
    """When a row counts: of a purchase the time of its bill, of others the begin of the charge period."""
    start = row.get("x_BilledAt") or row["ChargePeriodStart"]
    assert isinstance(start, datetime)
    return start


def open_rows(
    reservations: Sequence[Reservation],
    now: datetime,
    install_id: str,
    until: datetime | None,
    booked: Mapping[str, tuple[int, int]],
) -> Iterator[FocusRow]:
    """Rows from ``until`` on (None: all rows), and corrections of the closed time before it.

    A reservation gets a correction if its rows before ``until`` no longer sum to ``booked``, which has billed
    and effective cents by reservation.
    """
    rows = focus_rows(reservations, now, install_id)
    if until is None:
        yield from rows
        return
    earlier: defaultdict[str, Costs] = defaultdict(lambda: NO_COSTS)
    for row in rows:
        if start_of(row) >= until:
            yield row
            continue
        name = str(row["x_ReservationId"])
        billed, effective = costs_of(row)
        earlier[name] = (earlier[name][0] + billed, earlier[name][1] + effective)
    for reservation in reservations:
        name = reservation.reservation_id
        was_billed, was_effective = booked.get(name, (0, 0))
        billed = earlier[name][0] - was_billed * CENT
        effective = earlier[name][1] - was_effective * CENT
        if billed or effective:
            yield correction_row(reservation, install_id, until, billed, effective)

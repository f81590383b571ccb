"""Spend as JSON and CSV rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainSerializer

from api.schemas.base.forms import Form, UtcInstant
from api.schemas.base.parts import Money
from api.schemas.base.times import Instant, format_time
from broker.domain.basics.money import ZERO, format_usd
from broker.domain.reconciling.orphaned_leases import OrphanedLeases
from broker.domain.spend.spend import TAXES, ChargeBasis, CostView, Interval, SpendRow

NO_GROUP = "-"
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
AS_OF_HEADER = "Broker-As-Of"
FOCUS_TOTALS = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")
PROJECTION_TOTALS = ("ProjectedBilledCost", "ProjectedEffectiveCost")
CSV_COLUMNS = ("period", "group_by", "group", "basis", "usd", "taxes", "until_released_usd", "intended_usd")


@dataclass(slots=True)
class SpendItem:
    """Money of one group in one period (given by its first instant), projected or actual.

    ``until_released_usd`` is the part that is projected for leases without an end; ``intended_usd`` is the
    part of drafts.
    """

    row: SpendRow
    basis: ChargeBasis


Form(
    SpendRow,
    types={"period": Annotated[UtcInstant, PlainSerializer(lru_cache(1024)(format_time), return_type=str)]},
    lenient=True,
)
ITEM = Form(SpendItem, name="SpendRowForm", inline=("row",), order=("group basis usd",))


class ManifestForm(BaseModel):
    """The manifest of an exported file; ``totals_usd`` by column."""

    data_set: str
    version: str | None
    as_of: Instant
    sha256: str
    rows: int
    totals_usd: dict[str, Money]
    taxes: str


ORPHANED = Form(
    OrphanedLeases,
    name="OrphanedForm",
    about="Orphaned leases of one seller: what is owed until now, and what each further hour costs.",
)


class SpendForm(BaseModel):
    """The answer of ``GET /v1/spend/projection``.

    ``orphaned`` has leases that belong to no team. The sums have them under the team ``unattributed``, and
    only administrators see them.
    """

    interval: Interval
    group_by: str
    currency: str = "USD"
    taxes: str = TAXES
    view: CostView = CostView.AMORTIZED
    as_of: Instant | None = None
    narrowed_by: dict[str, str] = Field(default_factory=dict)
    total_usd: Money
    until_released_usd: Money = ZERO
    intended_usd: Money = ZERO
    items: list[Annotated[SpendItem, ITEM]]
    next_cursor: str | None = None
    orphaned: list[Annotated[OrphanedLeases, ORPHANED]] = Field(default_factory=list)


def spend_to_document(
    rows: Sequence[tuple[ChargeBasis, SpendRow]],
    *,
    interval: Interval,
    group_by: str,
    window: tuple[datetime | None, datetime | None] = (None, None),
) -> dict[str, Any]:
    """The JSON form of spend rows as plain data. ``total_usd`` is their sum."""
    start, end = window
    return {
        "from": format_time(start) if start is not None else None,
        "to": format_time(end) if end is not None else None,
        "interval": str(interval),
        "group_by": group_by,
        "currency": "USD",
        "taxes": TAXES,
        "total_usd": format_usd(sum((row.usd for _, row in rows), ZERO)),
        "until_released_usd": format_usd(sum((row.until_released_usd for _, row in rows), ZERO)),
        "intended_usd": format_usd(sum((row.intended_usd for _, row in rows), ZERO)),
        "items": [ITEM.write(SpendItem(row, basis)) for basis, row in rows],
        "next_cursor": None,
    }


def spend_csv_rows(form: SpendForm) -> list[tuple[str, str, str, str, Decimal, str, Decimal, Decimal]]:
    """The rows under CSV_COLUMNS."""
    return [
        (
            format_time(item.row.period),
            form.group_by,
            item.row.group,
            str(item.basis),
            item.row.usd,
            form.taxes,
            item.row.until_released_usd,
            item.row.intended_usd,
        )
        for item in form.items
    ]


def spend_csv(form: SpendForm) -> str:
    """The rows as CSV. A name that a spreadsheet would read as a formula is prefixed with ``'``."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for period, group_by, group, basis, amount, taxes, *parts in spend_csv_rows(form):
        money = (format_usd(usd) for usd in (amount, *parts))
        writer.writerow([period, group_by, no_formula(group), basis, next(money), taxes, *money])
    return text.getvalue()


def no_formula(text: str) -> str:
    """``text``, prefixed with ``'`` if a spreadsheet would read it as a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) and text != NO_GROUP else text

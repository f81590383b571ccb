"""Projected spend for finance: JSON and CSV."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.dependencies import Since, SpendReader, Until, product_of, window_between
from api.schemas.spend import CSV_COLUMNS, SpendForm, spend_csv_rows, spend_to_document
from broker.domain.account import Caller
from broker.domain.errors import FieldProblem, InputError
from broker.domain.spend import GROUPS, ChargeBasis, Interval, SpendRow, sum_charges

router = APIRouter(prefix="/v1/spend", tags=["spend"])

NO_GROUP = "-"
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


async def projection_document(
    request: Request,
    caller: Caller,
    since: datetime | None,
    until: datetime | None,
    interval: Interval,
    group_by: str,
    team: str | None = None,
) -> dict[str, Any]:
    """The projection as plain data; InputError for an unknown grouping."""
    if group_by not in GROUPS:
        problem = FieldProblem("/group_by", repr(group_by), f"one of {', '.join(GROUPS)}")
        raise InputError("request", (problem,))
    window = window_between(since, until)
    charges = await product_of(request).spend.charges(caller, window, team)
    rows: list[tuple[ChargeBasis, SpendRow]] = [
        (basis, row)
        for basis in ChargeBasis
        for row in sum_charges((c for c in charges if c.basis is basis), interval, group_by)
    ]
    rows.sort(key=lambda pair: (pair[1].period, pair[1].group, pair[0]))
    return spend_to_document(rows, interval=interval, group_by=group_by, window=(since, until))


@router.get("/projection", responses={200: {"model": SpendForm}})
async def show_projection(
    request: Request,
    caller: SpendReader,
    since: Since = None,
    until: Until = None,
    interval: Interval = Interval.DAY,
    group_by: str = "team",
    team: str | None = None,
) -> JSONResponse:
    """Money by period and group: what plans will cost, what reservations did and will."""
    return JSONResponse(await projection_document(request, caller, since, until, interval, group_by, team))


@router.get("/projection.csv")
async def export_projection(
    request: Request,
    caller: SpendReader,
    since: Since = None,
    until: Until = None,
    interval: Interval = Interval.DAY,
    group_by: str = "team",
    team: str | None = None,
) -> Response:
    """The same rows and sums as CSV."""
    document = await projection_document(request, caller, since, until, interval, group_by, team)
    return Response(
        spend_csv(SpendForm.model_validate(document)),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="projected-spend.csv"'},
    )


def spend_csv(form: SpendForm) -> str:
    """Rows of spend as CSV; text that a spreadsheet would take for a formula is quoted with ``'``."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(CSV_COLUMNS)
    for row in spend_csv_rows(form):
        writer.writerow([_plain(cell) if isinstance(cell, str) else str(cell) for cell in row])
    return out.getvalue()


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) and text != NO_GROUP else text

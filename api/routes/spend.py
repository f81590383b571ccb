"""Projected spend for finance: JSON and CSV."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.dependencies import Since, SpendReader, Until, product_of, window_between
from api.schemas.spend import SpendForm, spend_csv, spend_to_document
from broker.domain.account import Caller
from broker.domain.spend import Interval

router = APIRouter(prefix="/v1/spend", tags=["spend"])


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
    window = window_between(since, until)
    found = await product_of(request).spend.projection(caller, window, interval, group_by, team)
    return spend_to_document(found.by_basis, interval=interval, group_by=group_by, window=(since, until))


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

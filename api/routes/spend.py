"""Projected spend for finance, as JSON and CSV."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from api.export.files import MEDIA_TYPES, spend_bytes
from api.export.focus_csv import csv_chunks, focus_csv
from api.export.jobs import RowFile, SumFile, Wanted
from api.export.manifest import streamed_manifest
from api.http.conditional import NOT_MODIFIED, conditional, tagged
from api.http.dependencies import (
    KNOWN_NAMES,
    Moment,
    Narrowing,
    Since,
    SpendReader,
    Until,
    product_of,
    window_between,
)
from api.http.operation_details import may_fail
from api.routes.parameters import Every, ExportId, OfTeam, View
from api.schemas.base.times import format_time
from api.schemas.finance.exports import ExportForm, export_to_document
from api.schemas.finance.spend import (
    AS_OF_HEADER,
    FOCUS_TOTALS,
    ORPHANED,
    PROJECTION_TOTALS,
    ManifestForm,
    SpendForm,
    spend_csv,
    spend_to_document,
)
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import Conflict
from broker.domain.basics.export_jobs import ExportState
from broker.domain.focus.columns import FocusVersion
from broker.domain.focus.projection_rows import PROJECTION_COLUMNS
from broker.domain.spend.spend import GROUPS, CostView, Interval
from broker.services.spend.spend import RowExport

router = APIRouter(prefix="/v1/spend", tags=["spend"], dependencies=[KNOWN_NAMES])
ROWS_AT_ONCE = 5_000
"""Sums with more rows are written in the background."""
RETRY_AFTER_S = "2"
FileForm = Annotated[Literal["xlsx", "parquet"], Path(description="The format of the file")]
Version = Annotated[FocusVersion, Query(description="The version of the FOCUS specification")]
STARTED: dict[int | str, dict[str, Any]] = {202: {"model": ExportForm}}
CSV_FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {}}}}


async def projection_document(
    request: Request,
    caller: SpendReader,
    since: Since = None,
    until: Until = None,
    interval: Every = Interval.DAY,
    group_by: Annotated[str, Query(description=f"The grouping of the sums: {', '.join(GROUPS)}")] = "team",
    team: OfTeam = None,
    view: View = CostView.AMORTIZED,
    *,
    narrowed: Narrowing,
) -> dict[str, Any]:
    """The projection as plain data. Raises InputError for an unknown grouping.

    ``view``: a window's cost is spread over its days (amortized), or counted when it is paid (cash).
    """
    window = window_between(since, until)
    found = await product_of(request).spend.projection(
        caller, window, interval, group_by, team, view, narrowed=narrowed
    )
    document = spend_to_document(found.by_basis, interval=interval, group_by=group_by, window=(since, until))
    orphaned = await product_of(request).spend.find_orphaned(caller)
    return {
        **document,
        "view": str(view),
        "as_of": format_time(found.as_of),
        "narrowed_by": narrowed,
        "orphaned": [ORPHANED.write(one) for one in orphaned],
    }


def focus_export(
    request: Request,
    caller: SpendReader,
    since: Since = None,
    until: Until = None,
    team: OfTeam = None,
    as_of: Annotated[Moment | None, Query(description="Rows as of this time; default: now")] = None,
    *,
    narrowed: Narrowing,
) -> RowExport:
    """Actual charges as FOCUS rows, as of an instant."""
    window = window_between(since, until)
    return product_of(request).spend.focus(caller, window, team, as_of, narrowed=narrowed)


async def projected_rows(
    request: Request,
    caller: SpendReader,
    since: Since = None,
    until: Until = None,
    team: OfTeam = None,
    *,
    narrowed: Narrowing,
) -> RowExport:
    """Projected charges only."""
    window = window_between(since, until)
    return await product_of(request).spend.projection_rows(caller, window, team, narrowed=narrowed)


ProjectionRows = Annotated[RowExport, Depends(projected_rows)]
ProjectionDocument = Annotated[dict[str, Any], Depends(projection_document)]
FocusExport = Annotated[RowExport, Depends(focus_export)]


@router.get("/projection", responses={200: {"model": SpendForm}, **NOT_MODIFIED})
async def show_projection(request: Request, document: ProjectionDocument) -> Response:
    """Shows costs by period and group, of plans and of reservations, owed and expected; without taxes."""
    as_of = {"as_of": document["as_of"]}
    sums = {name: value for name, value in document.items() if name not in as_of}
    return conditional(request, tagged(sums, but_for=as_of))


@router.get("/projection.csv", response_class=Response, responses=CSV_FILE)
async def export_projection(document: ProjectionDocument) -> Response:
    """Answers the projection as CSV, with the same rows and sums."""
    return Response(
        spend_csv(SpendForm.model_validate(document)),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="projected-spend.csv"'},
    )


@router.get(
    "/projection.{form}",
    response_class=Response,
    responses={200: {"content": {one: {} for one in MEDIA_TYPES.values()}}, 202: {"model": ExportForm}},
)
async def export_projection_file(
    request: Request, caller: SpendReader, document: ProjectionDocument, form: FileForm
) -> Response:
    """Answers the projection as an XLSX or Parquet file; for many rows, 202 with the address of the file."""
    sums = SpendForm.model_validate(document)
    if len(sums.items) > ROWS_AT_ONCE:
        return await _begun(request, caller, Wanted("projected-spend", form, SumFile(sums).write))
    content = await asyncio.to_thread(spend_bytes, form, sums)
    headers = {"Content-Disposition": f'attachment; filename="projected-spend.{form}"'}
    return Response(content, media_type=MEDIA_TYPES[form], headers=headers)


@router.get("/projection-rows.csv", response_class=StreamingResponse, responses=CSV_FILE)
async def export_projection_rows(export: ProjectionRows) -> StreamingResponse:
    """Streams projected charges only as CSV, one row per placement and day."""
    return _csv_file(csv_chunks(export.rows, PROJECTION_COLUMNS), "projection-rows.csv", export.as_of)


@router.get("/projection-rows.{form}", status_code=202, responses=STARTED)
async def write_projection_rows(
    request: Request, caller: SpendReader, export: ProjectionRows, form: FileForm
) -> Response:
    """Writes the projected charges as an XLSX or Parquet file in the background."""
    chunks = csv_chunks(export.rows, PROJECTION_COLUMNS)
    file = RowFile(chunks, "Projected spend", export.as_of, PROJECTION_TOTALS)
    return await _begun(request, caller, Wanted("projection-rows", form, file.write))


@router.get("/focus.csv", response_class=StreamingResponse, responses=CSV_FILE)
async def export_focus(export: FocusExport, version: Version = FocusVersion.V1_2) -> StreamingResponse:
    """Streams actual charges in the FOCUS columns; the header ``Broker-As-Of`` has their time."""
    return _csv_file(focus_csv(export.rows, version), f"focus-{version}.csv", export.as_of)


@router.get("/focus.manifest.json", responses={200: {"model": ManifestForm}})
async def show_focus_manifest(export: FocusExport, version: Version = FocusVersion.V1_2) -> JSONResponse:
    """Shows hash, number of rows and totals of the FOCUS file, computed again for the same ``as_of``."""
    document = await streamed_manifest(
        focus_csv(export.rows, version),
        data_set="FOCUS Cost and Usage",
        version=str(version),
        as_of=export.as_of,
        columns=FOCUS_TOTALS,
    )
    return JSONResponse(document)


@router.get("/focus.{form}", status_code=202, responses=STARTED)
async def write_focus(
    request: Request,
    caller: SpendReader,
    export: FocusExport,
    form: FileForm,
    version: Version = FocusVersion.V1_2,
) -> Response:
    """Writes the FOCUS rows as an XLSX file (at most 50,000 rows) or a Parquet file in the background."""
    chunks = focus_csv(export.rows, version)
    file = RowFile(chunks, "FOCUS Cost and Usage", export.as_of, FOCUS_TOTALS, str(version))
    return await _begun(request, caller, Wanted(f"focus-{version}", form, file.write))


@router.get("/exports/{export_id}", responses={200: {"model": ExportForm}})
async def show_export(request: Request, caller: SpendReader, export_id: ExportId) -> JSONResponse:
    """Shows the state of a file that is written in the background, and its manifest once it is finished."""
    job = await product_of(request).exports.find(caller, export_id)
    headers = {"Retry-After": RETRY_AFTER_S} if job.state is ExportState.RUNNING else {}
    return JSONResponse(export_to_document(job), headers=headers)


@router.get(
    "/exports/{export_id}/file",
    response_class=Response,
    openapi_extra=may_fail(Conflict),
    responses={200: {"content": {one: {} for one in MEDIA_TYPES.values()}}},
)
async def fetch_export(request: Request, caller: SpendReader, export_id: ExportId) -> Response:
    """Answers the finished file; 409 until then."""
    job, content = await product_of(request).exports.find_content(caller, export_id)
    headers = {"Content-Disposition": f'attachment; filename="{job.file_name}"'}
    return Response(content, media_type=job.media_type, headers=headers)


async def _begun(request: Request, caller: Caller, wanted: Wanted) -> JSONResponse:
    """202: the file is being written, and ``Location`` has the address of its state."""
    document = export_to_document(await product_of(request).exports.start(caller, wanted))
    headers = {"Location": document["url"], "Retry-After": RETRY_AFTER_S}
    return JSONResponse(document, 202, headers)


def _csv_file(content: AsyncIterator[bytes], name: str, as_of: datetime) -> StreamingResponse:
    """A streamed CSV file with the name ``name``; the header has its time."""
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        AS_OF_HEADER: format_time(as_of),
    }
    return StreamingResponse(content, media_type="text/csv; charset=utf-8", headers=headers)

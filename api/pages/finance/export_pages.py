"""Export files that take a while: they are requested on the Spend page and followed until they are ready."""

from __future__ import annotations

import json

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from api.http.dependencies import product_of
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import SpendVisitor
from api.routes.spend import (
    FileForm,
    FocusExport,
    ProjectionDocument,
    ProjectionRows,
    export_projection_file,
    write_focus,
    write_projection_rows,
)
from api.schemas.finance.exports import export_to_document
from broker.domain.basics.export_jobs import ExportState
from broker.domain.focus.columns import FocusVersion

FOLLOWED_S = 2

router = page_router()


@router.get("/spend/exports/projection.{form}")
async def ask_for_sums(
    request: Request, caller: SpendVisitor, document: ProjectionDocument, form: FileForm
) -> Response:
    """Exports this view: at once, or with a page that follows the job."""
    return _followed(await export_projection_file(request, caller, document, form))


@router.get("/spend/exports/projection-rows.{form}")
async def ask_for_expected_rows(
    request: Request, caller: SpendVisitor, export: ProjectionRows, form: FileForm
) -> Response:
    """Exports expected charges."""
    return _followed(await write_projection_rows(request, caller, export, form))


@router.get("/spend/exports/focus.{form}")
async def ask_for_focus(
    request: Request,
    caller: SpendVisitor,
    export: FocusExport,
    form: FileForm,
    version: FocusVersion = FocusVersion.V1_2,
) -> Response:
    """Exports actual charges as FOCUS rows."""
    return _followed(await write_focus(request, caller, export, form, version))


@router.get("/spend/exports/{export_id}")
async def export_page(request: Request, caller: SpendVisitor, export_id: str) -> Response:
    """The state of an export job. The page refreshes itself until the file is ready."""
    job = await product_of(request).exports.find(caller, export_id)
    again = FOLLOWED_S if job.state is ExportState.RUNNING else None
    document = export_to_document(job)
    return show(request, "export.html", "Export", job=job, document=document, again_s=again)


def _followed(answer: Response) -> Response:
    if answer.status_code != 202:
        return answer
    document = json.loads(bytes(answer.body))
    return RedirectResponse(f"/spend/exports/{document['export_id']}", 303)

"""Files that take a while: asked for from the Spend page, followed until they are there."""

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
    """This view as a file: at once, or followed while it is written."""
    return _followed(await export_projection_file(request, caller, document, form))


@router.get("/spend/exports/projection-rows.{form}")
async def ask_for_expected_rows(
    request: Request, caller: SpendVisitor, export: ProjectionRows, form: FileForm
) -> Response:
    """Expected charges as a file."""
    return _followed(await write_projection_rows(request, caller, export, form))


@router.get("/spend/exports/focus.{form}")
async def ask_for_focus(
    request: Request,
    caller: SpendVisitor,
    export: FocusExport,
    form: FileForm,
    version: FocusVersion = FocusVersion.V1_2,
) -> Response:
    """Actual charges as a file."""
    return _followed(await write_focus(request, caller, export, form, version))


@router.get("/spend/exports/{export_id}")
async def export_page(request: Request, caller: SpendVisitor, export_id: str) -> Response:
    """Where a file stands; the page looks again by itself until it is there."""
    job = await product_of(request).exports.find(caller, export_id)
    again = FOLLOWED_S if job.state is ExportState.RUNNING else None
    document = export_to_document(job)
    return show(request, "export.html", "Export", job=job, document=document, again_s=again)


def _followed(answer: Response) -> Response:
    if answer.status_code != 202:
        return answer
    document = json.loads(bytes(answer.body))
    return RedirectResponse(f"/spend/exports/{document['export_id']}", 303)

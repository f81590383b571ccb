"""Health, readiness, metrics, and the audit trail."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest

from api.http.dependencies import KNOWN_NAMES, Administrator, AnyCaller, Cursor, Limit, listing, product_of
from api.routes.parameters import OfTeam
from api.schemas.accounts.audit import AUDIT, AuditForm
from api.schemas.base.forms import PageForm
from api.schemas.holding.reconciliation import ProspectsForm, prospects_to_document
from broker.domain.planning.plan_turns import TurnClass

router = APIRouter(tags=["operations"])
PLANS_WAITING = Gauge("broker_plans_waiting", "Planner calls that wait for a slot", ["class"])
PLANS_RUNNING = Gauge("broker_plans_running", "Planner calls that hold a slot", ["class"])


@router.get("/healthz", include_in_schema=False)
async def healthz() -> PlainTextResponse:
    """The process runs."""
    return PlainTextResponse("ok\n")


@router.get("/readyz", include_in_schema=False)
async def readyz(request: Request) -> JSONResponse:
    """200 once the schema is current, offers are known and the first reconciliation is done.

    503 also while the database does not answer, and after shutdown is requested. ``feeds_awaited`` names
    feeds that have not answered their first poll; it is missing if there are none.
    """
    product = product_of(request)
    readiness = product.readiness
    state = {**readiness.conditions(), "database": await product.store.answers()}
    told = {**state, "feeds_awaited": sorted(readiness.awaited)} if readiness.awaited else state
    return JSONResponse(told, 200 if all(state.values()) else 503)


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """Metrics in the Prometheus text format."""
    queue = product_of(request).plan_queue
    waiting, running = queue.waiting(), queue.running()
    for kind in TurnClass:
        PLANS_WAITING.labels(kind).set(waiting.get(kind, 0))
        PLANS_RUNNING.labels(kind).set(running.get(kind, 0))
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/reconciliation", responses={200: {"model": ProspectsForm}})
async def preview_reconciliation(request: Request, caller: Administrator) -> JSONResponse:
    """Previews what the next reconciliation would adopt, release or buy. Nothing is done."""
    product = product_of(request)
    found, unread = await product.reconcile.preview()
    return JSONResponse(prospects_to_document(found, unread, paused=product.settings.paused))


@router.get("/v1/audit", responses={200: {"model": PageForm[AuditForm]}}, dependencies=[KNOWN_NAMES])
async def list_audit(
    request: Request,
    caller: AnyCaller,
    object_id: Annotated[str | None, Query(description="Only entries of the object with this id")] = None,
    team: OfTeam = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the audit trail, newest first."""
    page = await product_of(request).accounts.find_audit(
        caller, limit, cursor, object_id=object_id, team=team
    )
    return listing([AUDIT.write(entry) for entry in page.items], page.next_cursor)

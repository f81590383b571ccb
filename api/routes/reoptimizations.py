"""Re-optimizations: start one, see its result, and decide on its proposal."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.http.dependencies import (
    KNOWN_NAMES,
    Cursor,
    Limit,
    PlanReader,
    PlanWriter,
    ReservationWriter,
    answer_once,
    json_answer,
    listing,
    product_of,
)
from api.http.operation_details import may_fail
from api.routes.parameters import OfTeam, ReoptimizationId
from api.schemas.base.forms import PageForm
from api.schemas.plans.reoptimization import (
    REOPTIMIZATION,
    ReoptimizationForm,
    RunningForm,
)
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import (
    ApprovalRequired,
    ConcurrentChange,
    Conflict,
    OrdersBarred,
    OverBudget,
    OverCap,
)
from broker.domain.moving.reoptimization import Reoptimization
from broker.services.accounts.accounts import Answer, Replay

router = APIRouter(prefix="/v1/reoptimizations", tags=["reoptimizations"])


@router.post("", status_code=202, responses={202: {"model": RunningForm}})
async def reoptimize_now(request: Request, caller: PlanWriter) -> Response:
    """Re-optimizes every current plan that the caller may see, outside the schedule."""
    product = product_of(request)

    async def act() -> Answer:
        product.background.start(product.reoptimize.run_for(caller))
        return json_answer(202, {"status": "running"}, {"Location": "/v1/reoptimizations"})

    return await answer_once(request, caller, act)


@router.get("", responses={200: {"model": PageForm[ReoptimizationForm]}}, dependencies=[KNOWN_NAMES])
async def list_reoptimizations(
    request: Request,
    caller: PlanReader,
    team: OfTeam = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists what was proposed, applied or rejected, and why; newest first."""
    page = await product_of(request).reoptimize.find_reoptimizations(caller, limit, cursor, team=team)
    return listing([REOPTIMIZATION.write(one) for one in page.items], page.next_cursor)


@router.get("/{reoptimization_id}", responses={200: {"model": ReoptimizationForm}})
async def show_reoptimization(
    request: Request, caller: PlanReader, reoptimization_id: ReoptimizationId
) -> JSONResponse:
    """Shows one re-optimization, with its moves."""
    look = await product_of(request).reoptimize.find_one(caller, reoptimization_id)
    return JSONResponse(REOPTIMIZATION.write(look))


@router.post(
    "/{reoptimization_id}/accept",
    status_code=202,
    responses={202: {"model": ReoptimizationForm}},
    openapi_extra=may_fail(Conflict, ConcurrentChange, OrdersBarred, OverCap, ApprovalRequired, OverBudget),
)
async def accept_proposal(
    request: Request, caller: ReservationWriter, reoptimization_id: ReoptimizationId
) -> Response:
    """Accepts a proposal: its plan is in force, and its moves begin by buying the new capacity."""

    async def act() -> Answer:
        return _answer(202, await product_of(request).proposals.accept(caller, reoptimization_id))

    return await answer_once(request, caller, act, _again(request, caller, 202))


@router.post(
    "/{reoptimization_id}/reject",
    responses={200: {"model": ReoptimizationForm}},
    openapi_extra=may_fail(Conflict, ConcurrentChange),
)
async def reject_proposal(
    request: Request, caller: PlanWriter, reoptimization_id: ReoptimizationId
) -> Response:
    """Rejects a proposal; nothing changes."""

    async def act() -> Answer:
        return _answer(200, await product_of(request).proposals.reject(caller, reoptimization_id))

    return await answer_once(request, caller, act, _again(request, caller, 200))


def _again(request: Request, caller: Caller, status: int) -> Replay:
    async def again(stored: tuple[str, ...]) -> Answer:
        return _answer(status, await product_of(request).reoptimize.find_one(caller, stored[0]))

    return again


def _answer(status: int, look: Reoptimization) -> Answer:
    location = f"/v1/reoptimizations/{look.reoptimization_id}"
    return json_answer(status, REOPTIMIZATION.write(look), {"Location": location})

"""Where the services of a plan answer: for load balancers and Prometheus, once or as a stream of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from api.export.endpoints import (
    Endpoint,
    EndpointsForm,
    EndpointsFormat,
    endpoints_document,
    endpoints_of,
    endpoints_text,
)
from api.http.dependencies import PlanReader, product_of
from api.http.strict_requests import FormRoute
from api.routes.parameters import PlanId
from broker.domain.basics.account import Caller

router = APIRouter(prefix="/v1/plans", tags=["reservations"], route_class=FormRoute)
LOOK_EVERY_S = 2.0


@router.get(
    "/{plan_id}/endpoints",
    responses={200: {"model": EndpointsForm, "content": {"text/plain": {}}}},
)
async def show_endpoints(
    request: Request,
    caller: PlanReader,
    plan_id: PlanId,
    form: Annotated[EndpointsFormat, Query(alias="format", description="Whose form it takes")] = (
        EndpointsFormat.JSON
    ),
) -> Response:
    """Shows where the services of a plan answer now, for a load balancer or for Prometheus.

    A machine is ``ready`` once the health path of its server answers, and ``draining`` for the last
    ``drain_minutes`` before it is given back.
    """
    now, found = await _endpoints(request, caller, plan_id)
    media = "text/plain" if form is EndpointsFormat.NGINX else "application/json"
    return Response(endpoints_text(plan_id, found, form, now), media_type=media)


@router.get(
    "/{plan_id}/endpoints/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_endpoints(request: Request, caller: PlanReader, plan_id: PlanId) -> StreamingResponse:
    """Streams the endpoints of a plan as server-sent events: all of them now, and again at each change.

    The stream ends when no service of the plan holds anything more.
    """
    await _endpoints(request, caller, plan_id)

    async def lines() -> AsyncIterator[str]:
        version = ""
        while True:
            now, found = await _endpoints(request, caller, plan_id)
            told = endpoints_document(plan_id, found, now)
            yield ": unchanged\n\n" if told["version"] == version else _endpoints_line(told)
            version = told["version"]
            if not found:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _endpoints_line(told: Mapping[str, object]) -> str:
    return f"event: endpoints\ndata: {json.dumps(told)}\n\n"


async def _endpoints(request: Request, caller: Caller, plan_id: str) -> tuple[datetime, tuple[Endpoint, ...]]:
    """The present time and the endpoints of a plan. Raises NotFound."""
    product = product_of(request)
    await product.planning.find_plan(caller, plan_id)
    now = product.clock.now()
    rows = await product.reservations.find_every(caller, plan_id=plan_id, open_only=True)
    return now, endpoints_of(rows, now)

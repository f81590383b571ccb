"""Re-optimizations: run one now, and what came of each."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.dependencies import (
    Cursor,
    Limit,
    PlanReader,
    PlanWriter,
    answer_once,
    json_answer,
    listing,
    product_of,
)
from api.schemas.times import format_time
from broker.domain.money import format_usd
from broker.domain.reoptimization import Reoptimization
from broker.services.accounts import Answer

router = APIRouter(prefix="/v1/reoptimizations", tags=["reoptimizations"])


def reoptimization_to_document(one: Reoptimization) -> dict[str, Any]:
    """The JSON form of a re-optimization; ``before_usd`` is the old plan at today's prices."""
    saving = one.saving_usd
    return {
        "reoptimization_id": one.reoptimization_id,
        "team": one.team,
        "plan_id": one.plan_id,
        "new_plan_id": one.new_plan_id,
        "trigger": one.trigger,
        "started_at": format_time(one.started_at),
        "state": str(one.state),
        "reason": one.reason,
        "before_usd": format_usd(one.before_usd) if one.before_usd is not None else None,
        "after_usd": format_usd(one.after_usd) if one.after_usd is not None else None,
        "saving_usd": format_usd(saving) if saving is not None else None,
        "moves": [
            {
                "workload": move.workload,
                "from_offers": list(move.from_offers),
                "to_offers": list(move.to_offers),
                "saving_usd": format_usd(move.saving_usd),
                "why": move.why,
            }
            for move in one.moves
        ],
    }


@router.post("", status_code=202)
async def run_now(request: Request, caller: PlanWriter) -> Response:
    """Looks at every current plan that the caller sees again, beside the timetable."""
    product = product_of(request)

    async def act() -> Answer:
        product.background.start(product.reoptimize.run_for(caller))
        return json_answer(202, {"status": "running"}, {"Location": "/v1/reoptimizations"})

    return await answer_once(request, caller, act)


@router.get("")
async def list_reoptimizations(
    request: Request,
    caller: PlanReader,
    team: str | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """What was proposed, applied or rejected, and why; newest first."""
    page = await product_of(request).reoptimize.find_reoptimizations(caller, limit, cursor, team=team)
    return listing([reoptimization_to_document(one) for one in page.items], page.next_cursor)

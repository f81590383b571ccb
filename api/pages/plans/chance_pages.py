"""What a plan does not know: its simulation, and the price of more confidence."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.parts.forms import act_once, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import PlanVisitor, PlanWritingVisitor
from api.pages.plans import chance_view
from api.pages.plans.plan_view import title_of
from broker.domain.basics.account import Caller
from broker.domain.planning.simulation import DRAWS, SEED

router = page_router()


@router.get("/plans/{plan_id}/simulation")
async def simulation_page(
    request: Request, caller: PlanVisitor, plan_id: str, seed: Annotated[int, Query(ge=0, lt=2**31)] = SEED
) -> Response:
    """Draws what a plan does not know; equal seeds show the same."""
    product = product_of(request)
    record = await product.planning.find_plan(caller, plan_id)
    found = await product.estimating.simulate(caller, plan_id, DRAWS, seed)
    return show(
        request,
        "simulation.html",
        "What may happen",
        record=record,
        heading=title_of(record),
        found=found,
        seed=seed,
        cards=chance_view.simulation_cards(found),
        charts=chance_view.cost_histogram(found),
        late_words=chance_view.late_words,
        span_words=chance_view.span_words,
    )


@router.post("/plans/{plan_id}/confidence")
async def price_confidence(request: Request, caller: PlanWritingVisitor, plan_id: str) -> Response:
    """Plans the document at other confidences, for what they cost; the plan's page then shows it."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).confidence_pricing.find(named, plan_id)
        return f"/plans/{plan_id}#confidence"

    return await act_once(request, caller, form, act)

"""Approvals: plans that wait for finance, with the figures to be seen, and what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from fastapi import Request
from fastapi.responses import Response

from api.dependencies import product_of
from api.pages.cards import Card
from api.pages.forms import act_once, new_once, proof_of, read_form
from api.pages.plan_pages import as_seen
from api.pages.plan_view import budget_of, plan_cards, title_of
from api.pages.rendering import page_router, show
from api.pages.session import PlanVisitor
from broker.domain.account import Caller
from broker.ports import PlanRecord

SHOWN = 200
DONE: Mapping[str, str] = {"approved": "Approved. The team can reserve it now."}

router = page_router()


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One plan with what finance looks at; ``once`` is its form's own."""

    record: PlanRecord
    title: str
    cards: tuple[Card, ...]
    once: str


def _row(record: PlanRecord) -> ApprovalRow:
    cards = plan_cards(record.plan, budget_of(record)) if record.plan is not None else ()
    return ApprovalRow(record, title_of(record), cards, new_once())


@router.get("/approvals")
async def approvals_page(request: Request, caller: PlanVisitor, done: str = "") -> Response:
    """What waits, and what was decided."""
    product = product_of(request)
    page = await product.planning.find_plans(caller, SHOWN)
    asked = [record for record in page.items if record.needs_approval and record.plan is not None]
    limit = product.settings.approval_limit_usd
    return show(
        request,
        "approvals.html",
        "Approvals",
        waiting=[_row(record) for record in asked if record.approved_by is None],
        decided=[_row(record) for record in asked if record.approved_by is not None],
        limit=None if limit is None else Decimal(str(limit)),
        notice=DONE.get(done, ""),
        proof=proof_of(request),
    )


@router.post("/approvals/{plan_id}/approve")
async def approve(request: Request, caller: PlanVisitor, plan_id: str) -> Response:
    """Finance's word on exactly the figures that were shown."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await as_seen(request, named, plan_id, form)
        await product_of(request).planning.approve(named, plan_id)
        return "/approvals?done=approved"

    return await act_once(request, caller, form, act)

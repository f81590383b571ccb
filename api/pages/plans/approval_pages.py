"""Approvals: plans that wait for finance with their figures, the decision, and past decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.parts.forms import SentForm, act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import PlanVisitor, SpendVisitor
from api.pages.plans.plan_view import BaselineRow, baseline_rows, title_of
from api.plan_words import overruns_or_all, who_words
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.spend.approvals import ApprovalState
from broker.services.spend.approvals import DECIDED, Approval, Looked

SHOWN = 50
DONE: Mapping[str, str] = {
    "approved": "Approved. The team can reserve it now.",
    "rejected": "Rejected. The plan cannot be reserved, and counts as spend no more.",
}

router = page_router()


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One plan that needs approval; ``once`` is the token of its forms.

    ``why_now`` says which budgets it exceeds now, in every period, the worst first; if it exceeds none, what
    it leaves of each. It is empty if all of it was said when the plan was made.
    """

    approval: Approval
    title: str
    baselines: tuple[BaselineRow, ...]
    once: str
    asked_by: str
    why_now: tuple[str, ...]


def _row(approval: Approval) -> ApprovalRow:
    plan = approval.record.plan
    baselines = baseline_rows(plan) if plan is not None and plan.baselines else ()
    said = approval.record.approval_reason or ""
    now = tuple(map(str, overruns_or_all(approval.effects)))
    return ApprovalRow(
        approval,
        title_of(approval.record),
        baselines,
        new_once(),
        who_words(approval.record.requested_by, approval.requested_by_name),
        () if all(words in said for words in now) else now,
    )


@router.get("/approvals")
async def approvals_page(request: Request, caller: SpendVisitor, done: str = "") -> Response:
    """Plans that wait for approval, and past decisions."""
    product = product_of(request)
    waiting = await product.approvals.find_approvals(caller, {ApprovalState.WAITING}, SHOWN)
    decided = await product.approvals.find_approvals(caller, DECIDED, SHOWN)
    limit = product.settings.approval_limit_usd
    return show(
        request,
        "approvals.html",
        "Approvals",
        waiting=[_row(approval) for approval in waiting.items if approval.is_current],
        replaced=[_row(approval) for approval in waiting.items if not approval.is_current],
        decided=[_row(approval) for approval in decided.items],
        limit=None if limit is None else Decimal(str(limit)),
        notice=DONE.get(done, ""),
        proof=proof_of(request),
    )


@router.post("/approvals/{plan_id}/approve")
@router.post("/approvals/{plan_id}/reject")
async def decide_here(request: Request, caller: SpendVisitor, plan_id: str) -> Response:
    """Approves exactly the figures that were shown, or rejects, and returns to the list."""
    return await _decide(request, caller, plan_id, "/approvals")


@router.post("/plans/{plan_id}/approve")
@router.post("/plans/{plan_id}/reject")
async def decide_plan(request: Request, caller: PlanVisitor, plan_id: str) -> Response:
    """Approves exactly the figures that were shown, or rejects, and returns to the plan."""
    return await _decide(request, caller, plan_id, f"/plans/{plan_id}")


async def _decide(request: Request, caller: Caller, plan_id: str, back: str) -> Response:
    form, approvals = await read_form(request), product_of(request).approvals
    comment, approved = form.text("comment"), request.url.path.endswith("/approve")
    if not approved and not comment:
        problem = FieldProblem("/comment", "nothing", "the reason, for the team that asked")
        raise InputError("form", (problem,))

    async def act(named: Caller) -> str:
        await (approvals.approve if approved else approvals.reject)(named, plan_id, comment, _looked(form))
        return f"{back}?done={'approved' if approved else 'rejected'}"

    return await act_once(request, caller, form, act)


def _looked(form: SentForm) -> Looked:
    """The figures that were on the page when the form was sent."""
    sha256, cost = form.text("plan_sha256"), form.text("cost_now_usd")
    if not sha256:
        raise InputError("form", (FieldProblem("/plan_sha256", "nothing", "the plan that was looked at"),))
    try:
        return Looked(sha256, Decimal(cost) if cost else None)
    except InvalidOperation as error:
        raise InputError("form", (FieldProblem("/cost_now_usd", repr(cost), "money"),)) from error

"""What if: questions about a plan, fixes of it, and plans side by side."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from api.figures import plural
from api.http.dependencies import product_of
from api.pages.parts.forms import act_once, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import PlanVisitor, PlanWritingVisitor
from api.pages.plans.plan_pages import plans_shown
from api.pages.plans.plan_view import title_of
from api.pages.plans.what_if_view import cost_curve, points_of, questions_of
from api.plan_requests import ask_for_comparison, ask_for_plan, comparison_of, options_of
from api.schemas.base.document import Document
from api.schemas.workloads.what_if import WhatIfForm, change_of, patched, read_changes
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import FieldProblem, InputError
from broker.ports.planning import PlanRecord

MOST_PLANS = 20
OWN = "own"
"""The question whose changes the visitor writes."""

router = page_router()


@router.get("/plans/compare")
async def compare_page(
    request: Request, caller: PlanVisitor, plan: Annotated[list[str] | None, Query()] = None
) -> Response:
    """Plans side by side; the first is the base. With too few or too many, the list says what to do."""
    ids = list(dict.fromkeys(plan or ()))
    if not 2 <= len(ids) <= MOST_PLANS:
        notice = (
            f"A comparison takes 2 to {MOST_PLANS} plans, and {plural(len(ids), 'plan')} "
            f"{'was' if len(ids) == 1 else 'were'} ticked: tick them in the list, then compare them."
        )
        return await plans_shown(request, caller, ticked=ids, notice=notice, status=422)
    product = product_of(request)
    base, *others = [await product.planning.find_plan(caller, plan_id) for plan_id in ids]
    return _beside(request, base, others)


@router.get("/comparisons/{comparison_id}")
async def comparison_page(request: Request, caller: PlanVisitor, comparison_id: str) -> Response:
    """A plan beside its variants, and the curve of its cost where one field varies."""
    found = await product_of(request).planning.find_comparison(caller, comparison_id)
    return _beside(request, found.base, found.variants, comparison_id)


def _beside(
    request: Request, base: PlanRecord, others: tuple[PlanRecord, ...] | list[PlanRecord], id_: str = ""
) -> Response:
    found = comparison_of(product_of(request), base, others, id_ or None)
    rows = {row.plan_id: row for row in (found.base, *found.plans)}
    along = points_of(base, others, rows)
    return show(
        request,
        "comparison.html",
        "Comparison",
        heading=title_of(base),
        found=found,
        field=along[0] if along else "",
        charts=cost_curve(*along) if along else None,
    )


@router.post("/plans/{plan_id}/what-if")
async def ask_what_if(request: Request, caller: PlanWritingVisitor, plan_id: str) -> Response:
    """Plans the changes of a question, and goes to their comparison."""
    form = await read_form(request)
    product = product_of(request)
    record = await product.planning.find_plan(caller, plan_id)
    asked = _asked(record, form.text("question"), form.text("changes"))

    async def act(named: Caller) -> str:
        found = await ask_for_comparison(product, named, asked, options_of(product.settings))
        return f"/comparisons/{found.comparison_id}"

    return await act_once(request, caller, form, act, lambda stored: f"/plans/{stored[0]}")


def _asked(record: PlanRecord, question: str, written: str) -> WhatIfForm:
    """The question of the form: one that the page offers, or what the visitor wrote, a change a line."""
    if question == OWN:
        changes = [line for line in written.splitlines() if line.strip()]
        if not changes:
            problem = FieldProblem("/changes", "nothing", "a change a line, such as chat.traffic*=1.5")
            raise InputError("form", (problem,))
    else:
        offered = {one.key: one for one in questions_of(record)}
        if question not in offered:
            problem = FieldProblem("/question", repr(question), "one of the questions of the page")
            raise InputError("form", (problem,))
        changes = list(offered[question].changes)
    data = {"based_on": record.plan_id, "changes": [change_of(words) for words in changes]}
    return read_changes(Document("form", data))


@router.post("/plans/{plan_id}/fix")
async def apply_fix(request: Request, caller: PlanWritingVisitor, plan_id: str) -> Response:
    """Plans the document of the plan with one of its fixes."""
    form = await read_form(request)
    product = product_of(request)
    record = await product.planning.find_plan(caller, plan_id)
    workload, number = form.text("workload"), form.text("fix")
    left = record.plan.unplaced if record.plan is not None else ()
    fixes = next((row.fixes for row in left if row.workload == workload), ())
    if not number.isdecimal() or not 1 <= int(number) <= len(fixes):
        problem = FieldProblem("/fix", repr(number), f"the number of a fix of {workload}, 1 to {len(fixes)}")
        raise InputError("form", (problem,))
    text = json.dumps(patched(json.loads(record.document), fixes[int(number) - 1].patch))

    async def act(named: Caller) -> str:
        made = await ask_for_plan(product, named, text, options_of(product.settings), "workloads")
        return f"/plans/{made.plan_id}?done=asked"

    return await act_once(request, caller, form, act, lambda stored: f"/plans/{stored[0]}")

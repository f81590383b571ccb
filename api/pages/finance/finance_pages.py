"""Explanations of spend: why it changed, and what a unit of work costs."""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.finance import finance_view, spend_view
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import SpendVisitor
from api.pages.parts.table_links import Address
from api.pages.plans.plan_view import title_of
from api.routes.economics import month_of
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.window import Window
from broker.domain.spend.spend import CostView

SHOWN_LINES = 200

router = page_router()


@router.get("/spend/changes")
async def changes_page(
    request: Request,
    caller: SpendVisitor,
    before: str = "",
    after: str = "",
    view: CostView = CostView.AMORTIZED,
) -> Response:
    """Why one month costs more or less than another. By default this month is compared with the last."""
    now = product_of(request).clock.now()
    names = (before or _month(now, -1), after or _month(now, 0))
    months = [month_of(name) for name in names]
    if months[0] is None or months[1] is None:
        return await _plan_changes(request, caller, *names)
    changes = await product_of(request).changes.between_windows(caller, months[0], months[1], view=view)
    return show(
        request,
        "changes.html",
        "What changed",
        before=names[0],
        after=names[1],
        titles=names,
        views=[str(one) for one in CostView],
        view=str(view),
        plans=None,
        cards=finance_view.change_cards(changes, *names),
        charts=finance_view.bridge_charts(changes, *names),
        changes=changes,
        lines=changes.lines[:SHOWN_LINES],
    )


async def _plan_changes(request: Request, caller: Caller, before: str, after: str) -> Response:
    """Why one plan costs more or less than another: how much is due to prices, and how much to its
    choices."""
    product = product_of(request)
    if month_of(before) is not None or month_of(after) is not None:
        expected = "two months such as 2026-10 and 2026-11, or two plans"
        raise InputError("request", (FieldProblem("/after", repr(after), expected),))
    plans = await product.changes.between_plans(caller, before, after)
    records = [await product.planning.find_plan(caller, plan_id) for plan_id in (before, after)]
    return show(
        request,
        "changes.html",
        "What changed",
        before=before,
        after=after,
        titles=[title_of(record) for record in records],
        plans=plans,
        cards=finance_view.change_cards(plans.changes, "the old plan", "the new plan"),
        charts=finance_view.bridge_charts(plans.changes, "old plan", "new plan"),
        changes=plans.changes,
        lines=plans.changes.lines[:SHOWN_LINES],
    )


def _month(now: datetime, later: int) -> str:
    return f"{spend_view.month_start(now, later):%Y-%m}"


@router.get("/spend/units")
async def units_page(
    request: Request, caller: SpendVisitor, since: str | None = None, until: str | None = None
) -> Response:
    """What a run, a token and a GPU-hour cost, what splitting the workloads saves, and an estimate of the
    energy."""
    product = product_of(request)
    now = product.clock.now()
    window, problem = spend_view.wished_window(since, until, now)
    found = await product.economics.find(caller, window)
    savings = await product.economics.find_savings(caller)
    return show(
        request,
        "units.html",
        "Unit costs",
        window=Window(window.start, window.end),
        last_day=window.end - timedelta(days=1),
        problem=problem,
        presets=spend_view.presets(now, window, Address("/spend/units", {}), ("since", "until")),
        cards=finance_view.unit_cards(found.units),
        units=found.units,
        energy=found.energy,
        savings=savings,
    )

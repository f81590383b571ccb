"""Spend: projected and actual, by group and period, against budgets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.finance import budget_view, spend_groups, spend_view
from api.pages.parts.forms import act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import SpendVisitor
from api.pages.parts.tables import Address, wished_sorting
from api.pages.plans import plan_view
from broker.domain.basics.access import scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.spend.budgets import DEFAULT_THRESHOLDS, Budget, BudgetPeriod
from broker.domain.spend.spend import GROUPS, CostView, Interval
from broker.ports.planning import BusinessStatus
from broker.services.spend.intervals import SpendInterval
from broker.services.spend.spend import Projection

NARROWED_BY = ("team", "provider", "kind", "tier")
_AMOUNT = re.compile(r"(\d{1,15}|\d{1,3}(,\d{3}){1,4})(\.\d{1,2})?", re.ASCII)
"""US dollars as written here: a comma before three digits alone, whole cents."""
DRAFTS = frozenset({BusinessStatus.DRAFT, BusinessStatus.WAITING})
DONE: Mapping[str, str] = {"budget": "The budget is set; its thresholds are told by webhook."}

router = page_router()


@router.get("/spend")
async def spend_page(
    request: Request,
    caller: SpendVisitor,
    since: Annotated[str | None, Query(alias="from")] = None,
    until: Annotated[str | None, Query(alias="to")] = None,
    interval: Interval = Interval.DAY,
    group_by: str = "team",
    view: CostView = CostView.AMORTIZED,
    sort: str = "-total",
    done: str = "",
) -> Response:
    """Projected spend by group and period, as a chart and as tables of the same figures."""
    product = product_of(request)
    now = product.clock.now()
    group = group_by if group_by in GROUPS else "team"
    window, notice = spend_view.wished_window(since, until, now)
    wanted = {name: request.query_params.get(name, "") for name in NARROWED_BY}
    span = {"from": f"{window.start:%Y-%m-%d}", "to": f"{window.end:%Y-%m-%d}"}
    asked = {**span, "interval": interval.value, "group_by": group, "view": view.value}
    address = Address("/spend", {**asked, **wanted, "sort": sort})
    sorting = wished_sorting(sort, tuple(spend_groups.SORTS), address, "groups")
    sums = await _sums(request, caller, window, wanted, interval, group, view)
    usd = sums.by_key
    found = await _interval(request, caller, window, interval, wanted, view)
    may_be = spend_view.may_be(found, interval) if found is not None else {}
    budgets = await _budgets(request, caller)
    whose = scope_of(caller, wanted["team"] or None).team or ALL_TEAMS
    pace = None if _parts(wanted) else budget_view.pace_of(budgets["budgets"], whose, interval)
    table = spend_view.spend_table(usd, interval, group, may_be, pace, now)
    return show(
        request,
        "spend.html",
        "Spend",
        window=window,
        last_day=window.end - timedelta(seconds=1),
        reckoned_at=sums.as_of,
        closed_until=sums.closed_until,
        problem=notice,
        orphaned=await product.spend.find_orphaned(caller),
        notice=DONE.get(done, ""),
        presets=spend_view.presets(now, window, address),
        interval=interval.value,
        intervals=[one.value for one in Interval],
        group_by=group,
        view=view.value,
        views=[one.value for one in CostView],
        groups=GROUPS,
        choices=spend_groups.choices(wanted, product.adapters),
        team=wanted["team"],
        narrowed=any(wanted.values()),
        clear_url=address.url(**dict.fromkeys(wanted, "")),
        **_export_words(asked, span, wanted),
        cards=spend_view.spend_cards(usd, window, found.total if found is not None else None),
        has_interval=found is not None,
        total_interval=found.total if found is not None else None,
        table=table,
        drafts=() if table.rows else await _uncounted(request, caller, wanted["team"] or None),
        sorting=sorting,
        rows=spend_groups.group_rows(usd, group, sorting),
        as_of=await product.offers.find_as_of(),
        proof=proof_of(request),
        once=new_once(),
        pace=pace,
        **budgets,
    )


async def _uncounted(request: Request, caller: Caller, team: str | None) -> tuple[plan_view.PlanRow, ...]:
    """Drafts that nobody intends to buy yet. They do not count in spend, and only who may see plans is
    told."""
    if not caller.may(Scope.PLANS_READ):
        return ()
    planning = product_of(request).planning
    records = await planning.find_current_plans(caller, team=team)
    statuses = await planning.find_business_statuses(records)
    return tuple(
        plan_view.plan_row(record)
        for record in records
        if statuses.get(record.plan_id) in DRAFTS and not record.is_intended
    )


def _export_words(
    asked: Mapping[str, str], span: Mapping[str, str], wanted: Mapping[str, str]
) -> dict[str, Any]:
    """Parameters of the export links: this view, its expected rows, and its FOCUS rows, which have no
    kind."""
    narrowed = {name: word for name, word in wanted.items() if word}
    told = {name: word for name, word in narrowed.items() if name != "kind"}
    return {
        "asked": urlencode({**asked, **narrowed}),
        "rows_asked": urlencode({**span, **narrowed}),
        "focus_asked": urlencode({**span, **told}),
        "focus_of_all_kinds": "kind" if "kind" in narrowed else "",
    }


async def _sums(
    request: Request,
    caller: Caller,
    window: Window,
    wanted: Mapping[str, str],
    interval: Interval,
    group: str,
    view: CostView,
) -> Projection:
    """Spend by period and group, of charges that match the filters."""
    team, narrowed = wanted["team"] or None, _parts(wanted)
    spend = product_of(request).spend
    return await spend.projection(caller, window, interval, group, team, view, narrowed=narrowed)


def _parts(wanted: Mapping[str, str]) -> dict[str, str]:
    """The filters without the team."""
    return {name: word for name, word in wanted.items() if word and name != "team"}


async def _interval(
    request: Request,
    caller: Caller,
    window: Window,
    interval: Interval,
    wanted: Mapping[str, str],
    view: CostView,
) -> SpendInterval | None:
    """The interval of the sums; None where the view shows a part that is not simulated."""
    if _parts(wanted) or view is not CostView.AMORTIZED:
        return None
    return await product_of(request).intervals.find(caller, window, interval, wanted["team"] or None)


async def _budgets(request: Request, caller: Caller) -> dict[str, Any]:
    """Every budget that the visitor may see, and the chart of the one that ends soonest."""
    product = product_of(request)
    rows = budget_view.budget_rows(await product.budgets.find_statuses(caller))
    if not rows:
        return {"budgets": (), "periods": _PERIODS}
    tightest = rows[0].standing
    team = None if tightest.budget.team == ALL_TEAMS else tightest.budget.team
    found = await product.spend.projection(caller, tightest.window, Interval.DAY, "team", team)
    days = budget_view.running_days(found.by_key, tightest.window)
    running = await product.intervals.find(caller, tightest.window, Interval.DAY, team)
    charts = budget_view.running_charts(days, tightest, product.clock.now(), running)
    return {"budgets": rows, "periods": _PERIODS, "running": days, "running_charts": charts}


_PERIODS = (BudgetPeriod.MONTH.value, BudgetPeriod.QUARTER.value)


@router.post("/spend/budgets")
async def set_budget(request: Request, caller: SpendVisitor) -> Response:
    """Sets the budget of a team and period, and replaces the earlier one."""
    form = await read_form(request)
    try:
        if _AMOUNT.fullmatch(form.text("limit_usd").strip()) is None:
            raise ValueError("no amount")
        limit_usd = Decimal(form.text("limit_usd").replace(",", ""))
        period = BudgetPeriod(form.text("period"))
    except ValueError as error:
        found = f"{form.text('limit_usd')!r} a {form.text('period')!r}"
        problem = FieldProblem("/limit_usd", found, "USD, such as 250000 or 1,250.50, a month or a quarter")
        raise InputError("form", (problem,)) from error
    product = product_of(request)
    budget = Budget(
        team=form.text("team") or caller.team,
        period=period,
        limit_usd=limit_usd,
        thresholds=DEFAULT_THRESHOLDS,
        horizon=None,
        set_by=caller.key_id,
        set_at=product.clock.now(),
    )

    async def act(named: Caller) -> str:
        await product.budgets.put(named, budget)
        return "/spend?done=budget"

    return await act_once(request, caller, form, act)

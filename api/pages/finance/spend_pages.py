"""Spend: projected and actual, by group and period, against budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.finance import budget_view, spend_groups, spend_view
from api.pages.finance.budget_view import BudgetEntry
from api.pages.parts.colours import looks_of
from api.pages.parts.forms import act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import SpendVisitor
from api.pages.parts.table_links import Address, wished_sorting
from api.pages.plans import plan_view
from api.routes.economics import read_month
from broker.domain.basics.access import scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import USD_FORMS
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.spend.budgets import BudgetPeriod
from broker.domain.spend.spend import GROUPS, CostView, Interval
from broker.ports.planning import BusinessStatus
from broker.services.spend.intervals import SpendInterval
from broker.services.spend.spend import Projection

if TYPE_CHECKING:
    from api.bootstrap import Product

NARROWED_BY = ("team", "workload", "provider", "kind", "tier")
DRAFTS = frozenset({BusinessStatus.DRAFT, BusinessStatus.WAITING})
DONE: Mapping[str, str] = {
    "budget": "The budget is set; its thresholds are told by webhook.",
    "removed": "The budget is removed.",
    "closed": "The month is closed: its figures do not change any more.",
}

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
    budget: str = "",
    budget_month: str = "",
    unconfirmed: str = "",
) -> Response:
    """Projected spend by group and period, as a chart and as tables of the same figures.

    ``budget`` names the budget with which the form is filled (``research/month``). ``budget_month`` is the
    month whose budgets are shown (``2026-10``); empty: those of now.
    """
    span = _Span(since, until, interval, group_by, view, sort, budget_month)
    return await _shown(request, caller, span, done=done, budget=budget, unconfirmed=unconfirmed)


@dataclass(frozen=True, slots=True)
class _Span:
    """The time that is wished, and how its sums are shown."""

    since: str | None = None
    until: str | None = None
    interval: Interval = Interval.DAY
    group_by: str = "team"
    view: CostView = CostView.AMORTIZED
    sort: str = "-total"
    budget_month: str = ""


async def _shown(
    request: Request,
    caller: Caller,
    asked_for: _Span,
    *,
    done: str = "",
    budget: str = "",
    unconfirmed: str = "",
    entry: BudgetEntry | None = None,
) -> Response:
    """The page. ``entry`` is a budget that was refused, with what is wrong at each field. ``unconfirmed`` are
    the sellers that a month was closed without."""
    product = product_of(request)
    now = product.clock.now()
    interval, view = asked_for.interval, asked_for.view
    group = asked_for.group_by if asked_for.group_by in GROUPS else "team"
    window, problem = spend_view.wished_window(asked_for.since, asked_for.until, now)
    teams = await product.names.find_teams(caller)
    wanted = {name: request.query_params.get(name, "") for name in NARROWED_BY}
    refused = await _refused_names(product, caller, wanted)
    wanted |= dict.fromkeys(refused, "")
    problem = " ".join(filter(None, (problem, *refused.values())))
    span = {"from": f"{window.start:%Y-%m-%d}", "to": f"{window.end:%Y-%m-%d}"}
    asked = {**span, "interval": interval.value, "group_by": group, "view": view.value}
    address = Address("/spend", {**asked, **wanted, "sort": asked_for.sort})
    sorting = wished_sorting(asked_for.sort, tuple(spend_groups.SORTS), address, "groups")
    sums = await _sums(request, caller, window, wanted, interval, group, view)
    usd = sums.by_key
    found = await _interval(request, caller, window, interval, wanted, view)
    may_be = spend_view.may_be(found, interval) if found is not None else {}
    budgets = await _budgets(request, caller, asked_for.budget_month)
    whose = scope_of(caller, wanted["team"] or None).team or ALL_TEAMS
    pace = None if _parts(wanted) else budget_view.pace_of(budgets["budgets"], whose, interval)
    own = "" if caller.sees_every_team else caller.team
    looks = looks_of(teams if group == "team" else sorted({key.group for key in usd}))
    table = spend_view.spend_table(usd, interval, group, may_be, pace, now, looks)
    return show(
        request,
        "spend.html",
        "Spend",
        422 if refused or entry is not None else 200,
        window=window,
        last_day=window.end - timedelta(seconds=1),
        reckoned_at=sums.as_of,
        closed_until=sums.closed_until,
        closable=_closable(caller, sums.closed_until, now),
        problem=problem,
        orphaned=await product.spend.find_orphaned(caller),
        notice=DONE.get(done, ""),
        unconfirmed=[name for name in unconfirmed.split(",") if name in product.adapters],
        presets=spend_view.presets(now, window, address),
        interval=interval.value,
        intervals=[one.value for one in Interval],
        group_by=group,
        view=view.value,
        views=[one.value for one in CostView],
        groups=GROUPS,
        choices=_choices(caller, wanted, teams, await product.names.find_workloads(caller), product.adapters),
        narrowed=any(wanted.values()),
        clear_url=address.url(**dict.fromkeys(wanted, "")),
        **_export_words(asked, span, wanted),
        cards=spend_view.spend_cards(usd, window, found.total if found is not None else None),
        has_interval=found is not None,
        total_interval=found.total if found is not None else None,
        table=table,
        drafts=() if table.rows else await _uncounted(request, caller, wanted["team"] or None),
        sorting=sorting,
        rows=spend_groups.group_rows(usd, group, sorting, looks),
        as_of=await product.offers.find_as_of(),
        proof=proof_of(request),
        once=new_once(),
        pace=pace,
        entry=entry or budget_view.entry_of(budgets["budgets"], budget, own),
        budget_teams=_budget_teams(caller, teams),
        accepted=USD_FORMS,
        **budgets,
    )


def _closable(caller: Caller, closed_until: date | None, now: datetime) -> str:
    """The next month that the visitor may close; empty if there is none."""
    last = spend_view.month_start(now, -1).date()
    if not (caller.sees_every_team and caller.may(Scope.SPEND_APPROVE)):
        return ""
    month = closed_until or last
    return f"{month:%Y-%m}" if month <= last else ""


async def _refused_names(product: Product, caller: Caller, wanted: Mapping[str, str]) -> dict[str, str]:
    """Filters whose names do not exist, with what is told about each."""
    try:
        await product.names.require_known(caller, team=wanted["team"], workload=wanted["workload"])
    except InputError as error:
        return {
            one.pointer.strip("/"): (
                f"There is no {one.pointer.strip('/')} {one.found}: expected {one.expected}. "
                "The figures below are without this filter."
            )
            for one in error.problems
        }
    return {}


def _choices(
    caller: Caller,
    wanted: Mapping[str, str],
    teams: Iterable[str],
    workloads: Iterable[str],
    providers: Iterable[str],
) -> tuple[spend_groups.Choice, ...]:
    """The filters of the view; a key of one team has no choice of teams."""
    names = {"team": sorted(teams)} if caller.sees_every_team else {}
    named = tuple(
        spend_groups.Choice(name, name.capitalize(), wanted[name], tuple((word, word) for word in words))
        for name, words in {**names, "workload": workloads}.items()
    )
    return (*named, *spend_groups.choices(wanted, providers))


def _budget_teams(caller: Caller, teams: Iterable[str]) -> tuple[str, ...]:
    """The teams for which the visitor may set a budget, all teams together last."""
    return (*sorted(teams), ALL_TEAMS) if caller.sees_every_team else (caller.team,)


async def _uncounted(request: Request, caller: Caller, team: str | None) -> tuple[plan_view.PlanRow, ...]:
    """Drafts that nobody intends to buy yet. They do not count in spend, and only who may see plans is
    told."""
    if not caller.may(Scope.PLANS_READ):
        return ()
    planning = product_of(request).planning
    records = await planning.find_current_plans(caller, team=team)
    statuses = await planning.find_business_statuses(records)
    return tuple(
        plan_view.plan_row(record, product_of(request).clock.now())
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
    """The interval of the sums; None if it has no width, or the view shows a part that is not simulated."""
    if _parts(wanted) or view is not CostView.AMORTIZED:
        return None
    found = await product_of(request).intervals.find(caller, window, interval, wanted["team"] or None)
    return found if spend_view.is_wide(found.total) else None


async def _budgets(request: Request, caller: Caller, month: str) -> dict[str, Any]:
    """Every budget that the visitor may see, now or in ``month``, and the chart of the one that ends
    soonest."""
    product = product_of(request)
    asked = read_month(month, "/budget_month").start.date() if month else None
    rows = budget_view.budget_rows(await product.budgets.find_statuses(caller, month=asked))
    known = {"budget_month": month, "periods": budget_view.PERIODS}
    if not rows:
        return {"budgets": (), **known}
    tightest = rows[0].standing
    team = None if tightest.budget.team == ALL_TEAMS else tightest.budget.team
    found = await product.spend.projection(caller, tightest.window, Interval.DAY, "team", team)
    days = budget_view.running_days(found.by_key, tightest.window)
    running = await product.intervals.find(caller, tightest.window, Interval.DAY, team)
    charts = budget_view.running_charts(days, tightest, product.clock.now(), running)
    return {"budgets": rows, "running": days, "running_charts": charts, **known}


@router.post("/spend/close")
async def close_month(request: Request, caller: SpendVisitor) -> Response:
    """Closes a month that is over, for all teams."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        month = read_month(form.text("month"), "/month").start.date()
        found = await product_of(request).spend.close(named, month, form.text("comment"))
        sellers = ",".join(one.provider for one in found.unconfirmed)
        return f"/spend?{urlencode({'done': 'closed', 'unconfirmed': sellers})}"

    return await act_once(request, caller, form, act)


@router.post("/spend/budgets")
async def set_budget(request: Request, caller: SpendVisitor) -> Response:
    """Sets the budget of a team and period, and replaces the earlier one. Errors stand at their fields."""
    form = await read_form(request)
    product = product_of(request)
    entry = BudgetEntry(
        form.text("team"),
        form.text("period"),
        form.text("limit_usd"),
        form.text("thresholds"),
        form.text("confidence"),
    )
    teams = _budget_teams(caller, await product.names.find_teams(caller))
    if not caller.sees_every_team:
        scope_of(caller).require(entry.team)

    async def act(named: Caller) -> str:
        budget = entry.read(teams, caller.key_id, product.clock.now())
        await product.budgets.put(named, budget)
        return "/spend?done=budget"

    try:
        return await act_once(request, caller, form, act)
    except InputError as error:
        return await _shown(request, caller, _Span(), entry=entry.refused(error))


@router.post("/spend/budgets/remove")
async def remove_budget(request: Request, caller: SpendVisitor) -> Response:
    """Removes the budget of a team and period."""
    form = await read_form(request)
    try:
        period = BudgetPeriod(form.text("period"))
    except ValueError as error:
        problem = FieldProblem("/period", repr(form.text("period")), ", ".join(BudgetPeriod))
        raise InputError("form", (problem,)) from error

    async def act(named: Caller) -> str:
        await product_of(request).budgets.remove(named, form.text("team"), period)
        return "/spend?done=removed"

    return await act_once(request, caller, form, act)

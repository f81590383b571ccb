"""The pages' routes: overview, plans, spend, market, reservations. Nothing here changes capacity or money."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from api.dependencies import product_of
from api.pages import spend_view, views
from api.pages.rendering import PageRoute, show
from api.pages.session import AnyVisitor, PlanVisitor, SpendVisitor
from broker.domain.account import Scope
from broker.domain.spend import GROUPS, Interval

SHOWN_OFFERS = 200
SHOWN_LOOKS = 12
COUNTED_RESERVATIONS = 200

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, route_class=PageRoute)


@router.get("/")
async def overview(request: Request, caller: AnyVisitor) -> Response:
    """What is known, planned and held now."""
    product = product_of(request)
    feeds = await product.offers.find_feeds()
    as_of = await product.offers.find_as_of()
    if not caller.may(Scope.PLANS_READ):
        cards = (views.market_card(feeds),)
        return show(request, "overview.html", "Overview", cards=cards, as_of=as_of)
    plans = await product.planning.find_current_plans(caller)
    held = await product.reservations.find_reservations(caller, COUNTED_RESERVATIONS)
    looks = await product.reoptimize.find_reoptimizations(caller, SHOWN_LOOKS)
    return show(
        request,
        "overview.html",
        "Overview",
        cards=views.overview_cards(feeds, plans, held.items),
        plans=[views.plan_row(record) for record in plans],
        looks=looks.items,
        as_of=as_of,
    )


@router.get("/plans")
async def plans_page(request: Request, caller: PlanVisitor, cursor: str | None = None) -> Response:
    """Plans, newest first."""
    page = await product_of(request).planning.find_plans(caller, 50, cursor)
    rows = [views.plan_row(record) for record in page.items]
    return show(request, "plans.html", "Plans", plans=rows, next_cursor=page.next_cursor)


@router.get("/plans/{plan_id}")
async def plan_page(request: Request, caller: PlanVisitor, plan_id: str) -> Response:
    """One plan over time, and why."""
    record = await product_of(request).planning.find_plan(caller, plan_id)
    plan = record.plan
    if plan is None:
        return show(request, "plan.html", f"Plan {plan_id}", record=record, plan=None, status=record.state)
    return show(
        request,
        "plan.html",
        f"Plan {plan_id}",
        record=record,
        plan=plan,
        status=plan.status,
        cards=views.plan_cards(plan),
        charts=views.plan_charts(plan),
        kinds=views.kinds_of(plan),
        baselines=views.baseline_rows(plan),
        as_of=plan.as_of,
    )


@router.get("/spend")
async def spend_page(
    request: Request,
    caller: SpendVisitor,
    since: Annotated[str | None, Query(alias="from")] = None,
    until: Annotated[str | None, Query(alias="to")] = None,
    interval: Interval = Interval.DAY,
    group_by: str = "team",
) -> Response:
    """Projected spend by group and period: chart and table of the same figures."""
    product = product_of(request)
    now = product.clock.now()
    group = group_by if group_by in GROUPS else "team"
    window, notice = spend_view.wished_window(since, until, now)
    charges = await product.spend.charges(caller, window)
    table = spend_view.spend_table(charges, interval, group)
    query = {
        "from": f"{window.start:%Y-%m-%d}",
        "to": f"{window.end:%Y-%m-%d}",
        "interval": interval.value,
        "group_by": group,
    }
    return show(
        request,
        "spend.html",
        "Spend",
        window=window,
        notice=notice,
        presets=spend_view.presets(now, interval, group),
        interval=interval.value,
        intervals=[one.value for one in Interval],
        group_by=group,
        groups=GROUPS,
        csv_url=f"/v1/spend/projection.csv?{urlencode(query)}",
        cards=spend_view.spend_cards(charges, table, window),
        table=table,
        as_of=await product.offers.find_as_of(),
    )


@router.get("/market")
async def market_page(
    request: Request,
    caller: AnyVisitor,
    gpu: str = "",
    provider: str = "",
    region: str = "",
    tier: str = "",
) -> Response:
    """Feeds and the cheapest offers."""
    product = product_of(request)
    offers = await product.offers.find_offers()
    wanted = {"gpu": gpu, "provider": provider, "region": region, "tier": tier}
    found = views.matching_offers(offers, wanted)
    feeds = await product.offers.find_feeds()
    return show(
        request,
        "market.html",
        "Market",
        feeds=feeds,
        rejected=[await product.offers.find_rejected(feed.provider) for feed in feeds if feed.rejected],
        quarantine=await product.offers.find_quarantine(),
        offers=found[:SHOWN_OFFERS],
        count=len(found),
        filters=views.market_filters(offers, wanted),
        as_of=await product.offers.find_as_of(),
    )


@router.get("/reservations")
async def reservations_page(request: Request, caller: PlanVisitor, cursor: str | None = None) -> Response:
    """What is held, will be, and was."""
    page = await product_of(request).reservations.find_reservations(caller, 100, cursor)
    return show(
        request,
        "reservations.html",
        "Reservations",
        reservations=page.items,
        next_cursor=page.next_cursor,
    )

"""The pages' routes: sign in with an API key, then read. Nothing here changes capacity or money."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates

from api.dependencies import SESSION_COOKIE, product_of
from api.pages import views
from broker.domain.access import require_scope
from broker.domain.account import Caller, Scope
from broker.domain.errors import NotAuthenticated, NotFound
from broker.domain.spend import GROUPS, Interval, sum_charges
from broker.domain.window import Window
from broker.services.offers import OfferFilter

HERE = Path(__file__).parent
STATIC = HERE / "static"
SHOWN_OFFERS = 200
SESSION_S = 12 * 3600

templates = Jinja2Templates(HERE / "templates")
templates.env.filters.update(usd=views.usd, instant=views.instant, share=views.share, expected=views.expected)
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


async def visitor_of(request: Request) -> Caller | None:
    """Who looks, by the session cookie; None sends them to the sign-in page."""
    try:
        return await product_of(request).accounts.verify(request.cookies.get(SESSION_COOKIE))
    except NotAuthenticated:
        return None


Visitor = Annotated[Caller | None, Depends(visitor_of)]


def _show(request: Request, name: str, title: str, caller: Caller | None, **context: Any) -> Response:
    page = {"title": title, "caller": caller, "here": request.url.path, **context}
    return templates.TemplateResponse(request, name, page, status_code=context.get("status_code", 200))


def _to_sign_in(request: Request) -> Response:
    return RedirectResponse(f"/signin?{urlencode({'next': request.url.path})}", 303)


def _local(path: str) -> str:
    """``path`` when it stays on this host, else the front page."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


@router.get("/signin")
async def sign_in_page(request: Request, next_: Annotated[str, Query(alias="next")] = "/") -> Response:
    """Asks for a key."""
    return _show(request, "signin.html", "Sign in", None, next=_local(next_))


@router.post("/signin")
async def sign_in(
    request: Request, key: Annotated[str, Form()], next_: Annotated[str, Form(alias="next")] = "/"
) -> Response:
    """Keeps the key in a cookie that no script and no other site can use."""
    try:
        await product_of(request).accounts.verify(key.strip())
    except NotAuthenticated as error:
        return _show(
            request, "signin.html", "Sign in", None, next=_local(next_), error=str(error), status_code=401
        )
    response = RedirectResponse(_local(next_), 303)
    secure = request.url.scheme == "https"
    response.set_cookie(
        SESSION_COOKIE, key.strip(), SESSION_S, httponly=True, samesite="strict", secure=secure
    )
    return response


@router.post("/signout")
async def sign_out() -> Response:
    """Forgets the key."""
    response = RedirectResponse("/signin", 303)
    response.delete_cookie(SESSION_COOKIE)
    return response


@router.get("/")
async def overview(request: Request, caller: Visitor) -> Response:
    """What is known, planned and held now."""
    if caller is None:
        return _to_sign_in(request)
    product = product_of(request)
    feeds = await product.offers.find_feeds()
    plans = await product.planning.find_current_plans(caller)
    held = await product.reservations.find_reservations(caller, 200)
    looks = await product.reoptimize.find_reoptimizations(caller, 20)
    return _show(
        request,
        "overview.html",
        "Overview",
        caller,
        cards=views.overview_cards(
            sum(feed.offers for feed in feeds), feeds, plans, sum(row.is_open for row in held.items)
        ),
        plans=[views.plan_row(record) for record in plans],
        reoptimizations=looks.items,
        as_of=await product.offers.find_as_of(),
    )


@router.get("/plans")
async def plans_page(request: Request, caller: Visitor, cursor: str | None = None) -> Response:
    """Plans, newest first."""
    if caller is None:
        return _to_sign_in(request)
    page = await product_of(request).planning.find_plans(caller, 50, cursor)
    rows = [views.plan_row(record) for record in page.items]
    return _show(request, "plans.html", "Plans", caller, plans=rows, next_cursor=page.next_cursor)


@router.get("/plans/{plan_id}")
async def plan_page(request: Request, caller: Visitor, plan_id: str) -> Response:
    """One plan over time, and why."""
    if caller is None:
        return _to_sign_in(request)
    try:
        record = await product_of(request).planning.find_plan(caller, plan_id)
    except NotFound:
        return RedirectResponse("/plans", 303)
    plan = record.plan
    return _show(
        request,
        "plan.html",
        f"Plan {plan_id}",
        caller,
        record=record,
        plan=plan,
        status=plan.status if plan else record.state,
        cards=views.plan_cards(plan) if plan else (),
        chart=views.plan_chart(plan) if plan else "",
        baselines=views.baseline_rows(plan) if plan else (),
        as_of=plan.as_of if plan else None,
    )


def _month_start(instant: datetime) -> datetime:
    return instant.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _spend_window(since: str | None, until: str | None, now: datetime) -> Window:
    """The dates of the form; by default this month and the two after it."""
    start = _month_start(now)
    end = _month_start(start + timedelta(days=95))
    try:
        wished = datetime.fromisoformat(since).replace(tzinfo=now.tzinfo) if since else start
        limit = datetime.fromisoformat(until).replace(tzinfo=now.tzinfo) if until else end
        return Window(wished, limit)
    except ValueError:
        return Window(start, end)


@router.get("/spend")
async def spend_page(
    request: Request,
    caller: Visitor,
    since: Annotated[str | None, Query(alias="from")] = None,
    until: Annotated[str | None, Query(alias="to")] = None,
    interval: Interval = Interval.DAY,
    group_by: str = "team",
) -> Response:
    """Projected spend by group and period: chart and table of the same figures."""
    if caller is None:
        return _to_sign_in(request)
    require_scope(caller, Scope.SPEND_READ)
    product = product_of(request)
    group = group_by if group_by in GROUPS else "team"
    window = _spend_window(since, until, product.clock.now())
    charges = await product.spend.charges(caller, window)
    table = views.spend_table(sum_charges(charges, interval, group), interval)
    query = {
        "from": window.start.isoformat(),
        "to": window.end.isoformat(),
        "interval": interval.value,
        "group_by": group,
    }
    return _show(
        request,
        "spend.html",
        "Spend",
        caller,
        window=window,
        interval=interval.value,
        group_by=group,
        groups=GROUPS,
        query=urlencode(query),
        cards=views.spend_cards(table, window),
        chart=table.chart,
        names=table.names,
        rows=table.rows,
        sums=table.sums,
        total=table.total,
        as_of=await product.offers.find_as_of(),
    )


@router.get("/market")
async def market_page(
    request: Request,
    caller: Visitor,
    gpu: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    tier: str | None = None,
) -> Response:
    """Feeds and the cheapest offers."""
    if caller is None:
        return _to_sign_in(request)
    product = product_of(request)
    filters = {
        "gpu": gpu or None,
        "provider": provider or None,
        "region": region or None,
        "tier": tier or None,
    }
    offers = await product.offers.find_offers(OfferFilter(**filters))
    return _show(
        request,
        "market.html",
        "Market",
        caller,
        feeds=await product.offers.find_feeds(),
        offers=offers[:SHOWN_OFFERS],
        count=len(offers),
        filters=filters,
        as_of=await product.offers.find_as_of(),
    )


@router.get("/reservations")
async def reservations_page(request: Request, caller: Visitor, cursor: str | None = None) -> Response:
    """What is held, will be, and was."""
    if caller is None:
        return _to_sign_in(request)
    page = await product_of(request).reservations.find_reservations(caller, 100, cursor)
    return _show(
        request,
        "reservations.html",
        "Reservations",
        caller,
        reservations=page.items,
        next_cursor=page.next_cursor,
    )

"""How a page is shown: templates with their words, and errors as pages instead of problem documents."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException

from api.energy_words import carbon_words, energy_words
from api.figures import plural
from api.held_words import held_words
from api.http import errors
from api.http.dependencies import SAFE_METHODS, product_of
from api.money_words import market_words, mode_words, order_words
from api.pages import TEMPLATES
from api.pages.parts import words
from api.plan_answer import costs_the_same
from api.plan_words import (
    chance_words,
    doing,
    folded,
    objective_words,
    quality_words,
    saved_usd,
    sentences_of,
    share_words,
    strategy,
    team_words,
    who_words,
)
from api.promise_words import at_start_words, hold_now_words
from api.release_words import estimate_words
from api.reserved_fleets import start_words
from api.schemas.base.times import find_time
from api.sections import tone
from broker.domain.basics.access import scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import BrokerError, InputError, NotAuthenticated, NotFound
from broker.domain.basics.money import price_figure
from broker.domain.market.conversions import conversions
from broker.unseen import shown

SECTIONS: tuple[tuple[str, str, Scope | None], ...] = (
    ("/", "Overview", None),
    ("/plans", "Plans", Scope.PLANS_READ),
    ("/approvals", "Approvals", Scope.SPEND_READ),
    ("/reservations", "Reservations", Scope.PLANS_READ),
    ("/proposals", "Proposals", Scope.PLANS_READ),
    ("/spend", "Spend", Scope.SPEND_READ),
    ("/market", "Market", None),
    ("/admin", "Administration", Scope.PLANS_READ),
)
"""Path, name, and the scope that a visitor needs."""
HELP = ("/docs", "Help")
"""It asks for no key."""


def _finalized(value: Any) -> Any:
    """What a template writes: old rows may hold characters that nobody sees."""
    return shown(value) if isinstance(value, str) else value


templates = Jinja2Templates(TEMPLATES)
templates.env.finalize = _finalized
templates.env.filters.update(
    usd=words.usd,
    signed_usd=words.signed_usd,
    instant=words.instant,
    instant_of_text=lambda text: words.instant(find_time(text)),
    moment=words.moment,
    price=words.price,
    price_figure=price_figure,
    doing=doing,
    micro_price=words.micro_price,
    share=words.share,
    figures=words.figures,
    place=words.place,
    tone=tone,
    words=words.words,
    seller=words.seller,
    sellers_named=words.sellers_named,
    linked=words.linked,
    offer_words=words.offer_words,
    rate_words=lambda offer: "; ".join(conversions((offer,), offer.observed_at.date())),
    at_start_words=lambda at: at_start_words(at, words.moment),
    hold_now_words=hold_now_words,
    release_words=lambda found: estimate_words(found, words.seller),
    hours=words.hours,
    counted=plural,
    strategy=strategy,
    objective_words=objective_words,
    chance_words=chance_words,
    share_words=share_words,
    code=words.with_code,
    sentences=sentences_of,
    folded=folded,
    held_words=held_words,
    saved=saved_usd,
    quality=quality_words,
    step_words=words.step_words,
    start_words=start_words,
    team_words=team_words,
    carbon_words=carbon_words,
    energy_words=energy_words,
    who=lambda entry: who_words(entry.actor, entry.actor_name),
)
templates.env.tests["costs_the_same"] = costs_the_same


def show(request: Request, template: str, title: str, status_code: int = 200, **context: Any) -> Response:
    """A page with its frame: sections that the visitor may see, the current one marked."""
    caller: Caller | None = getattr(request.state, "visitor", None)
    page = {
        "title": title,
        "caller": caller,
        "may": {scope.name.lower(): caller is not None and caller.may(scope) for scope in Scope},
        "sections": _sections(caller),
        "whose": None if caller is None else whose_data(caller, request.query_params.get("team")),
        "section": "/" + request.url.path.split("/")[1],
        "provider": product_of(request).settings.oidc_name if product_of(request).people.is_offered else None,
        "modes": product_of(request).modes,
        "orders_barred": product_of(request).orders.rules.barred,
        "market_words": market_words(product_of(request).modes, words.seller),
        "mode_words": mode_words(product_of(request).modes, words.seller),
        "order_words": partial(order_words, product_of(request).modes, name=words.seller),
        **context,
    }
    return templates.TemplateResponse(request, template, page, status_code=status_code)


def whose_data(caller: Caller, wanted: str | None) -> str:
    """Whose plans, reservations and spend a page shows to ``caller``, who may wish for one team's."""
    scope = scope_of(caller, (wanted or None) if caller.sees_every_team else None)
    if scope.team is None:
        return "All teams"
    return f"Team: {scope.team}" if caller.sees_every_team else f"Team: {scope.team} only"


def _sections(caller: Caller | None) -> list[tuple[str, str]]:
    if caller is None:
        return [HELP]
    shown = [(path, name) for path, name, scope in SECTIONS if scope is None or caller.may(scope)]
    return [*shown, HELP]


class PageRoute(APIRoute):
    """A route whose visitor is sent to sign in when unknown, and sees errors as a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with that boundary around it."""
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(request)
            except NotAuthenticated:
                return to_sign_in(request)
            except RequestValidationError as error:
                told = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())
                return show_error(request, InputError("request", ()), told)
            except BrokerError as error:
                return show_error(request, error, str(error))

        return shown


def page_router() -> APIRouter:
    """A router of pages."""
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse, route_class=PageRoute)


def to_sign_in(request: Request) -> Response:
    """To the sign-in page, and from there back to where the visitor wanted to go.

    A part of a page that a script asks for has the whole page go there.
    """
    wanted = _page_of(request) if request.method not in SAFE_METHODS else _address(request)
    target = f"/signin?{urlencode({'next': wanted})}"
    if request.headers.get("HX-Request"):
        return Response(status_code=204, headers={"HX-Redirect": target})
    return RedirectResponse(target, 303)


def _address(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _page_of(request: Request) -> str:
    """The page that an action belongs to: its address is one step further."""
    return request.url.path.rpartition("/")[0] or "/"


async def on_http_exception(request: Request, error: Exception) -> Response:
    """An address that no page has, told a browser as a page; to the API's callers a problem document."""
    assert isinstance(error, HTTPException)
    if error.status_code != 404 or request.method not in SAFE_METHODS or not _is_for_a_browser(request):
        return await errors.on_http_exception(request, error)
    return show_error(request, NotFound("page", request.url.path), "No page has this address.")


def tell(request: Request, kind: errors.Kind, detail: str) -> Response:
    """What was refused or went wrong before any page or call had it: a browser is told in a page."""
    if not _is_for_a_browser(request):
        return errors.problem(request, kind, detail)
    return _error_page(request, kind, f"{detail[:1].upper()}{detail[1:]}.")


def _is_for_a_browser(request: Request) -> bool:
    accepts = request.headers.get("Accept", "")
    return "text/html" in accepts and not request.url.path.startswith("/v1/")


def show_error(request: Request, error: BrokerError, told: str) -> Response:
    """An error as a page, with the status that the API gives it."""
    return _error_page(request, errors.kind_of(error), told)


def _error_page(request: Request, kind: errors.Kind, told: str) -> Response:
    return show(
        request,
        "error.html",
        kind.title,
        kind.status,
        detail=told,
        back=_page_of(request),
        here=request.url.path,
        about=f"{errors.TYPE_BASE}{kind.code}",
        trace_id=getattr(request.state, "trace_id", None),
    )

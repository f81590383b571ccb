"""How a page is shown: templates with their words, and errors as pages instead of problem documents."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from fastapi.templating import Jinja2Templates

from api.dependencies import product_of
from api.errors import kind_of
from api.pages import TEMPLATES, views
from broker.domain.account import Caller, Scope
from broker.domain.errors import BrokerError, InputError, NotAuthenticated
from providers.market_clock import MarketClock

SECTIONS: tuple[tuple[str, str, Scope | None], ...] = (
    ("/", "Overview", None),
    ("/plans", "Plans", Scope.PLANS_READ),
    ("/spend", "Spend", Scope.SPEND_READ),
    ("/market", "Market", None),
    ("/reservations", "Reservations", Scope.PLANS_READ),
)
"""Path, name, and the scope that a visitor needs."""

templates = Jinja2Templates(TEMPLATES)
templates.env.filters.update(
    usd=views.usd,
    instant=views.instant,
    share=views.share,
    figures=views.figures,
    place=views.place,
    tone=views.tone,
    words=views.words,
)


def show(request: Request, template: str, title: str, status_code: int = 200, **context: Any) -> Response:
    """A page with its frame: sections that the visitor may see, the current one marked."""
    caller: Caller | None = getattr(request.state, "visitor", None)
    page = {
        "title": title,
        "caller": caller,
        "sections": _sections(caller),
        "section": "/" + request.url.path.split("/")[1],
        "is_sandbox": isinstance(product_of(request).clock, MarketClock),
        **context,
    }
    return templates.TemplateResponse(request, template, page, status_code=status_code)


def _sections(caller: Caller | None) -> list[tuple[str, str]]:
    if caller is None:
        return []
    return [(path, name) for path, name, scope in SECTIONS if scope is None or caller.may(scope)]


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
                words = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())
                return show_error(request, InputError("request", ()), words)
            except BrokerError as error:
                return show_error(request, error, str(error))

        return shown


def to_sign_in(request: Request) -> Response:
    """To the sign-in page, and from there back to where the visitor wanted to go."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/signin?{urlencode({'next': wanted})}", 303)


def show_error(request: Request, error: BrokerError, words: str) -> Response:
    """An error as a page, with the status that the API gives it."""
    kind = kind_of(error)
    trace_id = getattr(request.state, "trace_id", None)
    return show(request, "error.html", kind.title, kind.status, detail=words, trace_id=trace_id)

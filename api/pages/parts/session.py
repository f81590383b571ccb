"""Signing in with an API key, for a session of twelve hours whose token a cookie carries.

The API takes the cookie for GET alone; the pages change something only by forms that carry a proof of
the session (``api.pages.parts.forms``). No script and no other site can use it.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Query, Request
from fastapi.responses import RedirectResponse, Response

from api.http.dependencies import SESSION_COOKIE, find_visitor, product_of, with_scope
from api.pages.parts.rendering import page_router, show
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import NotAuthenticated, NotPermitted
from broker.services.accounts.keys import SESSION_TIME

LOCAL_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20]*")

LARGEST_SIGN_IN_BYTES = 8 * 1024

router = page_router()


async def visitor_of(request: Request) -> Caller:
    """The visitor of the session cookie. Raises NotAuthenticated."""
    caller = await find_visitor(product_of(request), request.cookies.get(SESSION_COOKIE))
    request.state.visitor = caller
    return caller


async def reader_of(request: Request) -> Caller | None:
    """The visitor, if there is one: the frame of the page then has its links."""
    try:
        return await visitor_of(request)
    except NotAuthenticated:
        return None


visits = partial(with_scope, visitor_of)
Reader = Annotated[Caller | None, Depends(reader_of)]
AnyVisitor = Annotated[Caller, Depends(visitor_of)]
PlanVisitor = Annotated[Caller, Depends(visits(Scope.PLANS_READ))]
PlanWritingVisitor = Annotated[Caller, Depends(visits(Scope.PLANS_WRITE))]
SpendVisitor = Annotated[Caller, Depends(visits(Scope.SPEND_READ))]
Administrator = Annotated[Caller, Depends(visits(Scope.ADMIN))]


def local_path(path: str) -> str:
    """``path`` if it is on this host, else the front page."""
    return path if LOCAL_PATH.fullmatch(path) else "/"


def require_same_origin(request: Request) -> None:
    """Raises NotPermitted for a form that another site sends, by the origin that the browser states."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        ours = site in {"same-origin", "none"}
    else:
        ours = origin is None or origin.partition("://")[2] == request.headers.get("Host")
    if not ours:
        raise NotPermitted("this form was sent by another site")


@router.get("/signin")
async def sign_in_page(request: Request, next_: Annotated[str, Query(alias="next")] = "/") -> Response:
    """Asks for a key."""
    return show(request, "signin.html", "Sign in", next=local_path(next_))


@router.post("/signin")
async def sign_in(request: Request) -> Response:
    """Begins a session, sets its cookie, and redirects to the page that the visitor wanted."""
    require_same_origin(request)
    form = sign_in_form(await request.body())
    key = form.get("key", [""])[0].strip()
    wanted = local_path(form.get("next", ["/"])[0])
    address, now = request.client.host if request.client else "", product_of(request).clock.now()
    failed = product_of(request).failed_sign_ins
    if wait_s := failed.wait_s(address, now):
        words = f"Too many keys were tried from here. Wait {wait_s} s."
        page = show(request, "signin.html", "Sign in", 429, next=wanted, error=words)
        page.headers["Retry-After"] = str(wait_s)
        return page
    try:
        token = await product_of(request).keys.sign_in(key)
    except NotAuthenticated:
        failed.note(address, now)
        words = "That key is unknown, expired or was revoked. Keys begin with broker_live_."
        return show(request, "signin.html", "Sign in", 401, next=wanted, error=words)
    response = RedirectResponse(wanted, 303)
    set_session(request, response, token)
    return response


def set_session(request: Request, response: Response, token: str) -> None:
    """Gives the browser the cookie of a session."""
    seconds = int(SESSION_TIME.total_seconds())
    secure = is_secure(request)
    response.set_cookie(SESSION_COOKIE, token, seconds, httponly=True, samesite="strict", secure=secure)


def is_secure(request: Request) -> bool:
    """Whether the browser reaches us by https, so that cookies may be kept to it."""
    public = product_of(request).settings.public_url or ""
    return request.url.scheme == "https" or public.startswith("https:")


def sign_in_form(body: bytes) -> dict[str, list[str]]:
    """The fields of a form that anybody may send, so that it must be small; else its key or token counts as
    unknown."""
    if len(body) > LARGEST_SIGN_IN_BYTES:
        return {}
    return parse_qs(body.decode(errors="replace"))

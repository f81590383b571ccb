"""Signing in with the link that ``broker up`` prints, once and from this machine alone.

Two redirects take the token out of the address bar and the history before any page is shown. The last step
is a page of ours, as a browser does not send the strict session cookie on a redirect that began elsewhere.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import RedirectResponse, Response

from api.http.dependencies import product_of
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import set_session
from broker.domain.basics.errors import NotAuthenticated

LONGEST_TOKEN = 200

router = page_router()


@router.get("/signin/link")
async def sign_in_by_link(
    request: Request, token: Annotated[str, Query(max_length=LONGEST_TOKEN)] = ""
) -> Response:
    """Begins a session for a token that was not used yet."""
    product = product_of(request)
    key = product.links.take(token, product.clock.now()) if is_here(request) else None
    try:
        session = await product.keys.sign_in(key or "")
    except NotAuthenticated:
        words = "This link was used already, is too old, or is for another machine. Paste a key instead."
        return show(request, "signin.html", "Sign in", 401, next="/", error=words)
    response = RedirectResponse("/signin/done", 303)
    set_session(request, response, session)
    return response


@router.get("/signin/done")
async def signed_in(request: Request) -> Response:
    """Goes on to the front page."""
    return show(request, "onward.html", "Signed in", onward="/")


def is_here(request: Request) -> bool:
    """Whether the browser is on this machine."""
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False

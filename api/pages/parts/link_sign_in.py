"""Signing in with a link: the one that ``broker up`` prints, or an invitation.

The first works once and on this machine alone. Two redirects take its token out of the address bar and the
history before any page is shown. The last step is a page of ours, as a browser does not send the strict
session cookie on a redirect that began elsewhere. An invitation is accepted by a button, because programs
that look at links in messages open them too.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import RedirectResponse, Response

from api.http.dependencies import address_of, product_of
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import require_same_origin, set_session, sign_in_form
from api.schemas.accounts.keys import INVITATION
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


@router.get(INVITATION)
async def show_invitation(
    request: Request, token: Annotated[str, Query(max_length=LONGEST_TOKEN)] = ""
) -> Response:
    """What an invitation is for, and the button that accepts it."""
    try:
        key = await product_of(request).keys.find_invitation(token)
    except NotAuthenticated as error:
        return _refused(request, error)
    return show(request, "invitation.html", "Invitation", key=key, token=token)


@router.post(INVITATION)
async def accept_invitation(request: Request) -> Response:
    """Makes the key of an invitation, shows it once, and signs in with it."""
    require_same_origin(request)
    (token,) = sign_in_form(await request.body()).get("token", [""])[:1]
    keys = product_of(request).keys
    try:
        key, secret = await keys.accept(token)
        session = await keys.sign_in(secret)
    except NotAuthenticated as error:
        return _refused(request, error)
    url = address_of(request, "")
    page = show(request, "invitation.html", "Invitation accepted", key=key, secret=secret, url=url)
    set_session(request, page, session)
    return page


def _refused(request: Request, error: NotAuthenticated) -> Response:
    told = str(error)
    return show(request, "signin.html", "Sign in", 401, next="/", error=f"{told[0].upper()}{told[1:]}.")


def is_here(request: Request) -> bool:
    """Whether the browser is on this machine."""
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False

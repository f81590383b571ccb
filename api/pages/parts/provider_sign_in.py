"""Signing in at the identity provider: to it, and back with a code that becomes a session; and signing out.

What the browser keeps meanwhile is a cookie that comes along when the provider sends it back, and nothing
else does (SameSite=Lax). The session's own cookie is strict: a browser would not send it on a redirect that
another site began, so a page of ours goes on to where the visitor wanted.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import RedirectResponse, Response

from api.http import errors
from api.http.dependencies import SESSION_COOKIE, address_of, product_of
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import is_secure, local_path, require_same_origin, set_session
from broker.domain.basics.errors import BrokerError, NotAuthenticated
from broker.services.accounts.people import PERSON_PREFIX, SIGN_IN_TIME

STATE_COOKIE = "broker_sign_in"
BACK = "/signin/callback"
LONGEST_ANSWER = 4096

router = page_router()
Given = Annotated[str, Query(max_length=LONGEST_ANSWER)]


@router.get("/signin/provider")
async def to_provider(request: Request, next_: Annotated[str, Query(alias="next")] = "/") -> Response:
    """Sends the browser to the identity provider."""
    wanted = local_path(next_)
    try:
        begun = await product_of(request).people.begin(wanted, address_of(request, BACK))
    except BrokerError as error:
        return _refused(request, error, wanted)
    response = RedirectResponse(begun.url, 303)
    seconds = int(SIGN_IN_TIME.total_seconds())
    response.set_cookie(
        STATE_COOKIE,
        begun.state,
        seconds,
        path="/signin",
        httponly=True,
        samesite="lax",
        secure=is_secure(request),
    )
    return response


@router.get(BACK)
async def from_provider(
    request: Request,
    code: Given = "",
    state: Given = "",
    iss: Given = "",
    error: Given = "",
    error_description: Given = "",
) -> Response:
    """Begins a session for whom the identity provider sends back."""
    product = product_of(request)
    try:
        if error:
            raise NotAuthenticated(f"the identity provider says: {error_description or error}")
        if iss and iss != product.settings.oidc_issuer:
            raise NotAuthenticated("the answer came from another identity provider")
        kept = request.cookies.get(STATE_COOKIE, "")
        token, wanted = await product.people.finish(state, kept, code, address_of(request, BACK))
    except BrokerError as refusal:
        page = _refused(request, refusal, "/")
    else:
        page = show(request, "onward.html", "Signed in", onward=wanted)
        set_session(request, page, token)
    page.delete_cookie(STATE_COOKIE, path="/signin", httponly=True, samesite="lax")
    return page


@router.post("/signout")
async def sign_out(request: Request) -> Response:
    """Ends the session: the cookie, its entry in the store, and a person's session at the provider."""
    require_same_origin(request)
    product, token = product_of(request), request.cookies.get(SESSION_COOKIE, "")
    onward = None
    if token.startswith(PERSON_PREFIX):
        onward = await product.people.sign_out(token, address_of(request, "/signin"))
    else:
        await product.keys.sign_out(token)
    response: Response = RedirectResponse("/signin", 303)
    if onward is not None:  # a page: browsers follow no redirect of a form to another site
        response = show(request, "onward.html", "Signed out", onward=onward)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response


def _refused(request: Request, error: BrokerError, wanted: str) -> Response:
    status = errors.kind_of(error).status
    return show(request, "signin.html", "Sign in", status, next=wanted, error=f"{error}.")

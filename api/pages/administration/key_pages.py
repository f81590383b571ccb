"""API keys, and the people who are signed in by an identity provider."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import address_of, product_of
from api.pages.administration.tabs import act_or_correct, read_fields, show_tab
from api.pages.parts.forms import SentForm, act_once, read_form
from api.pages.parts.rendering import page_router
from api.pages.parts.session import Administrator, AnyVisitor
from api.schemas.accounts.keys import NewKey, invitation_path
from broker.domain.basics.access import default_scopes
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError

SHOWN = 100
ROLES: Mapping[str, frozenset[Scope] | None] = {
    "usual": None,
    "reader": frozenset({Scope.PLANS_READ, Scope.SPEND_READ}),
    "administrator": frozenset(Scope),
}
"""Scopes of a new key; None: those that a key of its team usually has."""
INVITATION_TIME = timedelta(days=3)
DONE: Mapping[str, str] = {
    "made": "The key was made. Its secret was shown once.",
    "invited": "The invitation was made. Its link was shown once.",
    "revoked": "The key is revoked, with the sessions that began with it.",
    "ended": "The sessions of that person have ended. The identity provider decides whether another begins.",
}

router = page_router()


@router.get("/admin/keys")
async def keys_page(
    request: Request, caller: AnyVisitor, cursor: str | None = None, done: str = ""
) -> Response:
    """Keys of the visitor's team, or of all for an administrator, newest first."""
    return await _page(request, caller, cursor=cursor, notice=DONE.get(done, ""))


@router.post("/admin/keys")
async def make_key(request: Request, caller: Administrator) -> Response:
    """Makes a key or an invitation, and shows its secret or link on the page that answers, once."""
    form = await read_form(request)
    secrets: list[str] = []
    invited_for = INVITATION_TIME if form.text("invite") else None
    done = "/admin/keys?done=made" if invited_for is None else "/admin/keys?done=invited"

    async def act(named: Caller) -> str:
        wanted, days = _wanted(form)
        scopes = ROLES[form.text("role")] or default_scopes(wanted.team)
        expires_at = None if days is None else product_of(request).clock.now() + timedelta(days=days)
        _, secret = await product_of(request).keys.create_key(
            wanted.name, wanted.team, scopes, named, expires_at, invited_for=invited_for
        )
        secrets.append(secret)
        return done

    answer = await act_or_correct(request, caller, form, act, done, _page)
    if not secrets:
        return answer
    if invited_for is None:
        return await _page(request, caller, secret=secrets[0])
    link = address_of(request, invitation_path(secrets[0]))
    return await _page(request, caller, secret=link, link_hours=invited_for // timedelta(hours=1))


def _wanted(form: SentForm) -> tuple[NewKey, int | None]:
    days = form.text("days")
    if form.text("role") not in ROLES:
        raise InputError("form", (FieldProblem("/role", repr(form.text("role")), " or ".join(ROLES)),))
    if days and not (days.isdecimal() and 0 < int(days) <= 3650):
        raise InputError("form", (FieldProblem("/days", repr(days), "1 to 3650, or nothing for no end"),))
    return read_fields(NewKey, form, "name", "team"), int(days) if days else None


@router.post("/admin/keys/{key_id}/revoke")
async def revoke_key(request: Request, caller: Administrator, key_id: str) -> Response:
    """Revokes a key."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).keys.revoke(named, key_id)
        return "/admin/keys?done=revoked"

    return await act_once(request, caller, form, act)


@router.post("/admin/people/end")
async def end_sessions(request: Request, caller: Administrator) -> Response:
    """Ends the sessions of a person."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).people.end_sessions(named, form.text("subject"))
        return "/admin/keys?done=ended"

    return await act_once(request, caller, form, act)


async def _page(request: Request, caller: Caller, cursor: str | None = None, **told: Any) -> Response:
    product = product_of(request)
    is_administrator = caller.may(Scope.ADMIN)
    return show_tab(
        request,
        caller,
        "keys.html",
        "API keys",
        page=await product.keys.find_keys(caller, SHOWN, cursor),
        sessions=await product.people.find_sessions(caller) if is_administrator else (),
        teams=await product.names.find_teams(caller) if is_administrator else (),
        roles=list(ROLES),
        now=product.clock.now(),
        **told,
    )

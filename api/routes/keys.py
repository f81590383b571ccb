"""API keys: scopes, team and expiry."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response

from api.http.dependencies import (
    KNOWN_NAMES,
    Administrator,
    AnyCaller,
    Cursor,
    Limit,
    address_of,
    answer_once,
    json_answer,
    listing,
    product_of,
)
from api.http.operation_details import may_fail
from api.http.strict_requests import FormRoute
from api.routes.parameters import KeyId, OfTeam
from api.schemas.accounts.keys import (
    CallerForm,
    KeyForm,
    KeyPage,
    NewKey,
    NewKeyForm,
    invitation_path,
    key_to_document,
)
from api.schemas.base.forms import write
from broker.domain.basics.access import default_scopes
from broker.domain.basics.account import ApiKey
from broker.domain.basics.errors import Conflict
from broker.services.accounts.accounts import Answer

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=FormRoute)
own = APIRouter(tags=["keys"])


@router.post("", status_code=201, responses={201: {"model": NewKeyForm}})
async def create_key(request: Request, caller: Administrator, wanted: Annotated[NewKey, Body()]) -> Response:
    """Creates a key for a team, or with team `*` one that reads, approves and sets budgets for every team.

    Its secret is shown once and not stored. With `invitation_hours` it makes a link instead, which gives the
    key to whoever opens and accepts it first.
    """
    keys = product_of(request).keys

    async def act() -> Answer:
        scopes = default_scopes(wanted.team) if wanted.scopes is None else frozenset(wanted.scopes)
        key, secret = await keys.create_key(
            wanted.name, wanted.team, scopes, caller, wanted.expires_at, invited_for=wanted.invited_for
        )
        if wanted.invitation_hours is None:
            return _made(key, secret=secret)
        return _made(key, invitation_url=address_of(request, invitation_path(secret)))

    async def again(stored: tuple[str, ...]) -> Answer:
        return _made(await keys.find_key(caller, stored[0]))

    return await answer_once(request, caller, act, again)


def _made(key: ApiKey, *, secret: str | None = None, invitation_url: str | None = None) -> Answer:
    body, headers = key_to_document(key), {"Location": f"/v1/keys/{key.key_id}"}
    kept = json_answer(201, {**body, "secret": None, "invitation_url": None})
    told = {**body, "secret": secret, "invitation_url": invitation_url}
    return replace(json_answer(201, told, headers), remembered=kept.body)


@router.get("", responses={200: {"model": KeyPage}}, dependencies=[KNOWN_NAMES])
async def list_keys(
    request: Request,
    caller: AnyCaller,
    team: OfTeam = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists keys without their secrets, newest first: of the caller's team, or of all for administrators."""
    page = await product_of(request).keys.find_keys(caller, limit, cursor, team=team)
    return listing([key_to_document(key) for key in page.items], page.next_cursor)


@own.get("/v1/me", responses={200: {"model": CallerForm}})
async def show_own_key(request: Request, caller: AnyCaller) -> JSONResponse:
    """Shows the key of this request: its team and what it may do."""
    return JSONResponse(write(CallerForm, caller))


@router.get("/{key_id}", responses={200: {"model": KeyForm}})
async def show_key(request: Request, caller: AnyCaller, key_id: KeyId) -> JSONResponse:
    """Shows one key without its secret."""
    return JSONResponse(key_to_document(await product_of(request).keys.find_key(caller, key_id)))


@router.delete("/{key_id}", status_code=204, openapi_extra=may_fail(Conflict))
async def revoke_key(request: Request, caller: Administrator, key_id: KeyId) -> Response:
    """Revokes a key and the sessions that it started, at once; twice is no error."""
    await product_of(request).keys.revoke(caller, key_id)
    return Response(status_code=204)

"""Public SSH keys of teams and persons."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response

from api.http.dependencies import (
    KNOWN_NAMES,
    Cursor,
    Limit,
    PlanReader,
    ReservationWriter,
    answer_once,
    json_answer,
    listing,
    product_of,
)
from api.http.strict_requests import FormRoute
from api.routes.parameters import SshKeyId
from api.schemas.accounts.ssh_keys import NewSshKey, SshKeyForm, SshKeyPage, ssh_key_to_document
from broker.domain.basics.machines import SshKey
from broker.services.accounts.accounts import Answer

router = APIRouter(prefix="/v1/ssh-keys", tags=["keys"], route_class=FormRoute)


@router.post("", status_code=201, responses={201: {"model": SshKeyForm}})
async def add_ssh_key(
    request: Request, caller: ReservationWriter, wanted: Annotated[NewSshKey, Body()]
) -> Response:
    """Stores a public key, which goes with every later order of its team or person.

    A key that its owner has already is answered as it is stored.
    """
    keys = product_of(request).ssh_keys

    async def act() -> Answer:
        found = await keys.add(
            caller, wanted.public_key, wanted.name or "", team=wanted.team, person=wanted.person
        )
        return _stored(found)

    async def again(stored: tuple[str, ...]) -> Answer:
        return _stored(await keys.find_key(caller, stored[0]))

    return await answer_once(request, caller, act, again)


def _stored(key: SshKey) -> Answer:
    return json_answer(201, ssh_key_to_document(key), {"Location": f"/v1/ssh-keys/{key.key_id}"})


@router.get("", responses={200: {"model": SshKeyPage}}, dependencies=[KNOWN_NAMES])
async def list_ssh_keys(
    request: Request, caller: PlanReader, limit: Limit = 50, cursor: Cursor = None
) -> JSONResponse:
    """Lists public keys, newest first: of the caller's team, or of all for administrators."""
    page = await product_of(request).ssh_keys.find_keys(caller, limit, cursor)
    return listing([ssh_key_to_document(key) for key in page.items], page.next_cursor)


@router.get("/{ssh_key_id}", responses={200: {"model": SshKeyForm}})
async def show_ssh_key(request: Request, caller: PlanReader, ssh_key_id: SshKeyId) -> JSONResponse:
    """Shows one public key."""
    return JSONResponse(ssh_key_to_document(await product_of(request).ssh_keys.find_key(caller, ssh_key_id)))


@router.delete("/{ssh_key_id}", status_code=204)
async def remove_ssh_key(request: Request, caller: ReservationWriter, ssh_key_id: SshKeyId) -> Response:
    """Removes a public key from later orders. Machines that have it already keep it until they end."""
    await product_of(request).ssh_keys.remove(caller, ssh_key_id)
    return Response(status_code=204)

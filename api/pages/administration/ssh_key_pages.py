"""Public SSH keys of teams and persons, which go with their orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.administration.tabs import act_or_correct, read_fields, show_tab
from api.pages.parts.forms import act_once, read_form
from api.pages.parts.rendering import page_router
from api.pages.parts.session import PlanVisitor
from api.schemas.accounts.ssh_keys import NewSshKey
from broker.domain.basics.account import Caller, Scope

SHOWN = 100
DONE: Mapping[str, str] = {
    "added": "The key is stored. It goes with orders from now on.",
    "removed": "The key is removed from later orders. Machines that have it keep it until they end.",
}

router = page_router()


@router.get("/admin/ssh-keys")
async def ssh_keys_page(
    request: Request, caller: PlanVisitor, cursor: str | None = None, done: str = ""
) -> Response:
    """Public keys of the visitor's team, or of all for an administrator, newest first."""
    return await _page(request, caller, cursor=cursor, notice=DONE.get(done, ""))


@router.post("/admin/ssh-keys")
async def add_ssh_key(request: Request, caller: PlanVisitor) -> Response:
    """Stores a public key of the visitor, or of a team."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        wanted = read_fields(NewSshKey, form, "public_key", "name", "team")
        person = named.key_id if form.text("owner") == "me" else None
        await product_of(request).ssh_keys.add(
            named, wanted.public_key, wanted.name or "", team=wanted.team, person=person
        )
        return "/admin/ssh-keys?done=added"

    return await act_or_correct(request, caller, form, act, "/admin/ssh-keys?done=added", _page)


@router.post("/admin/ssh-keys/{ssh_key_id}/remove")
async def remove_ssh_key(request: Request, caller: PlanVisitor, ssh_key_id: str) -> Response:
    """Removes a public key."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).ssh_keys.remove(named, ssh_key_id)
        return "/admin/ssh-keys?done=removed"

    return await act_once(request, caller, form, act)


async def _page(request: Request, caller: Caller, cursor: str | None = None, **told: Any) -> Response:
    product = product_of(request)
    return show_tab(
        request,
        caller,
        "ssh_keys.html",
        "SSH keys",
        page=await product.ssh_keys.find_keys(caller, SHOWN, cursor),
        teams=await product.names.find_teams(caller) if caller.may(Scope.ADMIN) else (),
        **told,
    )

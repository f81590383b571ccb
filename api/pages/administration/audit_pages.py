"""The audit trail: who did what to which object, when and why."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.administration.tabs import show_tab
from api.pages.parts.rendering import page_router
from api.pages.parts.session import AnyVisitor

SHOWN = 100

router = page_router()


@router.get("/admin/audit")
async def audit_page(
    request: Request, caller: AnyVisitor, object_id: str = "", team: str = "", cursor: str | None = None
) -> Response:
    """Entries of the visitor's team, or of all for an administrator, newest first; of one object or team."""
    product = product_of(request)
    page = await product.accounts.find_audit(
        caller, SHOWN, cursor, object_id=object_id.strip() or None, team=team.strip() or None
    )
    return show_tab(
        request,
        caller,
        "audit.html",
        "Audit trail",
        entries=page.items,
        next_cursor=page.next_cursor,
        object_id=object_id.strip(),
        team=team.strip(),
        teams=await product.names.find_teams(caller) if caller.sees_every_team else (),
    )

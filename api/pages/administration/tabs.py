"""The tabs of the administration: the first that a visitor may see opens."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import AnyVisitor
from broker.domain.basics.account import Caller, Scope

TABS: tuple[tuple[str, str, Scope | None], ...] = (("/admin/settings", "Settings", Scope.ADMIN),)
"""Path, name, and the scope that a visitor needs."""

router = page_router()


@router.get("/admin")
async def first_tab(caller: AnyVisitor) -> Response:
    """The first tab that the visitor may see."""
    return RedirectResponse(_tabs_of(caller)[0][0], 303)


def show_tab(request: Request, caller: Caller, template: str, title: str, **context: Any) -> Response:
    """A page of the administration with its tabs."""
    return show(request, template, title, tabs=_tabs_of(caller), path=request.url.path, **context)


def _tabs_of(caller: Caller) -> list[tuple[str, str]]:
    return [(path, name) for path, name, scope in TABS if scope is None or caller.may(scope)]

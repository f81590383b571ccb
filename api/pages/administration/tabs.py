"""The tabs of the administration: the first that a visitor may see opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel

from api.pages.parts.forms import SentForm, act_once, new_once, proof_of
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import AnyVisitor
from api.schemas.base.document import Document
from api.schemas.base.validation import validate
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import InputError

TABS: tuple[tuple[str, str, Scope | None], ...] = (
    ("/admin/keys", "API keys", None),
    ("/admin/ssh-keys", "SSH keys", Scope.PLANS_READ),
    ("/admin/webhooks", "Webhooks", Scope.SPEND_READ),
    ("/admin/audit", "Audit trail", None),
    ("/admin/settings", "Settings", Scope.ADMIN),
)
"""Path, name, and the scope that a visitor needs."""
Model = TypeVar("Model", bound=BaseModel)

router = page_router()


@router.get("/admin")
async def first_tab(_: AnyVisitor) -> Response:
    """The first tab."""
    return RedirectResponse(TABS[0][0], 303)


def show_tab(
    request: Request, caller: Caller, template: str, title: str, status_code: int = 200, **context: Any
) -> Response:
    """A page of the administration with the tabs that the visitor may see, and what its forms need.

    ``context`` may have the ``notice`` or ``problem`` of the last action, a ``secret`` that is shown once,
    and the fields ``given`` to a form that is to be corrected.
    """
    tabs = [(path, name) for path, name, scope in TABS if scope is None or caller.may(scope)]
    current = next((path for path, _ in tabs if request.url.path.startswith(path)), "")
    forms = {"given": {}, "proof": proof_of(request), "once": new_once(), **context}
    return show(request, template, title, status_code, tabs=tabs, path=current, **forms)


async def act_or_correct(
    request: Request,
    caller: Caller,
    form: SentForm,
    act: Callable[[Caller], Awaitable[str]],
    done: str,
    page: Callable[..., Awaitable[Response]],
) -> Response:
    """Acts once on a form and leads to ``done``; ``page`` shows a wrong form again, to be corrected."""
    try:
        return await act_once(request, caller, form, act, lambda _: done)
    except InputError as error:
        return await page(request, caller, status_code=422, problem=str(error), given=form.fields)


def read_fields(model: type[Model], form: SentForm, *names: str) -> Model:
    """The fields ``names`` of a form as ``model``; empty ones are not given. Raises InputError."""
    given = {name: form.text(name) for name in names if form.text(name)}
    return validate(model, Document("form", given))

"""The reference of the HTTP API, made from the OpenAPI document of this server. Anybody may read it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response
from markupsafe import Markup

from api.http.errors import REFERENCE
from api.http.reference import build_reference
from api.pages.parts import words
from api.pages.parts.rendering import page_router, show, templates
from api.pages.parts.session import Reader

router = page_router()


@router.get(REFERENCE)
def show_reference(
    request: Request, _: Reader, is_open: Annotated[bool, Query(alias="open")] = False
) -> Response:  # on a thread: the first one takes seconds
    """Every operation, document, event and error of the API; ``open``: with nothing folded."""
    state: Any = request.app.state
    if not hasattr(state, "reference_texts"):
        state.reference_texts = {}
    if is_open not in state.reference_texts:
        reference = build_reference(request.app.openapi())
        body = templates.env.get_template("reference_body.html")
        text = body.render(reference=reference, code=words.with_code, is_open=is_open)
        state.reference_texts[is_open] = Markup(text)  # noqa: S704  a template of ours, which escapes
    return show(request, "reference.html", "HTTP API", body=state.reference_texts[is_open])

"""The route class of requests with a JSON body: it limits size and depth, and refuses duplicate names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from api.schemas.base.document import Document
from api.schemas.base.given_text import require_seen
from api.schemas.base.json_reader import read_json
from broker.domain.basics.errors import FieldProblem, InputError

LARGEST_FORM_BYTES = 256 * 1024
"""Parsed on the event loop, in some milliseconds. Workloads documents are read in a thread."""


class FormRoute(APIRoute):
    """Checks the body before the framework reads it, which would take the last of two fields of one name."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler. It raises InputError for a body that is refused."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def checked(request: Request) -> Response:
            body = await request.body()
            if len(body) > LARGEST_FORM_BYTES:
                raise HTTPException(413, f"{len(body)} bytes; a form has at most {LARGEST_FORM_BYTES}")
            if body:
                require_plain(body)
            return await handle(request)

        return checked


def require_plain(body: bytes) -> None:
    """Raises InputError unless the bytes are JSON with distinct names, bounded depth and visible text."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError("request", (FieldProblem("", str(error), "UTF-8 text"),)) from error
    require_seen(Document("request", read_json(text, "request")))

"""What a request may not have, so that it is not silently misread.

The route class of requests with a JSON body limits size and depth, and refuses duplicate names. Unknown query
parameters are refused: a misspelt filter must not be ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from api.schemas.base.document import MAX_SHOWN, Document, describe, input_error, pointer_of
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


async def require_no_body(request: Request, example: str) -> None:
    """Raises InputError for a body where the values are parameters of the address, as in ``example``."""
    body = (await request.body()).strip()
    if body not in (b"", b"{}", b"null"):
        expected = f"no body: its values are parameters of the address, {example}"
        raise InputError("request", (FieldProblem("", f"a body of {len(body)} bytes", expected),))


def require_plain(body: bytes) -> None:
    """Raises InputError unless the bytes are JSON with distinct names, bounded depth and visible text."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError("request", (FieldProblem("", str(error), "UTF-8 text"),)) from error
    require_seen(Document("request", read_json(text, "request")))


async def only_known_parameters(request: Request) -> None:
    """A dependency of every route. Raises InputError for query parameters that the OpenAPI document lacks.

    Pages and probes, which it does not tell of at all, take what others hang on their addresses.
    """
    if not request.query_params:
        return
    # Until the document is derived, which takes a second at the start, others are answered meanwhile.
    document = request.app.openapi_schema or await run_in_threadpool(request.app.openapi)
    operations = document["paths"].get(request.scope["route"].path_format, {})
    operation = operations.get(request.method.lower())
    if operation is None:
        return
    known = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        told = [_problem(name, request.query_params[name], known) for name in unknown[: MAX_SHOWN + 1]]
        raise input_error("request", told, len(unknown) - len(told))


def _problem(name: str, value: str, known: Sequence[str]) -> FieldProblem:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        expected = f"the parameter {near[0]!r} (there are {', '.join(known)})"
    else:
        expected = f"one of {', '.join(known)}" if known else "no parameter: this call takes none"
    return FieldProblem(pointer_of(name), f"an unknown parameter, {describe(value)}", expected)

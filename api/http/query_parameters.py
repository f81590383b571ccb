"""Unknown query parameters: a misspelt filter must not be silently ignored."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from api.schemas.base.document import describe, input_error, pointer_of
from broker.domain.basics.errors import FieldProblem


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
        raise input_error("request", [_problem(name, request.query_params[name], known) for name in unknown])


def _problem(name: str, value: str, known: Sequence[str]) -> FieldProblem:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        expected = f"the parameter {near[0]!r} (there are {', '.join(known)})"
    else:
        expected = f"one of {', '.join(known)}" if known else "no parameter: this call takes none"
    return FieldProblem(pointer_of(name), f"an unknown parameter, {describe(value)}", expected)

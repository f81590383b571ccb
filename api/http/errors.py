"""The table from errors to problem documents (RFC 9457)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from api.schemas.base.document import MAX_SHOWN, describe, input_error, pointer_of
from api.schemas.base.problem import MEDIA_TYPE
from api.schemas.base.validation import expected_of
from broker.domain.basics import errors
from broker.logs import is_logged

log = structlog.get_logger()

METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
REFERENCE = "/docs/api"
TYPE_BASE = f"{REFERENCE}#problem-"
"""Where the server's own reference describes each kind of error."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of error is answered over HTTP. ``advice`` says what a caller can do."""

    status: int
    code: str
    title: str
    retryable: bool = False
    retry_after_s: int | None = None
    advice: str = ""


# The first class that matches wins, so the narrower ones stand first.
KINDS: tuple[tuple[type[errors.BrokerError], Kind], ...] = (
    (
        errors.InputError,
        Kind(
            422,
            "invalid-input",
            "The input cannot be used",
            advice="Correct every field that `errors` names; all of them are listed at once.",
        ),
    ),
    (
        errors.NotFound,
        Kind(
            404,
            "not-found",
            "Nothing of that name exists",
            advice="Check the id. An object of another team is answered in the same way.",
        ),
    ),
    (
        errors.StalePlan,
        Kind(
            409,
            "stale-plan",
            "The market moved since the plan was made",
            advice="Plan the same document again.",
        ),
    ),
    (
        errors.TooManyPlans,
        Kind(
            429,
            "too-many-plans",
            "The team has too much on its way",
            True,
            advice="Wait as `Retry-After` says, or cancel a plan.",
        ),
    ),
    (
        errors.TooManyEstimates,
        Kind(
            429,
            "too-many-estimates",
            "Too many estimates are under way",
            True,
            advice="Ask again after `retry_after_s` seconds.",
        ),
    ),
    (
        errors.OverQuota,
        Kind(
            409,
            "over-quota",
            "A quota does not allow it",
            advice="Release something of that provider, or have the quota raised.",
        ),
    ),
    (
        errors.OrdersBarred,
        Kind(
            409,
            "orders-barred",
            "The installation does not order there",
            advice="Order elsewhere, or have the setting changed that `setting` names.",
        ),
    ),
    (
        errors.OverCap,
        Kind(
            409,
            "over-cap",
            "A spending cap does not allow it",
            advice="Order less, release something, or have the cap raised that `setting` names.",
        ),
    ),
    (
        errors.ConcurrentChange,
        Kind(
            409,
            "concurrent-change",
            "Somebody else changed it first",
            True,
            advice="Read the object again, and repeat the request if it is still wanted.",
        ),
    ),
    (
        errors.IdempotencyMismatch,
        Kind(
            422,
            "idempotency-mismatch",
            "One key came with two bodies",
            advice="Use a new `Idempotency-Key` for a new request.",
        ),
    ),
    (
        errors.StillAtWork,
        Kind(
            409,
            "still-at-work",
            "The first request has not answered yet",
            True,
            1,
            advice="Send the same request with the same key again.",
        ),
    ),
    (
        errors.StockShort,
        Kind(
            409,
            "conflict",
            "The provider does not have that many nodes",
            advice="Take fewer nodes, another time or another offer; `offer_id` names the one that is short.",
        ),
    ),
    (
        errors.StockHeld,
        Kind(
            409,
            "conflict",
            "Other reservations of this installation hold it",
            advice="Take fewer nodes, another time or another offer; `offer_id` names the one that is short.",
        ),
    ),
    (
        errors.Conflict,
        Kind(
            409,
            "conflict",
            "Its state forbids that",
            advice="Read the object: its state says what is possible.",
        ),
    ),
    (
        errors.ApprovalRequired,
        Kind(
            409,
            "approval-required",
            "Finance has to approve first",
            advice="Have the plan approved by a key with `spend:approve`, then reserve it.",
        ),
    ),
    (
        errors.OverBudget,
        Kind(
            409,
            "over-budget",
            "The budget does not allow it",
            advice="Have the budget raised, or plan with less.",
        ),
    ),
    (
        errors.NotAuthenticated,
        Kind(
            401,
            "not-authenticated",
            "A bearer key is needed",
            advice="Send `Authorization: Bearer KEY` with a key that is neither expired nor revoked.",
        ),
    ),
    (
        errors.NotPermitted,
        Kind(
            403,
            "not-permitted",
            "The key lacks a scope",
            advice="Use a key with the scope that the operation needs; `GET /v1/me` shows those of yours.",
        ),
    ),
    (
        errors.InsufficientCapacity,
        Kind(
            409,
            "insufficient-capacity",
            "The provider has no stock",
            True,
            advice="Try later, or take another offer.",
        ),
    ),
    (
        errors.PriceAboveLimit,
        Kind(
            409,
            "price-above-limit",
            "The provider asks more than the limit",
            True,
            advice="Accept the price that the error states, or take another offer.",
        ),
    ),
    (
        errors.QuotaExceeded,
        Kind(
            409,
            "quota-exceeded",
            "The provider's quota is used up",
            advice="Have your account's quota raised at the provider.",
        ),
    ),
    (
        errors.RateLimited,
        Kind(
            503,
            "provider-rate-limited",
            "The provider asks to wait",
            True,
            30,
            advice="Wait as `Retry-After` says.",
        ),
    ),
    (
        errors.OutcomeUnknown,
        Kind(
            503,
            "outcome-unknown",
            "The provider's answer was lost",
            True,
            advice="Read the reservation: the broker finds out whether the order was carried out.",
        ),
    ),
    (
        errors.ProviderUnavailable,
        Kind(
            503,
            "provider-unavailable",
            "The provider does not answer",
            True,
            30,
            advice="Wait as `Retry-After` says, or take another provider's offer.",
        ),
    ),
    (
        errors.ProviderError,
        Kind(
            502,
            "provider-refused",
            "The provider refused",
            advice="Read `detail`, which has the provider's own words.",
        ),
    ),
    (
        errors.StoreUnavailable,
        Kind(
            503,
            "store-unavailable",
            "The database does not answer",
            True,
            5,
            advice="Wait as `Retry-After` says.",
        ),
    ),
    (
        errors.StoreTooNew,
        Kind(
            503,
            "store-too-new",
            "The database belongs to a newer version",
            advice="Have the broker upgraded.",
        ),
    ),
    (
        errors.PlannerOutOfMemory,
        Kind(
            500,
            "planner-out-of-memory",
            "Planning needs more memory than it may use",
            advice="Plan fewer workloads in one document, or have `BROKER_PLANNER_MEMORY_GIB` raised.",
        ),
    ),
    (
        errors.PlannerDied,
        Kind(500, "planner-died", "The planning process ended early", True, advice="Send the request again."),
    ),
    (
        errors.BrokerError,
        Kind(
            500,
            "internal",
            "Something went wrong",
            advice="Report it with its `trace_id`, which is also in the server's log.",
        ),
    ),
)
BAD_REQUEST = Kind(
    400, "invalid-input", "The request cannot be read", advice="Correct the address or the headers."
)
UNKNOWN_ADDRESS = Kind(404, "not-found", "Nothing of that name exists", advice="Check the address.")
WRONG_METHOD = Kind(
    405, "method-not-allowed", "The address takes other methods", advice="Use a method that `Allow` lists."
)
TOO_LARGE = Kind(
    413, "too-large", "The body is too large", advice="Send a smaller body; `detail` has the limit."
)
PAUSED = Kind(
    503,
    "paused",
    "The broker is paused",
    True,
    60,
    advice="Wait until the operator ends the pause. Reading and releasing go on.",
)
OF_HTTP = {kind.status: kind for kind in (BAD_REQUEST, UNKNOWN_ADDRESS, WRONG_METHOD, TOO_LARGE)}
OTHER = Kind(0, "http-error", "The request cannot be answered", advice="Read `detail`.")
ALL_KINDS = (*(kind for _, kind in KINDS), *OF_HTTP.values(), PAUSED, OTHER)

UNEXPECTED = KINDS[-1][1]
SEE_THE_LOG = "see the server's log"


def kind_of(error: errors.BrokerError) -> Kind:
    """The entry of KINDS for ``error``."""
    return next(kind for cls, kind in KINDS if isinstance(error, cls))


def kind_of_class(error: type[errors.BrokerError]) -> Kind:
    """The entry of KINDS for errors of the class ``error``."""
    return next(kind for cls, kind in KINDS if issubclass(error, cls))


def problem(
    request: Request,
    kind: Kind,
    detail: str,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document. ``trace_id`` is also in the log's lines and in ``X-Request-Id``."""
    body = {
        "type": TYPE_BASE + kind.code,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "instance": request.url.path,
        "code": kind.code,
        "retryable": kind.retryable,
        "trace_id": getattr(request.state, "trace_id", None),
        **(extra or {}),
    }
    told = dict(headers or {})
    if kind.status == 401:
        told["WWW-Authenticate"] = "Bearer"
    wait_s = body.get("retry_after_s", kind.retry_after_s)
    if wait_s is not None:
        told["Retry-After"] = str(math.ceil(wait_s))
    # ASCII: what a caller sent may hold half a surrogate pair, which UTF-8 cannot say.
    return Response(json.dumps(body), kind.status, told, media_type=MEDIA_TYPE)


async def on_broker_error(request: Request, error: Exception) -> Response:
    """Answers an expected error."""
    assert isinstance(error, errors.BrokerError)
    kind = kind_of(error)
    extra: dict[str, Any] = dict(error.facts)
    if error.problems:
        extra["errors"] = [
            {
                "pointer": p.pointer,
                "found": _quoted_once(p.found),
                "expected": p.expected,
                "line": p.line,
                "column": p.column,
            }
            for p in error.problems
        ]
    if isinstance(error, errors.RateLimited) and error.retry_after_s is not None:
        extra["retry_after_s"] = error.retry_after_s
    if kind.status >= 500:
        log.warning("request failed", path=request.url.path, code=kind.code, error=str(error))
    return problem(request, kind, str(error), extra)


def _quoted_once(found: str) -> str:
    """What was found, without the quotes of a text: JSON adds its own. A word of ours keeps none either."""
    is_text = len(found) > 2 and found[0] == found[-1] == '"' and '"' not in found[1:-1]
    return found[1:-1] if is_text else found


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """Answers what FastAPI's own validation refuses, in the same form."""
    assert isinstance(error, RequestValidationError)
    return await on_broker_error(request, errors.InputError("request", field_problems(error)))


def field_problems(error: RequestValidationError) -> tuple[errors.FieldProblem, ...]:
    """The wrong fields that FastAPI's own validation found, the first ones and the number of the others."""
    found = error.errors()
    problems = [_field_problem(item, error.body) for item in found[: MAX_SHOWN + 1]]
    return input_error("request", problems, len(found) - len(problems)).problems


def _field_problem(item: Mapping[str, Any], body: object) -> errors.FieldProblem:
    """One field error. Its pointer leads into the body or names the parameter."""
    if item["type"] == "json_invalid":
        text, at = str(body), int(item["loc"][-1])
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        found = f"malformed JSON ({item['ctx']['error']})"
        return errors.FieldProblem("", found, "one JSON document", line, column)
    missing = item["type"] == "missing"
    found = "nothing" if missing else describe(item.get("input"))
    return errors.FieldProblem(pointer_of(*item["loc"][1:]), found, expected_of(item))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answers unknown paths and methods."""
    assert isinstance(error, HTTPException)
    kind = OF_HTTP.get(error.status_code) or replace(OTHER, status=error.status_code)
    headers = dict(error.headers or {})
    detail = str(error.detail)
    if error.status_code == 405:
        taken = _allowed_methods(request)
        headers["Allow"] = ", ".join(taken)
        verb = "is" if len(taken) == 1 else "are"
        detail = f"{request.method} is not taken at {request.url.path}; {headers['Allow']} {verb}"
    elif error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = f"there is no {request.url.path}; {REFERENCE} lists every operation"
    return problem(request, kind, detail, headers=headers)


def _allowed_methods(request: Request) -> list[str]:
    """Every method that some route takes on this path; the framework names those of one route alone."""
    scopes = ({**request.scope, "method": method} for method in METHODS)
    routes = request.app.router.routes
    return [s["method"] for s in scopes if any(route.matches(s)[0] is Match.FULL for route in routes)]


async def on_unexpected(request: Request, error: Exception) -> Response:
    """The last resort: logs an unexpected error, and answers without its text."""
    log_unexpected(request, error)
    return problem(request, UNEXPECTED, SEE_THE_LOG)


def log_unexpected(request: Request, error: Exception) -> None:
    """Logs an unexpected error with its traceback."""
    if not is_logged(error):
        log.error("unexpected error", path=request.url.path, exc_info=error)


def install(app: FastAPI) -> None:
    """Makes ``app`` answer every error as a problem document."""
    app.add_exception_handler(errors.BrokerError, on_broker_error)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_unexpected)

"""What FastAPI does not derive of an operation: its name, its sentences, its scope and its errors."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi.dependencies.models import Dependant

from api.http import errors as answers
from api.http.dependencies import SCOPES
from api.http.errors import Kind
from api.schemas.base.problem import MEDIA_TYPE
from broker.domain.basics import errors
from broker.domain.basics.account import Scope
from broker.domain.basics.errors import BrokerError

CODES = "x-problems"
"""The codes of the problems that an operation can answer."""
PROBLEM_SCHEMA = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
OF_EVERY_CALL = (errors.InputError, errors.NotAuthenticated, errors.StoreUnavailable, errors.StoreTooNew)
OF_EVERY_POST = (errors.IdempotencyMismatch, errors.StillAtWork)
ORDER_ERRORS = (
    errors.Conflict,
    errors.ConcurrentChange,
    errors.OverQuota,
    errors.OrdersBarred,
    errors.OverCap,
    errors.OverBudget,
    errors.InsufficientCapacity,
    errors.PriceAboveLimit,
    errors.QuotaExceeded,
    errors.OutcomeUnknown,
    errors.ProviderUnavailable,
    errors.RateLimited,
    errors.ProviderError,
)
"""Errors of calls that order from a provider."""
SUCCESSES = {
    "200": "Done",
    "201": "Created",
    "202": "Accepted; the work goes on",
    "204": "Done, without a body",
}
_SENTENCE = re.compile(r"(.+?[.!?])(?:\s+|$)(.*)", re.DOTALL)


def may_fail(*kinds: type[BrokerError]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that can answer these errors, besides those of every route."""
    return {CODES: [answers.kind_of_class(kind).code for kind in kinds]}


def complete(operation: dict[str, Any], name: str, method: str, dependant: Dependant) -> None:
    """Completes the operation of the endpoint function ``name``."""
    operation["operationId"] = camel(name)
    operation["summary"], rest = sentences(operation.get("description", "").replace("``", "`"))
    scope = scope_of(dependant)
    needs = f"Needs the scope `{scope}`." if scope is not None else "Needs a key, with any scope."
    operation["description"] = f"{rest}\n\n{needs}".strip()
    operation["security"] = [{scheme: [] if scope is None else [str(scope)]} for scheme in ("key", "token")]
    for status, answer in operation["responses"].items():
        if answer.get("description") == "Successful Response":
            answer["description"] = SUCCESSES[status]
    _tell_problems(operation, method, scope)


def camel(name: str) -> str:
    """``list_offers`` as ``listOffers``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def sentences(text: str) -> tuple[str, str]:
    """The first sentence of a text on one line, and the rest of the text."""
    paragraph, _, rest = text.partition("\n\n")
    found = _SENTENCE.fullmatch(" ".join(paragraph.split()))
    first, more = found.groups() if found else (" ".join(paragraph.split()), "")
    return first, "\n\n".join(part for part in (more, rest) if part)


def scope_of(dependant: Dependant) -> Scope | None:
    """The scope that an endpoint's dependencies require; None: any key will do."""
    return next((SCOPES[call] for call in _calls(dependant) if call in SCOPES), None)


def _calls(dependant: Dependant) -> Iterator[Any]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from _calls(inner)


def _tell_problems(operation: dict[str, Any], method: str, scope: Scope | None) -> None:
    kinds = [answers.kind_of_class(kind) for kind in OF_EVERY_CALL]
    parameters = [(one["in"], one["name"]) for one in operation.get("parameters", ())]
    if scope is not None or ("query", "team") in parameters:
        kinds.append(answers.kind_of_class(errors.NotPermitted))
    if any(place == "path" for place, _ in parameters):
        kinds.append(answers.kind_of_class(errors.NotFound))
    if "requestBody" in operation:
        kinds.append(answers.TOO_LARGE)
    if method == "post":
        kinds += [answers.kind_of_class(kind) for kind in OF_EVERY_POST]
    if method not in {"get", "delete"}:
        kinds.append(answers.PAUSED)
    kinds.append(answers.UNEXPECTED)
    codes = set(operation.pop(CODES, ())) | {kind.code for kind in kinds}
    operation[CODES] = sorted(codes)
    operation["responses"].pop("422", None)
    for status, told in sorted(_by_status(codes).items()):
        says = "; ".join(f"`{code}`: {title}" for code, title in sorted(told.items()))
        operation["responses"][str(status)] = {"description": says, "content": PROBLEM_SCHEMA}


def _by_status(codes: Iterable[str]) -> Mapping[int, Mapping[str, str]]:
    found: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for kind in answers.ALL_KINDS:
        if kind.code in codes and kind not in (answers.BAD_REQUEST, answers.UNKNOWN_ADDRESS):
            found[kind.status][kind.code] = kind.title  # the last and widest title of a code
    return found


def kinds_by_code() -> Mapping[str, tuple[Kind, ...]]:
    """Every kind of problem, by its code: several kinds may have the same one."""
    found: defaultdict[str, list[Kind]] = defaultdict(list)
    for kind in answers.ALL_KINDS:
        found[kind.code].append(kind)
    return {code: tuple(kinds) for code, kinds in sorted(found.items())}

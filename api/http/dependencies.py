"""Dependencies of routes: the wired product, the caller, and idempotent answers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator

from api.schemas.base.times import format_time, parse_time
from broker.domain.basics.access import require_scope
from broker.domain.basics.account import Caller, IdempotencyKey, Scope
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.near_words import with_nearest
from broker.domain.basics.window import Window
from broker.domain.market.offer import Tier
from broker.domain.planning.workload import WorkloadKind
from broker.services.accounts.accounts import Answer, Replay
from broker.services.accounts.people import PERSON_PREFIX
from providers.registry import SPECS

if TYPE_CHECKING:
    from api.bootstrap import Product

IDEMPOTENCY_HEADER = "Idempotency-Key"
LONGEST_KEY = 255
SESSION_COOKIE = "broker_session"
MOST_ITEMS = 200
JWT = re.compile(r"eyJ[\w-]*\.[\w-]+\.[\w-]*")
"""What is no key: a signed token, whose header is JSON."""
SAFE_METHODS = frozenset({"GET", "HEAD"})

FindCaller = Callable[[Request], Awaitable[Caller]]
SCOPES: dict[Callable[..., Any], Scope] = {}
"""The scope that a dependency requires of the caller; the OpenAPI document tells it."""


def product_of(request: Request) -> Product:
    """The product that this application was wired with."""
    return cast("Product", request.app.state.product)


async def caller_of(request: Request) -> Caller:
    """The caller, by bearer key or token, or by the pages' session for GET. Raises NotAuthenticated."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    product, visitor = product_of(request), request.cookies.get(SESSION_COOKIE)
    key = given.strip()
    if scheme.lower() == "bearer" and JWT.fullmatch(key):
        caller = await product.people.verify(key)
    elif scheme.lower() == "bearer":
        caller = await product.keys.verify(key)
    elif visitor and request.method in SAFE_METHODS:
        caller = await find_visitor(product, visitor)
    else:
        caller = await product.keys.verify(None)
    idempotency_key = request.headers.get(IDEMPOTENCY_HEADER)
    if request.method != "POST" or idempotency_key is None:
        return caller
    return replace(caller, claim=IdempotencyKey(caller.team, idempotency_key, _route(request)))


async def find_visitor(product: Product, token: str | None) -> Caller:
    """Who is signed in with the session ``token``, of a key or of a person. Raises NotAuthenticated."""
    if token is not None and token.startswith(PERSON_PREFIX):
        return await product.people.find_visitor(token)
    return await product.keys.find_visitor(token)


def address_of(request: Request, path: str) -> str:
    """The whole address of one of our pages, as a browser reaches it."""
    base = product_of(request).settings.public_url or str(request.base_url)
    return base.rstrip("/") + path


def _route(request: Request) -> str:
    return f"{request.method} {request.url.path}"


def with_scope(find: FindCaller, scope: Scope) -> FindCaller:
    """A dependency: the caller that ``find`` returns, who must have ``scope``."""

    async def allowed(request: Request) -> Caller:
        caller = await find(request)
        require_scope(caller, scope)
        return caller

    SCOPES[allowed] = scope
    return allowed


needs = partial(with_scope, caller_of)


AnyCaller = Annotated[Caller, Depends(caller_of)]
PlanReader = Annotated[Caller, Depends(needs(Scope.PLANS_READ))]
PlanWriter = Annotated[Caller, Depends(needs(Scope.PLANS_WRITE))]
ReservationWriter = Annotated[Caller, Depends(needs(Scope.RESERVATIONS_WRITE))]
SpendReader = Annotated[Caller, Depends(needs(Scope.SPEND_READ))]
Approver = Annotated[Caller, Depends(needs(Scope.SPEND_APPROVE))]
Administrator = Annotated[Caller, Depends(needs(Scope.ADMIN))]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="How many items a page has at most")]
AnyLimit = Annotated[int | None, Query(ge=1, le=MOST_ITEMS, description="All of them unless told")]
Cursor = Annotated[str | None, Query(max_length=512, description="The `next_cursor` of the page before")]
Moment = Annotated[datetime, BeforeValidator(parse_time)]
Since = Annotated[Moment | None, Query(alias="from", description="A time with its zone, or a UTC date")]
Until = Annotated[Moment | None, Query(alias="to", description="Exclusive; as for from")]


async def narrowed_by(
    workload: Annotated[str | None, Query(description="Only this workload, by its name")] = None,
    provider: Annotated[str | None, Query(description="Only this provider, by its key")] = None,
    kind: Annotated[WorkloadKind | None, Query(description="Only this kind of workload")] = None,
    tier: Annotated[Tier | None, Query(description="Only this tier")] = None,
    gpu: Annotated[str | None, Query(description="Only this GPU, by its canonical name")] = None,
    region: Annotated[str | None, Query(description="Only this region, as its seller names it")] = None,
) -> dict[str, str]:
    """The filters of spend that were given."""
    given = {
        "workload": workload, "provider": provider, "kind": kind, "tier": tier, "gpu": gpu, "region": region
    }  # fmt: skip
    return {name: str(word) for name, word in given.items() if word}


async def require_known_names(request: Request, caller: AnyCaller) -> None:
    """422 for a team, workload or provider of the query that does not exist, with the nearest names."""
    asked = request.query_params
    product = product_of(request)
    provider = asked.get("provider")
    known = {*SPECS, *product.adapters}
    if provider and provider not in known:
        expected = with_nearest("a provider's key", provider, known)
        raise InputError("request", (FieldProblem("/provider", repr(provider), expected),))
    await product.names.require_known(caller, team=asked.get("team"), workload=asked.get("workload"))


KNOWN_NAMES = Depends(require_known_names)
"""For routers whose filters would find nothing for a mistyped name."""


Narrowing = Annotated[dict[str, str], Depends(narrowed_by)]


def json_answer(status: int, document: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer with a JSON body."""
    return Answer(status, json.dumps(document), json.dumps(dict(headers or {})))


async def answer_once(
    request: Request, caller: Caller, act: Callable[[], Awaitable[Answer]], again: Replay | None = None
) -> Response:
    """The answer of ``act``; for an ``Idempotency-Key`` that was used before, the first answer again.

    ``again`` makes the answer from the ids that a first request stored, if it ended before it could answer.
    """
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is not None and not 0 < len(key) <= LONGEST_KEY:
        problem = FieldProblem(f"/headers/{IDEMPOTENCY_HEADER}", f"{len(key)} characters", "1 to 255")
        raise InputError("request", (problem,))
    asked = request.url.query.encode() + b"\n" + await request.body()
    answer = await product_of(request).accounts.once(caller, key, _route(request), asked, act, again)
    headers = json.loads(answer.headers)
    if answer.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Response(answer.body, answer.status, headers, media_type="application/json")


def listing(items: list[dict[str, Any]], next_cursor: str | None) -> JSONResponse:
    """The form of every list."""
    return JSONResponse({"items": items, "next_cursor": next_cursor})


def window_between(start: datetime | None, end: datetime | None) -> Window | None:
    """The window ``[start, end)`` of two query parameters; None when neither is given. Raises InputError."""
    if start is None and end is None:
        return None
    if start is None or end is None:
        missing = "/from" if start is None else "/to"
        raise InputError("request", (FieldProblem(missing, "nothing", "both from and to, or neither"),))
    if end <= start:
        problem = FieldProblem("/from", format_time(start), f"a time before to, {format_time(end)}")
        raise InputError("request", (problem,))
    return Window(start, end)

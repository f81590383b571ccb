"""Windows as calendars: by a key, or by the secret address of a feed, which opens nothing else.

Calendar programs send no header, so the address of a feed carries a token. The token is the secret of a key
whose only scope is ``calendar:read``; its hash alone is stored, and it can be ended at any time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request
from fastapi.responses import Response

from api.export.ical import MEDIA_TYPE, plan_calendar, reservations_calendar
from api.http.dependencies import SCOPES, PlanReader, answer_once, caller_of, json_answer, product_of
from api.http.operation_details import may_fail
from api.http.strict_requests import FormRoute
from api.routes.parameters import KeyId, PlanId
from api.schemas.accounts.calendars import CalendarForm, NewCalendar
from broker.domain.basics.access import require_scope
from broker.domain.basics.account import ApiKey, Caller, Scope
from broker.domain.basics.errors import Conflict
from broker.services.accounts.accounts import Answer

router = APIRouter(prefix="/v1", tags=["calendars"], route_class=FormRoute)
CALENDAR: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/calendar": {"schema": {"type": "string"}}}}
}
FEED = "/v1/reservations.ics?token="


async def reader_of(
    request: Request,
    token: Annotated[str | None, Query(max_length=200, description="The token of a feed")] = None,
) -> Caller:
    """Who may read windows: the holder of a key with ``plans:read``, or of a feed's address."""
    if token is None:
        caller = await caller_of(request)
        require_scope(caller, SCOPES[reader_of])
        return caller
    return await product_of(request).keys.verify_calendar(token)


SCOPES[reader_of] = Scope.PLANS_READ
CalendarReader = Annotated[Caller, Depends(reader_of)]


@router.post("/calendars", status_code=201, responses={201: {"model": CalendarForm}})
async def create_calendar(
    request: Request, caller: PlanReader, wanted: Annotated[NewCalendar | None, Body()] = None
) -> Response:
    """Makes a feed of what the team has reserved; the address that it answers is shown once."""
    wish = wanted or NewCalendar()
    keys = product_of(request).keys

    async def act() -> Answer:
        key, token = await keys.create_calendar(caller, wish.name, wish.team)
        made = _form(key, token)
        kept = json_answer(201, _form(key, None).model_dump(mode="json"))
        return replace(json_answer(201, made.model_dump(mode="json")), remembered=kept.body)

    async def again(stored: tuple[str, ...]) -> Answer:
        found = await keys.find_key(caller, stored[0])
        return json_answer(201, _form(found, None).model_dump(mode="json"))

    return await answer_once(request, caller, act, again)


def _form(key: ApiKey, token: str | None) -> CalendarForm:
    url = None if token is None else f"{FEED}{token}"
    return CalendarForm(
        key_id=key.key_id, team=key.team, name=key.name, created_at=key.created_at, token=token, url=url
    )


@router.delete("/calendars/{key_id}", status_code=204, openapi_extra=may_fail(Conflict))
async def delete_calendar(request: Request, caller: PlanReader, key_id: KeyId) -> Response:
    """Ends a feed at once; a second time is no error. Keys are listed by `GET /v1/keys`."""
    await product_of(request).keys.end_calendar(caller, key_id)
    return Response(status_code=204)


@router.get(
    "/plans/{plan_id}/windows.ics",
    response_class=Response,
    responses=CALENDAR,
    openapi_extra=may_fail(Conflict),
)
async def show_plan_calendar(request: Request, caller: CalendarReader, plan_id: PlanId) -> Response:
    """Answers the windows of a plan as an iCalendar; once it is reserved, those of its reservations."""
    product = product_of(request)
    record = await product.planning.find_plan(caller, plan_id)
    if record.plan is None:
        raise Conflict(f"plan {plan_id} is {record.state}: it has no windows yet")
    rows = list(await product.reservations.find_every(caller, plan_id=plan_id))
    replaced = record.supersedes
    while replaced is not None:
        rows += await product.reservations.find_every(caller, plan_id=replaced, open_only=True)
        replaced = (await product.planning.find_plan(caller, replaced)).supersedes
    return Response(plan_calendar(record.plan, rows, product.clock.now()), media_type=MEDIA_TYPE)


@router.get("/reservations.ics", response_class=Response, responses=CALENDAR)
async def show_reservations_calendar(request: Request, caller: CalendarReader) -> Response:
    """Answers what is and was reserved as an iCalendar; an administrator's has every team."""
    product = product_of(request)
    rows = await product.reservations.find_every(caller)
    return Response(reservations_calendar(rows, product.clock.now()), media_type=MEDIA_TYPE)

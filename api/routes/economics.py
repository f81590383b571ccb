"""Analyses for finance: causes of change, unit costs, savings."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from api.http.cursors import by_day, page_of
from api.http.dependencies import (
    KNOWN_NAMES,
    AnyLimit,
    Approver,
    Cursor,
    Since,
    SpendReader,
    Until,
    answer_once,
    json_answer,
    listing,
    product_of,
    window_between,
)
from api.http.operation_details import may_fail
from api.http.strict_requests import require_no_body
from api.routes.parameters import Every, OfTeam, Seed, View
from api.schemas.base.forms import PageForm
from api.schemas.finance.economics import (
    CLOSED_MONTH,
    SAVINGS,
    ChangesForm,
    ClosedMonthForm,
    IntervalForm,
    MonthCloseForm,
    SavingsForm,
    UnitsForm,
    changes_to_document,
    economics_to_document,
    interval_to_document,
    month_close_to_document,
    plan_changes_to_document,
)
from api.schemas.finance.finance import LONGEST_COMMENT
from broker.domain.basics.errors import Conflict, FieldProblem, InputError, NotFound
from broker.domain.basics.window import Window
from broker.domain.spend.spend import CostView, Interval, next_period, period_of
from broker.services.accounts.accounts import Answer

router = APIRouter(prefix="/v1/spend", tags=["spend"], dependencies=[KNOWN_NAMES])
Side = Annotated[str, Query(max_length=100, description="A month (`2026-10`), or the `plan_id` of a plan")]
USUAL_MONTHS = 3
_MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])", re.ASCII)


@router.get("/changes", responses={200: {"model": ChangesForm}}, openapi_extra=may_fail(NotFound, Conflict))
async def explain_spend_changes(
    request: Request,
    caller: SpendReader,
    before: Annotated[Side, Query(alias="from")],
    after: Annotated[Side, Query(alias="to")],
    team: OfTeam = None,
    view: View = CostView.AMORTIZED,
) -> JSONResponse:
    """Explains the change of cost between two months or plans by price, volume and mix of each offer."""
    months = month_of(before), month_of(after)
    changes = product_of(request).changes
    if months[0] is not None and months[1] is not None:
        found = await changes.between_windows(caller, months[0], months[1], team=team, view=view)
        return JSONResponse(changes_to_document(found, before, after))
    if months != (None, None):
        expected = "two months such as 2026-10 and 2026-11, or two plans"
        raise InputError("request", (FieldProblem("/to", repr(after), expected),))
    if view is not CostView.AMORTIZED:
        raise InputError(
            "request",
            (FieldProblem("/view", str(view), "amortized: only months have bills, and plans none"),),
        )
    document: dict[str, Any] = plan_changes_to_document(
        await changes.between_plans(caller, before, after), before, after
    )
    return JSONResponse(document)


def month_of(text: str) -> Window | None:
    """The UTC month that ``text`` names (2026-10); None if it names none."""
    found = _MONTH.fullmatch(text)
    if found is None:
        return None
    start = datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)
    return Window(start, next_period(start, Interval.MONTH))


def read_month(text: str, pointer: str) -> Window:
    """The UTC month that ``text`` names. Raises InputError at ``pointer``."""
    found = month_of(text)
    if found is None:
        raise InputError("request", (FieldProblem(pointer, repr(text), "a month such as 2026-10"),))
    return found


@router.get("/interval", responses={200: {"model": IntervalForm}})
async def forecast_spend(
    request: Request,
    caller: SpendReader,
    since: Since = None,
    until: Until = None,
    interval: Every = Interval.DAY,
    team: OfTeam = None,
    seed: Seed = 1,
) -> JSONResponse:
    """Forecasts spend with its P10, P50 and P90; by default for this month and the next two."""
    product = product_of(request)
    window = window_between(since, until)
    if window is None:
        month = period_of(product.clock.now(), Interval.MONTH)
        end = month
        for _ in range(USUAL_MONTHS):
            end = next_period(end, Interval.MONTH)
        window = Window(month, end)
    found = await product.intervals.find(caller, window, interval, team, seed)
    return JSONResponse(interval_to_document(found, interval))


@router.get("/units", responses={200: {"model": UnitsForm}})
async def show_unit_costs(
    request: Request,
    caller: SpendReader,
    since: Since = None,
    until: Until = None,
    team: OfTeam = None,
) -> JSONResponse:
    """Shows the cost per run, per trained and served tokens and per GPU-hour, and the estimated energy."""
    window = window_between(since, until)
    found = await product_of(request).economics.find(caller, window, team)
    return JSONResponse(economics_to_document(found))


@router.get("/savings", responses={200: {"model": SavingsForm}})
async def show_savings(request: Request, caller: SpendReader, team: OfTeam = None) -> JSONResponse:
    """Shows what plans save that are reserved or that somebody intends to buy, against each simpler strategy
    that could have run; and which plans are in no sum, and why.
    """
    return JSONResponse(SAVINGS.write(await product_of(request).economics.find_savings(caller, team)))


@router.post("/close", responses={200: {"model": MonthCloseForm}}, openapi_extra=may_fail(Conflict))
async def close_month(
    request: Request,
    caller: Approver,
    month: Annotated[str, Query(max_length=7, description="The month to close, such as `2026-10`")],
    comment: Annotated[
        str, Query(max_length=LONGEST_COMMENT, description="A comment for the audit trail")
    ] = "",
) -> Response:
    """Closes a past month for all teams: its reports no longer change, and later differences are
    reported as corrections. A key of all teams with ``spend:approve`` may do so.
    """
    await require_no_body(request, "?month=2026-10&comment=…")

    async def act() -> Answer:
        window = read_month(month, "/month")
        done = await product_of(request).spend.close(caller, window.start.date(), comment)
        return json_answer(200, month_close_to_document(done))

    return await answer_once(request, caller, act)


@router.get("/closed", responses={200: {"model": PageForm[ClosedMonthForm]}})
async def list_closed_months(
    request: Request, caller: SpendReader, limit: AnyLimit = None, cursor: Cursor = None
) -> JSONResponse:
    """Lists the closed months, the earliest first."""
    found = await product_of(request).spend.find_closed(caller)
    page, next_cursor = page_of(found, lambda one: by_day(one.month), limit, cursor)
    return listing([CLOSED_MONTH.write(one) for one in page], next_cursor)

"""Budgets of teams and their use."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from api.http.cursors import SortKey, by_name, page_of
from api.http.dependencies import (
    KNOWN_NAMES,
    AnyLimit,
    Approver,
    Cursor,
    SpendReader,
    listing,
    product_of,
    window_between,
)
from api.http.strict_requests import FormRoute
from api.routes.economics import read_month
from api.routes.parameters import OfTeam, Period
from api.schemas.finance.finance import BudgetForm, BudgetPage, NewBudget, budget_to_document
from broker.domain.basics.access import scope_of
from broker.domain.basics.account import Caller
from broker.domain.spend.budgets import Budget, BudgetPeriod, BudgetStatus
from broker.domain.workloads.document_fields import TRIMMED

router = APIRouter(prefix="/v1/budgets", tags=["budgets"], dependencies=[KNOWN_NAMES], route_class=FormRoute)
WHOSE = "The team of the budget; `*` stands for all teams together"
InMonth = Annotated[
    str | None,
    Query(
        max_length=7,
        description="The periods that contain this month, such as `2026-11`, past ones too; default: the "
        "present ones. The limits are today's",
    ),
]
BudgetTeam = Annotated[str, Path(description=WHOSE)]


@router.get("", responses={200: {"model": BudgetPage}})
async def list_budgets(
    request: Request,
    caller: SpendReader,
    team: OfTeam = None,
    period: InMonth = None,
    limit: AnyLimit = None,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the budgets with what is owed and expected, and the day on which each runs out."""
    month = None if period is None else read_month(period, "/period").start.date()
    found = await product_of(request).budgets.find_statuses(caller, team, month)
    page, next_cursor = page_of(found, _by_team, limit, cursor)
    return listing([budget_to_document(one) for one in page], next_cursor)


@router.get("/{team:path}/{period}", responses={200: {"model": BudgetForm}})
async def show_budget(
    request: Request, caller: SpendReader, team: BudgetTeam, period: Period
) -> JSONResponse:
    """Shows one budget and its use."""
    found = await product_of(request).budgets.find_status(caller, team, period)
    return JSONResponse(budget_to_document(found))


@router.put("/{team:path}/{period}", responses={200: {"model": BudgetForm}})
async def put_budget(
    request: Request,
    caller: Approver,
    team: Annotated[str, Path(max_length=200, pattern=TRIMMED, description=WHOSE)],
    period: Period,
    wanted: Annotated[NewBudget, Body()],
) -> JSONResponse:
    """Sets a budget. The team ``*`` stands for all teams together: an administrator and a key of all teams
    set it, and each order and plan of every team is held against it.

    A team that does not exist is an error: it has a key, a plan, a reservation or a budget already.
    """
    scope_of(caller).require(team)
    await product_of(request).names.require_known(caller, team=team)
    budget = _budget(request, caller, team, period, wanted)
    return JSONResponse(budget_to_document(await product_of(request).budgets.put(caller, budget)))


@router.delete("/{team:path}/{period}", status_code=204)
async def delete_budget(request: Request, caller: Approver, team: BudgetTeam, period: Period) -> Response:
    """Deletes a budget."""
    await product_of(request).budgets.remove(caller, team, period)
    return Response(status_code=204)


def _by_team(found: BudgetStatus) -> SortKey:
    return by_name(f"{found.budget.team}/{found.budget.period}")


def _budget(request: Request, caller: Caller, team: str, period: BudgetPeriod, wanted: NewBudget) -> Budget:
    return Budget(
        team=team,
        period=period,
        limit_usd=wanted.limit_usd,
        thresholds=tuple(wanted.thresholds),
        horizon=window_between(wanted.start, wanted.end),
        set_by=caller.key_id,
        set_at=product_of(request).clock.now(),
        confidence=wanted.confidence,
    )

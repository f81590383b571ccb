"""Comparisons: a plan beside its variants, or beside other plans."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from api.http.dependencies import PlanReader, product_of
from api.http.operation_details import may_fail
from api.plan_requests import comparison_of
from api.schemas.plans.comparison import (
    ComparisonDocument,
    ComparisonForm,
    comparison_to_document,
)
from broker.domain.basics.errors import Conflict, NotFound

router = APIRouter(prefix="/v1/comparisons", tags=["plans"])
MOST_PLANS = 20
ComparisonId = Annotated[str, Path(description="The `comparison_id` of an answer to a question what if")]
Plans = Annotated[
    list[str],
    Query(min_length=2, max_length=MOST_PLANS, description="Plans by `plan_id`; the first is the base"),
]


@router.get("", responses={200: {"model": ComparisonForm}}, openapi_extra=may_fail(NotFound, Conflict))
async def compare_plans(request: Request, caller: PlanReader, plan: Plans) -> Response:
    """Compares any plans: `?plan=A&plan=B`; the first is the base."""
    product = product_of(request)
    base, *others = [await product.planning.find_plan(caller, plan_id) for plan_id in plan]
    return _answer(comparison_of(product, base, others))


@router.get("/{comparison_id}", responses={200: {"model": ComparisonForm}})
async def show_comparison(request: Request, caller: PlanReader, comparison_id: ComparisonId) -> Response:
    """Shows a plan beside its variants. `Retry-After` says when to ask again while some are being made."""
    product = product_of(request)
    found = await product.planning.find_comparison(caller, comparison_id)
    return _answer(comparison_of(product, found.base, found.variants, comparison_id))


def _answer(found: ComparisonDocument) -> Response:
    headers = {} if found.is_complete else {"Retry-After": "1"}
    return JSONResponse(comparison_to_document(found), headers=headers)

"""Approval of plans by finance."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from api.http.dependencies import KNOWN_NAMES, Cursor, Limit, SpendReader, listing, product_of
from api.routes.parameters import OfTeam
from api.schemas.finance.finance import ApprovalPage, approval_to_document
from broker.domain.spend.approvals import ApprovalState

router = APIRouter(prefix="/v1/approvals", tags=["approvals"], dependencies=[KNOWN_NAMES])


@router.get("", responses={200: {"model": ApprovalPage}})
async def list_approvals(
    request: Request,
    caller: SpendReader,
    state: Annotated[
        list[ApprovalState] | None, Query(description="Only plans in this state of approval")
    ] = None,
    team: OfTeam = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the plans that need or have a decision of finance, newest first, with current figures."""
    found = await product_of(request).approvals.find_approvals(
        caller, frozenset(state or ApprovalState), limit, cursor, team=team
    )
    return listing([approval_to_document(one) for one in found.items], found.next_cursor)

"""Reservations: the list, the history of each, and its release."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.parts.forms import act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import PlanVisitor
from api.pages.plans.reservation_view import (
    gone_words,
    latest_change,
    line_id,
    money_card,
    reservation_cards,
    size_words,
    steps_of,
    steps_words,
)
from api.reserved_fleets import fleets
from broker.domain.basics.account import Caller

SHOWN, MOST_STEPS = 100, 200
DONE: Mapping[str, str] = {
    "ordered": "Ordered. Its state follows the provider's answers.",
    "released": "Release asked for. It counts as gone once the provider shows so, twice.",
}

router = page_router()


@router.get("/reservations")
async def reservations_page(
    request: Request, caller: PlanVisitor, cursor: str | None = None, plan_id: str = ""
) -> Response:
    """Reservations, of one plan with ``plan_id``. All open ones are on the first page."""
    product, plan = product_of(request), plan_id or None
    page = await product.reservations.find_reservations(caller, SHOWN, cursor, plan_id=plan)
    rows = [row for row in page.items if not row.is_open]
    if cursor is None:
        rows += await product.reservations.find_every(caller, plan_id=plan, open_only=True)
    rows.sort(key=lambda row: (row.created_at, row.reservation_id), reverse=True)
    lines = fleets(rows, product.clock.now())
    return show(
        request,
        "reservations.html",
        "Reservations",
        held=[(fleet, line_id(fleet), size_words(fleet), steps_words(fleet)) for fleet in lines],
        latest=latest_change(rows),
        short=await product.reservations.find_shortfalls(caller, plan_id=plan),
        cards=reservation_cards(lines),
        plan_id=plan_id,
        address=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
        next_cursor=page.next_cursor,
    )


@router.get("/reservations/{reservation_id}")
async def reservation_page(
    request: Request, caller: PlanVisitor, reservation_id: str, done: str = ""
) -> Response:
    """One reservation: its state, its capacity, and who did what, when and why."""
    product = product_of(request)
    reservation = await product.reservations.find_reservation(caller, reservation_id)
    history = await product.accounts.find_audit(caller, MOST_STEPS, object_id=reservation_id)
    return show(
        request,
        "reservation.html",
        reservation.workload or "Reservation",
        r=reservation,
        cards=money_card(reservation, product.clock.now()),
        on_release=await product.reservations.estimate_release(caller, reservation_id),
        gone=gone_words(reservation),
        steps=steps_of(history.items),
        notice=DONE.get(done, ""),
        proof=proof_of(request),
        once=new_once(),
    )


@router.post("/reservations/{reservation_id}/release")
async def release(request: Request, caller: PlanVisitor, reservation_id: str) -> Response:
    """Releases the reservation."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).reservations.release(named, reservation_id)
        return f"/reservations/{reservation_id}?done=released"

    return await act_once(request, caller, form, act)

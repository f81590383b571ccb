"""Reservations: the list, the history of each, and the release of one, of a fleet or of a whole plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from api.http.dependencies import product_of
from api.pages.parts.forms import act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import PlanVisitor
from api.pages.parts.words import moment
from api.pages.plans.reservation_view import (
    failed_words,
    gone_words,
    latest_change,
    line_id,
    money_card,
    progress_words,
    reservation_cards,
)
from api.reserved_fleets import fleets, size_words, steps_words
from api.schemas.holding.reservation import access_reason, machines_of
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import Conflict, FieldProblem, InputError
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.services.holding.reserving_requests import PlanPart

SHOWN, MOST_STEPS = 100, 200
LOOKS, LOOK_S = 20, 0.5
"""How often an answer about progress looks, and the seconds between."""
DONE: Mapping[str, str] = {
    "ordered": "Ordered. Its state follows the provider's answers.",
    "extended": "It is held longer.",
    "released": "Release asked for. It counts as gone once the provider shows so, twice.",
    "fleet-released": "Release asked for the whole fleet. Each part is gone once its provider shows so.",
}

router = page_router()


@router.get("/reservations")
async def reservations_page(
    request: Request, caller: PlanVisitor, cursor: str | None = None, plan_id: str = "", done: str = ""
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
        held=[(fleet, line_id(fleet), size_words(fleet, moment), steps_words(fleet)) for fleet in lines],
        latest=latest_change(rows),
        short=await product.reservations.find_shortfalls(caller, plan_id=plan),
        cards=reservation_cards(lines),
        plan_id=plan_id,
        notice=DONE.get(done, ""),
        address=_address_of(cursor, plan_id),
        next_cursor=page.next_cursor,
    )


def _address_of(cursor: str | None, plan_id: str) -> str:
    """The address of the list, without the word about what was done, which is said once."""
    query = {name: text for name, text in (("cursor", cursor), ("plan_id", plan_id)) if text}
    return f"/reservations?{urlencode(query)}" if query else "/reservations"


@router.get("/plans/{plan_id}/release")
async def fleet_release_page(
    request: Request, caller: PlanVisitor, plan_id: str, workload: str = "", offer_id: str = ""
) -> Response:
    """Asks whether the fleet of a workload is to be released, and says what stays owed.

    Without ``workload`` and ``offer_id``: all that the plan holds.
    """
    product, part = product_of(request), PlanPart(plan_id, workload or None, offer_id or None)
    every = await product.reservations.find_every(caller, plan_id=plan_id, open_only=True)
    rows = [row for row in every if part.covers(row) and row.state is not ReservationState.RELEASING]
    lines = fleets(rows, product.clock.now())
    return show(
        request,
        "fleet_release.html",
        f"Release {workload or 'all of the plan'}",
        part=part,
        lines=[(fleet, size_words(fleet, moment)) for fleet in lines],
        count=len(rows),
        on_release=await product.reservations.estimate_part_release(caller, part),
        proof=proof_of(request),
        once=new_once(),
    )


@router.post("/plans/{plan_id}/release")
async def release_plan(request: Request, caller: PlanVisitor, plan_id: str) -> Response:
    """Releases what the plan holds: all of it, or the fleet that the form names."""
    form = await read_form(request)
    part = PlanPart(plan_id, form.text("workload") or None, form.text("offer_id") or None)

    async def act(named: Caller) -> str:
        found = await product_of(request).reservations.release_part(named, part)
        if found.failed:
            raise Conflict(failed_words(found))
        is_whole = part.workload is None and part.offer_id is None
        whole, fleet = (
            f"/plans/{plan_id}?done=released",
            f"/reservations?plan_id={plan_id}&done=fleet-released",
        )
        return whole if is_whole else fleet

    return await act_once(request, caller, form, act)


@router.get("/plans/{plan_id}/holding")
async def holding_progress(
    request: Request,
    caller: PlanVisitor,
    plan_id: str,
    workload: str = "",
    offer_id: str = "",
    releasing: int | None = None,
) -> Response:
    """How far the reserving of a plan, or the release of as many reservations as ``releasing``, is: a
    server-sent part of its page after each change, and the event ``end``. Pages ask again until that comes.
    """
    product, part = product_of(request), PlanPart(plan_id, workload or None, offer_id or None)
    await product.planning.find_plan(caller, plan_id)

    async def lines() -> AsyncIterator[str]:
        last = ""
        for _ in range(LOOKS):
            rows = await product.reservations.find_every(caller, plan_id=plan_id, open_only=True)
            told, is_done = progress_words([row for row in rows if part.covers(row)], releasing)
            if told != last:
                yield f"data: {told}\n\n"
            last = told
            if is_done:
                yield "event: end\ndata: end\n\n"
            if is_done or not rows:
                return
            await asyncio.sleep(LOOK_S)

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


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
        ways=[(unit, machines_of(unit), access_reason(unit)) for unit in reservation.units],
        extends=later_end(reservation),
        cards=money_card(reservation, product.clock.now()),
        on_release=await product.reservations.estimate_release(caller, reservation_id),
        gone=gone_words(reservation),
        steps=history.items[::-1],
        notice=DONE.get(done, ""),
        proof=proof_of(request),
        once=new_once(),
    )


@router.post("/reservations/{reservation_id}/extend")
async def extend(request: Request, caller: PlanVisitor, reservation_id: str) -> Response:
    """Holds the reservation until a later end."""
    form = await read_form(request)
    try:
        end = datetime.fromisoformat(form.text("end")).replace(tzinfo=UTC)
    except ValueError as error:
        problem = FieldProblem("end", repr(form.text("end")), "a day and a time, such as 2026-11-30T12:00")
        raise InputError("form", (problem,)) from error

    async def act(named: Caller) -> str:
        await product_of(request).reservations.extend(named, reservation_id, end)
        return f"/reservations/{reservation_id}?done=extended"

    return await act_once(request, caller, form, act)


def later_end(reservation: Reservation) -> str:
    """The end that is proposed for an extension, a day later; empty where it cannot be extended."""
    if reservation.end is None or not reservation.is_open or reservation.offer.window is not None:
        return ""
    return f"{reservation.end + timedelta(days=1):%Y-%m-%dT%H:%M}"


@router.post("/reservations/{reservation_id}/release")
async def release(request: Request, caller: PlanVisitor, reservation_id: str) -> Response:
    """Releases the reservation."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).reservations.release(named, reservation_id)
        return f"/reservations/{reservation_id}?done=released"

    return await act_once(request, caller, form, act)

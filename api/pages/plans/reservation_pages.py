"""Reservations: the list, the history of each, and the release of one, of a fleet or of a whole plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
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
from api.promise_words import chance_words, state_note, state_word
from api.reserved_fleets import fleets, money_of, size_words, steps_words
from api.schemas.holding.reservation import access_reason, machines_of
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import Conflict, FieldProblem, InputError
from broker.domain.holding.capacity_promise import CapacityPromise, promise_of
from broker.domain.holding.early_holding import why_not_held
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.spend.order_quote import ExtensionQuote, quote_of_hold
from broker.services.holding.reserving_requests import PlanPart

if TYPE_CHECKING:
    from api.bootstrap import Product

SHOWN, MOST_STEPS = 100, 200
LOOKS, LOOK_S = 20, 0.5
"""How often an answer about progress looks, and the seconds between."""
DONE: Mapping[str, str] = {
    "ordered": "Ordered. Its state follows the provider's answers.",
    "extended": "It is held longer.",
    "held": "It is bought now, and kept until it is needed. Its state follows the provider's answer.",
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
    now = product.clock.now()
    lines = fleets(rows, now)
    chances = await _chances(product, [row for line in lines for row in line.rows])
    return show(
        request,
        "reservations.html",
        "Reservations",
        held=[
            (
                fleet,
                line_id(fleet),
                size_words(fleet, moment),
                steps_words(fleet),
                fleet.note(moment, chances.get(fleet.first.offer.offer_id, "")),
                money_of(fleet, now),
            )
            for fleet in lines
        ],
        latest=latest_change(rows),
        short=await product.reservations.find_shortfalls(caller, plan_id=plan),
        cards=reservation_cards(lines),
        plan_id=plan_id,
        notice=DONE.get(done, ""),
        address=_address_of(cursor, plan_id),
        next_cursor=page.next_cursor,
    )


async def _chances(product: Product, rows: Sequence[Reservation]) -> dict[str, str]:
    """What is known of the chance of orders that are placed later, by offer."""
    now = product.clock.now()
    asked = {r.offer.offer_id for r in rows if promise_of(r, now) is CapacityPromise.AT_START}
    found = await product.offers.find_named(sorted(asked)) if asked else ()
    return {
        offer.offer_id: chance_words(
            offer.stock.level, None if offer.learned is None else offer.learned.success_share
        )
        for offer in found
    }


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
    now = product.clock.now()
    promise = promise_of(reservation, now)
    chances = await _chances(product, [reservation])
    may_hold = promise is CapacityPromise.AT_START and not why_not_held(reservation.offer)
    return show(
        request,
        "reservation.html",
        reservation.workload or "Reservation",
        r=reservation,
        word=state_word(reservation, promise),
        note=state_note(reservation, promise, moment, chances.get(reservation.offer.offer_id, "")),
        hold=quote_of_hold(reservation, now) if may_hold and now < reservation.start else None,
        ways=[(unit, machines_of(unit), access_reason(unit)) for unit in reservation.units],
        longer=await _longer(product, caller, reservation),
        cards=money_card(reservation, now),
        on_release=await product.reservations.estimate_release(caller, reservation_id),
        gone=gone_words(reservation),
        steps=history.items[::-1],
        notice=DONE.get(done, ""),
        proof=proof_of(request),
        once=new_once(),
    )


@router.post("/reservations/{reservation_id}/hold")
async def hold_now(request: Request, caller: PlanVisitor, reservation_id: str) -> Response:
    """Buys a reservation now that is ordered at its start."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).early_holding.hold(named, reservation_id)
        return f"/reservations/{reservation_id}?done=held"

    return await act_once(request, caller, form, act)


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


async def _longer(product: Product, caller: Caller, reservation: Reservation) -> ExtensionQuote | None:
    """The quote of the extension that is proposed, a day longer; None where it cannot be extended."""
    if reservation.end is None or not reservation.is_open or reservation.offer.window is not None:
        return None
    end = reservation.end + timedelta(days=1)
    return await product.reservations.quote_extension(caller, reservation.reservation_id, end)


@router.post("/reservations/{reservation_id}/release")
async def release(request: Request, caller: PlanVisitor, reservation_id: str) -> Response:
    """Releases the reservation."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).reservations.release(named, reservation_id)
        return f"/reservations/{reservation_id}?done=released"

    return await act_once(request, caller, form, act)

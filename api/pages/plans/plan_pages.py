"""Plans: the list, the page of one, and the actions on it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from api import plan_sections
from api.http.dependencies import product_of
from api.http.errors import kind_of
from api.pages.parts.forms import SentForm, act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show, templates
from api.pages.parts.session import PlanVisitor, PlanWritingVisitor
from api.pages.parts.words import moment, offer_words, seller, usd
from api.pages.plans import plan_view
from api.pages.plans.chance_view import price_chart
from api.pages.plans.failed_reserve import failed_reserve
from api.pages.plans.what_if_view import questions_of
from api.plan_answer import NO_OBJECTIVES, answer_of, objectives_in
from api.plan_requests import (
    ask_for_plan,
    ask_to_continue,
    event_of,
    find_holdings,
    find_stale,
    options_of,
    plan_events,
)
from api.plan_words import state_words
from api.promise_words import accepted_words, promises_words
from api.reserved_fleets import FleetMoney, ReservedFleet, fleets, money_of, size_words
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import (
    ApprovalRequired,
    BrokerError,
    Conflict,
    FieldProblem,
    InputError,
    OverBudget,
    ProviderError,
)
from broker.domain.holding.early_holding import Hold
from broker.domain.holding.plan_holding import PlanHolding
from broker.domain.holding.reservation import Reservation
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.spend.order_quote import quote_of_plan
from broker.domain.spend.release_estimate import ReleaseEstimate
from broker.ports.planning import PlanRecord, why_not_continued
from broker.services.holding.reserving_requests import PlanPart

if TYPE_CHECKING:
    from api.bootstrap import Product

DONE: Mapping[str, str] = {
    "asked": "Asked. Nothing is bought by planning.",
    "approved": "Approved. The team can reserve it now.",
    "rejected": "Rejected. It cannot be reserved, and counts as spend no more.",
    "released": "Release asked for everything that this plan held.",
    "intended": "This draft counts in planned spend now.",
    "not-intended": "This draft counts in planned spend no more.",
}
"""What a page says after an action, by the word in its address."""
MOST_STEPS = 24
"""Steps of a fleet that the page lists."""
RESERVED = "reserved"
"""The word after reserving, which is told by what is held."""

router = page_router()


@router.get("/plans")
async def plans_page(request: Request, caller: PlanVisitor, cursor: str | None = None) -> Response:
    """Plans, newest first."""
    return await plans_shown(request, caller, cursor)


async def plans_shown(
    request: Request,
    caller: Caller,
    cursor: str | None = None,
    *,
    ticked: Collection[str] = (),
    notice: str = "",
    status: int = 200,
) -> Response:
    """The list of plans. ``notice`` says what is to be done there; ``ticked`` was chosen already."""
    product = product_of(request)
    page = await product.planning.find_plans(caller, 50, cursor)
    rows = await _rows_of(product, caller, page.items)
    return show(
        request,
        "plans.html",
        "Plans",
        status,
        plans=rows,
        ticked=ticked,
        notice=notice,
        next_cursor=page.next_cursor,
    )


async def _rows_of(
    product: Product, caller: Caller, records: Sequence[PlanRecord]
) -> list[plan_view.PlanRow]:
    statuses = await product.planning.find_business_statuses(records)
    holdings = await find_holdings(product, caller, records, statuses)
    now = product.clock.now()
    return [
        plan_view.plan_row(record, now, statuses.get(record.plan_id), holdings.get(record.plan_id))
        for record in records
    ]


@router.get("/plans/{plan_id}")
async def plan_page(request: Request, caller: PlanVisitor, plan_id: str, done: str = "") -> Response:
    """One plan over time, and why."""
    return await _shown(request, caller, plan_id, done=done)


async def _shown(
    request: Request, caller: Caller, plan_id: str, *, done: str = "", error: BrokerError | None = None
) -> Response:
    """The page of a plan; with ``error``, what stopped its reserving, and the status of that."""
    product = product_of(request)
    record = await product.planning.find_plan(caller, plan_id)
    held = await product.reservations.find_every(caller, plan_id=plan_id)
    offers = await _offers_now(product, record)
    kind = None if error is None else kind_of(error)
    failed = None
    if error is not None and kind is not None and record.plan is not None:
        failed = failed_reserve(record.plan, error, kind.title, held, offers)
    asked = await product.approvals.find_approval(caller, plan_id) if caller.may(Scope.SPEND_READ) else None
    statuses = await product.planning.find_business_statuses([record])
    standing = statuses.get(plan_id)
    holding = (await find_holdings(product, caller, [record], statuses)).get(plan_id)
    others = await product.planning.find_others(caller, record)
    now, on_release = product.clock.now(), await _on_release(product, caller, record)
    quote = None
    if record.plan is not None and on_release is not None:
        quote = quote_of_plan(record.plan, offers, on_release, now)
    return show(
        request,
        "plan.html",
        plan_view.title_of(record),
        200 if kind is None else kind.status,
        record=record,
        failed=failed,
        heading=plan_view.title_of(record),
        notice=accepted_words(held, moment, now) if done == RESERVED else DONE.get(done, ""),
        step=plan_view.next_step(record, held),
        standing=standing,
        may_continue=why_not_continued(record, standing) is None,
        place=plan_view.place_of(record, standing, now),
        others=others,
        stale=(await find_stale(product, [record], statuses)).get(plan_id, ()),
        not_bought=plan_view.why_not_bought(record, held),
        open_lines=_open_lines(held, now),
        promised=plan_view.promised_words(record.plan, quote, held, now),
        short=await product.reservations.find_shortfalls(caller, plan_id=plan_id),
        unfinished=await product.reoptimize.find_unfinished_of(caller, plan_id),
        approval=asked,
        proof=proof_of(request),
        once=new_once(),
        on_release=on_release,
        quote=quote,
        gone=plan_view.gone_words(held),
        event=await event_of(product, record),
        beside_base=await _beside_base(product, caller, record),
        **_of_plan(record, now, holding),
    )


async def _beside_base(product: Product, caller: Caller, record: PlanRecord) -> str:
    """What a variant saves beside the plan that it changes; empty for other plans."""
    if record.plan is None or record.variant is None:
        return ""
    base = (await product.planning.find_plan(caller, record.variant.based_on)).plan
    if base is None:
        return ""
    assumed = record.variant.prices is not None
    return plan_view.savings_beside_base(record.plan, base, at_assumed_prices=assumed)


def _open_lines(
    held: Sequence[Reservation], now: datetime
) -> list[tuple[ReservedFleet[Reservation], str, str]]:
    """What is or will be held: one line for each offer of a workload, with its size, and what is promised of
    it and its money, in words.
    """
    lines = fleets([row for row in held if row.is_open], now)
    return [(fleet, size_words(fleet, moment), _told_of(fleet, money_of(fleet, now))) for fleet in lines]


def _told_of(fleet: ReservedFleet[Reservation], money: FleetMoney) -> str:
    promised = promises_words(fleet.promises) or fleet.word
    return f"{promised}; {usd(money.owed_usd)} so far, {usd(money.expected_usd)} to come"


async def _offers_now(product: Product, record: PlanRecord) -> dict[str, Offer]:
    """Offers of the plan that are on sale, at current terms, by id."""
    placed = () if record.plan is None else record.plan.placements
    return {offer.offer_id: offer for offer in await product.offers.find_named([p.offer_id for p in placed])}


async def _on_release(product: Product, caller: Caller, record: PlanRecord) -> ReleaseEstimate | None:
    """What a release of the plan gives back; None if the visitor cannot reserve or release it."""
    if record.plan is None or not caller.may(Scope.RESERVATIONS_WRITE):
        return None
    return await product.reservations.estimate_part_release(caller, PlanPart(record.plan_id))


def is_past(plan: Plan, now: datetime) -> bool:
    """Whether all that ``plan`` holds has ended, so that nothing of it can be reserved."""
    ends = [segment.end for placed in plan.placements for segment in placed.segments]
    return bool(ends) and max(ends) <= now


def _of_plan(record: PlanRecord, now: datetime, holding: PlanHolding | None) -> dict[str, Any]:
    """What the page shows once the plan is made."""
    plan = record.plan
    if plan is None:
        return {"plan": None, "status": record.state}
    objectives = objectives_in(json.loads(record.document)) if record.document else NO_OBJECTIVES
    return {
        "plan": plan,
        "status": plan.status,
        "questions": questions_of(record) if record.document else (),
        "cards": plan_sections.plan_cards(plan, *plan_view.budget_of(record)),
        "answer": answer_of(plan, seller, moment, objectives, holding),
        "price_chart": price_chart(plan),
        "charts": plan_view.plan_charts(plan, now, plan_view.asked_of(record)),
        "fleets": plan_sections.fleets_of(plan, objectives, offer_words),
        "days": plan_view.held_days(plan),
        "kinds": plan_view.kinds_of(plan),
        "capacity": plan_view.capacity,
        "most_steps": MOST_STEPS,
        "baselines": plan_view.baseline_rows(plan),
        "bound_share": plan_view.bound_share(plan),
        "told": tuple(plan_sections.told_of(plan, offer_words)),
        "committed": plan_view.committed_words(plan),
        "is_past": is_past(plan, now),
        "as_of": plan.as_of,
    }


@router.get("/plans/{plan_id}/progress")
async def progress(request: Request, caller: PlanVisitor, plan_id: str) -> Response:
    """The progress of a plan as server-sent parts of its page, then the event ``end``."""
    product = product_of(request)
    first = await product.planning.find_plan(caller, plan_id)
    part = templates.get_template("plan_progress.html")

    async def lines() -> AsyncIterator[str]:
        async for event in plan_events(product, caller, first):
            if event is None:
                yield ": still at work\n\n"
                continue
            state_now = state_words(str(event["state"]), None)
            told = part.render(event=event, state_now=state_now).strip().splitlines()
            yield "".join(f"data: {line}\n" for line in told) + "\n"
        yield "event: end\ndata: end\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@router.post("/plans/{plan_id}/cancel")
async def cancel(request: Request, caller: PlanWritingVisitor, plan_id: str) -> Response:
    """Cancels a plan that waits or is being made."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).planning.cancel(named, plan_id)
        return f"/plans/{plan_id}"

    return await act_once(request, caller, form, act)


@router.post("/plans/{plan_id}/reserve")
async def reserve(request: Request, caller: PlanVisitor, plan_id: str) -> Response:
    """Reserves all of the plan, or nothing; then the plan's page says what stopped it."""
    form = await read_form(request)
    hold = _hold_of(form)

    async def act(named: Caller) -> str:
        await as_seen(request, named, plan_id, form)
        await product_of(request).reservations.reserve_plan(named, plan_id, hold)
        return f"/plans/{plan_id}?done={RESERVED}"

    try:
        return await act_once(request, caller, form, act, lambda _: f"/plans/{plan_id}")
    except (Conflict, ApprovalRequired, OverBudget, ProviderError) as error:
        return await _shown(request, caller, plan_id, error=error)


def _hold_of(form: SentForm) -> Hold:
    """When what starts later is ordered; at its start where the form does not ask. Raises InputError."""
    text = form.text("hold") or Hold.AT_START
    if text not in list(Hold):
        raise InputError("form", (FieldProblem("hold", repr(text), " or ".join(Hold)),))
    return Hold(text)


@router.post("/plans/{plan_id}/again")
async def plan_again(request: Request, caller: PlanWritingVisitor, plan_id: str) -> Response:
    """Plans the same document again; ``without``: a provider that the new plan leaves out."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        product = product_of(request)
        record = await product.planning.find_plan(named, plan_id)
        text = plan_view.without_provider(record.document, form.text("without"))
        again = await ask_for_plan(product, named, text, options_of(product.settings), "workloads")
        return f"/plans/{again.plan_id}?done=asked"

    return await act_once(request, caller, form, act, lambda stored: f"/plans/{stored[0]}")


@router.post("/plans/{plan_id}/continue")
async def continue_search(request: Request, caller: PlanWritingVisitor, plan_id: str) -> Response:
    """Continues the search of a plan, as a new plan."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        made = await ask_to_continue(product_of(request), named, plan_id)
        return f"/plans/{made.plan_id}?done=asked"

    return await act_once(request, caller, form, act, lambda stored: f"/plans/{stored[0]}")


@router.post("/plans/{plan_id}/intend")
async def intend(request: Request, caller: PlanWritingVisitor, plan_id: str) -> Response:
    """Sets whether a draft counts in planned spend."""
    form = await read_form(request)
    intended = form.text("intended") == "yes"

    async def act(named: Caller) -> str:
        await product_of(request).planning.set_intended(named, plan_id, intended=intended)
        return f"/plans/{plan_id}?done={'intended' if intended else 'not-intended'}"

    return await act_once(request, caller, form, act)


async def as_seen(request: Request, caller: Caller, plan_id: str, form: SentForm) -> PlanRecord:
    """The plan. Raises Conflict unless it costs what the page of the form showed."""
    record = await product_of(request).planning.find_plan(caller, plan_id)
    cost = record.plan.cost_usd if record.plan is not None else None
    try:
        seen = Decimal(form.text("seen_usd"))
    except InvalidOperation:
        seen = None
    if cost is None or seen != cost:
        raise Conflict(f"plan {plan_id} costs {usd(cost)} now, the page showed {usd(seen)}: look at it again")
    return record

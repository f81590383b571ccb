"""Plans: request, progress, approval and reservation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from api.http.conditional import NOT_MODIFIED, Tagged, conditional, plan_key, tagged
from api.http.dependencies import (
    KNOWN_NAMES,
    Approver,
    Cursor,
    Limit,
    PlanReader,
    PlanWriter,
    ReservationWriter,
    answer_once,
    json_answer,
    listing,
    product_of,
)
from api.http.openapi import WHAT_IF, WORKLOADS
from api.http.operation_details import ORDER_ERRORS, may_fail
from api.http.strict_requests import FormRoute
from api.money_words import order_words, seller_name
from api.plan_requests import (
    ask_for_comparison,
    ask_for_plan,
    ask_to_continue,
    estimate,
    find_holdings,
    find_stale,
    finished_within,
    options_of,
    plan_events,
    retry_after_s,
)
from api.routes.parameters import OfTeam, PlanId, Seed
from api.schemas.base.forms import PageForm, write
from api.schemas.base.validation import PRINTABLE
from api.schemas.finance.finance import Word
from api.schemas.holding.reservation import (
    RELEASE_ESTIMATE,
    PlanQuoteForm,
    PlanReleaseForm,
    PlanReleaseRequest,
    PlanReservationRequest,
    ReleaseEstimateForm,
    ReservationsForm,
    quote_to_document,
    reservation_to_document,
)
from api.schemas.imports.answers import STARTING_POINT, StartingPointForm, StartingPointQuestion
from api.schemas.imports.starting_points import read_starting_point
from api.schemas.plans.comparison import AcceptedComparisonForm
from api.schemas.plans.cost_estimate import COST_ESTIMATE, CostEstimateForm
from api.schemas.plans.plan import CONFIDENCE_PRICE, ConfidencePricesForm
from api.schemas.plans.plan_record import (
    AcceptedPlanForm,
    IntentionForm,
    PlanRecordForm,
    PlanSummaryForm,
    UnmadePlanForm,
    record_to_document,
    record_to_summary,
    status_of,
)
from api.schemas.plans.simulation import (
    SIMULATION,
    PlanCheckForm,
    SimulationForm,
    SimulationRequest,
    check_to_document,
)
from api.schemas.workloads.what_if import may_ask_what_if, read_what_if
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import (
    ApprovalRequired,
    Conflict,
    FieldProblem,
    InputError,
    NotFound,
    PlannerDied,
    PlannerOutOfMemory,
    StalePlan,
    TooManyEstimates,
    TooManyPlans,
)
from broker.domain.holding.reservation import Reservation
from broker.lru_cache import LruCache
from broker.ports.planning import UNDECIDED, PlanRecord, Whereabouts
from broker.services.accounts.accounts import Answer
from broker.services.holding.reserving_requests import PlanPart
from broker.services.planning.planning import Comparison
from broker.services.spend.approvals import Looked

starting_points = APIRouter(prefix="/v1/starting-points", tags=["plans"], route_class=FormRoute)
estimates = APIRouter(prefix="/v1/estimates", tags=["plans"], route_class=FormRoute)
router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=FormRoute)
WORKLOADS_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"anyOf": [{"$ref": WORKLOADS}, {"$ref": WHAT_IF}]}}
            for kind in ("application/json", "application/yaml")
        },
    }
}


async def _text(request: Request) -> str:
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise InputError("request", (FieldProblem("", str(error), "UTF-8 text"),)) from error


@router.post(
    "",
    status_code=202,
    responses={
        202: {
            "description": "Planning; follow Location",
            "model": AcceptedPlanForm | AcceptedComparisonForm,
        }
    },
    openapi_extra={**WORKLOADS_BODY, **may_fail(NotFound, TooManyPlans, PlannerDied, PlannerOutOfMemory)},
)
async def request_plan(
    request: Request,
    caller: PlanWriter,
    time_limit_s: Annotated[
        float | None,
        Query(gt=0, le=3600, description="Time limit of the search in seconds; default: the setting"),
    ] = None,
    gap: Annotated[
        float, Query(ge=0, lt=1, description="The search ends at this relative gap between cost and bound")
    ] = 0.01,
    seed: Seed = 1,
    intended: Annotated[
        bool, Query(description="Whether the plan counts in planned spend once it is made")
    ] = False,
    new_team: Annotated[
        bool, Query(description="Whether its team may be new although its name is like that of another")
    ] = False,
) -> Response:
    """Requests a plan for a workloads document (JSON or YAML), or for variants of a plan.

    With `based_on` and `changes`, each change of the document of that plan becomes a plan of its own, and
    `Location` is their comparison.
    """
    product = product_of(request)
    text = await _text(request)

    async def act() -> Answer:
        usual = options_of(product.settings)
        options = replace(usual, time_limit_s=time_limit_s or usual.time_limit_s, gap=gap, seed=seed)
        asked = await asyncio.to_thread(read_what_if, text) if may_ask_what_if(text) else None
        if asked is not None:
            return _compared(await ask_for_comparison(product, caller, asked, options, new_team=new_team))
        record = await ask_for_plan(
            product, caller, text, options, "request", intended=intended, new_team=new_team
        )
        return _accepted(record)

    async def again(stored: tuple[str, ...]) -> Answer:
        record = await product.planning.find_plan(caller, stored[0])
        if record.variant is None:
            return _accepted(record)
        return _compared(await product.planning.find_comparison(caller, record.variant.comparison_id))

    return await answer_once(request, caller, act, again)


@estimates.post(
    "",
    responses={200: {"model": CostEstimateForm}},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                kind: {"schema": {"$ref": WORKLOADS}} for kind in ("application/json", "application/yaml")
            },
        },
        **may_fail(TooManyEstimates),
    },
)
async def estimate_workloads(request: Request, caller: PlanReader) -> Response:
    """Checks a workloads document (JSON or YAML) and estimates each workload alone, without a search.

    It says which GPUs fit, how many and for how long, and what they cost: from the cheapest that can be had
    to the median of the sellers. Nothing is stored or bought.
    """
    text = await _text(request)

    async def act() -> Answer:
        found = await estimate(product_of(request), caller, text, "request")
        return json_answer(200, COST_ESTIMATE.write(found))

    return await answer_once(request, caller, act)


@starting_points.post("", responses={200: {"model": StartingPointForm}})
async def read_source(
    request: Request, caller: PlanReader, source: Annotated[StartingPointQuestion, Body()]
) -> Response:
    """Makes a workload of a tool's file, a `config.json`, or the command of a server or of a training run.

    `left_out` names everything of the source that is not used. What would be another workload, such as
    adapters, and a source of another `kind` than was asked for is an error. Nothing is stored.
    """

    async def act() -> Answer:
        found = await asyncio.to_thread(read_starting_point, source.text, "request", kind=source.kind)
        return json_answer(200, STARTING_POINT.write(found))

    return await answer_once(request, caller, act)


def _compared(found: Comparison) -> Answer:
    body = {
        "comparison_id": found.comparison_id,
        "plan_ids": [record.plan_id for record in found.variants],
    }
    headers = {"Location": f"/v1/comparisons/{found.comparison_id}", "Retry-After": "1"}
    return json_answer(202, body, headers)


def _accepted(record: PlanRecord) -> Answer:
    body = {"plan_id": record.plan_id, "status": status_of(record)}
    headers = {"Location": f"/v1/plans/{record.plan_id}"}
    if record.state.is_on_its_way:
        headers["Retry-After"] = str(retry_after_s(Whereabouts()))
    return json_answer(202, body, headers)


@router.get("", responses={200: {"model": PageForm[PlanSummaryForm]}}, dependencies=[KNOWN_NAMES])
async def list_plans(
    request: Request,
    caller: PlanReader,
    team: OfTeam = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the plans, newest first, without their placements."""
    planning = product_of(request).planning
    page = await planning.find_plans(caller, limit, cursor, team=team)
    statuses = await planning.find_business_statuses(page.items)
    places = await planning.find_whereabouts(page.items)
    holdings = await find_holdings(product_of(request), caller, page.items, statuses)
    drafts = {plan_id: one for plan_id, one in statuses.items() if one in UNDECIDED}
    stale = await find_stale(product_of(request), page.items, drafts)
    items = [
        record_to_summary(
            one,
            statuses.get(one.plan_id),
            places.get(one.plan_id),
            holdings.get(one.plan_id),
            stale.get(one.plan_id, ()),
        )
        for one in page.items
    ]
    return listing(items, page.next_cursor)


@router.get("/{plan_id}", responses={200: {"model": PlanRecordForm | UnmadePlanForm}, **NOT_MODIFIED})
async def show_plan(
    request: Request,
    caller: PlanReader,
    plan_id: PlanId,
    wait: Annotated[
        float, Query(ge=0, le=60, description="Seconds to wait at most for the plan to be finished")
    ] = 0,
) -> Response:
    """Shows one plan, or its status until it is made; ``Retry-After`` says when to ask again.

    With `wait` the answer comes once the plan is finished, or after that time with its status then.
    """
    planning = product_of(request).planning
    record = await planning.find_plan(caller, plan_id)
    if wait and record.state.is_on_its_way:
        record = await finished_within(product_of(request), caller, record, wait)
    whereabouts = (await planning.find_whereabouts([record])).get(plan_id)
    if whereabouts is not None:
        answer = conditional(request, tagged(record_to_document(record, None, whereabouts)))
        answer.headers["Retry-After"] = str(retry_after_s(whereabouts))
        return answer
    statuses = await planning.find_business_statuses([record])
    standing = statuses.get(plan_id)
    holding = (await find_holdings(product_of(request), caller, [record], statuses)).get(plan_id)
    stale = (await find_stale(product_of(request), [record], statuses)).get(plan_id, ())
    kept = cast("LruCache[Tagged]", request.app.state.plan_answers)
    made = kept.once(
        plan_key(record, standing, holding, stale),
        lambda: tagged(record_to_document(record, standing, None, holding, stale)),
    )
    return conditional(request, made)


@router.delete("/{plan_id}", status_code=204, openapi_extra=may_fail(Conflict))
async def cancel_plan(request: Request, caller: PlanWriter, plan_id: PlanId) -> None:
    """Cancels a plan that is queued or running; twice is no error."""
    await product_of(request).planning.cancel(caller, plan_id)


async def _shown(request: Request, caller: Caller, record: PlanRecord) -> dict[str, Any]:
    statuses = await product_of(request).planning.find_business_statuses([record])
    holdings = await find_holdings(product_of(request), caller, [record], statuses)
    stale = await find_stale(product_of(request), [record], statuses)
    return record_to_document(
        record,
        statuses.get(record.plan_id),
        None,
        holdings.get(record.plan_id),
        stale.get(record.plan_id, ()),
    )


@router.post(
    "/{plan_id}/intend", responses={200: {"model": PlanRecordForm}}, openapi_extra=may_fail(Conflict)
)
async def intend_plan(
    request: Request,
    caller: PlanWriter,
    plan_id: PlanId,
    wish: Annotated[IntentionForm | None, Body()] = None,
) -> Response:
    """Sets whether a draft counts in planned spend (``intended``)."""
    intended = wish is None or wish.intended

    async def act() -> Answer:
        record = await product_of(request).planning.set_intended(caller, plan_id, intended=intended)
        return json_answer(200, await _shown(request, caller, record))

    return await answer_once(request, caller, act)


@router.post(
    "/{plan_id}/continue",
    status_code=202,
    responses={202: {"description": "Planning; follow Location", "model": AcceptedPlanForm}},
    openapi_extra=may_fail(Conflict, TooManyPlans),
)
async def continue_plan(
    request: Request,
    caller: PlanWriter,
    plan_id: PlanId,
    time_limit_s: Annotated[
        float | None,
        Query(gt=0, le=3600, description="Time limit of the search in seconds; default: that of the plan"),
    ] = None,
) -> Response:
    """Continues the search of a plan whose cost is not proven within its gap, as a new plan.

    The new plan has the same document, team and options, and starts from the old one. If the market did not
    move, it costs no more, and its bound is no weaker.
    """
    product = product_of(request)

    async def act() -> Answer:
        return _accepted(await ask_to_continue(product, caller, plan_id, time_limit_s))

    async def again(stored: tuple[str, ...]) -> Answer:
        return _accepted(await product.planning.find_plan(caller, stored[0]))

    return await answer_once(request, caller, act, again)


@router.get(
    "/{plan_id}/check",
    responses={200: {"model": PlanCheckForm}},
    openapi_extra=may_fail(Conflict, TooManyEstimates),
)
async def check_plan(request: Request, caller: PlanReader, plan_id: PlanId) -> JSONResponse:
    """Checks a plan without the planner: each of its rules, costs and sums, at the prices of its time."""
    return JSONResponse(check_to_document(await product_of(request).estimating.check(caller, plan_id)))


@router.post(
    "/{plan_id}/simulate",
    responses={200: {"model": SimulationForm}},
    openapi_extra=may_fail(Conflict, TooManyEstimates),
)
async def simulate_plan(
    request: Request,
    caller: PlanReader,
    plan_id: PlanId,
    wish: Annotated[SimulationRequest | None, Body()] = None,
) -> Response:
    """Draws step times, rates, failures and launches through a plan, and says how it ends.

    Runs are held until they are done, and fleets follow their measured rates after a day. Nothing is stored.
    """
    asked = wish or SimulationRequest()

    async def act() -> Answer:
        found = await product_of(request).estimating.simulate(caller, plan_id, asked.draws, asked.seed)
        return json_answer(200, SIMULATION.write(found))

    return await answer_once(request, caller, act)


@router.get(
    "/{plan_id}/confidence-prices",
    responses={200: {"model": ConfidencePricesForm}},
    openapi_extra=may_fail(Conflict, PlannerDied, PlannerOutOfMemory),
)
async def find_confidence_prices(request: Request, caller: PlanReader, plan_id: PlanId) -> Response:
    """Finds what the document of a plan costs at other confidences: the price of confidence.

    The first answer takes up to the time limit of the plan, as the document is planned anew at each of them;
    it is kept with the plan, whose `confidence_prices` it is from then on.
    """
    prices = await product_of(request).confidence_pricing.find(caller, plan_id)
    return JSONResponse({"confidence_prices": [CONFIDENCE_PRICE.write(one) for one in prices]})


def _event_line(event: Mapping[str, object]) -> str:
    return f"event: progress\ndata: {json.dumps(event)}\n\n"


@router.get(
    "/{plan_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_plan_events(request: Request, caller: PlanReader, plan_id: PlanId) -> StreamingResponse:
    """Streams progress as server-sent events until the state ``done``, ``failed`` or ``cancelled``."""
    product = product_of(request)
    first = await product.planning.find_plan(caller, plan_id)

    async def lines() -> AsyncIterator[str]:
        async for event in plan_events(product, caller, first):
            yield ": still at work\n\n" if event is None else _event_line(event)

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@router.post(
    "/{plan_id}/approve", responses={200: {"model": PlanRecordForm}}, openapi_extra=may_fail(Conflict)
)
async def approve_plan(
    request: Request, caller: Approver, plan_id: PlanId, word: Annotated[Word | None, Body()] = None
) -> Response:
    """Approves exactly this plan at today's prices."""
    approvals, said = product_of(request).approvals, word or Word()

    async def act() -> Answer:
        record = await approvals.approve(caller, plan_id, said.comment, _looked(said))
        return json_answer(200, await _shown(request, caller, record))

    return await answer_once(request, caller, act)


@router.post(
    "/{plan_id}/reject", responses={200: {"model": PlanRecordForm}}, openapi_extra=may_fail(Conflict)
)
async def reject_plan(
    request: Request, caller: Approver, plan_id: PlanId, word: Annotated[Word, Body()]
) -> Response:
    """Rejects a plan: it cannot be reserved until it is approved."""

    async def act() -> Answer:
        record = await product_of(request).approvals.reject(caller, plan_id, word.comment, _looked(word))
        return json_answer(200, await _shown(request, caller, record))

    return await answer_once(request, caller, act)


def _looked(word: Word) -> Looked:
    return Looked(word.plan_sha256, word.cost_now_usd)


@router.get("/{plan_id}/quote", responses={200: {"model": PlanQuoteForm}}, openapi_extra=may_fail(Conflict))
async def quote_plan(request: Request, caller: ReservationWriter, plan_id: PlanId) -> JSONResponse:
    """Quotes the reservation of a plan: what it would cost, and whether it costs money. It orders nothing."""
    product = product_of(request)
    quote = await product.reservations.quote_plan(caller, plan_id)
    providers = {placement.provider for placement in quote.plan.placements}
    return JSONResponse(quote_to_document(quote, order_words(product.modes, providers, seller_name)))


@router.get(
    "/{plan_id}/release", responses={200: {"model": ReleaseEstimateForm}}, openapi_extra=may_fail(Conflict)
)
async def estimate_plan_release(
    request: Request,
    caller: PlanReader,
    plan_id: PlanId,
    workload: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=200,
            pattern=PRINTABLE,
            description="Only what it holds for this workload",
        ),
    ] = None,
) -> JSONResponse:
    """Estimates what the release of all that a plan holds would give back now, and what would stay owed.

    If it holds nothing: as if it were reserved now. ``workload``: only what it holds for that workload.
    Releases nothing.
    """
    part = PlanPart(plan_id, workload)
    found = await product_of(request).reservations.estimate_part_release(caller, part)
    return JSONResponse(RELEASE_ESTIMATE.write(found))


@router.post(
    "/{plan_id}/release",
    status_code=202,
    responses={202: {"model": PlanReleaseForm}},
    openapi_extra=may_fail(Conflict),
)
async def release_plan(
    request: Request,
    caller: ReservationWriter,
    plan_id: PlanId,
    wish: Annotated[PlanReleaseRequest | None, Body()] = None,
) -> Response:
    """Releases all that a plan holds, or a part of it; twice is no error.

    One reservation that cannot be released does not keep the others: it is in ``failed``.
    """
    reservations, wanted = product_of(request).reservations, wish or PlanReleaseRequest()
    part = PlanPart(plan_id, wanted.workload, wanted.offer_id)

    async def act() -> Answer:
        await reservations.estimate_part_release(caller, part)
        return json_answer(202, write(PlanReleaseForm, await reservations.release_part(caller, part)))

    return await answer_once(request, caller, act)


@router.post(
    "/{plan_id}/reserve",
    status_code=202,
    responses={202: {"model": ReservationsForm}},
    openapi_extra=may_fail(StalePlan, ApprovalRequired, *ORDER_ERRORS),
)
async def reserve_plan(
    request: Request,
    caller: ReservationWriter,
    plan_id: PlanId,
    wish: Annotated[PlanReservationRequest | None, Body()] = None,
) -> Response:
    """Reserves all of a plan; on failure everything is released.

    What starts later is ordered at its start, or with ``hold`` ``now`` bought now and kept until it is last
    needed. What that adds is in the quote of the plan.
    """
    product, wanted = product_of(request), wish or PlanReservationRequest()
    reservations = product.reservations

    async def act() -> Answer:
        return accepted(await reservations.reserve_plan(caller, plan_id, wanted.hold))

    async def again(stored: tuple[str, ...]) -> Answer:
        return accepted([await reservations.find_reservation(caller, one) for one in stored])

    def accepted(rows: Iterable[Reservation]) -> Answer:
        now = product.clock.now()
        body = {"reservations": [reservation_to_document(row, now) for row in rows]}
        return json_answer(202, body, {"Location": f"/v1/reservations?plan_id={plan_id}"})

    return await answer_once(request, caller, act, again)

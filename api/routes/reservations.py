"""Reservations of offers: create, list, extend and release."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from api.http.cursors import SortKey, by_instant, page_of
from api.http.dependencies import (
    KNOWN_NAMES,
    Cursor,
    Limit,
    PlanReader,
    ReservationWriter,
    answer_once,
    json_answer,
    listing,
    product_of,
)
from api.http.errors import field_problems
from api.http.operation_details import ORDER_ERRORS, may_fail
from api.http.strict_requests import FormRoute
from api.money_words import order_words, seller_name
from api.reserved_fleets import ReservedFleet, fleet_to_document, fleets
from api.routes.parameters import OfPlan, OfTeam, ReservationId
from api.schemas.base.document import describe
from api.schemas.base.forms import PageForm
from api.schemas.base.times import ToldInstant, format_time
from api.schemas.holding.reservation import (
    RELEASE_ESTIMATE,
    SHORTFALL,
    ExtensionQuoteForm,
    ExtensionRequest,
    Fit,
    FleetForm,
    HoldQuoteForm,
    OrderQuoteForm,
    ReleaseEstimateForm,
    ReservationForm,
    ReservationRequest,
    ShortfallForm,
    quote_to_document,
    reservation_to_document,
)
from broker.domain.basics.errors import (
    ConcurrentChange,
    Conflict,
    FieldProblem,
    InputError,
    NotFound,
    OrdersBarred,
    OverBudget,
    OverCap,
    OverQuota,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
)
from broker.domain.holding.reservation import Reservation
from broker.domain.reconciling.shortfalls import Shortfall
from broker.services.accounts.accounts import Answer
from broker.services.holding.reserving_requests import OfferOrder

router = APIRouter(
    prefix="/v1/reservations", tags=["reservations"], dependencies=[KNOWN_NAMES], route_class=FormRoute
)
FARTHEST = timedelta(days=5 * 365)
OpenOnly = Annotated[bool, Query(alias="open", description="Only reservations that are not over.")]


class _OrderRoute(FormRoute):
    """Names an unknown offer together with the other wrong fields of a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler. It raises InputError with every wrong field."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                wrong = field_problems(error)
                offer_id = error.body.get("offer_id") if isinstance(error.body, dict) else None
                if isinstance(offer_id, str) and not any(one.pointer == "/offer_id" for one in wrong):
                    wrong += await _unknown_offer(request, offer_id)
                raise InputError("request", wrong) from error

        return handled


async def _unknown_offer(request: Request, offer_id: str) -> tuple[FieldProblem, ...]:
    """The problem of an offer that is not on sale; none if it is."""
    try:
        await product_of(request).offers.find_offer(offer_id)
    except NotFound:
        return (FieldProblem("/offer_id", describe(offer_id), "the id of a current offer"),)
    return ()


async def reserve_offer(request: Request, caller: ReservationWriter, wish: ReservationRequest) -> Response:
    """Reserves nodes of one offer, now or from a later time."""

    async def act() -> Answer:
        order = await _order_of(request, wish)
        return _accepted(request, await product_of(request).reservations.reserve_order(caller, order))

    async def again(stored: tuple[str, ...]) -> Answer:
        found = await product_of(request).reservations.find_reservation(caller, stored[0])
        return _accepted(request, found)

    return await answer_once(request, caller, act, again)


router.add_api_route(
    "",
    reserve_offer,
    methods=["POST"],
    status_code=202,
    responses={202: {"model": ReservationForm}},
    openapi_extra=may_fail(*ORDER_ERRORS, NotFound),
    route_class_override=_OrderRoute,
)


@router.post(
    "/quote",
    responses={200: {"model": OrderQuoteForm}},
    openapi_extra=may_fail(Conflict, OverQuota, OrdersBarred, OverCap, OverBudget, NotFound),
)
async def quote_offer(request: Request, caller: ReservationWriter, wish: ReservationRequest) -> JSONResponse:
    """Quotes an order of one offer: what it would buy and cost now. It orders nothing, and is refused as the
    order would be before anything is bought.
    """
    order = await _order_of(request, wish)
    product = product_of(request)
    quote = await product.reservations.quote_offer(caller, order)
    market = order_words(product.modes, (quote.intent.offer.provider,), seller_name)
    return JSONResponse(quote_to_document(quote, market))


async def _order_of(request: Request, wish: ReservationRequest) -> OfferOrder:
    """The order that was asked for. Raises InputError for times that are years away."""
    now = product_of(request).clock.now()
    wrong = (*_far(wish.start, "/start", now), *_far(wish.end, "/end", now))
    if wrong:
        raise InputError("request", (*wrong, *await _unknown_offer(request, wish.offer_id)))
    start, end = (at and at.astimezone(UTC) for at in (wish.start, wish.end))
    return OfferOrder(
        wish.offer_id,
        wish.nodes,
        start,
        end,
        wish.workload,
        outward=wish.fit is Fit.OUTWARD,
        most_usd_per_node_hour=wish.max_price_usd_per_node_hour,
        disk_gb=wish.disk_gb,
        memory_gb=wish.memory_gb,
        access=wish.access,
        startup=wish.startup,
    )


def _accepted(request: Request, reservation: Reservation) -> Answer:
    location = f"/v1/reservations/{reservation.reservation_id}"
    return json_answer(202, _document(request, reservation), {"Location": location})


def _document(request: Request, reservation: Reservation) -> dict[str, Any]:
    return reservation_to_document(reservation, product_of(request).clock.now())


def _far(instant: datetime | None, pointer: str, now: datetime) -> tuple[FieldProblem, ...]:
    """The problem of an instant that is years away: nobody sells that far ahead. None for a nearer one."""
    if instant is None or abs(instant.replace(tzinfo=UTC) - now) <= FARTHEST:
        return ()
    expected = "a time within five years of now"
    return (FieldProblem(pointer, format_time(instant), expected),)


@router.get("", responses={200: {"model": PageForm[ReservationForm]}})
async def list_reservations(
    request: Request,
    caller: PlanReader,
    plan_id: OfPlan = None,
    team: OfTeam = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the reservations, newest first."""
    page = await product_of(request).reservations.find_reservations(
        caller, limit, cursor, plan_id=plan_id, team=team
    )
    return listing([_document(request, row) for row in page.items], page.next_cursor)


@router.get("/fleets", responses={200: {"model": PageForm[FleetForm]}})
async def list_reserved_fleets(
    request: Request,
    caller: PlanReader,
    plan_id: OfPlan = None,
    team: OfTeam = None,
    is_open: OpenOnly = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists reservations as fleets: one item for each workload and offer, newest first."""
    product = product_of(request)
    rows = await product.reservations.find_every(caller, plan_id=plan_id, team=team, open_only=is_open)
    now = product.clock.now()
    page, next_cursor = page_of(fleets(rows, now), _newest_first, limit, cursor)
    return listing([fleet_to_document(fleet, now) for fleet in page], next_cursor)


def _newest_first(fleet: ReservedFleet[Reservation]) -> SortKey:
    newest = max(fleet.rows, key=lambda row: (row.created_at, row.reservation_id))
    return -Decimal(str(newest.created_at.timestamp())), newest.reservation_id


@router.get("/shortfalls", responses={200: {"model": PageForm[ShortfallForm]}})
async def list_shortfalls(
    request: Request,
    caller: PlanReader,
    plan_id: OfPlan = None,
    team: OfTeam = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JSONResponse:
    """Lists the times for which sellers refuse reserved nodes, earliest first."""
    found = await product_of(request).reservations.find_shortfalls(caller, plan_id=plan_id, team=team)
    page, next_cursor = page_of(found, _by_start, limit, cursor)
    return listing([SHORTFALL.write(one) for one in page], next_cursor)


def _by_start(one: Shortfall) -> SortKey:
    return by_instant(one.start, " ".join((one.team, *one.reservation_ids)))


@router.get("/{reservation_id}", responses={200: {"model": ReservationForm}})
async def show_reservation(
    request: Request, caller: PlanReader, reservation_id: ReservationId
) -> JSONResponse:
    """Shows one reservation."""
    reservation = await product_of(request).reservations.find_reservation(caller, reservation_id)
    return JSONResponse(_document(request, reservation))


@router.get("/{reservation_id}/release", responses={200: {"model": ReleaseEstimateForm}})
async def estimate_release(
    request: Request, caller: PlanReader, reservation_id: ReservationId
) -> JSONResponse:
    """Estimates what its release would give back now, and what would stay owed; releases nothing."""
    found = await product_of(request).reservations.estimate_release(caller, reservation_id)
    return JSONResponse(RELEASE_ESTIMATE.write(found))


@router.get(
    "/{reservation_id}/extend",
    responses={200: {"model": ExtensionQuoteForm}},
    openapi_extra=may_fail(Conflict),
)
async def quote_extension(
    request: Request,
    caller: PlanReader,
    reservation_id: ReservationId,
    end: Annotated[ToldInstant, Query(description="The new end, with its zone")],
) -> JSONResponse:
    """Quotes what it adds to hold a reservation until a later end. It changes nothing."""
    product = product_of(request)
    wrong = _far(end, "/end", product.clock.now())
    if wrong:
        raise InputError("request", wrong)
    quote = await product.reservations.quote_extension(caller, reservation_id, end.astimezone(UTC))
    seller = quote.reservation.offer.provider
    return JSONResponse(quote_to_document(quote, order_words(product.modes, (seller,), seller_name)))


@router.post(
    "/{reservation_id}/extend",
    responses={200: {"model": ReservationForm}},
    openapi_extra=may_fail(*ORDER_ERRORS),
)
async def extend_reservation(
    request: Request, caller: ReservationWriter, reservation_id: ReservationId, wish: ExtensionRequest
) -> Response:
    """Extends a reservation until a later end; twice is no error."""

    async def act() -> Answer:
        product = product_of(request)
        wrong = _far(wish.end, "/end", product.clock.now())
        if wrong:
            raise InputError("request", wrong)
        extended = await product.reservations.extend(caller, reservation_id, wish.end.astimezone(UTC))
        return json_answer(200, _document(request, extended))

    return await answer_once(request, caller, act)


@router.get(
    "/{reservation_id}/hold", responses={200: {"model": HoldQuoteForm}}, openapi_extra=may_fail(Conflict)
)
async def quote_hold(request: Request, caller: PlanReader, reservation_id: ReservationId) -> JSONResponse:
    """Quotes what it adds to hold a reservation now that is ordered at its start. It orders nothing."""
    product = product_of(request)
    quote = await product.early_holding.quote(caller, reservation_id)
    seller = quote.reservation.offer.provider
    return JSONResponse(quote_to_document(quote, order_words(product.modes, (seller,), seller_name)))


@router.post(
    "/{reservation_id}/hold",
    status_code=202,
    responses={202: {"model": ReservationForm}},
    openapi_extra=may_fail(*ORDER_ERRORS),
)
async def hold_reservation(
    request: Request, caller: ReservationWriter, reservation_id: ReservationId
) -> Response:
    """Holds a reservation now that is ordered at its start; twice is no error.

    It is kept and charged from now on. If its seller refuses, it is ordered at its start as before.
    """

    async def act() -> Answer:
        held = await product_of(request).early_holding.hold(caller, reservation_id)
        return _accepted(request, held)

    return await answer_once(request, caller, act)


@router.post(
    "/{reservation_id}/done",
    status_code=202,
    responses={202: {"model": ReservationForm}},
    openapi_extra=may_fail(Conflict, ConcurrentChange, ProviderUnavailable, RateLimited, ProviderError),
)
async def finish_reservation(
    request: Request, caller: ReservationWriter, reservation_id: ReservationId
) -> Response:
    """Says that the work is over: the rest is released where that saves money; twice is no error.

    Where a release would give nothing back, as in a window that is paid, the reservation stays until its end.
    """

    async def act() -> Answer:
        done = await product_of(request).reservations.finish(caller, reservation_id)
        return json_answer(202, _document(request, done))

    return await answer_once(request, caller, act)


@router.delete(
    "/{reservation_id}",
    status_code=202,
    responses={202: {"model": ReservationForm}},
    openapi_extra=may_fail(Conflict, ConcurrentChange, ProviderUnavailable, RateLimited, ProviderError),
)
async def release_reservation(
    request: Request, caller: ReservationWriter, reservation_id: ReservationId
) -> JSONResponse:
    """Releases a reservation; twice is no error. It is ``releasing`` until the provider
    confirms the release.
    """
    reservation = await product_of(request).reservations.release(caller, reservation_id)
    return JSONResponse(_document(request, reservation), 202)

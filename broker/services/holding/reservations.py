"""Reserving plans and offers, and releasing and extending reservations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM, require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import (
    ApprovalLapsed,
    BrokerError,
    ConcurrentChange,
    Conflict,
    FieldProblem,
    InputError,
    NotFound,
    OverBudget,
    ProviderError,
    StalePlan,
)
from broker.domain.basics.money import ZERO, price_words
from broker.domain.basics.near_words import with_nearest
from broker.domain.basics.page import Page
from broker.domain.basics.window import Wish, instant_words
from broker.domain.holding.early_holding import Hold, plan_held_early
from broker.domain.holding.holding_orders import (
    Intent,
    at_limit,
    ends_by_itself,
    find_drifts,
    in_ordered_size,
    intents_of,
    unplaced_order,
    with_tolerance,
)
from broker.domain.holding.launches import REMEMBERED, LaunchBook
from broker.domain.holding.machine_setup import MachineSetup
from broker.domain.holding.plan_holding import PlanHolding, find_holding
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.holding.window_orders import (
    default_window,
    find_order_problems,
    require_extensible,
    snapped_outward,
)
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.reconciling.shortfalls import Shortfall, find_shortfalls
from broker.domain.spend.order_quote import (
    ExtensionQuote,
    OrderQuote,
    PlanQuote,
    quote_of,
    quote_of_extension,
    quote_of_plan,
)
from broker.domain.spend.release_estimate import (
    ReleaseEstimate,
    ResaleShares,
    estimate_planned_release,
    estimate_release,
    resales_of,
    saves_money,
    with_savings,
)
from broker.ports.planning import BudgetWatch, PlanRecord, PlanState
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWork, UnitOfWorkFactory
from broker.services.holding.buyer import Buyer
from broker.services.holding.plan_checks import (
    doubts_of,
    offers_of,
    require_hold_within_budgets,
    require_in_document,
    require_prices,
    unreserved,
)
from broker.services.holding.reservation_steps import TRIES
from broker.services.holding.reserving_requests import OfferOrder, PartRelease, PlanPart
from broker.services.spend.approving import (
    Approving,
    require_approved,
    require_as_approved,
    was_within_budgets,
)
from broker.services.spend.ledger import bill_of
from broker.services.spend.ledger import find_reservations as find_every

RECENT = 200


@dataclass(frozen=True, slots=True)
class ReservingRules:
    """Tolerances between planning and purchase.

    ``price_tolerance``: share by which the price of a placement may have risen, and that of an order without
    a limit may rise. ``start_patience``: how late a planned run may begin, with unchanged length.
    """

    price_tolerance: float = 0.02
    start_patience: timedelta = timedelta(hours=1)


class ReservationsService:
    """Use cases of reservations.

    ``read_request`` reads a plan's stored document, whose budget is then checked again; None: only the
    planner checked it.
    ``resale_share`` is the expected share of a window's price at its resale, for sellers without own sales.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        buying: Buyer,
        clock: Clock,
        notifier: Notifier,
        *,
        rules: ReservingRules | None = None,
        read_request: Callable[[str], PlanRequest] | None = None,
        budgets: BudgetWatch | None = None,
        resale_share: Decimal = ZERO,
    ) -> None:
        self._uow_factory = uow_factory
        self._resale_share = resale_share
        self._budgets = budgets
        self._clock = clock
        self._notifier = notifier
        self._rules = rules or ReservingRules()
        self._read_request = read_request
        self._approving = Approving(uow_factory, clock)
        self._buying = buying
        self._lease_service = buying.lease_service
        self._creator = buying.creator

    async def reserve_plan(
        self, caller: Caller, plan_id: str, hold: Hold = Hold.AT_START
    ) -> tuple[Reservation, ...]:
        """Reserves all of a plan, or nothing.

        Capacity that starts later and is not a window is stored as ``scheduled``; with ``hold`` now it is
        bought now where that makes sure of it (see ``early_holding``). If the answer to an order is lost,
        buying stops and the reconciler continues in the same order. If a provider refuses, a fallback offer
        within the price tolerance is bought. Raises StalePlan, ApprovalRequired, OverBudget,
        OverQuota, OrdersBarred, OverCap and Conflict before anything is bought, and the provider's error,
        with the cost of giving back, after everything was given back.
        """
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        try:
            async with self._creator.turn:
                reservations = await self._intend_plan(caller, plan_id, hold)
        except ApprovalLapsed as lapsed:
            await self._approving.take_back(plan_id, lapsed.why)
            raise
        try:
            held = await self._buying.buy_in_order(reservations, caller.key_id)
        except ProviderError:
            await self._tell("reservation.failed", await self._reload(caller, reservations))
            raise
        await self._tell("plan.reserved", held)
        return held

    async def _ask_budgets(self, caller: Caller, plan_id: str) -> None:
        """Requires approval of a plan that would exceed a budget now.

        Raises ApprovalLapsed if it was approved when it exceeded none.
        """
        if self._budgets is None:
            return
        async with self._uow_factory(scope_of(caller)) as uow:
            record = await uow.plans.find(plan_id)
        is_approved = record.approved_by is not None
        if record.plan is None or (record.needs_approval and not is_approved):
            return
        why = "; ".join(await self._budgets.find_overruns(record, record.plan))
        if why and not is_approved:
            await self._approving.require_for(plan_id, why)
        elif why and was_within_budgets(record):
            raise ApprovalLapsed(plan_id, why)

    async def _intend_plan(self, caller: Caller, plan_id: str, hold: Hold) -> tuple[Reservation, ...]:
        """Checks the plan and stores all its intents, in one transaction."""
        async with self._uow_factory(scope_of(caller)) as uow:
            await uow.reservations.take_turn()
            await self._ask_budgets(caller, plan_id)
            record = await uow.plans.find(plan_id)
            plan, now, rules = await self._approved(uow, record), self._clock.now(), self._rules
            offers = await offers_of(uow, plan)
            await require_prices(uow, plan, offers, rules.price_tolerance)
            require_as_approved(record, plan, offers)
            held = plan_held_early(plan, offers, now) if hold is Hold.NOW else plan
            if self._read_request is not None:
                require_in_document(self._read_request(record.document), held, offers, now, hold)
            await require_hold_within_budgets(self._budgets, record, plan, held)
            intents = intents_of(plan, offers, now, rules.start_patience, rules.price_tolerance, hold)
            if not intents:
                raise StalePlan(f"all that plan {plan_id} holds is over; plan again: POST /v1/plans")
            drafts = await self._creator.draft(
                uow, intents, record.team, caller.key_id, plan_id, claim=caller.claim
            )
            await uow.plans.update(await _taken_up(uow, record, now))
            await uow.plans.withdraw_intentions(record)
            crash_points.here("plan.intend.before")
            await uow.commit()
            crash_points.here("plan.intend.after")
        return drafts

    async def _approved(self, uow: UnitOfWork, record: PlanRecord) -> Plan:
        plan = await unreserved(uow, record)
        if record.is_exploration:
            raise Conflict(
                f"plan {record.plan_id} is one of a comparison: choose it first, with `broker plans "
                f"{record.plan_id} --intend` or POST /v1/plans/{record.plan_id}/intend, "
                "so that finance sees what it costs"
            )
        require_approved(record, plan)
        return plan

    async def reserve_offer(
        self,
        caller: Caller,
        offer_id: str,
        nodes: int,
        start: datetime | None = None,
        end: datetime | None = None,
        workload: str | None = None,
        *,
        outward: bool = False,
        most_usd_per_node_hour: Decimal | None = None,
        disk_gb: float | None = None,
        memory_gb: float | None = None,
    ) -> Reservation:
        """Reserves ``nodes`` of one offer, now or from ``start``, until ``end`` or until released.

        ``disk_gb`` and ``memory_gb`` of each node are rounded up to what is sold (None: the default).

        ``outward``: times off the provider's grid are extended to the shortest window on sale that covers
        them. ``most_usd_per_node_hour`` None: the offer's price plus the price tolerance. Raises InputError
        that names the field, NotFound, Conflict if there is too little stock or the price is above
        ``most_usd_per_node_hour``, OverQuota, OrdersBarred, OverCap, OverBudget for a budget of the team or
        of all teams and for the limit of what needs an approval, and the provider's error; nothing is held
        then.
        """
        order = OfferOrder(
            offer_id, nodes, start, end, workload, outward, most_usd_per_node_hour, disk_gb, memory_gb
        )
        return await self.reserve_order(caller, order)

    async def reserve_order(self, caller: Caller, order: OfferOrder) -> Reservation:
        """``reserve_offer`` of an order."""
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        async with self._creator.turn, self._uow_factory(scope_of(caller)) as uow:
            await uow.reservations.take_turn()
            await self._require_within_budgets(caller, order)
            intent = await self._intent_of(uow, order)
            setup = await self._setup_of(uow, caller, order)
            (reservation,) = await self._creator.draft(
                uow,
                (intent,),
                caller.team,
                caller.key_id,
                None,
                claim=caller.claim,
                setups={order.workload: setup},
            )
            crash_points.here("offer.intend.before")
            await uow.commit()
            crash_points.here("offer.intend.after")
        if reservation.state is ReservationState.SCHEDULED:
            return reservation
        try:
            bought = await self._buying.buy_one(reservation, caller.key_id)
        except ProviderError:
            await self._tell("reservation.failed", await self._reload(caller, (reservation,)))
            raise
        await self._tell("reservation.changed", (bought,))
        return bought

    async def _setup_of(self, uow: UnitOfWork, caller: Caller, order: OfferOrder) -> MachineSetup:
        """The keys and the start of the machines of ``order``. Raises InputError for an unknown secret."""
        setups = self._creator.setups
        keys = await setups.find_keys(uow, caller.team, caller.key_id)
        return setups.setup(caller.team, order.access, order.startup, keys)

    async def quote_offer(self, caller: Caller, order: OfferOrder) -> OrderQuote:
        """What ``order`` would buy and cost now. It orders nothing, and raises what ``reserve_offer`` raises
        before it orders."""
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        await self._require_within_budgets(caller, order)
        async with self._uow_factory(scope_of(caller)) as uow:
            intent = await self._intent_of(uow, order)
            await self._creator.require_orderable(uow, intent, caller.team)
            return quote_of(intent, caller.team, self._clock.now(), await self._resales(uow))

    async def quote_plan(self, caller: Caller, plan_id: str) -> PlanQuote:
        """What ``reserve_plan`` would cost; it orders nothing.

        Raises NotFound, OrdersBarred, and Conflict if the plan has nothing to reserve, or is reserved.
        """
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        async with self._uow_factory(scope_of(caller)) as uow:
            plan = await unreserved(uow, await uow.plans.find(plan_id))
            sellers = {placement.provider for placement in plan.placements}
            await self._creator.orders.require_allowed(uow, sellers, plan_id)
            on_sale = await offers_of(uow, plan)
        now = self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            launches = LaunchBook(await uow.launches.find_since(now - REMEMBERED), now)
        offers = {one.offer_id: one for one in launches.with_statistics(on_sale.values())}
        on_release = await self.estimate_part_release(caller, PlanPart(plan_id))
        return quote_of_plan(plan, offers, on_release, now)

    async def _intent_of(self, uow: UnitOfWork, order: OfferOrder) -> Intent:
        """What ``order`` buys. Raises NotFound, Conflict, and InputError that names the field."""
        offer = in_ordered_size(await _on_sale(uow, order.offer_id), order.disk_gb, order.memory_gb)
        _check_price(offer, order.most_usd_per_node_hour)
        most = order.most_usd_per_node_hour or self._default_limit(offer)
        now = self._clock.now()
        begin, until = default_window(offer, order.start, order.end, now)
        intent = Intent(offer, order.nodes, begin, until, order.workload, Wish(begin, until), most)
        if order.outward:
            intent = snapped_outward(intent)
        problems = find_order_problems(intent, now, self._rules.start_patience)
        if problems:
            raise InputError("reservation", problems)
        return replace(intent, start=max(begin, now)) if offer.window is None else intent

    def _default_limit(self, offer: Offer) -> Decimal:
        """The highest price of an order that names none: the offer's price plus the price tolerance."""
        return with_tolerance(offer.price_usd_per_node_hour, self._rules.price_tolerance)

    async def _require_within_budgets(self, caller: Caller, order: OfferOrder) -> None:
        """Raises OverBudget for an order that would exceed a budget of the team at its limit: no plan of it
        can wait for approval."""
        if self._budgets is None:
            return
        async with self._uow_factory(scope_of(caller)) as uow:
            intent = await self._intent_of(uow, order)
        row = unplaced_order(at_limit(intent), caller.team, self._clock.now())
        why = await self._budgets.find_overruns_of_order(row)
        if why:
            limit = intent.limit_usd_per_node_hour
            price = "" if limit is None else f", at its limit of {price_words(limit)} per node-hour"
            way = "order less, or ask for a plan (POST /v1/plans), which finance can approve"
            raise OverBudget(f"{'; '.join(why)}{price}: {way}").naming(
                FieldProblem("/nodes", str(order.nodes), "an order within the budget, or a plan")
            )

    async def release(self, caller: Caller, reservation_id: str) -> Reservation:
        """Ends a reservation; one that was never bought ends at once. Releasing it twice is no error."""
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        reservation = await self.find_reservation(caller, reservation_id)
        if not reservation.is_open or reservation.state is ReservationState.RELEASING:
            return reservation
        reason = f"released by {caller.called}"
        if reservation.provider_references and ends_by_itself(reservation.offer):
            reason += "; the provider does not take it back before its end, and it stays paid"
        leaving = await self._lease_service.begin_release(reservation, reason, caller.key_id)
        left = await self._lease_service.release_held(leaving, caller.key_id)
        await self._tell("reservation.changed", (left,))
        return left

    async def finish(self, caller: Caller, reservation_id: str) -> Reservation:
        """Releases a reservation whose work is over, if that saves money; else it stays until its end."""
        row = await self.find_reservation(caller, reservation_id)
        estimate = await self.estimate_release(caller, reservation_id)
        if saves_money(row, estimate, self._clock.now()):
            return await self.release(caller, reservation_id)
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        return row

    async def estimate_release(self, caller: Caller, reservation_id: str) -> ReleaseEstimate:
        """What the release of a reservation would give back now, and what stays owed; NotFound."""
        async with self._uow_factory(scope_of(caller)) as uow:
            row = await uow.reservations.find(reservation_id)
            now = self._clock.now()
            return with_savings(estimate_release((row,), now, await self._resales(uow)), (row,), now)

    async def release_part(self, caller: Caller, part: PlanPart) -> PartRelease:
        """Releases each open reservation of ``part``. One that fails does not keep the others."""
        asked: list[Reservation] = []
        failed: list[tuple[Reservation, BrokerError]] = []
        for row in await self.find_every(caller, plan_id=part.plan_id, open_only=True):
            if part.covers(row):
                try:
                    asked.append(await self.release(caller, row.reservation_id))
                except (Conflict, ProviderError) as error:
                    failed.append((row, error))
        return PartRelease(tuple(asked), tuple(failed))

    async def estimate_part_release(self, caller: Caller, part: PlanPart) -> ReleaseEstimate:
        """The same of all that a plan holds, or of a part of it; if it holds nothing, as if it were reserved
        now. Raises NotFound, and InputError for a workload that is not in the plan.
        """
        now = self._clock.now()
        async with self._uow_factory(scope_of(caller)) as uow:
            record = await uow.plans.find(part.plan_id)
            every = await find_every(uow, part.plan_id)
            plan = record.plan
            _require_workload(part, plan, every)
            rows = [row for row in every if part.covers(row)]
            resales = await self._resales(uow)
            if plan is None or any(row.is_open for row in rows):
                return with_savings(estimate_release(rows, now, resales), rows, now)
            wanted = tuple(
                one
                for one in plan.placements
                if part.workload in (None, one.workload) and part.offer_id in (None, one.offer_id)
            )
            offers = await offers_of(uow, plan)
            return estimate_planned_release(replace(plan, placements=wanted), offers, now, resales)

    async def _resales(self, uow: UnitOfWork) -> ResaleShares:
        latest = await uow.reservations.find_page(RECENT, None)
        return resales_of(latest.items, self._resale_share)

    async def extend(self, caller: Caller, reservation_id: str, end: datetime) -> Reservation:
        """Moves the end of a reservation to ``end``, at the price of the order. Repeating it is no error.

        Raises InputError if ``end`` is not later, OrdersBarred, OverCap and OverBudget as an order does,
        OverQuota, and Conflict for a reservation that has ended, has no end, or is a window, which no adapter
        can extend. An extension commits money as an order without a plan does, and like that one it cannot
        wait for an approval. The stock needs no check: the provider does not count held nodes as available,
        so nobody else was promised them.
        """
        require_scope(caller, Scope.RESERVATIONS_WRITE)
        reservation = await self.find_reservation(caller, reservation_id)
        if reservation.is_open and reservation.end == end:
            return reservation
        _require_longer(reservation, end)
        async with self._creator.turn, self._uow_factory(scope_of(caller)) as uow:
            await uow.reservations.take_turn()
            await self._creator.orders.require_extension(uow, reservation, end, self._clock.now())
            await self._require_extension_within_budgets(reservation, end)
            async with self._uow_factory(scope_of(caller)) as reading:
                await self._creator.require_longer(reading, reservation, end)
            for attempt in range(TRIES):
                _require_longer(reservation, end)
                try:
                    extended = await self._lease_service.extend(reservation, end, caller.key_id)
                    break
                except ConcurrentChange:
                    if attempt == TRIES - 1:
                        raise
                    reservation = await self._lease_service.reload(reservation)
        await self._tell("reservation.changed", (extended,))
        return extended

    async def quote_extension(self, caller: Caller, reservation_id: str, end: datetime) -> ExtensionQuote:
        """What it adds to hold a reservation until ``end``. It changes nothing.

        Raises NotFound, and InputError and Conflict for what ``extend`` refuses before it asks for budgets.
        """
        async with self._uow_factory(scope_of(caller)) as uow:
            row = await uow.reservations.find(reservation_id)
            _require_longer(row, end)
            bill = await uow.reservations.find_of_bills({bill_of(row)})
        return quote_of_extension(row, bill, end, self._clock.now())

    async def _require_extension_within_budgets(self, row: Reservation, end: datetime) -> None:
        why = () if self._budgets is None else await self._budgets.find_overruns_of_extension(row, end)
        if why:
            way = "extend it for less time, or ask for a plan (POST /v1/plans), which finance can approve"
            raise OverBudget(f"{'; '.join(why)}: {way}").naming(
                FieldProblem("/end", instant_words(end), "an end within the budget, or a plan")
            )

    async def find_reservation(self, caller: Caller, reservation_id: str) -> Reservation:
        """One reservation. Raises NotFound, also for one of another team."""
        async with self._uow_factory(scope_of(caller)) as uow:
            return await uow.reservations.find(reservation_id)

    async def find_reservations(
        self,
        caller: Caller,
        limit: int = 50,
        cursor: str | None = None,
        *,
        plan_id: str | None = None,
        team: str | None = None,
    ) -> Page[Reservation]:
        """Reservations, newest first; other teams' only for administrators."""
        async with self._uow_factory(scope_of(caller, team)) as uow:
            return await uow.reservations.find_page(limit, cursor, plan_id)

    async def find_every(
        self, caller: Caller, *, plan_id: str | None = None, team: str | None = None, open_only: bool = False
    ) -> tuple[Reservation, ...]:
        """All pages of ``find_reservations`` together. ``open_only``: without those that have ended."""
        async with self._uow_factory(scope_of(caller, team)) as uow:
            if not open_only:
                return await find_every(uow, plan_id)
            opened = await uow.reservations.find_open()
        rows = (row for row in opened if plan_id in (None, row.plan_id))
        return tuple(sorted(rows, key=lambda row: (row.created_at, row.reservation_id), reverse=True))

    async def find_shortfalls(
        self, caller: Caller, *, plan_id: str | None = None, team: str | None = None
    ) -> tuple[Shortfall, ...]:
        """Shortfalls: hours in which providers refuse reserved nodes, earliest first."""
        rows = await self.find_every(caller, plan_id=plan_id, team=team, open_only=True)
        return find_shortfalls(rows, self._clock.now())

    async def find_holdings(self, caller: Caller, records: Iterable[PlanRecord]) -> dict[str, PlanHolding]:
        """What is held of each of the reserved plans ``records``, by id; with what earlier plans bought."""
        made = [record for record in records if record.plan is not None]
        if not made:
            return {}
        found = {}
        async with self._uow_factory(scope_of(caller)) as uow:
            opened = await uow.reservations.find_open()
            for record in made:
                ids = {record.plan_id}
                if record.supersedes is not None:
                    ids.update(await uow.plans.find_lineage(record.plan_id))
                rows = [row for row in opened if row.plan_id in ids]
                assert record.plan is not None
                holding = find_holding(record.plan, rows, self._clock.now())
                if holding is not None:
                    found[record.plan_id] = holding
        return found

    async def find_stale(self, records: Iterable[PlanRecord]) -> dict[str, tuple[str, ...]]:
        """Why placements of the plans ``records`` cannot be ordered as planned: offers that are gone, in
        quarantine, or dearer than the tolerance, by plan id. Plans of which all can be ordered are left out.
        """
        plans = {record.plan_id: record.plan for record in records if record.plan is not None}
        ids = {placement.offer_id for plan in plans.values() for placement in plan.placements}
        if not ids:
            return {}
        async with self._uow_factory(EVERY_TEAM) as uow:
            offers = {offer.offer_id: offer for offer in await uow.offers.find_many(ids)}
            doubts = await doubts_of(uow, ids - offers.keys())
        tolerance = self._rules.price_tolerance
        found = {key: find_drifts(plan, offers, tolerance, doubts) for key, plan in plans.items()}
        return {plan_id: tuple(map(str, drifts)) for plan_id, drifts in found.items() if drifts}

    async def _reload(self, caller: Caller, reservations: Sequence[Reservation]) -> tuple[Reservation, ...]:
        async with self._uow_factory(scope_of(caller)) as uow:
            return tuple([await uow.reservations.find(row.reservation_id) for row in reservations])

    async def _tell(self, event: str, reservations: Iterable[Reservation]) -> None:
        for row in reservations:
            await self._notifier.notify(event, row.team, row.news)


def _require_workload(part: PlanPart, plan: Plan | None, rows: Iterable[Reservation]) -> None:
    """Raises InputError for a workload that the plan neither places nor holds."""
    placed = () if plan is None else plan.placements
    known = {one.workload for one in placed} | {row.workload for row in rows if row.workload is not None}
    if part.workload is not None and part.workload not in known:
        expected = with_nearest("a workload of the plan", part.workload, known)
        raise InputError("release", (FieldProblem("/workload", repr(part.workload), expected),))


async def _on_sale(uow: UnitOfWork, offer_id: str) -> Offer:
    """A current offer. Raises NotFound that names the field."""
    try:
        return await uow.offers.find_offer(offer_id)
    except NotFound as error:
        expected = "an offer that is on sale now, see GET /v1/offers"
        raise NotFound("offer", offer_id, f"expected {expected}").naming(
            FieldProblem("/offer_id", repr(offer_id), expected)
        ) from error


def _check_price(offer: Offer, most: Decimal | None) -> None:
    """Raises Conflict if an offer costs more than ``most`` USD per node-hour."""
    price = offer.price_usd_per_node_hour
    if most is not None and price > most:
        expected = f"at least {price:f}, its current price, or another offer, see GET /v1/offers"
        raise Conflict(f"offer {offer.offer_id} costs {price_words(price)} per node-hour now").naming(
            FieldProblem("/max_price_usd_per_node_hour", f"{most:f}", expected)
        )


async def _taken_up(uow: UnitOfWork, record: PlanRecord, now: datetime) -> PlanRecord:
    """``record`` as reserved from ``now``; a proposal replaces the plan for which it was made."""
    record = replace(record, reserved_at=now)
    if record.state is not PlanState.PROPOSED:
        return record
    page = await uow.reoptimizations.find_page(record.team, RECENT, None)
    old = next((look.plan_id for look in page.items if look.new_plan_id == record.plan_id), None)
    if old is not None and any(other.plan_id == old for other in await uow.reservations.find_open()):
        raise Conflict(
            f"plan {old}, which {record.plan_id} replaces, still holds reservations; release them first"
        )
    return replace(record, state=PlanState.DONE, supersedes=old)


def _require_longer(reservation: Reservation, end: datetime) -> None:
    """Raises InputError for an ``end`` before that of ``reservation``, and Conflict if that cannot change."""
    require_extensible(reservation)
    if reservation.end is not None and end < reservation.end:
        expected = f"a time after {instant_words(reservation.end)}; to end it sooner, release it"
        raise InputError("reservation", (FieldProblem("/end", instant_words(end), expected),))

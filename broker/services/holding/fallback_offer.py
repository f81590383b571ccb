"""Fallback offers: if a provider refuses a placement, its workload alone is planned again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from broker import crash_points
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import BrokerError, Conflict, CredentialsRejected, ProviderError
from broker.domain.basics.money import usd_words
from broker.domain.holding.early_holding import Hold
from broker.domain.holding.holding_orders import Intent, intents_of, unplaced_order
from broker.domain.holding.order_rules import OrderRules
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import Offer
from broker.domain.planning.plan_turns import Turn, TurnClass, class_by_size
from broker.domain.planning.workload import PlanRequest, WorkloadKind
from broker.domain.reconciling.fallback_offer import (
    Exchange,
    find_exchange,
    less_held,
    request_of_one,
    while_in_use,
)
from broker.domain.reconciling.replacing import find_gap, known_empty
from broker.ports.planning import BudgetWatch, PlanCall, PlanRecord, RequestReader
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory
from broker.services.holding.lease_service import LeaseService
from broker.services.holding.reservation_creator import ReservationCreator
from broker.services.market.usable_offers import OfferRules, usable_offers
from broker.services.planning.plan_queue import PlanQueue
from broker.services.spend.ledger import find_reservations

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FallbackRules:
    """Limits of a fallback.

    ``price_tolerance``: share by which it may cost more than the placement that it replaces.
    ``most_refusals``: number of refused offers after which a workload is given up. ``longest_wait_s``: time
    in the queue; ``patience_s``: planning time after that, of which the search may use ``solve_s``.
    ``start_patience``: how late a run may begin, as for every plan.
    """

    price_tolerance: float = 0.02
    most_refusals: int = 3
    solve_s: float = 5.0
    patience_s: float = 30.0
    longest_wait_s: float = 60.0
    start_patience: timedelta = timedelta(hours=1)
    offers: OfferRules = field(default_factory=OfferRules)


class FallbackOffers:
    """Finds fallback offers. ``plan_call`` and ``queue``: see ``PlanningService``.

    ``orders``: from which sellers is ordered.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        plan_call: PlanCall,
        queue: PlanQueue,
        clock: Clock,
        *,
        read_request: RequestReader,
        rules: FallbackRules | None = None,
        budgets: BudgetWatch | None = None,
        orders: OrderRules | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self._orders = orders or OrderRules()
        self._budgets = budgets
        self._plan_call = plan_call
        self._queue = queue
        self._clock = clock
        self._read_request = read_request
        self._rules = rules or FallbackRules()

    async def take(
        self,
        refused: Reservation,
        error: ProviderError,
        actor: str,
        lease_service: LeaseService,
        creator: ReservationCreator,
        *,
        later: bool = False,
    ) -> tuple[Reservation, ...]:
        """Replaces ``refused`` by other intents in one transaction; returns none if no offer is in tolerance,
        or if the exchange would exceed a budget.

        The intents are not bought yet. ``later``: the rest of the plan is in use, so nothing that is bought
        is given up, and a run stays where its work is.
        """
        if refused.plan_id is None or refused.workload is None:
            return ()
        exchange = await self._find(refused, refused.plan_id, refused.workload, error, later=later)
        if exchange is not None and later:
            exchange = while_in_use(exchange, self._clock.now())
        if exchange is None:
            return ()
        before, after = usd_words(exchange.before_usd), usd_words(exchange.after_usd)
        why = f"in place of {refused.reservation_id}, refused ({error}): {after} instead of {before}"
        try:
            async with creator.turn, self._uow_factory(EVERY_TEAM) as uow:
                await uow.reservations.take_turn()
                over = await self._find_overruns(refused.team, refused.plan_id, exchange)
                if over:
                    log.info("no exchange for %s: %s", refused.reservation_id, "; ".join(over))
                    return ()
                left = await lease_service.give_up_rows(uow, exchange.leaving, str(error), actor)
                drafts = await creator.draft(
                    uow,
                    exchange.wanted,
                    refused.team,
                    actor,
                    refused.plan_id,
                    why,
                    replaces=refused.replaces,
                    setups={refused.workload: refused.setup},
                )
                crash_points.here("fallback_offer.intend.before")
                await uow.commit()
                crash_points.here("fallback_offer.intend.after")
        except Conflict as conflict:
            log.info("no fallback offer replaces %s: %s", refused.reservation_id, conflict)
            return ()
        for row in left:
            await lease_service.release_held(row, actor)
        return drafts

    async def _find_overruns(self, team: str, plan_id: str, exchange: Exchange) -> tuple[str, ...]:
        """A text for each budget that the exchange would exceed.

        A plan that finance approved is exchanged within the price tolerance without another question.
        """
        if self._budgets is None:
            return ()
        async with self._uow_factory(EVERY_TEAM) as uow:
            record = await uow.plans.find(plan_id)
        if record.approved_by is not None:
            return ()
        now = self._clock.now()
        wanted = tuple(
            replace(unplaced_order(intent, team, now), reservation_id=f"order-{i}", plan_id=plan_id)
            for i, intent in enumerate(exchange.wanted)
        )
        return await self._budgets.find_overruns_of_exchange(exchange.leaving, wanted, "this exchange")

    async def _find(
        self, refused: Reservation, plan_id: str, workload: str, error: ProviderError, *, later: bool
    ) -> Exchange | None:
        async with self._uow_factory(EVERY_TEAM) as uow:
            record = await uow.plans.find(plan_id)
            if later and _is_run(record, workload):
                return None
            found = await _rows_of(uow, plan_id)
            rows = [row for row in found if (row.workload, row.replaces) == (workload, refused.replaces)]
            offers = await self._offers(uow)
        shut = refused.offer.provider if isinstance(error, CredentialsRejected) else None
        stay = [r for r in rows if r.is_open and r.state is not ReservationState.RELEASING]
        others = [r for r in stay if r.reservation_id != refused.reservation_id]
        now = self._clock.now()
        request = self._request(record)
        if request is None or record.plan is None:
            return None
        offers = self._orderable(offers, refused.offer.provider, request)
        gap = find_gap(request, record.plan, refused, others, now) if later else None
        if gap is not None:
            empty = known_empty(rows, refused)
            free = (o for o in offers if o.offer_id not in empty and o.provider != shut and gap.allows(o))
            intents = await self._plan(record, gap.request, tuple(free))
            return self._in_the_gap(refused, intents, now)
        out = {row.offer.offer_id for row in rows if row.state is ReservationState.FAILED}
        out.add(refused.offer.offer_id)
        if len(out) > self._rules.most_refusals:
            return None
        rest = tuple(o for o in offers if o.offer_id not in out and o.provider != shut)
        hold = Hold.NOW if refused.is_held_early else Hold.AT_START
        intents = await self._plan(record, request_of_one(request, record.plan, workload), rest, hold)
        if intents is None:
            return None
        return find_exchange(refused, others, intents, self._rules.price_tolerance)

    def _orderable(self, offers: Sequence[Offer], refused: str, request: PlanRequest) -> tuple[Offer, ...]:
        """Those of sellers that are ordered from; of the kind of ``refused``, unless the policy mixes."""
        rules = self._orders
        sellers = {offer.provider for offer in offers if rules.allows(offer.provider)}
        if not request.policy.mix_sandbox:
            sellers = {name for name in sellers if rules.mode_of(name) is rules.mode_of(refused)}
        return tuple(offer for offer in offers if offer.provider in sellers)

    def _request(self, record: PlanRecord) -> PlanRequest | None:
        """The request of a plan; None once its horizon is over."""
        try:
            request = self._read_request(record.document)
        except BrokerError as error:
            log.warning("the workloads of %s cannot be read again: %s", record.plan_id, error)
            return None
        return request if self._clock.now() < request.horizon.end else None

    def _in_the_gap(
        self, refused: Reservation, intents: tuple[Intent, ...] | None, now: datetime
    ) -> Exchange | None:
        """``intents`` as a replacement of the rest of ``refused``."""
        if intents is None:
            return None
        rest = replace(refused, start=max(refused.start, now))
        exchange = find_exchange(rest, (), intents, self._rules.price_tolerance)
        return None if exchange is None else replace(exchange, leaving=(refused,))

    async def _offers(self, uow: UnitOfWork) -> tuple[Offer, ...]:
        now = self._clock.now()
        told = await usable_offers(uow, now, self._rules.offers)
        known = await uow.reservations.find_open()
        return tuple(left for left in (less_held(offer, known, now) for offer in told) if left is not None)

    async def _plan(
        self,
        record: PlanRecord,
        request: PlanRequest | None,
        offers: Collection[Offer],
        hold: Hold = Hold.AT_START,
    ) -> tuple[Intent, ...] | None:
        """The holdings of a plan of ``request``; None without a request, or if no plan is found in time."""
        if request is None or not offers:
            return None
        options = replace(
            record.options, time_limit_s=self._rules.solve_s, baselines=False, label=record.plan_id
        )
        now, rules = self._clock.now(), self._rules
        try:
            turn = Turn(record.team, class_by_size(TurnClass.FALLBACK, len(request.workloads)))
            async with asyncio.timeout(rules.longest_wait_s) as limit, self._queue.place(turn) as place:
                limit.reschedule(asyncio.get_running_loop().time() + rules.patience_s)
                plan = await place.run(self._plan_call, request, tuple(offers), now, options)
            by_id = {offer.offer_id: offer for offer in offers}
            if plan.unplaced:
                return None
            return intents_of(plan, by_id, now, rules.start_patience, rules.price_tolerance, hold)
        except (BrokerError, TimeoutError) as error:
            log.info("no fallback offer was found for %s: %s", record.plan_id, error)
        except Exception:  # a fault of the planner; the refusal stands
            log.exception("planning a part of %s again failed unexpectedly", record.plan_id)
        return None


def _is_run(record: PlanRecord, workload: str) -> bool:
    placed = () if record.plan is None else record.plan.placements_of(workload)
    return any(placement.kind is WorkloadKind.TRAINING for placement in placed)


async def _rows_of(uow: UnitOfWork, plan_id: str) -> Sequence[Reservation]:
    """Reservations of the plan's latest purchase: open ones, and those that failed since the oldest one."""
    found = await find_reservations(uow, plan_id)
    since = min((row.created_at for row in found if row.is_open), default=None)
    return [row for row in found if since is not None and row.created_at >= since]

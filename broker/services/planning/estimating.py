"""A first estimate of workloads, and draws of what may happen to a plan; neither stores anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from broker.domain.basics.access import EVERY_TEAM, require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import (
    Conflict,
    FieldProblem,
    InputError,
    NotFound,
    NotPermitted,
    TooManyEstimates,
)
from broker.domain.moving.reoptimization_result import ACTOR as REOPTIMIZER
from broker.domain.planning.cost_estimate import MOST_ESTIMATED, CostEstimate
from broker.domain.planning.simulation import Simulation
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import CheckCall, EstimateCall, PlanCheck, RequestReaderAt, SimulateCall
from broker.ports.unit_of_work import Clock, Executor, UnitOfWorkFactory
from broker.services.market.usable_offers import OfferRules, usable_market, usable_offers_at
from broker.services.planning.market_beside_held import market_beside_held

Result = TypeVar("Result")
MOST_WAITING = 20
RETRY_AFTER_S = 1


class EstimatingService:
    """Estimates on ``executor``, beside the event loop; at most ``MOST_WAITING`` are under way at once.

    ``read_request`` reads a plan's stored document.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        estimate_call: EstimateCall,
        executor: Executor,
        clock: Clock,
        rules: OfferRules,
        simulate_call: SimulateCall,
        read_request: RequestReaderAt,
        check_call: CheckCall,
    ) -> None:
        self._uow_factory = uow_factory
        self._estimate_call = estimate_call
        self._simulate_call = simulate_call
        self._read_request = read_request
        self._check_call = check_call
        self._executor = executor
        self._clock = clock
        self._rules = rules
        self.under_way = 0

    async def estimate(self, caller: Caller, request: PlanRequest) -> CostEstimate:
        """What each workload would cost alone on what is on sale now.

        Raises InputError for more than ``MOST_ESTIMATED`` workloads and for a request without a meaning,
        NotPermitted for another team's, and TooManyEstimates.
        """
        require_scope(caller, Scope.PLANS_READ)
        if not caller.sees(request.team):
            raise NotPermitted(f"key {caller.key_id} of team {caller.team} cannot plan for {request.team}")
        if len(request.workloads) > MOST_ESTIMATED:
            expected = f"at most {MOST_ESTIMATED} for an estimate; a plan may have more"
            found = f"{len(request.workloads):,} workloads"
            raise InputError("request", (FieldProblem("/workloads", found, expected),))
        now = self._clock.now()

        async def start() -> Future[CostEstimate]:
            asked, market = await market_beside_held(self._uow_factory, request, now, self._rules)
            return self._executor.submit(self._estimate_call, asked, market.offers, now)

        return await self._result(start)

    async def simulate(self, caller: Caller, plan_id: str, draws: int, seed: int) -> Simulation:
        """What may happen to a plan, over ``draws`` draws, with today's prices of its offers and of those on
        which work that outlasts its window goes on.

        Raises NotFound, Conflict for a plan that is not made or whose offers are gone, and TooManyEstimates.
        """
        require_scope(caller, Scope.PLANS_READ)
        async with self._uow_factory(scope_of(caller)) as uow:
            record = await uow.plans.find(plan_id)
            if record.plan is None:
                raise Conflict(f"plan {plan_id} is not made yet; wait until it is")
        plan, gone = record.plan, []
        async with self._uow_factory(EVERY_TEAM) as uow:
            market = await usable_market(uow, self._clock.now(), self._rules)
            offers = {offer.offer_id: offer for offer in market.offers}
            # What the plan holds is on sale no more, or with less stock.
            rows = await uow.reservations.find_of_bills({plan_id})
            held = {row.offer.offer_id: row.offer for row in rows if row.is_open}
            for offer_id in dict.fromkeys(placement.offer_id for placement in plan.placements):
                try:
                    offers[offer_id] = held.get(offer_id) or await uow.offers.find_offer(offer_id)
                except NotFound:
                    gone.append(offer_id)
        if gone:
            raise Conflict(f"no longer on sale: {', '.join(gone)}; plan again, and simulate the new plan")
        request = await asyncio.to_thread(self._read_request, record.document, plan.as_of)

        async def start() -> Future[Simulation]:
            everything = tuple(offers.values())
            return self._executor.submit(self._simulate_call, plan, request, everything, draws, seed)

        return await self._result(start)

    async def check(self, caller: Caller, plan_id: str) -> PlanCheck:
        """Whether a plan keeps every rule, at the prices and with the stock that were known when it was made.

        Raises NotFound, Conflict for a plan that is not made or is of a re-optimization, and
        TooManyEstimates.
        """
        require_scope(caller, Scope.PLANS_READ)
        async with self._uow_factory(scope_of(caller)) as uow:
            record = await uow.plans.find(plan_id)
            if record.plan is None:
                raise Conflict(f"plan {plan_id} is not made yet; wait until it is")
        plan = record.plan
        if record.requested_by == REOPTIMIZER:
            raise Conflict(
                f"plan {plan_id} is of a re-optimization, which planned what was left of the work beside "
                "what was held; it was checked then, and is not made again from its document alone"
            )
        async with self._uow_factory(EVERY_TEAM) as uow:
            offers = await usable_offers_at(uow, plan.as_of, self._rules)
            rows = await uow.reservations.find_of_bills({plan_id})
        # A window that the plan has bought was on sale as its reservation recorded it.
        windows = {row.offer.offer_id: row.offer.window for row in rows}
        offers = tuple(replace(o, window=windows.get(o.offer_id) or o.window) for o in offers)
        if record.variant is not None and record.variant.prices is not None:
            offers = record.variant.prices.applied(offers)
        request = await asyncio.to_thread(self._read_request, record.document, plan.as_of)

        async def start() -> Future[tuple[str, ...]]:
            return self._executor.submit(self._check_call, plan, request, offers)

        return PlanCheck(plan, await self._result(start))

    async def _result(self, start: Callable[[], Awaitable[Future[Result]]]) -> Result:
        """The result of one call on the executor. Raises TooManyEstimates."""
        if self.under_way >= MOST_WAITING:
            raise TooManyEstimates(self.under_way, RETRY_AFTER_S)
        self.under_way += 1
        try:
            return await asyncio.wrap_future(await start())
        finally:
            self.under_way -= 1

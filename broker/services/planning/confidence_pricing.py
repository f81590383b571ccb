"""What a stored plan's document costs at other confidences, computed when somebody wants to know."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from broker.domain.basics.access import require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import ConcurrentChange, Conflict, FieldProblem, InputError
from broker.domain.planning.plan import ConfidencePrice
from broker.domain.planning.plan_turns import Turn, TurnClass
from broker.domain.planning.planned_market import market_sha256
from broker.ports.planning import PriceCall, RequestReader
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.services.market.usable_offers import OfferRules
from broker.services.planning.market_beside_held import market_beside_held
from broker.services.planning.plan_queue import PlanQueue

MOST_WORKLOADS = 50
"""Four more plans of a larger document would keep others waiting too long."""


class ConfidencePricing:
    """The use case. Its searches take one turn of ``queue``, as a plan does; the plan keeps their answer."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        price_call: PriceCall,
        queue: PlanQueue,
        clock: Clock,
        rules: OfferRules,
        read_request: RequestReader,
    ) -> None:
        self._units = units
        self._price_call = price_call
        self._queue = queue
        self._clock = clock
        self._rules = rules
        self._read_request = read_request
        self._under_way: dict[str, asyncio.Lock] = {}

    async def find(self, caller: Caller, plan_id: str) -> tuple[ConfidencePrice, ...]:
        """The prices of a plan, on what is on sale when they are first wanted.

        Computing them needs the scope of planning, reading them does not. Raises NotFound, NotPermitted,
        Conflict for a plan that is not made or whose time is over, and InputError for more than
        ``MOST_WORKLOADS`` workloads.
        """
        require_scope(caller, Scope.PLANS_READ)
        lock = self._under_way.setdefault(plan_id, asyncio.Lock())
        try:
            async with lock:
                return await self._find(caller, plan_id)
        finally:
            if not lock.locked():
                self._under_way.pop(plan_id, None)

    async def _find(self, caller: Caller, plan_id: str) -> tuple[ConfidencePrice, ...]:
        async with self._units(scope_of(caller)) as uow:
            record = await uow.plans.find(plan_id)
        if record.plan is None:
            raise Conflict(f"plan {plan_id} is not made yet; wait until it is")
        if record.plan.confidence_prices:
            return record.plan.confidence_prices
        require_scope(caller, Scope.PLANS_WRITE)
        if record.workload_count > MOST_WORKLOADS:
            found = f"{record.workload_count:,} workloads"
            expected = f"a plan of at most {MOST_WORKLOADS}; a what-if of `confidence` has no such limit"
            raise InputError("plan", (FieldProblem("/workloads", found, expected),))
        request = await asyncio.to_thread(self._read_request, record.document)
        now = self._clock.now()
        if request.horizon.end <= now:
            raise Conflict(f"the horizon of {plan_id} ended at {request.horizon.end:%Y-%m-%d %H:%M} UTC")
        request, market = await market_beside_held(self._units, request, now, self._rules, plan_id)
        sha256 = await asyncio.to_thread(market_sha256, request, market.offers)
        prices = await self._queue.run(
            Turn(record.team, TurnClass.INTERACTIVE),
            self._price_call,
            record.plan,
            request,
            market.offers,
            now,
            record.options,
            sha256 == record.market_sha256,
        )
        try:
            async with self._units(scope_of(caller)) as uow:
                await uow.plans.update(replace(record, plan=replace(record.plan, confidence_prices=prices)))
                await uow.commit()
        except ConcurrentChange:
            pass  # they are computed again when they are next wanted
        return prices

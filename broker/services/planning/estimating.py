"""A first estimate of workloads, which stores nothing."""

from __future__ import annotations

import asyncio

from broker.domain.basics.access import require_scope
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError, NotPermitted, TooManyEstimates
from broker.domain.planning.cost_estimate import MOST_ESTIMATED, CostEstimate
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import EstimateCall
from broker.ports.unit_of_work import Clock, Executor, UnitOfWorkFactory
from broker.services.market.usable_offers import OfferRules
from broker.services.planning.market_beside_held import market_beside_held

MOST_WAITING = 20
RETRY_AFTER_S = 1


class EstimatingService:
    """Estimates on ``executor``, beside the event loop; at most ``MOST_WAITING`` are under way at once."""

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        estimate_call: EstimateCall,
        executor: Executor,
        clock: Clock,
        rules: OfferRules,
    ) -> None:
        self._uow_factory = uow_factory
        self._estimate_call = estimate_call
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
        if self.under_way >= MOST_WAITING:
            raise TooManyEstimates(self.under_way, RETRY_AFTER_S)
        self.under_way += 1
        try:
            now = self._clock.now()
            asked, market = await market_beside_held(self._uow_factory, request, now, self._rules)
            future = self._executor.submit(self._estimate_call, asked, market.offers, now)
            return await asyncio.wrap_future(future)
        finally:
            self.under_way -= 1

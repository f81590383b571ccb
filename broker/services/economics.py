"""Economics: what units of work cost, what the split saves, and the energy that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.domain.access import require_scope, team_filter
from broker.domain.account import Caller, Scope
from broker.domain.energy import EnergyFacts, EnergyUse, energy_of
from broker.domain.errors import InputError
from broker.domain.savings import Savings, savings_of
from broker.domain.spend import Charge
from broker.domain.unit_costs import Job, UnitCosts, Work, unit_costs, work_of
from broker.domain.window import Window
from broker.domain.workload import PlanRequest
from broker.finance_ports import RollupUnits
from broker.ledger import find_planned_work
from broker.plan_ports import PlanRecord, RequestReader
from broker.ports import Clock, UnitOfWork
from broker.summaries import Summaries


@dataclass(frozen=True, slots=True)
class Economics:
    """Figures of one span of time, owed and expected together."""

    units: UnitCosts
    energy: EnergyUse


class EconomicsService:
    """Use cases of unit economics. ``read_request`` reads a plan's stored document: what is to be done."""

    def __init__(
        self,
        units: RollupUnits,
        clock: Clock,
        summaries: Summaries | None = None,
        *,
        read_request: RequestReader,
        energy: EnergyFacts,
    ) -> None:
        self._units = units
        self._summaries = summaries or Summaries(units, clock)
        self._clock = clock
        self._read_request = read_request
        self._energy = energy

    async def find(self, caller: Caller, window: Window | None = None, team: str | None = None) -> Economics:
        """Unit costs and energy of what counts in ``window``, which begins and ends at UTC midnights
        (None: all)."""
        require_scope(caller, Scope.SPEND_READ)
        wanted = team_filter(caller, team)
        charges = await self._summaries.find_charges_in(wanted, window)
        async with self._units() as uow:
            jobs = await find_planned_work(uow, self._clock.now(), wanted, window)
            work = await self._work(uow, jobs)
        return Economics(unit_costs(charges, work, jobs), energy_of(charges, self._energy))

    async def find_savings(self, caller: Caller, team: str | None = None) -> Savings:
        """What current plans save against each habit that could have run instead."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units() as uow:
            records = await uow.plans.find_current(team_filter(caller, team))
        pairs = []
        for record in records:
            request = self._request_of(record)
            if record.plan is not None and request is not None:
                pairs.append((record.plan, request))
        return savings_of(pairs)

    async def _work(self, uow: UnitOfWork, charges: Sequence[Charge]) -> dict[Job, Work]:
        """Of every plan that ``charges`` belong to and whose document can still be read."""
        found: dict[Job, Work] = {}
        for plan_id in sorted({charge.plan_id for charge in charges if charge.plan_id is not None}):
            record = await uow.plans.find(plan_id)
            request = self._request_of(record)
            if record.plan is not None and request is not None:
                found |= {(plan_id, name): work for name, work in work_of(record.plan, request).items()}
        return found

    def _request_of(self, record: PlanRecord) -> PlanRequest | None:
        """The request of a plan; None where an older version wrote a document that says no more."""
        try:
            return self._read_request(record.document)
        except InputError:
            return None

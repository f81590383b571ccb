"""Unit economics: costs per unit of work, savings against baselines, and energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from broker.domain.basics.access import require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.window import Window
from broker.domain.moving.reoptimization import MOVED
from broker.domain.moving.savings import NotCompared, Savings, moved_savings, savings_of
from broker.domain.spend.charging import Movement
from broker.domain.spend.energy import EnergyFacts, EnergyUse, energy_of
from broker.domain.spend.spend import Charge, projection_end
from broker.domain.spend.unit_costs import DayWork, Job, UnitCosts, Work, day_work_of, unit_costs
from broker.lru_cache import LruCache
from broker.ports.planning import PlanRecord, RequestReader
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.services.spend.ledger import (
    Entries,
    Gathered,
    charges_of,
    find_planned_entries,
    is_expected,
)
from broker.services.spend.planned_work import charges_in, find_kept_work, request_of, work_of_records
from broker.services.spend.summaries import Summaries, part_settled

MOST_CHARGES = 100_000
"""Size of the cache, in charges."""
MOST_SAVINGS = 32


@dataclass(frozen=True, slots=True)
class Economics:
    """Figures of one window, of actual and projected charges together."""

    units: UnitCosts
    energy: EnergyUse


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """Plans with charges in ``window`` (None: all): their steady charges, inputs of their other charges, and
    work.

    ``kept`` is the work of the ``closed`` months, whose charges count no more.
    """

    entries: Entries
    window: Window | None
    steady: tuple[Charge, ...]
    work: Mapping[Job, Work]
    kept: tuple[DayWork, ...]
    closed: Sequence[Window]

    def in_window(self, found: Gathered) -> Iterator[Charge]:
        """Charges of ``found`` that begin in the window, and in no closed month."""
        for charge in charges_in(found, self.window):
            if not any(month.contains(charge.window.start) for month in self.closed):
                yield charge


class EconomicsService:
    """Use cases of unit economics. ``read_request`` reads a plan's stored document, which states the work."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        summaries: Summaries | None = None,
        *,
        read_request: RequestReader,
        energy: EnergyFacts,
    ) -> None:
        self._units = units
        self._summaries = summaries or Summaries(units, clock)
        self._read_request = read_request
        self._energy = energy
        self._known = LruCache[PlannedWork](
            MOST_CHARGES, lambda known: 1 + len(known.steady) + len(known.kept)
        )
        self._savings = LruCache[Savings](MOST_SAVINGS)

    async def find(self, caller: Caller, window: Window | None = None, team: str | None = None) -> Economics:
        """Unit costs and energy in ``window``, which begins and ends at UTC midnights (None: all)."""
        require_scope(caller, Scope.SPEND_READ)
        scope = scope_of(caller, team)
        charges = await self._summaries.find_charges_in(scope, window)
        live = await self._summaries.find_live(scope, None if window is None else window.end)
        key = (live.token, scope, window)
        known = self._known.find(key)
        if known is None:
            async with self._units(scope) as uow:
                entries = await find_planned_entries(uow, window)
                kept, closed = await find_kept_work(uow, window)
            blank = PlannedWork(entries, window, (), {}, kept, closed)
            known = self._known.keep(key, self._planned_work(blank, live.at))
        until = projection_end(window, live.at)
        moving = known.in_window(charges_of(known.entries, live.at, which=Movement.MOVING, until=until))
        work = (*known.kept, *day_work_of((*known.steady, *moving), known.work))
        return Economics(unit_costs(charges, work), energy_of(charges, self._energy))

    async def find_savings(self, caller: Caller, team: str | None = None) -> Savings:
        """Savings against each baseline, of the current plans that are reserved or that somebody intends to
        buy, and of the moves of re-optimizations."""
        require_scope(caller, Scope.SPEND_READ)
        scope = scope_of(caller, team)
        token = (await self._summaries.find_live(scope)).token
        kept = self._savings.find(token)
        if kept is not None:
            return kept
        async with self._units(scope) as uow:
            records = await uow.plans.find_current()
            moved = moved_savings(await uow.reoptimizations.find_in(MOVED))
        pairs = [
            (record.plan, request)
            for record in records
            if _is_bought(record)
            and (request := request_of(record, self._read_request)) is not None
            and record.plan is not None
        ]
        left = (
            NotCompared(record.plan_id, "it is a draft that nobody intends to buy")
            for record in records
            if record.plan is not None and not _is_bought(record)
        )
        return self._savings.keep(token, replace(savings_of(pairs, left), reoptimizations=moved))

    def _planned_work(self, known: PlannedWork, now: datetime) -> PlannedWork:
        """``known`` with the charges of its plans, and the work of those whose document can be read."""
        over, running = part_settled(known.entries, now)
        work = work_of_records(known.entries.plan_records, self._read_request)
        until = projection_end(known.window, now)
        steady = charges_of(running, now, which=Movement.STEADY, until=until)
        charges = (*known.in_window(over), *known.in_window(steady))
        return replace(known, entries=running, steady=charges, work=work)


def _is_bought(record: PlanRecord) -> bool:
    """Whether a current plan is reserved, or somebody intends to buy it."""
    return record.reserved_at is not None or is_expected(record)

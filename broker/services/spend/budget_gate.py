"""Checks whether a plan, an order or an extension would exceed a budget of its team or of all teams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.holding.cost_of_keeping import HeldCapacity, held_of
from broker.domain.holding.reservation import Reservation
from broker.domain.moving.move_charges import charges_with_moves
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.planning.plan import Plan
from broker.domain.spend.approvals import over_limit
from broker.domain.spend.budget_effects import BudgetEffect, find_effects, told_to_team
from broker.domain.spend.budgets import Budget, BudgetPeriod, Reach, furthest_end
from broker.domain.spend.charging import plan_charges, reservation_charges
from broker.domain.spend.spend import Charge, ChargeBasis
from broker.ports.planning import PlanRecord, PlanState
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory
from broker.services.spend.ledger import bill_of
from broker.services.spend.summaries import Summaries


@dataclass(frozen=True, slots=True)
class BudgetBooks:
    """Budgets, the charges of the teams that they cover, and how far both look.

    ``plans``: those in force, by id, if a budget has a confidence: it counts what is paid at most for each.
    """

    budgets: tuple[Budget, ...]
    charges: tuple[Charge, ...]
    reach: Reach
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def effects(
        self, team: str, before: Iterable[Charge], after: Iterable[Charge]
    ) -> tuple[BudgetEffect, ...]:
        """The effects on the budgets of ``team`` and of all teams, the worst first.

        Each counts the plans at its own confidence.
        """
        first, then = tuple(before), tuple(after)
        found: list[BudgetEffect] = []
        for chance in dict.fromkeys(one.confidence for one in self.budgets):
            alike = (one for one in self.budgets if one.confidence == chance)
            budgets = [one for one in alike if one.team in (team, ALL_TEAMS)]
            was, becomes = (_at_chance(charges, self.plans, chance) for charges in (first, then))
            found += find_effects(budgets, was, becomes, self.reach)
        return tuple(sorted(found, key=lambda effect: (effect.left_usd, effect.window.start)))

    def counting(self, plan: Plan) -> BudgetBooks:
        """The books that know a further plan."""
        return replace(self, plans={**self.plans, plan.plan_id: plan})

    def effects_of_plan(self, record: PlanRecord, plan: Plan) -> tuple[BudgetEffect, ...]:
        """What the plan does if it takes the place of the spend that it would replace, the worst first."""
        kept, adds = self._kept(record, plan), plan_charges(plan, record.team, record.plan_id)
        return self.counting(plan).effects(record.team, kept, (*kept, *adds))

    def effects_of_hold(self, record: PlanRecord, plan: Plan, held: Plan) -> tuple[BudgetEffect, ...]:
        """What ``held``, the plan held early, does beyond the plan itself."""
        kept = self._kept(record, plan)
        before, after = (plan_charges(one, record.team, record.plan_id) for one in (plan, held))
        return self.counting(plan).effects(record.team, (*kept, *before), (*kept, *after))

    def _kept(self, record: PlanRecord, plan: Plan) -> tuple[Charge, ...]:
        """The charges that the plan does not replace."""
        workloads = {placement.workload for placement in plan.placements}
        return tuple(
            charge
            for charge in self.charges
            if charge.team != record.team
            or (
                charge.plan_id != record.plan_id
                and (charge.reservation_id is not None or charge.workload not in workloads)
            )
        )


def _at_chance(
    charges: tuple[Charge, ...], plans: Mapping[str, Plan], chance: float | None
) -> tuple[Charge, ...]:
    """The projected charges of plans in proportion to what is paid for each at most with ``chance``."""
    if chance is None:
        return charges
    factors = {
        plan_id: plan.paid_usd(chance) / plan.cost_usd for plan_id, plan in plans.items() if plan.cost_usd
    }
    return tuple(
        replace(charge, usd=to_cents(charge.usd * factors[charge.plan_id]))
        if charge.plan_id in factors and charge.basis is ChargeBasis.PROJECTED
        else charge
        for charge in charges
    )


async def find_budget_charges(
    units: UnitOfWorkFactory,
    summaries: Summaries,
    budgets: Sequence[Budget],
    reach: Reach,
    *,
    by_day: bool = False,
) -> tuple[tuple[Charge, ...], Reach]:
    """The charges of the teams that ``budgets`` cover, and ``reach`` as far as they go.

    A budget of all teams covers the charges of each of them. ``by_day``: they are summed by day.
    """
    teams = {budget.team for budget in budgets}
    one = None if ALL_TEAMS in teams or len(teams) > 1 else next(iter(teams), None)
    scope = EVERY_TEAM.narrowed_to(one)
    async with units(scope) as uow:
        rows = await uow.reservations.find_open()
    reach = reach.opening((row.team, row.start) for row in rows if row.end is None)
    find = summaries.find_days if by_day else summaries.find_charges
    until = furthest_end(budgets, reach)
    charges = await find(scope, until)
    further = reach.beyond(charges)
    if any(row.end is None for row in rows) and furthest_end(budgets, further) != until:
        charges = await find(scope, furthest_end(budgets, further))
    return charges, further


async def find_books(
    units: UnitOfWorkFactory, summaries: Summaries, teams: Iterable[str], reach: Reach
) -> BudgetBooks:
    """The books of all budgets that cover one of ``teams``, whatever the caller may see."""
    asked = frozenset(teams)
    async with units(EVERY_TEAM) as uow:
        budgets = tuple(one for one in await uow.budgets.find_all() if one.team in {*asked, ALL_TEAMS})
        has_confidence = any(one.confidence is not None for one in budgets)
        records = await uow.plans.find_current() if has_confidence and asked else ()
    if not budgets or not asked:
        return BudgetBooks((), (), reach)
    plans = {one.plan_id: one.plan for one in records if one.plan is not None}
    return BudgetBooks(budgets, *await find_budget_charges(units, summaries, budgets, reach), plans)


def ends_of(plans: Iterable[Plan]) -> tuple[datetime, ...]:
    """The ends of all that ``plans`` hold."""
    return tuple(one.end for plan in plans for placed in plan.placements for one in placed.segments)


async def find_plan_effects(
    uow: UnitOfWork, record: PlanRecord, plan: Plan, books: BudgetBooks
) -> tuple[BudgetEffect, ...]:
    """What the plan does to each budget that covers its team, the worst first: in the present period, and in
    each later one to whose spend it adds. For the plan of a proposal: after its moves.
    """
    if not books.budgets:
        return ()
    look = await _proposing(uow, record)
    if look is not None:
        after = await _charges_after(uow, look, plan, books)
        return books.counting(plan).effects(record.team, books.charges, after)
    return books.effects_of_plan(record, plan)


async def _proposing(uow: UnitOfWork, record: PlanRecord) -> Reoptimization | None:
    """The open proposal to which a plan belongs, if any."""
    if record.state is not PlanState.PROPOSED:
        return None
    found = await uow.reoptimizations.find_in({ProposalState.PROPOSED})
    return next((look for look in found if look.new_plan_id == record.plan_id), None)


async def _charges_after(
    uow: UnitOfWork, look: Reoptimization, new: Plan, books: BudgetBooks
) -> tuple[Charge, ...]:
    """The charges after the moves of a proposal."""
    leaving = await _held(uow, dict.fromkeys(key for move in look.moves for key in move.leaves))
    keeping = await _held(uow, dict.fromkeys(key for move in look.moves for key in move.keeps))
    mine = (charge for charge in books.charges if charge.team == look.team)
    others = (charge for charge in books.charges if charge.team != look.team)
    return (*charges_with_moves(mine, look, new, leaving, keeping, books.reach.now), *others)


async def _held(uow: UnitOfWork, keys: Iterable[str]) -> list[HeldCapacity]:
    found = [held_of(await uow.reservations.find(key)) for key in keys]
    return [one for one in found if one is not None]


class BudgetGate:
    """Checks budgets, and the limit of what needs an approval, before money is committed.

    All texts are for the team: of a budget of all teams they tell only by how much it would be exceeded.
    """

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        summaries: Summaries,
        approval_limit_usd: Decimal | None = None,
    ) -> None:
        self._units = units
        self._clock = clock
        self._summaries = summaries
        self._limit_usd = approval_limit_usd

    async def _books(
        self, team: str, opened: Iterable[datetime] = (), last: Iterable[datetime] = ()
    ) -> BudgetBooks:
        reach = Reach.at(self._clock.now(), opened, last, team)
        return await find_books(self._units, self._summaries, {team}, reach)

    async def find_overruns(self, record: PlanRecord, plan: Plan) -> tuple[str, ...]:
        """A text for each budget that would be exceeded and to which the plan contributes."""
        books = await self._books(record.team, last=ends_of((plan,)))
        async with self._units(EVERY_TEAM.narrowed_to(record.team)) as uow:
            effects = await find_plan_effects(uow, record, plan, books)
        mine = plan_charges(plan, record.team, record.plan_id)
        return tuple(
            str(one)
            for one in told_to_team(effects, record.team, books.reach)
            if one.is_exceeded and any(one.window.contains(charge.window.start) for charge in mine)
        )

    async def find_overruns_of_hold(self, record: PlanRecord, plan: Plan, held: Plan) -> tuple[str, ...]:
        """A text for each budget that would be exceeded if ``plan`` were held early, as ``held``, and for the
        limit of what needs an approval: of an approved plan, only what is added counts against it.
        """
        added_usd, adds = held.cost_usd - plan.cost_usd, "holding it now"
        if not added_usd:
            return ()
        books = await self._books(record.team, last=ends_of((held,)))
        effects = told_to_team(books.effects_of_hold(record, plan, held), record.team, books.reach)
        told = (one for one in effects if one.is_exceeded and one.added_usd > 0)
        is_approved = record.approved_by is not None
        cost_usd, what = (added_usd, adds) if is_approved else (held.cost_usd, "this plan, held now,")
        return (*over_limit(cost_usd, self._limit_usd, what), *(one.told_of(adds) for one in told))

    async def find_overruns_of_order(self, order: Reservation) -> tuple[str, ...]:
        """A text for each budget that would be exceeded and to which ``order`` contributes, and for the limit
        of what needs an approval.

        An order without an end counts for at least the whole next period.
        """
        return await self._overruns_of_rows(order.team, (), (order,), "this order")

    async def find_overruns_of_extension(self, row: Reservation, end: datetime) -> tuple[str, ...]:
        """The same if ``row``, which is stored, ended at ``end``."""
        return await self.find_overruns_of_exchange((row,), (replace(row, end=end),), "this extension")

    async def find_overruns_of_exchange(
        self, leaving: Sequence[Reservation], wanted: Sequence[Reservation], adds: str
    ) -> tuple[str, ...]:
        """The same if the rows ``leaving``, which are stored and of one bill, were ``wanted`` instead.

        The reservations of a bill are charged together, as they are rounded together.
        """
        team, name = leaving[0].team, bill_of(leaving[0])
        async with self._units(EVERY_TEAM.narrowed_to(team)) as uow:
            bill = await uow.reservations.find_of_bills({name})
        gone = {row.reservation_id for row in leaving}
        after = (*(row for row in bill if row.reservation_id not in gone), *wanted)
        return await self._overruns_of_rows(team, bill, after, adds)

    async def _overruns_of_rows(
        self, team: str, before: Sequence[Reservation], after: Sequence[Reservation], adds: str
    ) -> tuple[str, ...]:
        opened = [row.start for row in after if row.end is None]
        books = await self._books(team, opened, (row.end for row in after if row.end is not None))
        now, month = books.reach.now, _monthly(team, books.reach.now)
        until = furthest_end((*books.budgets, month), books.reach)
        names = {row.reservation_id for row in before}
        kept = tuple(charge for charge in books.charges if charge.reservation_id not in names)
        first, then = (reservation_charges(rows, {}, now, until=until) for rows in (before, after))
        effects = books.effects(team, (*kept, *first), (*kept, *then))
        told = (
            one for one in told_to_team(effects, team, books.reach) if one.is_exceeded and one.added_usd > 0
        )
        end = books.reach.counted_until(month)
        added = _sum_until(then, end) - _sum_until(first, end)
        return (*over_limit(added, self._limit_usd, adds), *(one.told_of(adds) for one in told))

    async def find_overruns_of_moves(self, look: Reoptimization, new: Plan) -> tuple[str, ...]:
        """A text for each budget that would be exceeded, by more than without the moves.

        ``new`` is the plan after the moves. Savings in an exceeded budget need no approval.
        """
        if not look.moves:
            return ()
        books = await self._books(look.team, last=ends_of((new,)))
        if not books.budgets:
            return ()
        async with self._units(EVERY_TEAM.narrowed_to(look.team)) as uow:
            after = await _charges_after(uow, look, new, books)
        found = books.counting(new).effects(look.team, books.charges, after)
        effects = told_to_team(found, look.team, books.reach)
        return tuple(str(one) for one in effects if one.is_exceeded and one.added_usd > 0)


def _monthly(team: str, now: datetime) -> Budget:
    """A month without a limit: what a lease without an end costs is counted as a monthly budget counts it."""
    return Budget(team, BudgetPeriod.MONTH, ZERO, (), None, "", now)


def _sum_until(charges: Iterable[Charge], end: datetime) -> Decimal:
    return sum((one.usd for one in charges if not one.is_open_ended or one.window.start < end), ZERO)

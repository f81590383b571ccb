"""Names of teams and workloads that exist, so that a mistyped name is refused instead of finding nothing."""

from __future__ import annotations

from collections.abc import Collection

from broker.domain.basics.access import scope_of
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.near_words import similar_words, with_nearest
from broker.domain.basics.webhook import ALL_TEAMS
from broker.ports.unit_of_work import UnitOfWorkFactory

NO_WORKLOAD = "-"
"""The group of spend without a workload."""
A_TEAM = "a team that has a key, a plan, a reservation or a budget"
A_WORKLOAD = "a workload that is reserved, was reserved, or is in a current plan"


class KnownNamesService:
    """Use cases of names. ``configured`` are teams that the settings name."""

    def __init__(self, units: UnitOfWorkFactory, configured: Collection[str] = ()) -> None:
        self._units = units
        self._configured = configured

    async def find_teams(self, caller: Caller) -> tuple[str, ...]:
        """Every team that the caller sees, in the order in which they appeared; the latter ones by name."""
        if not caller.sees_every_team:
            return (caller.team,)
        async with self._units(scope_of(caller)) as uow:
            found = await uow.accounts.find_teams()
            others = {budget.team for budget in await uow.budgets.find_all()}
            others |= {row.group for row in await uow.rollups.find_sums(None, "team")}
        every = dict.fromkeys((*found, *sorted(others | set(self._configured))))
        return tuple(team for team in every if team != ALL_TEAMS)

    async def require_not_mistyped(self, caller: Caller, team: str) -> None:
        """Raises InputError for a team that does not exist and whose name is like one that does.

        Whoever may plan for every team begins a new one by naming it. A name that nearly is a team's is taken
        for a slip; a team of such a name begins with a key or a budget, or is said to be new.
        """
        if not caller.sees_every_team:
            return
        known = await self.find_teams(caller)
        alike = () if team in known else similar_words(team, known)
        if alike:
            expected = (
                f"a team that exists (nearest: {', '.join(alike)}); if it is a new team, say so with "
                "new_team=true (--new-team), or make a key for it first"
            )
            raise InputError("request", (FieldProblem("/team", repr(team), expected),))

    async def find_workloads(self, caller: Caller, team: str | None = None) -> tuple[str, ...]:
        """Every workload with spend or in a current plan, by name."""
        async with self._units(scope_of(caller, team)) as uow:
            found = set(await uow.reservations.find_workloads())
            found |= {row.group for row in await uow.rollups.find_sums(None, "workload")}
            for record in await uow.plans.find_current():
                placed = () if record.plan is None else record.plan.placements
                found |= {placement.workload for placement in placed}
        return tuple(sorted(found - {NO_WORKLOAD}))

    async def require_known(
        self, caller: Caller, *, team: str | None = None, workload: str | None = None
    ) -> None:
        """Raises InputError for a name that does not exist, with the nearest ones. None: not asked.

        Raises NotPermitted for another team than the caller's, whether or not it exists.
        """
        scope_of(caller, team)
        problems = []
        if team and caller.sees_every_team and team != ALL_TEAMS:
            teams = await self.find_teams(caller)
            if team not in teams:
                problems.append(FieldProblem("/team", repr(team), with_nearest(A_TEAM, team, teams)))
        if workload and not problems:
            workloads = await self.find_workloads(caller, team)
            if workload not in workloads:
                expected = with_nearest(A_WORKLOAD, workload, workloads)
                problems.append(FieldProblem("/workload", repr(workload), expected))
        if problems:
            raise InputError("request", tuple(problems))

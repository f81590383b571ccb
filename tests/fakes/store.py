"""A store in memory that keeps the promises of the store's classes.

Writes are staged and applied at ``commit``; versions are compared when a write is asked for and
again when it is applied, as a database would. ``open_units`` lets a fake provider see whether it is
called inside a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from typing import Self, cast

from broker.domain.basics.access import TeamScope
from broker.domain.basics.errors import ConcurrentChange, NotFound
from broker.domain.basics.page import Page
from broker.domain.basics.window import Window
from broker.domain.holding.launches import LaunchAttempt
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.holding.seller_network import SellerNetwork
from broker.domain.market.offer import Offer
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.reconciling.entering import MachinesByUnit
from broker.domain.reconciling.orphaned_leases import is_lost_order
from broker.domain.spend.approvals import ApprovalState
from broker.ports.planning import (
    BusinessStatus,
    OtherPlans,
    PlanRecord,
    PlanState,
    business_status_of,
)
from broker.ports.unit_of_work import UnitOfWork
from tests.fakes.account_rows import Accounts, Keys, SshKeys
from tests.fakes.market_rows import Offers, Quarantine
from tests.fakes.rollups import Rollups
from tests.fakes.tables import Committed, Repository, Rows, page_of

open_units: ContextVar[int] = ContextVar("open_units", default=0)


class Tables(Committed):
    """What is committed, and the way to more of it."""

    def unit_of_work(self, scope: TeamScope) -> UnitOfWork:
        """One transaction on these tables, in which there are the rows of ``scope``."""
        return cast("UnitOfWork", InMemoryUnitOfWork(self, scope))


class Plans(Rows):
    """Stands in for ``SqlPlanRepository``."""

    def __init__(self, tables: Committed, staged: list[Callable[[], None]], scope: TeamScope) -> None:
        super().__init__(tables, staged, scope)
        self._added: list[PlanRecord] = []

    async def add(self, record: PlanRecord) -> None:
        self._added.append(record)
        self._stage_add(self._tables.plans, record.plan_id, record)

    async def update(self, record: PlanRecord) -> PlanRecord:
        written = replace(record, version=record.version + 1)
        self._stage_update(self._tables.plans, record.plan_id, record, written)
        return written

    async def find(self, plan_id: str) -> PlanRecord:
        if plan_id not in self._tables.plans:
            raise NotFound("plan", plan_id)
        return self._tables.plans[plan_id]

    def _newest(self, team: str | None) -> list[PlanRecord]:
        mine = [r for r in self._tables.plans.values() if team in (None, r.team)]
        return sorted(mine, key=lambda r: (r.created_at, r.plan_id), reverse=True)

    async def find_page(self, limit: int, cursor: str | None) -> Page[PlanRecord]:
        return page_of(self._newest(None), limit, cursor)

    def _holding(self) -> set[str]:
        rows = self._tables.reservations.values()
        found = {r.plan_id for r in rows if r.is_open and r.state is not ReservationState.RELEASING}
        while more := {r.plan_id for r in self._done() if r.supersedes in found} - found:
            found |= more
        return {plan_id for plan_id in found if plan_id is not None}

    def _done(self) -> list[PlanRecord]:
        return [r for r in self._newest(None) if r.state is PlanState.DONE]

    async def find_current(
        self, team: str | None = None, known: Collection[PlanRecord] = ()
    ) -> tuple[PlanRecord, ...]:
        holding, superseded = self._holding(), {r.supersedes for r in self._done()}
        found: list[PlanRecord] = []
        groups: dict[tuple[str, str], list[PlanRecord]] = {}
        for record in self._newest(team):
            is_ruled_out = record.approval is ApprovalState.REJECTED or record.is_exploration
            if record.state is PlanState.DONE and not is_ruled_out:
                groups.setdefault((record.team, record.document), []).append(record)
        for group in groups.values():
            held = [r for r in group if r.plan_id in holding]
            rest = [r for r in group if r.plan_id not in holding]
            drafts = [r for r in rest if r.reserved_at is None and r.plan_id not in superseded]
            intended = [r for r in drafts if r.is_intended]
            found += [r for r in held if r.plan_id not in superseded]
            found += [r for r in (intended or rest)[:1] if r in drafts and (not held or r in intended)]
        return tuple(sorted(found, key=self._newest(team).index))

    async def find_business_statuses(self, records: Collection[PlanRecord]) -> Mapping[str, BusinessStatus]:
        holding, superseded = self._holding(), {r.supersedes for r in self._done()}
        current = {r.plan_id for r in (*await self.find_current(), *self._new_drafts())}
        found = {
            r.plan_id: business_status_of(
                r,
                is_held=r.plan_id in holding,
                is_superseded=r.plan_id in superseded,
                is_current=r.plan_id in current,
            )
            for r in records
        }
        return {plan_id: standing for plan_id, standing in found.items() if standing is not None}

    def _new_drafts(self) -> list[PlanRecord]:
        """The newest plan of each document, if it is a draft from after what is held was reserved."""
        newest: dict[tuple[str, str], PlanRecord] = {}
        for record in self._done():
            ruled_out = record.approval is ApprovalState.REJECTED or record.is_exploration
            if not ruled_out and record.plan_id not in self._holding():
                newest.setdefault((record.team, record.document), record)
        held = [r for r in self._done() if r.plan_id in self._holding()]
        return [
            draft
            for draft in newest.values()
            if draft.reserved_at is None
            and all(
                (one.reserved_at or one.created_at) <= draft.created_at
                for one in held
                if (one.team, one.document) == (draft.team, draft.document)
            )
        ]

    async def find_others(self, records: Collection[PlanRecord]) -> Mapping[str, OtherPlans]:
        drafts = [r for r in (*await self.find_current(), *self._new_drafts()) if r.reserved_at is None]
        found = {}
        for record in records:
            same = [
                r
                for r in self._done()
                if (r.team, r.document) == (record.team, record.document) and r.plan_id != record.plan_id
            ]
            found[record.plan_id] = OtherPlans(
                next((r.plan_id for r in self._done() if r.supersedes == record.plan_id), None),
                next((r.plan_id for r in same if r.plan_id in self._holding()), None),
                next((r.plan_id for r in same if r in drafts), None),
            )
        return found

    async def find_comparison(self, comparison_id: str) -> tuple[PlanRecord, ...]:
        places = {
            r.variant.position: r
            for r in self._tables.plans.values()
            if r.variant is not None and r.variant.comparison_id == comparison_id
        }
        if not places:
            raise NotFound("comparison", comparison_id)
        return tuple(places[position] for position in sorted(places))

    async def withdraw_intentions(self, record: PlanRecord) -> None:
        for other in self._newest(record.team):
            same = other.document == record.document and other.plan_id != record.plan_id
            if same and other.state is PlanState.DONE and other.intended_by and other.reserved_at is None:
                await self.update(replace(other, intended_by=None))

    async def find_by_approval(
        self, states: Collection[ApprovalState], limit: int, cursor: str | None
    ) -> Page[PlanRecord]:
        return page_of([r for r in self._newest(None) if r.approval in states], limit, cursor)

    async def find_lineage(self, plan_id: str) -> tuple[str, ...]:
        found: list[str] = []
        wanted: str | None = plan_id
        while wanted is not None and wanted not in found:
            found.append(wanted)
            wanted = (await self.find(wanted)).supersedes
        return tuple(found)

    async def count_on_their_way(self, team: str) -> tuple[int, int]:
        known = {r.plan_id: r for r in (*self._added, *self._tables.plans.values())}
        mine = [r for r in known.values() if r.team == team and r.state.is_on_its_way]
        return len(mine), sum(r.workload_count for r in mine)

    async def count_older_queued(self, record: PlanRecord) -> int:
        queued = (r for r in self._tables.plans.values() if r.state is PlanState.QUEUED)
        return sum((r.created_at, r.plan_id) < (record.created_at, record.plan_id) for r in queued)

    async def find_cancelled(self, plan_ids: Collection[str]) -> tuple[str, ...]:
        plans = self._tables.plans
        return tuple(one for one in plan_ids if plans[one].state is PlanState.CANCELLED)

    async def claim_unfinished(self) -> tuple[PlanRecord, ...]:
        return tuple(record for record in reversed(self._newest(None)) if record.state.is_on_its_way)


class Reservations(Rows):
    """Stands in for ``SqlReservationRepository``. ``is_taking``: this unit has its turn at the stock."""

    is_taking = False

    async def add(self, reservation: Reservation) -> None:
        self._stage_add(self._tables.reservations, reservation.reservation_id, reservation)

    async def update(self, reservation: Reservation) -> Reservation:
        written = replace(reservation, version=reservation.version + 1)
        self._stage_update(self._tables.reservations, reservation.reservation_id, reservation, written)
        return written

    async def find(self, reservation_id: str) -> Reservation:
        if reservation_id not in self._tables.reservations:
            raise NotFound("reservation", reservation_id)
        return self._tables.reservations[reservation_id]

    async def find_of_tags(self, stem: str) -> tuple[Reservation, ...]:
        rows = self._tables.reservations.values()
        return tuple(row for row in rows if any(unit.tag.startswith(stem) for unit in row.units))

    async def find_page(
        self, limit: int, cursor: str | None, plan_id: str | None = None
    ) -> Page[Reservation]:
        mine = [row for row in self._tables.reservations.values() if plan_id in (None, row.plan_id)]
        ordered = sorted(mine, key=lambda r: (r.created_at, r.reservation_id), reverse=True)
        return page_of(ordered, limit, cursor)

    async def find_open(self) -> tuple[Reservation, ...]:
        return tuple(row for row in self._tables.reservations.values() if row.is_open)

    async def find_lost(self, since: datetime) -> tuple[Reservation, ...]:
        rows = self._tables.reservations.values()
        failed = [r for r in rows if r.state is ReservationState.FAILED and (r.released_at or since) >= since]
        return tuple(row for row in failed if any(is_lost_order(unit) for unit in row.units))

    async def find_of_bills(self, bill_ids: Collection[str]) -> tuple[Reservation, ...]:
        rows = self._tables.reservations.values()
        return tuple(row for row in rows if (row.plan_id or row.reservation_id) in bill_ids)

    async def find_competing(
        self, offers: Iterable[Offer], providers: Collection[str] = ()
    ) -> tuple[Reservation, ...]:
        """One taker at a time, until its unit of work ends."""
        if not self.is_taking:
            await self._tables.taking.acquire()
            self.is_taking = True
        return tuple(row for row in self._every_team.reservations.values() if row.is_open)

    async def find_spending(self, since: datetime) -> tuple[Reservation, ...]:
        rows = self._every_team.reservations.values()
        return tuple(row for row in rows if row.is_open or row.provider_references)

    async def take_turn(self) -> None:
        """The services that share these tables share their turn."""

    async def claim(self, reservation_id: str) -> bool:
        return True

    async def note_seen(self, units: Sequence[tuple[str, int]], at: datetime) -> None:
        def apply() -> None:
            rows = self._tables.reservations
            for key, ordinal in units:
                rows[key] = rows[key].with_unit(replace(rows[key].units[ordinal], seen_at=at))

        self._staged.append(apply)

    async def note_machines(self, machines: MachinesByUnit) -> None:
        def apply() -> None:
            rows = self._tables.reservations
            for (key, ordinal), (nodes, note) in machines.items():
                unit = replace(rows[key].units[ordinal], machines=nodes, access_note=note)
                rows[key] = rows[key].with_unit(unit)

        self._staged.append(apply)

    async def find_workloads(self) -> frozenset[str]:
        rows = self._tables.reservations.values()
        return frozenset(row.workload for row in rows if row.workload and self._scope.covers(row.team))

    async def find_plans_held(self, window: Window | None) -> frozenset[str]:
        return frozenset(row.plan_id for row in self._tables.reservations.values() if row.plan_id)

    async def find_overlapping(self, window: Window | None) -> tuple[Reservation, ...]:
        return tuple(row for row in self._tables.reservations.values() if row.provider_references)


class Launches(Repository):
    """Stands in for ``SqlLaunchRepository``."""

    async def add(self, attempts: Iterable[LaunchAttempt]) -> None:
        def apply(found: tuple[LaunchAttempt, ...] = tuple(attempts)) -> None:
            for attempt in found:
                self._tables.launches.setdefault((attempt.reservation_id, attempt.outcome), attempt)

        self._staged.append(apply)

    async def find_since(self, since: datetime) -> tuple[LaunchAttempt, ...]:
        return tuple(attempt for attempt in self._tables.launches.values() if attempt.asked_at >= since)


class Reoptimizations(Repository):
    """Stands in for ``SqlReoptimizationRepository``."""

    @property
    def _looks(self) -> list[Reoptimization]:
        return [look for look in self._tables.reoptimizations if self._scope.covers(look.team)]

    async def add(self, reoptimization: Reoptimization) -> None:
        self._scope.require(reoptimization.team)
        self._staged.append(lambda: self._tables.reoptimizations.insert(0, reoptimization))

    async def update(self, reoptimization: Reoptimization) -> Reoptimization:
        self._scope.require(reoptimization.team)
        key, written = (
            reoptimization.reoptimization_id,
            replace(reoptimization, version=reoptimization.version + 1),
        )

        def apply() -> None:
            looks = self._tables.reoptimizations
            (at,) = [i for i, look in enumerate(looks) if look.reoptimization_id == key]
            if looks[at].version != reoptimization.version:
                raise ConcurrentChange(f"{key} is at version {looks[at].version}")
            looks[at] = written

        self._staged.append(apply)
        return written

    async def find(self, reoptimization_id: str) -> Reoptimization:
        for look in self._looks:
            if look.reoptimization_id == reoptimization_id:
                return look
        raise NotFound("re-optimization", reoptimization_id)

    async def find_in(
        self, states: Collection[ProposalState], since: datetime | None = None
    ) -> tuple[Reoptimization, ...]:
        return tuple(o for o in self._looks if o.state in states and (since is None or o.started_at >= since))

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[Reoptimization]:
        mine = [look for look in self._looks if team in (None, look.team)]
        return page_of(mine, limit, cursor)


class Networks(Repository):
    """Stands in for ``SqlNetworkRepository``."""

    async def find(self, provider: str | None = None) -> tuple[SellerNetwork, ...]:
        return tuple(one for one in self._tables.networks.values() if provider in (None, one.provider))

    async def put(self, networks: tuple[SellerNetwork, ...]) -> None:
        found = {(one.provider, one.region): one for one in networks}
        self._staged.append(lambda: self._tables.networks.update(found))


class InMemoryUnitOfWork:
    """Stands in for ``SqlUnitOfWork`` over the repositories that services in memory need."""

    def __init__(self, tables: Tables, scope: TeamScope) -> None:
        self.scope = scope
        self._staged: list[Callable[[], None]] = []
        self.offers = Offers(tables, self._staged, scope)
        self.quarantine = Quarantine(tables, self._staged, scope)
        self.plans = Plans(tables, self._staged, scope)
        self._tables = tables
        self.reservations = Reservations(tables, self._staged, scope)
        self.launches = Launches(tables, self._staged, scope)
        self.reoptimizations = Reoptimizations(tables, self._staged, scope)
        self.accounts = Accounts(tables, self._staged, scope)
        self.keys = Keys(tables, self._staged, scope)
        self.networks = Networks(tables, self._staged, scope)
        self.ssh_keys = SshKeys(tables, self._staged, scope)
        seen = tables.seen_by(scope)
        self.rollups = Rollups(tables.rollups, seen.reservations, seen.plans, self._staged, scope)

    async def __aenter__(self) -> Self:
        open_units.set(open_units.get() + 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        open_units.set(open_units.get() - 1)
        if self.reservations.is_taking:
            self._tables.taking.release()
            self.reservations.is_taking = False
        self._staged.clear()

    async def commit(self) -> None:
        for apply in self._staged:
            apply()
        self._staged.clear()

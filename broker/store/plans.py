"""Plans, by team."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from broker.domain.approvals import ApprovalState, Decision
from broker.domain.errors import NotFound
from broker.domain.money import to_micro_usd
from broker.domain.page import Page
from broker.domain.plan import Plan
from broker.plan_ports import PlanOptions, PlanRecord, PlanState
from broker.store.documents import from_document, to_document
from broker.store.pages import fetch_page
from broker.store.tables import PlanRow
from broker.store.workers import claim_rows, from_now
from broker.store.writes import Values, insert_new, table_of, update_unchanged

PLANNING_LEASE = timedelta(hours=2)
"""Longer than the longest time that a plan may be given; a process that dies frees it sooner."""
_UNFINISHED = (PlanState.QUEUED, PlanState.RUNNING)
_NEWEST_FIRST = (PlanRow.created_at, PlanRow.plan_id)


class SqlPlanRepository:
    """Stored plans; fulfils ``broker.plan_ports.PlanRepository``."""

    def __init__(self, session: AsyncSession, worker_id: str) -> None:
        self._session = session
        self._worker_id = worker_id

    async def add(self, record: PlanRecord) -> None:
        """Stores a new record; Conflict when its id is taken."""
        await insert_new(self._session, PlanRow, self._values(record), f"plan {record.plan_id}")

    async def update(self, record: PlanRecord) -> PlanRecord:
        """Writes guarded by ``version`` and returns the next version; ConcurrentChange."""
        key = table_of(PlanRow).c.plan_id == record.plan_id
        await update_unchanged(self._session, PlanRow, key, self._values(record), f"plan {record.plan_id}")
        return replace(record, version=record.version + 1)

    async def find(self, plan_id: str) -> PlanRecord:
        """One record; NotFound."""
        row = await self._session.get(PlanRow, plan_id, populate_existing=True)
        if row is None:
            raise NotFound("plan", plan_id)
        return _record(row)

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[PlanRecord]:
        """Newest first; ``team`` None: all."""
        statement = select(PlanRow)
        if team is not None:
            statement = statement.where(PlanRow.team == team)
        return await fetch_page(self._session, statement, _NEWEST_FIRST, limit, cursor, _record)

    async def find_current(self, team: str | None = None) -> tuple[PlanRecord, ...]:
        """Each team's newest done plan for each set of workload names that nothing superseded.

        Only a done plan supersedes; a superseded one never brings an older one back.
        """
        rank = (
            func.row_number()
            .over(
                partition_by=(PlanRow.team, PlanRow.workloads_key),
                order_by=(PlanRow.created_at.desc(), PlanRow.plan_id.desc()),
            )
            .label("rank")
        )
        done = select(PlanRow.plan_id, rank).where(PlanRow.state == PlanState.DONE.value)
        if team is not None:
            done = done.where(PlanRow.team == team)
        ranked = done.subquery()
        successor = aliased(PlanRow)
        superseded = (
            select(successor.plan_id)
            .where(successor.supersedes == PlanRow.plan_id, successor.state == PlanState.DONE.value)
            .exists()
        )
        statement = (
            select(PlanRow)
            .join(ranked, ranked.c.plan_id == PlanRow.plan_id)
            .where(ranked.c.rank == 1, ~superseded)
            .order_by(PlanRow.team, PlanRow.created_at.desc(), PlanRow.plan_id.desc())
            .execution_options(populate_existing=True)
        )
        return tuple(_record(row) for row in await self._session.scalars(statement))

    async def find_by_approval(
        self, team: str | None, states: Collection[ApprovalState], limit: int, cursor: str | None
    ) -> Page[PlanRecord]:
        """Plans that stand in one of ``states`` with finance, newest first; ``team`` None: all."""
        statement = select(PlanRow).where(PlanRow.approval.in_([state.value for state in states]))
        if team is not None:
            statement = statement.where(PlanRow.team == team)
        return await fetch_page(self._session, statement, _NEWEST_FIRST, limit, cursor, _record)

    async def find_lineage(self, plan_id: str) -> tuple[str, ...]:
        """The plan and those whose place it took, one after the other; NotFound."""
        found: list[str] = []
        wanted: str | None = plan_id
        while wanted is not None and wanted not in found:
            found.append(wanted)
            rows = await self._session.execute(select(PlanRow.supersedes).where(PlanRow.plan_id == wanted))
            row = rows.one_or_none()
            if row is None:
                raise NotFound("plan", wanted)
            wanted = row[0]
        return tuple(found)

    async def claim_unfinished(self) -> tuple[PlanRecord, ...]:
        """Claims and gives what is queued or running and no other living process makes, oldest first."""
        unfinished = PlanRow.state.in_([state.value for state in _UNFINISHED])
        keys = await claim_rows(
            self._session, PlanRow, PlanRow.plan_id, unfinished, self._worker_id, PLANNING_LEASE
        )
        statement = select(PlanRow).where(PlanRow.plan_id.in_(keys)).order_by(*_NEWEST_FIRST)
        rows = await self._session.scalars(statement.execution_options(populate_existing=True))
        return tuple(_record(row) for row in rows)

    def _values(self, record: PlanRecord) -> Values:
        """The row; until there is an answer it stays claimed by the process that works on it."""
        claim: dict[str, object] = {"claimed_by": None, "claimed_until": None}
        if record.state in _UNFINISHED:
            claim = {"claimed_by": self._worker_id, "claimed_until": from_now(self._session, PLANNING_LEASE)}
        return {**_values(record), **claim}


def workloads_key(record: PlanRecord) -> str:
    """A hash of the set of workload names: of the document, or of the plan where it names none."""
    names = _document_names(record.document) or _plan_names(record.plan)
    return hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()


def _document_names(document: str) -> set[str]:
    try:
        workloads = json.loads(document)["workloads"]
        return {str(workload["name"]) for workload in workloads}
    except (ValueError, KeyError, TypeError):
        return set()


def _plan_names(plan: Plan | None) -> set[str]:
    if plan is None:
        return set()
    return {p.workload for p in plan.placements} | {u.workload for u in plan.unplaced}


def _values(record: PlanRecord) -> Values:
    plan = record.plan
    return {
        "plan_id": record.plan_id,
        "team": record.team,
        "state": record.state.value,
        "workloads_key": workloads_key(record),
        "document": record.document,
        "options": to_document(record.options),
        "created_at": record.created_at,
        "requested_by": record.requested_by,
        "status": None if plan is None else plan.status.value,
        "cost_micro_usd": None if plan is None else to_micro_usd(plan.cost_usd),
        "plan": None if plan is None else to_document(plan),
        "problem": record.problem,
        "needs_approval": record.needs_approval,
        "approval_reason": record.approval_reason,
        "approved_by": record.approved_by,
        "approved_at": record.approved_at,
        "supersedes": record.supersedes,
        "approval": None if record.approval is None else record.approval.value,
        "decisions": to_document(record.decisions) if record.decisions else None,
        "version": record.version,
    }


def _record(row: PlanRow) -> PlanRecord:
    return PlanRecord(
        plan_id=row.plan_id,
        team=row.team,
        state=PlanState(row.state),
        document=row.document,
        options=from_document(PlanOptions, row.options),
        created_at=row.created_at,
        requested_by=row.requested_by,
        plan=None if row.plan is None else from_document(Plan, row.plan),
        problem=row.problem,
        needs_approval=row.needs_approval,
        approval_reason=row.approval_reason,
        approved_by=row.approved_by,
        approved_at=row.approved_at,
        supersedes=row.supersedes,
        version=row.version,
        decisions=tuple(from_document(Decision, one) for one in row.decisions or ()),
    )

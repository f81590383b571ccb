"""Stored plans."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import CTE, Select, Subquery, and_, case, func, literal, or_, select, tuple_
from sqlalchemy.orm import aliased

from broker.domain.basics.errors import NotFound
from broker.domain.basics.money import to_micro_usd
from broker.domain.basics.page import Page
from broker.domain.holding.reservation import OPEN_STATES, ReservationState
from broker.domain.planning.comparison import Variant
from broker.domain.planning.plan import Plan
from broker.domain.spend.approvals import ApprovalState, Decision
from broker.ports.planning import (
    BusinessStatus,
    OtherPlans,
    PlanOptions,
    PlanRecord,
    PlanState,
    business_status_of,
)
from broker.store.documents import from_document, to_document
from broker.store.pages import fetch_page
from broker.store.tables import PlanRow, ReservationRow
from broker.store.team_session import TeamSession
from broker.store.workers import claim_rows, from_now, take_turn
from broker.store.writes import Values, batches, insert_new, update_one, update_unchanged

PLANNING_LEASE = timedelta(hours=2)
"""Longer than the longest planning time. If the process dies, the claim ends sooner."""
_HOLDING = sorted(state.value for state in OPEN_STATES - {ReservationState.RELEASING})
PLANS_TURN = 0x706C616E
"""Key of the advisory lock for counting a team's plans ("plan" in ASCII)."""
_ON_THEIR_WAY = [state.value for state in PlanState if state.is_on_its_way]
_BY_AGE = (PlanRow.created_at, PlanRow.plan_id)


class SqlPlanRepository:
    """Plans, by team."""

    def __init__(self, session: TeamSession, worker_id: str) -> None:
        self._session = session
        self._worker_id = worker_id

    async def add(self, record: PlanRecord) -> None:
        """Stores a new record. Raises Conflict if its id is taken."""
        await insert_new(self._session, PlanRow, self._values(record), f"plan {record.plan_id}")

    async def update(self, record: PlanRecord) -> PlanRecord:
        """Writes it, and returns it with the next version. Raises ConcurrentChange if ``version`` is old."""
        key = PlanRow.plan_id == record.plan_id
        await update_unchanged(self._session, PlanRow, key, self._values(record), f"plan {record.plan_id}")
        return replace(record, version=record.version + 1)

    async def find(self, plan_id: str) -> PlanRecord:
        """One record. Raises NotFound."""
        row = await self._session.find_row(PlanRow, plan_id=plan_id)
        if row is None:
            raise NotFound("plan", plan_id)
        return _record(row)

    async def find_page(self, limit: int, cursor: str | None) -> Page[PlanRecord]:
        """Newest first."""
        return await fetch_page(self._session, select(PlanRow), _BY_AGE, limit, cursor, _record)

    async def find_current(
        self, team: str | None = None, known: Collection[PlanRecord] = ()
    ) -> tuple[PlanRecord, ...]:
        """The plans in force, newest first within a team.

        These are all plans that hold capacity or will buy it, and one draft per set of workload names: the
        newest intended one, else the newest. If another plan holds capacity for the same names, a draft only
        counts if it is intended. Rejected and superseded plans, variants that nobody chose, and plans older
        than a plan with the same names that is done, are excluded. Records in ``known`` that did not change
        are not read again.
        """
        rows = (await self._session.execute(_current(team))).all()
        by_key = {(record.plan_id, record.version): record for record in known}
        missing = [row.plan_id for row in rows if (row.plan_id, row.version) not in by_key]
        if missing:
            statement = select(PlanRow).where(PlanRow.plan_id.in_(missing))
            found = await self._session.scalars(statement.execution_options(populate_existing=True))
            by_key |= {(row.plan_id, row.version): _record(row) for row in found}
        keys = ((row.plan_id, row.version) for row in rows)
        return tuple(by_key[key] for key in keys if key in by_key)

    async def find_business_statuses(self, records: Collection[PlanRecord]) -> Mapping[str, BusinessStatus]:
        """The business status of each finished plan in ``records``, by id."""
        ids = [record.plan_id for record in records]
        superseded = await self._successors(ids)
        holding = _holding().c.plan_id
        held = set(await self._session.scalars(select(holding).where(holding.in_(ids))))
        open_ids = {
            row.plan_id for row in await self._standing(records) if row.is_current == 1 or row.is_draft == 1
        }
        found = {
            record.plan_id: business_status_of(
                record,
                is_held=record.plan_id in held,
                is_superseded=record.plan_id in superseded,
                is_current=record.plan_id in open_ids,
            )
            for record in records
        }
        return {plan_id: standing for plan_id, standing in found.items() if standing is not None}

    async def find_others(self, records: Collection[PlanRecord]) -> Mapping[str, OtherPlans]:
        """The other plans that matter for a decision on each of ``records``, by id."""
        successors = await self._successors([record.plan_id for record in records])
        rows: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for row in sorted(await self._standing(records), key=lambda row: (row.created_at, row.plan_id)):
            rows[row.team, row.workloads_key].append(row)
        found = {}
        for record in records:
            same = [r for r in rows[record.team, workloads_key(record)] if r.plan_id != record.plan_id]
            held = next((row.plan_id for row in reversed(same) if row.held), None)
            draft = next((row.plan_id for row in reversed(same) if row.is_draft), None)
            found[record.plan_id] = OtherPlans(successors.get(record.plan_id), held, draft)
        return found

    async def _successors(self, plan_ids: Collection[str]) -> Mapping[str, str]:
        """The plan that replaced each of ``plan_ids`` after its moves, if any."""
        one = PlanRow
        statement = select(one.supersedes, one.plan_id).where(
            one.supersedes.in_(plan_ids), one.state == PlanState.DONE.value
        )
        return {row.supersedes: row.plan_id for row in await self._session.execute(statement)}

    async def _standing(self, records: Collection[PlanRecord]) -> list[Any]:
        found: list[Any] = []
        for team in sorted({record.team for record in records}):
            found += (await self._session.execute(select(_standing(team)))).all()
        return found

    async def find_comparison(self, comparison_id: str) -> tuple[PlanRecord, ...]:
        """The plans of a comparison in the order of their changes. Raises NotFound."""
        rows = await self._session.scalars(select(PlanRow).where(PlanRow.comparison_id == comparison_id))
        found = {record.variant.position: record for record in map(_record, rows) if record.variant}
        if not found:
            raise NotFound("comparison", comparison_id)
        return tuple(found[position] for position in sorted(found))

    async def withdraw_intentions(self, record: PlanRecord) -> None:
        """Ends the intention to buy all other drafts of the same team and workload names."""
        plan = PlanRow
        drafts = and_(
            plan.state == PlanState.DONE.value,
            plan.team == record.team,
            plan.workloads_key == workloads_key(record),
            plan.plan_id != record.plan_id,
            plan.intended_by.is_not(None),
            plan.reserved_at.is_(None),
        )
        values = {"intended_by": None, "version": plan.version + 1}
        await update_one(self._session, PlanRow, drafts, values)

    async def find_by_approval(
        self, states: Collection[ApprovalState], limit: int, cursor: str | None
    ) -> Page[PlanRecord]:
        """Plans whose approval is in one of ``states``, newest first."""
        statement = select(PlanRow).where(PlanRow.approval.in_([state.value for state in states]))
        return await fetch_page(self._session, statement, _BY_AGE, limit, cursor, _record)

    async def find_lineage(self, plan_id: str) -> tuple[str, ...]:
        """The plan and the plans that it replaced, newest first. Raises NotFound."""
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

    async def count_on_their_way(self, team: str) -> tuple[int, int]:
        """Number of plans of ``team`` that are queued or running, and of workloads in them.

        What this unit of work wrote counts too. It locks the count for this team until it ends.
        """
        await take_turn(self._session, PLANS_TURN, team)
        counts = func.count(), func.coalesce(func.sum(PlanRow.workload_count), 0)
        mine = PlanRow.state.in_(_ON_THEIR_WAY), PlanRow.team == team
        plans, workloads = (await self._session.execute(select(*counts).where(*mine))).one()
        return int(plans), int(workloads)

    async def count_older_queued(self, record: PlanRecord) -> int:
        """Number of queued plans that were requested before ``record``."""
        place = tuple_(PlanRow.created_at, PlanRow.plan_id)
        is_older = place < tuple_(
            literal(record.created_at, PlanRow.created_at.type), literal(record.plan_id)
        )
        is_queued = PlanRow.state == PlanState.QUEUED.value
        counted = await self._session.scalar(select(func.count()).where(is_queued, is_older))
        return counted or 0

    async def find_cancelled(self, plan_ids: Collection[str]) -> tuple[str, ...]:
        """Those of ``plan_ids`` that are cancelled."""
        is_cancelled = PlanRow.state == PlanState.CANCELLED.value
        found: list[str] = []
        for part in batches(plan_ids):
            found += await self._session.scalars(
                select(PlanRow.plan_id).where(is_cancelled, PlanRow.plan_id.in_(part))
            )
        return tuple(found)

    async def claim_unfinished(self) -> tuple[PlanRecord, ...]:
        """Claims and returns queued or running plans that no other live process makes, oldest first."""
        unfinished = PlanRow.state.in_(_ON_THEIR_WAY)
        keys = await claim_rows(
            self._session, PlanRow, PlanRow.plan_id, unfinished, self._worker_id, PLANNING_LEASE
        )
        statement = select(PlanRow).where(PlanRow.plan_id.in_(keys)).order_by(*_BY_AGE)
        rows = await self._session.scalars(statement.execution_options(populate_existing=True))
        return tuple(_record(row) for row in rows)

    def _values(self, record: PlanRecord) -> Values:
        """The values of the row. An unfinished plan stays claimed by the process that makes it."""
        claim: dict[str, object] = {"claimed_by": None, "claimed_until": None}
        if record.state.is_on_its_way:
            claim = {"claimed_by": self._worker_id, "claimed_until": from_now(self._session, PLANNING_LEASE)}
        return {**_values(record), **claim}


def _holding() -> CTE:
    """Plans that hold capacity or will buy it, and plans that replaced one of these."""
    row = ReservationRow
    first = select(row.plan_id.label("plan_id")).where(row.state.in_(_HOLDING), row.plan_id.is_not(None))
    holding = first.distinct().cte("holding", recursive=True)
    successor = aliased(PlanRow)
    later = select(successor.plan_id).join(holding, successor.supersedes == holding.c.plan_id)
    return holding.union(later.where(successor.state == PlanState.DONE.value))


def _standing(team: str | None) -> Subquery:
    """Finished plans that are not rejected, with their place among the plans of the same workloads.

    ``is_current``: see ``find_current``. ``is_draft``: a current draft, or the newest one that was made after
    what is held for the same workloads was reserved; it would be bought beside that.
    """
    successor = aliased(PlanRow)
    superseded = (
        select(successor.plan_id)
        .where(successor.supersedes == PlanRow.plan_id, successor.state == PlanState.DONE.value)
        .exists()
    )
    is_held = PlanRow.plan_id.in_(select(_holding().c.plan_id))
    is_approved = func.coalesce(PlanRow.approval == ApprovalState.APPROVED.value, False)
    is_draft = and_(PlanRow.reserved_at.is_(None), ~superseded)
    is_intended = and_(or_(PlanRow.intended_by.is_not(None), is_approved), is_draft)
    held, intended = case((is_held, 1), else_=0), case((is_intended, 1), else_=0)
    same = PlanRow.team, PlanRow.workloads_key
    newest_first = PlanRow.created_at.desc(), PlanRow.plan_id.desc()
    last_start = func.max(case((is_held, func.coalesce(PlanRow.reserved_at, PlanRow.created_at))))
    standing = select(
        PlanRow.plan_id,
        PlanRow.version,
        PlanRow.team,
        PlanRow.workloads_key,
        PlanRow.created_at,
        case((superseded, 1), else_=0).label("superseded"),
        case((is_draft, 1), else_=0).label("draft"),
        held.label("held"),
        intended.label("intended"),
        func.max(held).over(partition_by=same).label("any_held"),
        last_start.over(partition_by=same).label("last_start"),
        func.row_number()
        .over(partition_by=(*same, held), order_by=(intended.desc(), *newest_first))
        .label("rank"),
        func.row_number().over(partition_by=(*same, held), order_by=newest_first).label("age"),
    ).where(
        PlanRow.state == PlanState.DONE.value,
        func.coalesce(PlanRow.approval, "") != ApprovalState.REJECTED.value,
        or_(PlanRow.comparison_id.is_(None), is_intended, PlanRow.reserved_at.is_not(None)),
    )
    if team is not None:
        standing = standing.where(PlanRow.team == team)
    one = standing.subquery().c
    counts = and_(one.rank == 1, one.draft == 1, or_(one.any_held == 0, one.intended == 1))
    is_new = or_(one.last_start.is_(None), one.created_at >= one.last_start)
    current = or_(and_(one.held == 1, one.superseded == 0), counts)
    is_open = and_(one.draft == 1, one.held == 0, or_(counts, and_(one.age == 1, is_new)))
    return (
        select(
            one.plan_id,
            one.version,
            one.team,
            one.workloads_key,
            one.created_at,
            one.held,
            case((current, 1), else_=0).label("is_current"),
            case((is_open, 1), else_=0).label("is_draft"),
        )
        .where(or_(current, is_open))
        .subquery()
    )


def _current(team: str | None) -> Select[tuple[str, int]]:
    """Id and version of the plans in force; see ``find_current``."""
    one = _standing(team).c
    return (
        select(one.plan_id, one.version)
        .where(one.is_current == 1)
        .order_by(one.team, one.created_at.desc(), one.plan_id.desc())
    )


def workloads_key(record: PlanRecord) -> str:
    """A hash of the set of workload names in the document, or in the plan if the document has none."""
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
        "workload_count": record.workload_count,
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
        "intended_by": record.intended_by,
        "reserved_at": record.reserved_at,
        "comparison_id": None if record.variant is None else record.variant.comparison_id,
        "variant": None if record.variant is None else to_document(record.variant),
        "continues": record.continues,
        "continued_by": record.continued_by,
        "market_sha256": record.market_sha256,
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
        intended_by=row.intended_by,
        reserved_at=row.reserved_at,
        variant=None if row.variant is None else from_document(Variant, row.variant),
        continues=row.continues,
        continued_by=row.continued_by,
        market_sha256=row.market_sha256,
    )

"""Ports of planning: the planner, its progress, and plans as the store keeps them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from broker.domain.basics.page import Page
from broker.domain.market.offer import Offer
from broker.domain.moving.reoptimization import Reoptimization
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.spend.approvals import ApprovalState, Decision, Verdict


class LimitClock(StrEnum):
    """What a time limit counts: seconds that pass, seconds of the processor, or of work (about as many)."""

    WALL = "wall"
    CPU = "cpu"
    WORK = "work"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How long and how well to plan. ``gap`` is the relative gap at which to stop.

    ``label`` names the run in its progress; it has no influence on the plan. ``limit_clock``: what the limit
    counts; by work, a search is the same wherever it runs. ``workers``: how many cores a large plan may use
    (None: all that this process may). With one, and wherever the limit does not count seconds that pass, the
    same seed gives the same plan. ``guard_s``: seconds that pass after which a search limited by work ends
    all the same (None: never); what it cut off is told.
    """

    time_limit_s: float = 30.0
    gap: float = 0.01
    seed: int = 1
    baselines: bool = True
    label: str = ""
    limit_clock: LimitClock = LimitClock.WALL
    workers: int | None = 1
    guard_s: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a running solve: best cost + penalty so far, proven bound, relative gap."""

    seconds: float
    incumbent_usd: float | None
    bound_usd: float | None
    gap: float | None
    stage: str


ProgressSink = Callable[[Progress], None]


PlanCall = Callable[[PlanRequest, tuple[Offer, ...], datetime, PlanOptions], Plan]
"""Estimates, then places: a checked plan over the offers. A module-level function, which another process can
be sent; pure: no clock, network or database. Raises InputError for a request that cannot mean anything."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What a new plan starts from: the plan that stands, as far as it may change.

    ``leaving_usd`` by workload steers and is on no bill; ``frozen`` stay, and what starts before
    ``frozen_before``, if they still can.
    """

    plan: Plan
    leaving_usd: Mapping[str, Decimal] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    frozen_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class PlannedAgain:
    """A plan that starts from the one in force. ``unfinished``: what the guard cut off, in words; empty: the
    search ended by itself or by its counted limit, and would end so on any machine."""

    plan: Plan
    unfinished: str = ""


ReplanCall = Callable[[PlanRequest, tuple[Offer, ...], datetime, PlanOptions, InForce], PlannedAgain]
"""A planner's ``replan`` as a module-level function."""

RequestReader = Callable[[str], PlanRequest]
"""Reads a stored workloads document again; raises InputError."""


class PlanState(StrEnum):
    """Where a stored plan stands. ``proposed``: a re-optimizer's answer; it counts once it is taken up."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PROPOSED = "proposed"

    @property
    def is_on_its_way(self) -> bool:
        """Whether it waits or is being made."""
        return self in (PlanState.QUEUED, PlanState.RUNNING)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a plan on its way is. ``position`` of one that waits: which of those that wait starts it, 1 the
    next; told by how old it is where another process makes it. ``phase`` of one that runs: what the planner
    is at, as far as it was told here."""

    position: int | None = None
    phase: str | None = None


class Standing(StrEnum):
    """What a plan that is made is to its team.

    ``draft``: nothing of it is bought. ``waiting``: so, until finance has said its word. ``reserved``:
    something of it is held or will be bought. ``superseded``: another plan of the same workloads counts in
    its place. ``done``: it was reserved, and nothing of it is held any more.
    """

    DRAFT = "draft"
    WAITING = "waiting"
    REJECTED = "rejected"
    RESERVED = "reserved"
    SUPERSEDED = "superseded"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan as the store keeps it: the request that was asked, and the answer once there is one.

    ``document`` is the workloads document as it came (JSON text), so that a run can be replayed.
    ``approved_*`` is finance's word on exactly this plan, ``decisions`` every word on it, oldest first;
    ``approval_reason`` why one is needed. ``intended_by`` is who said that this draft counts in projected
    spend. ``reserved_at``: since when it, or a plan whose place it took, is bought; None again where nothing
    of a purchase came to be.
    """

    plan_id: str
    team: str
    state: PlanState
    document: str
    options: PlanOptions
    created_at: datetime
    requested_by: str
    plan: Plan | None = None
    problem: str | None = None
    needs_approval: bool = False
    approved_by: str | None = None
    approved_at: datetime | None = None
    supersedes: str | None = None
    version: int = 0
    decisions: tuple[Decision, ...] = ()
    approval_reason: str | None = None
    intended_by: str | None = None
    reserved_at: datetime | None = None

    @property
    def workload_count(self) -> int:
        """How many workloads the document asks for."""
        try:
            return len(json.loads(self.document)["workloads"])
        except (ValueError, KeyError, TypeError):
            return 0

    @property
    def is_intended(self) -> bool:
        """Whether it counts in projected spend before it is reserved: somebody, or finance, said so."""
        return self.intended_by is not None or self.approval is ApprovalState.APPROVED

    @property
    def decision(self) -> Decision | None:
        """The last word on it."""
        return self.decisions[-1] if self.decisions else None

    @property
    def approval(self) -> ApprovalState | None:
        """Where it stands with finance; None: nobody's word is needed, or there is no plan yet."""
        if self.decision is not None and self.decision.verdict is Verdict.REJECTED:
            return ApprovalState.REJECTED
        if self.approved_by is not None:
            return ApprovalState.APPROVED
        ready = self.plan is not None and self.state in (PlanState.DONE, PlanState.PROPOSED)
        return ApprovalState.WAITING if ready and self.needs_approval else None

    def decided(self, decision: Decision) -> PlanRecord:
        """The record with one more word on it."""
        yes = decision.verdict is Verdict.APPROVED
        return replace(
            self,
            approved_by=decision.by if yes else None,
            approved_at=decision.at if yes else None,
            decisions=(*self.decisions, decision),
        )


def standing_of(
    record: PlanRecord, *, is_held: bool, is_superseded: bool, is_current: bool
) -> Standing | None:
    """Where ``record`` stands; None while there is no plan.

    ``is_held``: it or a plan whose place it took holds something. ``is_superseded``: a plan took its place.
    ``is_current``: see ``PlanRepository.find_current``.
    """
    if record.plan is None or record.state not in (PlanState.DONE, PlanState.PROPOSED):
        return None
    if is_superseded:
        return Standing.SUPERSEDED
    if is_held:
        return Standing.RESERVED
    if record.reserved_at is not None:
        return Standing.DONE
    if record.approval is ApprovalState.REJECTED:
        return Standing.REJECTED
    if not is_current and record.state is PlanState.DONE:
        return Standing.SUPERSEDED
    return Standing.WAITING if record.approval is ApprovalState.WAITING else Standing.DRAFT


class BudgetWatch(Protocol):
    """Looks at budgets before money is bound."""

    async def find_overruns(self, record: PlanRecord, plan: Plan) -> tuple[str, ...]:
        """Each budget of the plan's team that the plan has a part in passing, in words."""
        ...

    async def find_overruns_of_moves(self, look: Reoptimization, new: Plan) -> tuple[str, ...]:
        """Each budget of the team that would be passed, and by more than without the moves, in words."""
        ...


class PlanRepository(Protocol):
    """Plans, by team."""

    async def add(self, record: PlanRecord) -> None:
        """Stores a new record."""
        ...

    async def update(self, record: PlanRecord) -> PlanRecord:
        """Writes guarded by ``version`` and returns the next version; ConcurrentChange."""
        ...

    async def find(self, plan_id: str) -> PlanRecord:
        """One record; NotFound."""
        ...

    async def find_page(self, limit: int, cursor: str | None) -> Page[PlanRecord]:
        """Newest first."""
        ...

    async def find_current(
        self, team: str | None = None, known: Collection[PlanRecord] = ()
    ) -> tuple[PlanRecord, ...]:
        """The plans that are in force, newest first within a team: all that hold something or will buy it,
        and of each set of workload names one draft, an intended one before others and the newest of these.

        Where a plan holds the same names, a draft is among them only if somebody intends it. None is
        rejected, superseded, or older than a plan of the same names that is done. Of ``known`` records those
        that did not change are not read again.
        """
        ...

    async def find_standings(self, records: Collection[PlanRecord]) -> Mapping[str, Standing]:
        """Where each of ``records`` stands, by its id; nothing of those that are not made."""
        ...

    async def withdraw_intentions(self, record: PlanRecord) -> None:
        """No other draft of the same team and workload names is intended any more."""
        ...

    async def find_by_approval(
        self, states: Collection[ApprovalState], limit: int, cursor: str | None
    ) -> Page[PlanRecord]:
        """Plans that stand in one of ``states`` with finance, newest first."""
        ...

    async def find_lineage(self, plan_id: str) -> tuple[str, ...]:
        """The plan and those whose place it took, one after the other; NotFound."""
        ...

    async def count_on_their_way(self, team: str) -> tuple[int, int]:
        """How many plans of ``team`` are queued or running, and how many workloads they ask for, with what
        this unit of work wrote. Until it ends nobody else has the team's plans counted."""
        ...

    async def count_older_queued(self, record: PlanRecord) -> int:
        """How many plans wait that were asked for before ``record``."""
        ...

    async def find_cancelled(self, plan_ids: Collection[str]) -> tuple[str, ...]:
        """Those of ``plan_ids`` that are cancelled."""
        ...

    async def claim_unfinished(self) -> tuple[PlanRecord, ...]:
        """Claims and gives what is queued or running and no other living process makes, oldest first."""
        ...


class EventStream(Protocol):
    """Progress of running plans, by plan id."""

    def publish(self, plan_id: str, event: dict[str, object]) -> None:
        """Sends to whoever listens, and remembers the last."""
        ...

    def last(self, plan_id: str) -> Mapping[str, object]:
        """The last event of a plan; empty where none was told here."""
        ...

    def listen(self, plan_id: str) -> AsyncIterator[dict[str, object]]:
        """Events from now on, led by the last one; ends with the plan."""
        ...

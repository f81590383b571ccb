"""Ports of planning: the planner, its progress, and what is stored of a plan."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from broker.domain.holding.reservation import Reservation
from broker.domain.market.offer import Offer
from broker.domain.moving.reoptimization import Reoptimization
from broker.domain.planning.comparison import Variant
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.planning.plan import ConfidencePrice, Plan, PlanStatus
from broker.domain.planning.simulation import Simulation
from broker.domain.planning.workload import PlanRequest
from broker.domain.spend.approvals import ApprovalState, Decision, Verdict


class LimitClock(StrEnum):
    """What a time limit counts.

    ``cpu``: CPU time, and at least a third of the wall-clock time. ``work``: the iterations of loops; how
    long one takes differs between documents.
    """

    WALL = "wall"
    CPU = "cpu"
    WORK = "work"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Limits of a search. It stops at the relative gap ``gap``.

    ``label`` names the search in its progress and in a note on how to continue it. ``limit_clock`` says what
    the time limit counts; a limit by work gives the same search on every machine. ``workers`` is the number
    of cores that a large plan may use (None: all available); if it uses more than one, its limit is
    wall-clock time unless it counts work. A search that its limit did not end, or one by work, gives the same
    plan again with the same seed and one worker. ``guard_s`` is the wall-clock time in seconds after which a
    search limited by work is stopped (None: never); the result then says what was not finished.
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
    """State of a running search: seconds, cost + penalty of the incumbent, proven bound, relative gap."""

    seconds: float
    incumbent_usd: float | None
    bound_usd: float | None
    gap: float | None
    stage: str


ProgressSink = Callable[[Progress], None]


PlanCall = Callable[[PlanRequest, tuple[Offer, ...], datetime, PlanOptions], Plan]
"""The planner: it makes a checked plan from a request and offers.

It is a module-level function, so that it can be sent to another process. It is pure: no clock, network or
database. Raises InputError for an invalid request.
"""


EstimateCall = Callable[[PlanRequest, tuple[Offer, ...], datetime], CostEstimate]
"""A planner's ``estimate`` as a module-level function: pure, and without a search. Raises InputError."""


SimulateCall = Callable[[Plan, PlanRequest, tuple[Offer, ...], int, int], Simulation]
"""Draws through a plan: its request, its offers, the number of draws and their seed; pure."""


CheckCall = Callable[[Plan, PlanRequest, tuple[Offer, ...]], tuple[str, ...]]
"""Every rule that a plan breaks, in plain words, by a checker that never calls the solver; pure."""


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """A plan, and every rule that it breaks, in plain words; none for a valid plan."""

    plan: Plan
    violations: tuple[str, ...]


PriceCall = Callable[
    [Plan, PlanRequest, tuple[Offer, ...], datetime, PlanOptions, bool], tuple[ConfidencePrice, ...]
]
"""A planner's ``price_confidence`` as a module-level function; the last argument: whether the market is that
of the plan. Raises InputError."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The plan in force from which a new plan starts.

    ``leaving_usd`` is by workload the cost of leaving, which guides the search and is not billed. Workloads
    in ``frozen``, and those that start before ``frozen_before``, stay if they still can. ``is_continued``:
    the plan's own search goes on, and all of it counts towards the limit. ``same_market``: request, offers
    and time are those of the plan.
    """

    plan: Plan
    leaving_usd: Mapping[str, Decimal] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    frozen_before: datetime | None = None
    is_continued: bool = False
    same_market: bool = False


@dataclass(frozen=True, slots=True)
class PlannedAgain:
    """A plan that starts from the plan in force.

    ``unfinished`` says which part of the search ``guard_s`` stopped. If it is empty, the search ended by
    itself or by its counted limit, as it would on any machine.
    """

    plan: Plan
    unfinished: str = ""


ReplanCall = Callable[[PlanRequest, tuple[Offer, ...], datetime, PlanOptions, InForce], PlannedAgain]
"""A planner's ``replan`` as a module-level function."""

RequestReader = Callable[[str], PlanRequest]
"""Reads a stored workloads document. Raises InputError."""


RequestReaderAt = Callable[[str, datetime], PlanRequest]
"""The same as it was read at an instant: words such as ``tomorrow`` mean what they meant then."""


class PlanState(StrEnum):
    """State of a stored plan. ``proposed``: made by a re-optimization; it counts once that is accepted."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PROPOSED = "proposed"

    @property
    def is_on_its_way(self) -> bool:
        """Whether the plan is queued or running."""
        return self in (PlanState.QUEUED, PlanState.RUNNING)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Position or phase of an unfinished plan.

    ``position`` is the place of a queued plan in the queue, from 1; if another process makes the plan, it is
    estimated from its age. ``phase`` is the current step of a running plan, if this process knows it.
    """

    position: int | None = None
    phase: str | None = None


class BusinessStatus(StrEnum):
    """Business status of a finished plan.

    ``draft``: nothing of it is bought. ``waiting``: a draft that waits for approval. ``reserved``: part of it
    is held or will be bought. ``superseded``: another plan of the same workloads replaced it; a draft made
    after the other was reserved is none. ``done``: it was reserved, and nothing of it is held any more.
    """

    DRAFT = "draft"
    WAITING = "waiting"
    REJECTED = "rejected"
    RESERVED = "reserved"
    SUPERSEDED = "superseded"
    DONE = "done"


UNDECIDED = frozenset({BusinessStatus.DRAFT, BusinessStatus.WAITING})
"""Statuses of plans that may still be reserved, rejected or replaced."""


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A stored plan: the request, and the plan once it is made.

    ``document`` is the workloads document as it was received (JSON text), so that planning can be repeated.
    ``approved_by`` and ``approved_at`` are the approval of exactly this plan; ``decisions`` are all
    decisions, oldest first; ``approval_reason`` says why approval is needed. ``intended_by`` is who intends
    to buy this draft, so that it counts in projected spend. ``reserved_at`` is when it, or a plan that it
    replaced, was first bought; it is None again if a purchase failed completely. ``variant`` is set for a
    plan of a comparison. ``continues`` is the plan whose search it continues, and ``continued_by`` the
    latest plan that continues its own. ``market_sha256`` tells whether another plan had the same market.
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
    variant: Variant | None = None
    continues: str | None = None
    continued_by: str | None = None
    market_sha256: str | None = None

    @property
    def workload_count(self) -> int:
        """Number of workloads in the document; 0 if it cannot be read."""
        try:
            return len(json.loads(self.document)["workloads"])
        except (ValueError, KeyError, TypeError):
            return 0

    @property
    def is_intended(self) -> bool:
        """Whether it counts in projected spend before it is reserved: it is intended or approved."""
        return self.intended_by is not None or self.approval is ApprovalState.APPROVED

    @property
    def is_exploration(self) -> bool:
        """Whether it is a variant that nobody chose: it takes no other plan's place and needs no approval."""
        return self.variant is not None and not self.is_intended and self.reserved_at is None

    @property
    def decision(self) -> Decision | None:
        """The latest decision on it."""
        return self.decisions[-1] if self.decisions else None

    @property
    def approval(self) -> ApprovalState | None:
        """State of its approval; None if it needs none, or if the plan is not made yet."""
        if self.decision is not None and self.decision.verdict is Verdict.REJECTED:
            return ApprovalState.REJECTED
        if self.approved_by is not None:
            return ApprovalState.APPROVED
        ready = self.plan is not None and self.state in (PlanState.DONE, PlanState.PROPOSED)
        return ApprovalState.WAITING if ready and self.needs_approval else None

    def decided(self, decision: Decision) -> PlanRecord:
        """The record with one more decision."""
        yes = decision.verdict is Verdict.APPROVED
        return replace(
            self,
            approved_by=decision.by if yes else None,
            approved_at=decision.at if yes else None,
            decisions=(*self.decisions, decision),
        )


def why_not_continued(record: PlanRecord, standing: BusinessStatus | None) -> str | None:
    """Why the search of a plan cannot be continued; None if it can."""
    plan = record.plan
    if record.state is not PlanState.DONE or plan is None:
        return f"it is {record.state}: only the search of a finished plan can be continued"
    if standing is BusinessStatus.RESERVED or record.reserved_at is not None:
        return "it was reserved: re-optimizations look for cheaper capacity than it holds"
    if record.is_exploration:
        return "it is one of a comparison: choose it first"
    if plan.status is PlanStatus.INFEASIBLE:
        return "it is infeasible: a fix of its document lets it place what is left out, not a longer search"
    if plan.status is PlanStatus.OPTIMAL:
        return f"its cost is proven within the gap of {record.options.gap:g} that was asked for"
    return None


def business_status_of(
    record: PlanRecord, *, is_held: bool, is_superseded: bool, is_current: bool
) -> BusinessStatus | None:
    """The business status of ``record``; None while there is no plan.

    ``is_held``: it, or a plan that it replaced, holds capacity. ``is_superseded``: another plan replaced it.
    ``is_current``: it is in force (``find_current`` of the store), or it is the newest draft and was made
    after what is held for the same workloads was reserved.
    """
    if record.plan is None or record.state not in (PlanState.DONE, PlanState.PROPOSED):
        return None
    if is_superseded:
        return BusinessStatus.SUPERSEDED
    if is_held:
        return BusinessStatus.RESERVED
    if record.reserved_at is not None:
        return BusinessStatus.DONE
    if record.approval is ApprovalState.REJECTED:
        return BusinessStatus.REJECTED
    if not is_current and record.state is PlanState.DONE and not record.is_exploration:
        return BusinessStatus.SUPERSEDED
    return BusinessStatus.WAITING if record.approval is ApprovalState.WAITING else BusinessStatus.DRAFT


@dataclass(frozen=True, slots=True)
class OtherPlans:
    """Other plans of the same team and workloads; None where there is none.

    ``successor`` took the plan's place after its moves. ``held`` holds capacity or will buy it; its draft is
    bought beside it. ``draft`` is the newest draft that somebody may still reserve.
    """

    successor: str | None = None
    held: str | None = None
    draft: str | None = None

    @property
    def replaced_by(self) -> str | None:
        """The plan to look at in place of one that is replaced."""
        return self.successor or self.held or self.draft


class BudgetWatch(Protocol):
    """Checks budgets before money is committed."""

    async def find_overruns(self, record: PlanRecord, plan: Plan) -> tuple[str, ...]:
        """A text for each budget that would be exceeded and to which the plan contributes."""
        ...

    async def find_overruns_of_hold(self, record: PlanRecord, plan: Plan, held: Plan) -> tuple[str, ...]:
        """A text for each budget that would be exceeded if ``plan`` were held early, as ``held``."""
        ...

    async def find_overruns_of_order(self, order: Reservation) -> tuple[str, ...]:
        """A text for each budget that would be exceeded by ``order``, a reservation that is not stored."""
        ...

    async def find_overruns_of_extension(self, row: Reservation, end: datetime) -> tuple[str, ...]:
        """A text for each budget that would be exceeded if ``row``, which is stored, ended at ``end``."""
        ...

    async def find_overruns_of_exchange(
        self, leaving: Sequence[Reservation], wanted: Sequence[Reservation], adds: str
    ) -> tuple[str, ...]:
        """The same if the rows ``leaving``, which are stored and of one bill, were ``wanted`` instead.

        ``adds`` names the exchange in the text.
        """
        ...

    async def find_overruns_of_moves(self, look: Reoptimization, new: Plan) -> tuple[str, ...]:
        """A text for each budget that would be exceeded, by more than without the moves."""
        ...


class EventStream(Protocol):
    """Progress of running plans, by plan id."""

    def publish(self, plan_id: str, event: dict[str, object]) -> None:
        """Sends an event to all listeners, and keeps it as the plan's last event."""
        ...

    def last(self, plan_id: str) -> Mapping[str, object]:
        """The last event of a plan; empty if this process published none."""
        ...

    def listen(self, plan_id: str) -> AsyncIterator[dict[str, object]]:
        """The last event and all later ones; the iterator ends with the plan."""
        ...

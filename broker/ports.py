"""What the ground floor needs from others: protocols that engines, store and wiring fulfil."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Generic, Protocol, Self, TypeVar

from broker.domain.account import ApiKey, AuditEntry, RememberedAnswer, RequestClaim
from broker.domain.approvals import ApprovalState, Decision, Verdict
from broker.domain.launches import LaunchAttempt
from broker.domain.market import FeedHealth, OfferChange, OfferLabel, PollRound, PricePoint
from broker.domain.offer import Offer, OfferBatch
from broker.domain.plan import Plan
from broker.domain.price_gate import PeerPrice, Quarantined
from broker.domain.reoptimization import ProposalState, Reoptimization
from broker.domain.reservation import Idempotency as Idempotency
from broker.domain.reservation import Lease, Order, Reservation
from broker.domain.round_news import OfferMark, RoundNews
from broker.domain.window import Window
from broker.domain.workload import PlanRequest

T = TypeVar("T")


class Clock(Protocol):
    """The time that decisions are made at."""

    def now(self) -> datetime:
        """Now, aware, in UTC."""
        ...


class OfferSource(Protocol):
    """A provider that can be asked what it sells."""

    @property
    def provider(self) -> str:
        """The provider key."""
        ...

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Everything on sale now. Raises ProviderError; unreadable rows are in ``rejected``."""
        ...


class Reserver(Protocol):
    """A provider that can be bought from. One call buys one lease."""

    @property
    def provider(self) -> str:
        """The provider key."""
        ...

    @property
    def idempotency(self) -> Idempotency:
        """How a repeat is made safe."""
        ...

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Nodes that one call can buy of ``offer``; None: any number."""
        ...

    async def reserve(self, order: Order) -> Lease:
        """Buys. Raises InsufficientCapacity, QuotaExceeded, OrderRejected, CredentialsRejected or
        RateLimited when surely nothing was bought, OutcomeUnknown when it may have been."""
        ...

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One lease by the provider's own id; LeaseNotFound when it is gone."""
        ...

    async def list_leases(self) -> Sequence[Lease]:
        """Every lease of the account that is not long ended, ours or not, with its tag."""
        ...

    async def release(self, lease: Lease) -> None:
        """Asks for the end. LeaseNotFound and "already ended" are success and raise nothing;
        ReleaseRefused when the provider will not (yet)."""
        ...


class LimitClock(StrEnum):
    """What a time limit counts: seconds that pass, seconds of the processor, or of work (about as many)."""

    WALL = "wall"
    CPU = "cpu"
    WORK = "work"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How long and how well to plan. ``gap`` is the relative gap at which to stop.

    ``max_churn_premium``: the share of a service's cost that fewer starts and stops of nodes may cost.
    ``label`` names the run in its progress; it has no influence on the plan. ``limit_clock``: what the limit
    counts; by work, a search is the same wherever it runs.
    """

    time_limit_s: float = 30.0
    gap: float = 0.01
    seed: int = 1
    baselines: bool = True
    label: str = ""
    max_churn_premium: float = 0.002
    limit_clock: LimitClock = LimitClock.WALL


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a running solve: best cost + penalty so far, proven bound, relative gap."""

    seconds: float
    incumbent_usd: float | None
    bound_usd: float | None
    gap: float | None
    stage: str


ProgressSink = Callable[[Progress], None]


class Planner(Protocol):
    """Estimates, then places. Pure: no clock, network or database."""

    def plan(
        self,
        request: PlanRequest,
        offers: Sequence[Offer],
        as_of: datetime,
        options: PlanOptions,
        progress: ProgressSink | None = None,
    ) -> Plan:
        """A checked plan over ``offers``; raises InputError for a request that cannot mean anything."""
        ...

    def check(self, plan: Plan, request: PlanRequest, offers: Sequence[Offer]) -> tuple[str, ...]:
        """Every violation in plain words, none for a valid plan; never calls the solver."""
        ...


PlanCall = Callable[[PlanRequest, tuple[Offer, ...], datetime, PlanOptions], Plan]
"""A planner's ``plan`` as a module-level function, which another process can be sent."""


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


ReplanCall = Callable[[PlanRequest, tuple[Offer, ...], datetime, PlanOptions, InForce], Plan]
"""A planner's ``replan`` as a module-level function: a plan that starts from the one in force."""

RequestReader = Callable[[str], PlanRequest]
"""Reads a stored workloads document again; raises InputError."""


class Executor(Protocol):
    """Where heavy calls run; ``concurrent.futures`` and Dask executors fit."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedules ``fn``; the future gives its result."""
        ...


class Mover(Protocol):
    """Moves what is held to where a plan places it: the new is bought before the old is let go."""

    async def move(self, actor: str, plan: Plan, leaving: Sequence[str]) -> tuple[Reservation, ...]:
        """Intends and buys in the place of the reservations ``leaving``; nothing when they are held as
        placed. Raises StalePlan, Conflict and the provider's error; the old then stays."""
        ...


class Notifier(Protocol):
    """Tells the outside what changed."""

    async def notify(self, event: str, team: str, body: dict[str, object]) -> None:
        """Queues one event for delivery."""
        ...


class PlanState(StrEnum):
    """Where a stored plan stands. ``proposed``: a re-optimizer's answer; it counts once it is taken up."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    PROPOSED = "proposed"


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan as the store keeps it: the request that was asked, and the answer once there is one.

    ``document`` is the workloads document as it came (JSON text), so that a run can be replayed.
    ``approved_*`` is finance's word on exactly this plan, ``decisions`` every word on it, oldest first.
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


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, and the cursor of the next part (None: the end)."""

    items: tuple[T, ...]
    next_cursor: str | None


class OfferRepository(Protocol):
    """Offers now, their history, and the health of feeds."""

    async def open_round(self, provider: str) -> Mapping[str, OfferMark]:
        """Marks of everything that ``provider`` sells now; until the end of this transaction no other may
        open a round of it."""
        ...

    async def record_round(self, round_: PollRound, news: RoundNews | None) -> None:
        """Stores a poll: only ``news`` is written, everything else on sale counts as seen again.

        ``news`` None (a failed poll) leaves the current offers as they are.
        """
        ...

    async def find_many(self, offer_ids: Collection[str]) -> tuple[Offer, ...]:
        """Those of the named offers that are on sale."""
        ...

    async def find_current(
        self,
        *,
        provider: str | None = None,
        gpu: str | None = None,
        region: str | None = None,
        tier: str | None = None,
        without: Collection[str] = (),
    ) -> tuple[Offer, ...]:
        """Current offers but for those of the providers ``without``, cheapest per GPU-hour first."""
        ...

    async def find_labels(self) -> tuple[OfferLabel, ...]:
        """Every current offer in short, cheapest per GPU-hour first."""
        ...

    async def find_offer(self, offer_id: str) -> Offer:
        """One current offer; NotFound."""
        ...

    async def find_peer_prices(self) -> tuple[PeerPrice, ...]:
        """What every seller asks now."""
        ...

    async def find_prices(self, offer_id: str, window: Window) -> tuple[PricePoint, ...]:
        """Points of change in ``window``, led by the one in force at its start."""
        ...

    async def find_changes(self, since: datetime, limit: int) -> tuple[OfferChange, ...]:
        """Changes after ``since``, oldest first."""
        ...

    async def find_feeds(self) -> tuple[FeedHealth, ...]:
        """Health of every feed ever polled."""
        ...

    async def hold_back(self, provider: str, until: datetime) -> None:
        """Notes before when a feed is not asked again; its next round takes that back."""
        ...

    async def find_rejected(self, provider: str) -> PollRound | None:
        """The last round of a provider with its rejected rows."""
        ...

    async def find_as_of(self) -> datetime | None:
        """When the newest current offer was seen."""
        ...


class QuarantineRepository(Protocol):
    """Offers whose price is not believed, by offer id."""

    async def find(self, provider: str | None) -> tuple[Quarantined, ...]:
        """Entries of ``provider`` (None: all), oldest first."""
        ...

    async def find_one(self, offer_id: str) -> Quarantined:
        """One entry; NotFound."""
        ...

    async def put(self, entry: Quarantined) -> None:
        """Stores an entry, over an earlier one of the same offer."""
        ...

    async def change(self, entries: Sequence[Quarantined], gone: Collection[str]) -> None:
        """Stores ``entries``, and forgets those of the offers ``gone``."""
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

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[PlanRecord]:
        """Newest first; ``team`` None: all."""
        ...

    async def find_current(self, team: str | None = None) -> tuple[PlanRecord, ...]:
        """Each team's newest done plan for each set of workload names that nothing superseded."""
        ...

    async def find_by_approval(
        self, team: str | None, states: Collection[ApprovalState], limit: int, cursor: str | None
    ) -> Page[PlanRecord]:
        """Plans that stand in one of ``states`` with finance, newest first; ``team`` None: all."""
        ...

    async def find_lineage(self, plan_id: str) -> tuple[str, ...]:
        """The plan and those whose place it took, one after the other; NotFound."""
        ...

    async def claim_unfinished(self) -> tuple[PlanRecord, ...]:
        """Claims and gives what is queued or running and no other living process makes, oldest first."""
        ...


class ReservationRepository(Protocol):
    """Reservations, by team."""

    async def add(self, reservation: Reservation) -> None:
        """Stores a new intent."""
        ...

    async def update(self, reservation: Reservation) -> Reservation:
        """Writes guarded by ``version`` and returns the next version; ConcurrentChange."""
        ...

    async def find(self, reservation_id: str) -> Reservation:
        """One reservation; NotFound."""
        ...

    async def find_page(
        self, team: str | None, limit: int, cursor: str | None, plan_id: str | None = None
    ) -> Page[Reservation]:
        """Newest first; ``team`` None: all."""
        ...

    async def find_open(self) -> tuple[Reservation, ...]:
        """Everything that the broker still has to act on."""
        ...

    async def find_of_bills(self, bill_ids: Collection[str]) -> tuple[Reservation, ...]:
        """Those of some plans, and those of some ids that have no plan."""
        ...

    async def find_competing(self, offers: Iterable[Offer]) -> tuple[Reservation, ...]:
        """Open reservations that take from the stock of ``offers``, or from a pool of theirs.

        From here to the end of this transaction nobody else, in no process, is told the same stock.
        """
        ...

    async def claim(self, reservation_id: str) -> bool:
        """Claims a row to act on it for a short while; False while another living process does."""
        ...

    async def note_seen(self, units: Sequence[tuple[str, int]], at: datetime) -> None:
        """Stores when providers last showed units (reservation id, ordinal) running; versions stay."""
        ...

    async def find_overlapping(self, window: Window | None) -> tuple[Reservation, ...]:
        """Every reservation that was ever held and touches ``window`` (None: all); for spend."""
        ...


class LaunchRepository(Protocol):
    """Our own launches, and what came of them."""

    async def add(self, attempts: Iterable[LaunchAttempt]) -> None:
        """Appends; of one reservation the first attempt with each outcome stays."""
        ...

    async def find_since(self, since: datetime) -> tuple[LaunchAttempt, ...]:
        """Attempts asked at ``since`` or later, oldest first."""
        ...


class ReoptimizationRepository(Protocol):
    """Re-optimizations, newest first."""

    async def add(self, reoptimization: Reoptimization) -> None:
        """Stores one."""
        ...

    async def update(self, reoptimization: Reoptimization) -> Reoptimization:
        """Writes guarded by ``version`` and returns the next version; ConcurrentChange."""
        ...

    async def find(self, reoptimization_id: str) -> Reoptimization:
        """One; NotFound."""
        ...

    async def find_in(
        self, states: Collection[ProposalState], since: datetime | None = None
    ) -> tuple[Reoptimization, ...]:
        """Those in ``states`` that began at ``since`` (None: ever) or later, newest first."""
        ...

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[Reoptimization]:
        """Newest first; ``team`` None: all."""
        ...


class AccountRepository(Protocol):
    """Keys, remembered answers and the audit trail."""

    async def add_key(self, key: ApiKey) -> None:
        """Stores a key."""
        ...

    async def find_key(self, sha256: str) -> ApiKey | None:
        """The key of that hash."""
        ...

    async def remember(self, answer: RememberedAnswer) -> RememberedAnswer | None:
        """Claims (team, key, route): None when claimed now, else what stands there already."""
        ...

    async def complete(self, answer: RememberedAnswer) -> None:
        """Fills in status and body of a claimed answer."""
        ...

    async def forget(self, team: str, key: str, route: str) -> None:
        """Gives a claim back after a failure that had no effect."""
        ...

    async def let_go(self, claim: RequestClaim) -> None:
        """Gives a claim back: forgotten when nothing was stored under it, else free to be taken over."""
        ...

    async def take_over(self, claim: RequestClaim) -> tuple[str, ...] | None:
        """Takes an unanswered claim that was let go or whose process died: the ids stored under it; None
        while it is at work."""
        ...

    async def bind(self, claim: RequestClaim | None, effects: Iterable[str]) -> None:
        """Notes ids stored under ``claim``, in the transaction that stores them (None: under no key).

        ConcurrentChange when another process has taken the claim over: then nothing may be stored.
        """
        ...

    async def add_audit(self, entry: AuditEntry) -> None:
        """Appends to the audit trail."""
        ...

    async def find_audit(
        self, team: str | None, limit: int, cursor: str | None, object_id: str | None = None
    ) -> Page[AuditEntry]:
        """Newest first; ``team`` None: all."""
        ...

    async def install_id(self) -> str:
        """A short id of this installation, made once; part of every tag."""
        ...


class UnitOfWork(Protocol):
    """One transaction. Leaving without ``commit`` rolls back."""

    offers: OfferRepository
    quarantine: QuarantineRepository
    plans: PlanRepository
    reservations: ReservationRepository
    launches: LaunchRepository
    reoptimizations: ReoptimizationRepository
    accounts: AccountRepository

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def commit(self) -> None:
        """Makes it last."""
        ...


UnitOfWorkFactory = Callable[[], UnitOfWork]


class EventStream(Protocol):
    """Progress of running plans, by plan id."""

    def publish(self, plan_id: str, event: dict[str, object]) -> None:
        """Sends to whoever listens, and remembers the last."""
        ...

    def listen(self, plan_id: str) -> AsyncIterator[dict[str, object]]:
        """Events from now on, led by the last one; ends with the plan."""
        ...

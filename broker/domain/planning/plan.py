"""A plan: placements in windows, with a bound, and an obstacle for each workload that is not placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.confidence import quantile_factor
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.node_launch import ColdStart
from broker.domain.basics.window import Segment
from broker.domain.market.billing import Block
from broker.domain.market.offer import Offer, SizedId, Tier, WindowBilling
from broker.domain.market.seller_mode import SellerMode
from broker.domain.planning.patch import PatchOperation
from broker.domain.planning.recourse import Recourse
from broker.domain.planning.relaunch import Relaunch
from broker.domain.planning.stages import Stage
from broker.domain.planning.transfer import Transfer
from broker.domain.planning.window_use import WindowUse
from broker.domain.planning.workload import Precision, ServingEngine, WorkloadKind


class PlanStatus(StrEnum):
    """``optimal``: the gap is at most the requested one. ``infeasible``: a required workload is unplaced."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"


class Obstacle(StrEnum):
    """The first gate that no offer passed, in the order of the gates; a closed set.

    ``size``: no number of such nodes has the number of GPUs that the run requires. ``memory``: it does not
    fit in GPU memory at any allowed size. ``disk``: image, weights and checkpoints do not fit on the host's
    disk or in its memory. ``fabric``: it would fit, but on more nodes than one fabric connects.
    ``availability``: the capacity ends before the workload does.
    """

    POLICY = "policy"
    TIER = "tier"
    RESIDENCY = "residency"
    COMPLIANCE = "compliance"
    STOCK = "stock"
    AVAILABILITY = "availability"
    GPU_UNKNOWN = "gpu_unknown"
    PRECISION = "precision"
    SIZE = "size"
    MEMORY = "memory"
    DISK = "disk"
    FABRIC = "fabric"
    LATENCY = "latency"
    DEADLINE = "deadline"
    WINDOW = "window"
    REDUNDANCY = "redundancy"
    BUDGET = "budget"
    CONTENTION = "contention"
    DEPENDENCY = "dependency"
    PRICE = "price"
    QUOTA = "quota"


DROPPED: Mapping[Obstacle, str] = {
    Obstacle.POLICY: "by the policy on providers, regions and hosts",
    Obstacle.TIER: "of tiers that its policy excludes",
    Obstacle.RESIDENCY: "outside the allowed countries",
    Obstacle.COMPLIANCE: "without the compliance tags",
    Obstacle.AVAILABILITY: "that end before it does",
    Obstacle.GPU_UNKNOWN: "of GPUs without figures",
    Obstacle.PRECISION: "without its precision",
    Obstacle.SIZE: "that yield the requested GPUs with no number of nodes",
    Obstacle.MEMORY: "with too little memory",
    Obstacle.DISK: "whose hosts have too little disk or memory",
    Obstacle.FABRIC: "without a fabric",
    Obstacle.LATENCY: "too slow for the SLO",
    Obstacle.DEADLINE: "too slow for the deadline",
    Obstacle.WINDOW: "whose windows do not fit",
}
"""What offers are that a gate drops, in words that follow their number."""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The second-best offer for a placement, what the placement would have cost there, and why it lost."""

    offer_id: str
    cost_usd: Decimal
    because: str


class BindingRule(StrEnum):
    """The rule without which a workload would cost less.

    ``price`` means that no rule raises its cost: the plan has its cheapest placement.
    """

    PRICE = "price"
    STOCK = "stock"
    DEADLINE = "deadline"
    SIZE = "size"
    RESIDENCY = "residency"
    BUDGET = "budget"
    SWITCHING = "switching cost"
    BANDWIDTH = "bandwidth"
    FABRIC = "fabric"
    EGRESS = "egress"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the next best placements of a workload.

    ``more_usd`` is how much more it costs than the chosen one, including lateness and delay of the workload
    and, if they fit, of workloads that wait for it (negative: less). ``later_hours`` is how much later a run
    ends (negative: earlier); None for services. ``rule`` is the rule that speaks against it.
    """

    offer_id: str
    cost_usd: Decimal
    more_usd: Decimal
    later_hours: float | None
    rule: BindingRule
    because: str


@dataclass(frozen=True, slots=True)
class Why:
    """The explanation of one placement. ``binding`` names the rules that decided, in plain words.

    ``rule`` is the rule without which the workload would cost less. ``next_best`` begins with the cheapest.
    ``filtered`` counts the offers that each gate dropped, ``fitting`` those that passed all of them (None for
    plans of earlier versions). ``sentences`` are the whole explanation, the most
    important first: the decisive rule, the bottleneck, the choice between near ties, assumptions, and the
    next best placements.
    """

    bottleneck: str
    binding: tuple[str, ...]
    runner_up: RunnerUp | None = None
    rule: BindingRule | None = None
    next_best: tuple[Alternative, ...] = ()
    filtered: tuple[tuple[Obstacle, int], ...] = ()
    sentences: tuple[str, ...] = ()
    fitting: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """One workload on one offer; a fleet that mixes offers has one placement per offer.

    ``nodes`` is the peak of ``segments``, or the number of nodes that work if the provider only sells larger
    counts. ``gpus`` = nodes × GPUs per node. ``replicas`` is the count at the peak (1 for training);
    ``gpus_per_replica`` are the GPUs of one copy of the model. ``window_use`` is for runs in a window: the
    time that is wanted, bought and usable. ``cost_usd`` covers the capacity and the ``transfers`` of data.
    A run or batch in several parts has one placement per part, in order of time; ``work_share`` is the part's
    share of the work, a part of a batch answers ``requests`` from the one after ``first_request`` on, and the
    estimate is that of the part. ``engine`` is None for runs and if a plan does not state
    it. ``billed_ahead`` is the part of the cost that is billed in blocks of more than an hour. ``cold_start``
    is that of a replica; None for runs and if the launch time is unknown. ``disk_gb`` and ``memory_gb`` are
    ordered of each node in place of the offer's defaults (None: the default, or what is fixed). ``mode`` says
    whether its seller was real when the plan was made (None: not known). ``chance`` is that of the whole
    workload to be done in time, or to meet its objective in every hour of its first stage (None: not known).
    ``stages`` of a service: the rate of a replica that counts until each instant; none: the one that holds
    with its confidence, throughout. ``live_from`` is when the first replica of a service answers: a cold
    start after its first nodes are ordered, or at once where they run already (None: no service, or not
    known). ``recourse`` is where a run goes on whose window or term does not suffice (None: it suffices with
    its confidence). ``relaunch``: nodes that a service orders while it runs, and what that is
    expected to cost (None: none are).
    """

    workload: str
    kind: WorkloadKind
    offer_id: str
    provider: str
    region: str
    zone: str | None
    sku: str
    gpu: str
    tier: Tier
    nodes: int
    gpus: int
    replicas: int
    gpus_per_replica: int
    parallelism: Parallelism
    precision: Precision
    segments: tuple[Segment, ...]
    cost_usd: Decimal
    paid_unused_usd: Decimal
    estimate: Estimate
    why: Why
    window_use: WindowUse | None = None
    transfers: tuple[Transfer, ...] = ()
    work_share: float = 1.0
    requests: float | None = None
    first_request: float | None = None
    engine: ServingEngine | None = None
    billed_ahead: tuple[Block, ...] = ()
    cold_start: ColdStart | None = None
    disk_gb: float | None = None
    memory_gb: float | None = None
    mode: SellerMode | None = None
    chance: float | None = None
    stages: tuple[Stage, ...] = ()
    live_from: datetime | None = None
    recourse: Recourse | None = None
    relaunch: Relaunch | None = None

    @property
    def is_prepaid_window(self) -> bool:
        """Whether it is a window that is billed whole at its order."""
        use = self.window_use
        return self.tier is Tier.WINDOW and (use is None or use.billed is WindowBilling.AT_ORDER)

    def ordered(self, offer: Offer) -> Offer:
        """The placement's offer with the amounts of disk and memory that it orders, at their price."""
        return offer.sized(self.disk_gb, self.memory_gb)

    @property
    def sized_id(self) -> SizedId:
        """The offer and what is ordered of it in place of its defaults, as ``Offer.sized_id``."""
        return self.offer_id, self.disk_gb, self.memory_gb

    def offer_among(self, offers: Mapping[str, Offer]) -> Offer | None:
        """The placement's offer as it orders it; None if it is not among ``offers``."""
        offer = offers.get(self.offer_id)
        return None if offer is None else self.ordered(offer)

    @property
    def ordered_words(self) -> str:
        """``with 300 GB of disk``: what is ordered in place of the offer's defaults; empty for these."""
        amounts = (("disk", self.disk_gb), ("memory", self.memory_gb))
        words = [f"{gb:,.0f} GB of {name}" for name, gb in amounts if gb is not None]
        return f"with {' and '.join(words)}" if words else ""

    @property
    def transfer_usd(self) -> Decimal:
        """The cost of transferring data to the placement (egress at other providers)."""
        return sum((one.usd for one in self.transfers), ZERO)

    @property
    def capacity_usd(self) -> Decimal:
        """The cost of the nodes, without transfers."""
        return self.cost_usd - self.transfer_usd


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the workloads document with which a workload is placed, at its cost ``cost_usd``."""

    says: str
    patch: tuple[PatchOperation, ...]
    cost_usd: Decimal


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A workload that is not placed: the obstacle, and tested changes that place it, the smallest first.

    ``nearest_fix`` is the text of the first of them. If no change of the document helps, it says what would.
    """

    workload: str
    reason: Obstacle
    nearest_fix: str
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True)
class Scarcity:
    """What ``nodes`` more nodes of a contended offer would save if ``workloads`` were placed there.

    All other placements stay as they are.
    """

    offer_id: str
    nodes: int
    saves_usd: Decimal
    workloads: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption about stock: the plan holds ``nodes`` at once of an offer whose stock is unknown.

    ``says`` explains it: what the provider states, and how many nodes are assumed at most.
    """

    offer_id: str
    nodes: int
    says: str


@dataclass(frozen=True, slots=True)
class OfferPriceForecast:
    """Forecast price of an offer that is not bought yet, ``hours`` after the plan was made.

    Quantiles are in USD per node-hour. ``basis`` says whose price history it rests on; with ``no history``
    there are no quantiles. The forecast is for information only: the plan uses today's price.
    """

    offer_id: str
    hours: float
    basis: str
    p10_usd: Decimal | None
    p50_usd: Decimal | None
    p90_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The cost of a simpler strategy, including lateness and delay.

    ``cost_usd`` is None, with the reason in ``why``, if it found no plan or its search was not ``completed``.
    ``over_budget_usd`` is the amount by which it exceeds the budget.
    """

    name: str
    cost_usd: Decimal | None
    why: str
    completed: bool = True
    over_budget_usd: Decimal = ZERO


class SpendKind(StrEnum):
    """Kind of a spend line: nodes (``capacity``), or data that leaves a provider (``egress``)."""

    CAPACITY = "capacity"
    EGRESS = "egress"


@dataclass(frozen=True, slots=True)
class SpendLine:
    """Spend of one workload, provider and tier in ``[start, end)``, in whole cents.

    For egress ``billed_by`` is the provider that sends the bill, and ``provider`` is where the data goes;
    else it is None.
    """

    start: datetime
    end: datetime
    workload: str
    provider: str
    tier: Tier
    usd: Decimal
    kind: SpendKind = SpendKind.CAPACITY
    billed_by: str | None = None


@dataclass(frozen=True, slots=True)
class CandidateCounts:
    """How many (workload, offer, layout) candidates were evaluated, and how many passed the gates."""

    evaluated: int
    kept: int


@dataclass(frozen=True, slots=True)
class ConfidencePrice:
    """What the same document costs where every workload is planned with ``confidence``.

    ``cost_usd`` is what is held, ``expected_cost_usd`` what is paid on average, and ``chance`` that of the
    least certain workload then (None: not known). All are None where workloads would be left out that the
    plan places. ``unplaced``: what is left out.
    """

    confidence: float
    cost_usd: Decimal | None
    expected_cost_usd: Decimal | None
    chance: float | None = None
    unplaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The cost of a service's wait for its run ``after``.

    ``earliest_start`` is the earliest start that any candidate of the run allows; ``start`` is the planned
    one. ``usd_per_hour`` is the document's price of an hour of delay, else twice the service's average hourly
    cost in this plan.
    """

    workload: str
    after: str
    earliest_start: datetime
    start: datetime
    usd_per_hour: Decimal
    delay_usd: Decimal


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to a PlanRequest over one market.

    ``cost_usd`` is exactly the sum over placements and over ``spend``. ``waits`` has a row for each placed
    service that waits for a run; ``delay_usd`` is their sum. ``recourse_usd`` is the expected cost of all
    recourses: chance × cost of each, and ``relaunch_usd`` that of orders which services make while they run.
    The objective is cost + penalty + delay + recourse + relaunch.
    ``bound_usd`` is a lower bound on the objective of any plan that the document and the market allow, at the
    prices of delay in ``waits``; ``gap`` = (objective − bound) / objective. Both are None where the search
    could not cover all such plans.
    ``scarcity_usd_per_node_hour`` are the dual prices of stock by offer_id at which the bound was proven; the
    next search on a similar market starts from them.
    ``notes`` are remarks on the document. ``assumptions`` are nodes that the plan uses although their stock
    is unknown.
    ``expected_cost_usd`` is the mean of what is paid in the end, late hours included, and ``cost_p10_usd`` to
    ``cost_p90_usd`` are quantiles of it (None: a plan of an earlier version). ``confidence_prices`` are empty
    until they are computed.
    """

    plan_id: str
    status: PlanStatus
    team: str
    created_at: datetime
    as_of: datetime
    seed: int
    cost_usd: Decimal
    bound_usd: Decimal | None
    gap: float | None
    penalty_usd: Decimal
    solve_seconds: float
    candidates: CandidateCounts
    placements: tuple[Placement, ...]
    unplaced: tuple[Unplaced, ...]
    baselines: tuple[Baseline, ...]
    spend: tuple[SpendLine, ...]
    scarcity: tuple[Scarcity, ...] = ()
    scarcity_usd_per_node_hour: Mapping[str, float] = field(default_factory=dict, hash=False)
    price_forecasts: tuple[OfferPriceForecast, ...] = ()
    notes: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    delay_usd: Decimal = ZERO
    waits: tuple[Wait, ...] = ()
    recourse_usd: Decimal = ZERO
    relaunch_usd: Decimal = ZERO
    expected_cost_usd: Decimal | None = None
    cost_p10_usd: Decimal | None = None
    cost_p50_usd: Decimal | None = None
    cost_p90_usd: Decimal | None = None
    confidence_prices: tuple[ConfidencePrice, ...] = ()

    @property
    def objective_usd(self) -> Decimal:
        """The objective that the search minimises: cost, penalty, delay and expected recourse."""
        return self.compared_usd + self.penalty_usd

    @property
    def compared_usd(self) -> Decimal:
        """What simpler strategies are compared with: cost, delay and expected recourse."""
        return self.cost_usd + self.delay_usd + self.recourse_usd + self.relaunch_usd

    def paid_usd(self, chance: float) -> Decimal:
        """What is paid for it at most with ``chance``, 0.5 or more, by its median and P90; what it holds, if
        these are not known.
        """
        if not self.cost_p50_usd or self.cost_p90_usd is None:
            return self.cost_usd
        spread = float(self.cost_p90_usd / self.cost_p50_usd) - 1.0
        return to_cents(self.cost_p50_usd * Decimal(quantile_factor(spread, chance)))

    @property
    def least_chance(self) -> float | None:
        """The chance of the least certain workload; None if none is known."""
        return min((one.chance for one in self.placements if one.chance is not None), default=None)

    def placements_of(self, workload: str) -> tuple[Placement, ...]:
        """Every placement of one workload."""
        return tuple(p for p in self.placements if p.workload == workload)

    def part_of(self, placement: Placement) -> str:
        """Which part of its run or batch a placement is, in words; empty if it is the whole."""
        if placement.work_share == 1.0:
            return ""
        parts = self.placements_of(placement.workload)
        words = f"part {parts.index(placement) + 1} of {len(parts)}, {100 * placement.work_share:.0f} %"
        if placement.requests is None or placement.first_request is None:
            return words
        last = placement.first_request + placement.requests
        return f"{words}: requests {placement.first_request + 1:,.0f} to {last:,.0f}"


def recourses_usd(placements: Iterable[Placement]) -> Decimal:
    """The expected cost of the recourses of ``placements``."""
    return sum((one.recourse.expected_usd for one in placements if one.recourse is not None), ZERO)


def relaunches_usd(placements: Iterable[Placement]) -> Decimal:
    """The expected cost of ordering nodes of ``placements`` again."""
    return sum((one.relaunch.expected_usd for one in placements if one.relaunch is not None), ZERO)

"""A plan: placements in windows, with a bound and the obstacles of what it left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.basics.money import ZERO
from broker.domain.basics.node_launch import ColdStart
from broker.domain.basics.window import Segment
from broker.domain.market.billing import Block
from broker.domain.market.offer import Tier
from broker.domain.planning.patch import PatchOperation
from broker.domain.planning.transfer import Transfer
from broker.domain.planning.window_use import WindowUse
from broker.domain.planning.workload import Precision, ServingEngine, WorkloadKind


class PlanStatus(StrEnum):
    """``optimal``: gap at most the asked one. ``infeasible``: some workload that must be placed is not."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"


class Obstacle(StrEnum):
    """The first gate that let no offer through, in the order of the gates; a closed set.

    ``size``: no number of such nodes has as many GPUs as the run asks for. ``memory``: none of the sizes that
    it may have holds it. ``disk``: the host's disk or memory holds no image, weights and checkpoints.
    ``fabric``: a size that would hold it has more nodes than anything joins.
    ``availability``: what is there for some time only is gone before the workload is over.
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


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The next best way, and why it lost. ``cost_usd`` is what the placement would have cost there."""

    offer_id: str
    cost_usd: Decimal
    because: str


class BindingRule(StrEnum):
    """Without which a workload would cost less; ``price`` where no rule is: the plan has its cheapest way."""

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
    """One of the next best ways. ``more_usd``: cost, lateness and delay beyond the chosen way's (negative:
    less), of what waits for it too where that fits; ``later_hours``: how much later a run ends (negative:
    earlier), None for services; ``rule``: what stands against it."""

    offer_id: str
    cost_usd: Decimal
    more_usd: Decimal
    later_hours: float | None
    rule: BindingRule
    because: str


@dataclass(frozen=True, slots=True)
class Why:
    """The explanation of one placement. ``binding`` names rules that decided, in plain words.

    ``rule`` is the one without which the workload would cost less; ``next_best`` begins with the cheapest;
    ``filtered`` counts the offers that each gate dropped. ``sentences`` tell all of it, the most important
    first: what decided, what limits it, what near ties were decided for, what is assumed, the next best.
    """

    bottleneck: str
    binding: tuple[str, ...]
    runner_up: RunnerUp | None = None
    rule: BindingRule | None = None
    next_best: tuple[Alternative, ...] = ()
    filtered: tuple[tuple[Obstacle, int], ...] = ()
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """One workload on one offer; a fleet that mixes offers has one placement an offer.

    ``nodes`` is the peak of ``segments``, or what of it works where the seller sells no such count;
    ``gpus`` = nodes × GPUs per node; ``replicas`` is the count at the peak (1 for training),
    ``gpus_per_replica`` the GPUs of one model copy. ``window_use``: of a run in a window, what is wanted,
    bought and usable. ``cost_usd`` is what is held and, in it, what ``transfers`` of data to it cost.
    ``work_share``: a run in parts has a placement for each, in order of time, and the estimate is that of
    the part. ``engine``: what serves, None for runs and where a plan does not say. ``billed_ahead``: what of
    the cost is billed in blocks of more than an hour. ``cold_start``: the parts of a replica's, None for runs
    and where nothing is known of the launch.
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
    engine: ServingEngine | None = None
    billed_ahead: tuple[Block, ...] = ()
    cold_start: ColdStart | None = None

    @property
    def transfer_usd(self) -> Decimal:
        """What data costs that leaves other places for this one."""
        return sum((one.usd for one in self.transfers), ZERO)

    @property
    def capacity_usd(self) -> Decimal:
        """What the nodes cost."""
        return self.cost_usd - self.transfer_usd


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the workloads document with which a workload is placed, at ``cost_usd`` of its own."""

    says: str
    patch: tuple[PatchOperation, ...]
    cost_usd: Decimal


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A workload left out: the obstacle, and the changes that were tried and let it in, the nearest first.

    ``nearest_fix`` is what the first of them says; where no change of the document helps, it says what would.
    """

    workload: str
    reason: Obstacle
    nearest_fix: str
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True)
class Scarcity:
    """What ``nodes`` more of a contended offer would save: ``workloads`` placed there, all else kept."""

    offer_id: str
    nodes: int
    saves_usd: Decimal
    workloads: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Assumption:
    """``nodes`` of an offer that the plan holds at once though nobody says how many there are; ``says``: who
    says what of them, and how many are assumed at most."""

    offer_id: str
    nodes: int
    says: str


@dataclass(frozen=True, slots=True)
class PriceOutlook:
    """What an offer that is not bought yet may cost, ``hours`` after the plan was made, USD per node-hour.

    ``basis``: whose past it rests on, ``no history`` (then without prices) where none is known. It steers
    nothing; the plan counts today's price.
    """

    offer_id: str
    hours: float
    basis: str
    p10_usd: Decimal | None
    p50_usd: Decimal | None
    p90_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a simpler strategy would have cost, lateness and delay in it; None with the reason when it could
    not run, or its search was not ``completed``. ``over_budget_usd``: by how much it passes the budget."""

    name: str
    cost_usd: Decimal | None
    why: str
    completed: bool = True
    over_budget_usd: Decimal = ZERO


class SpendKind(StrEnum):
    """What a line of spend is for: nodes, or data that leaves a provider."""

    CAPACITY = "capacity"
    EGRESS = "egress"


@dataclass(frozen=True, slots=True)
class SpendLine:
    """Money of one workload, provider and tier in ``[start, end)``; a whole number of cents.

    ``billed_by``: who sends the bill of data that leaves (``provider`` is where it goes); else None.
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
class Wait:
    """What the wait of a service for its run ``after`` costs.

    ``earliest_start``: the earliest that any candidate of the run allows; ``start``: the one planned.
    ``usd_per_hour``: the document's price of an hour of delay, else the average cost of an hour of the
    service in this plan.
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
    service that waits for a run; ``delay_usd`` is their sum. The objective is cost + penalty + delay.
    ``bound_usd`` is a lower bound on the objective of any plan over the same market, workloads and candidate
    set at the prices of delay in ``waits``; ``gap`` = (objective − bound) / objective.
    ``scarcity_usd_per_node_hour`` by offer_id: the prices of scarcity at which the bound was proven; the
    next search of a market like this begins at them.
    ``notes``: what a reader should know of how the document was taken. ``assumptions``: nodes that it counts
    on though nobody says that they exist.
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
    outlooks: tuple[PriceOutlook, ...] = ()
    notes: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    delay_usd: Decimal = ZERO
    waits: tuple[Wait, ...] = ()

    @property
    def objective_usd(self) -> Decimal:
        """Cost, penalty and delay: what the search minimises."""
        return self.cost_usd + self.penalty_usd + self.delay_usd

    def placements_of(self, workload: str) -> tuple[Placement, ...]:
        """Every placement of one workload."""
        return tuple(p for p in self.placements if p.workload == workload)

"""Plans as JSON: ``broker plan --output``, ``broker check``, ``GET /v1/plans/{id}``."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.schemas.base.document import describe, input_error, read_json_document
from api.schemas.base.parts import JsonPart, Money, NotNegative, NotNegativeMoney
from api.schemas.base.times import Instant
from api.schemas.base.validation import validate
from api.schemas.base.windows import WindowUseForm
from api.schemas.market.offer import SegmentForm
from api.schemas.plans.plan_money import SpendLineForm, TransferForm
from broker.domain.basics.estimate import Estimate, Parallelism, Provenance
from broker.domain.basics.money import ZERO
from broker.domain.basics.node_launch import ColdStart, LaunchBasis
from broker.domain.market.billing import Block
from broker.domain.market.offer import Tier
from broker.domain.planning.patch import PatchOperation, PatchVerb
from broker.domain.planning.plan import (
    Alternative,
    Assumption,
    Baseline,
    BindingRule,
    CandidateCounts,
    Fix,
    Obstacle,
    Placement,
    Plan,
    PlanStatus,
    PriceOutlook,
    RunnerUp,
    Scarcity,
    Unplaced,
    Wait,
    Why,
)
from broker.domain.planning.workload import Precision, ServingEngine, WorkloadKind

EXPECTED_FORM = "a plan, as `broker plan --output` writes it"
Metrics = dict[str, float]


class CandidatesForm(JsonPart):
    """How many candidates were evaluated, and how many passed the gates."""

    evaluated: int
    kept: int


class ParallelismForm(JsonPart):
    """A parallel layout."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch: int = 1
    recompute: str = "none"

    def to_layout(self) -> Parallelism:
        """The domain's layout."""
        return Parallelism(self.tp, self.pp, self.dp, self.cp, self.ep, self.micro_batch, self.recompute)


class EstimateForm(BaseModel):
    """Metrics as flat numbers; ``low`` and ``high`` with the same names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: Metrics

    low: Metrics
    high: Metrics
    provenance: Provenance = Provenance.MODELLED

    @model_validator(mode="after")
    def _same_metrics(self) -> EstimateForm:
        names = set(self.__pydantic_extra__)
        if names != set(self.low) or names != set(self.high):
            raise ValueError("the same metrics in the estimate, in low and in high")
        return self

    def to_estimate(self) -> Estimate:
        """The domain's estimate."""
        return Estimate(self.__pydantic_extra__, self.low, self.high, self.provenance)


class RunnerUpForm(JsonPart):
    """The next best way, and why it lost."""

    offer_id: str
    cost_usd: Money
    because: str


class AlternativeForm(JsonPart):
    """One of the next best ways."""

    offer_id: str
    cost_usd: Money
    more_usd: Money
    later_hours: float | None = None
    rule: BindingRule
    because: str

    def to_alternative(self) -> Alternative:
        """The domain's alternative."""
        later, rule = self.later_hours, self.rule
        return Alternative(self.offer_id, self.cost_usd, self.more_usd, later, rule, self.because)


class WhyForm(JsonPart):
    """Why this placement; what follows ``runner_up`` is ours."""

    bottleneck: str
    binding: tuple[str, ...] = ()
    runner_up: RunnerUpForm | None = None
    rule: BindingRule | None = None
    next_best: tuple[AlternativeForm, ...] = ()
    filtered: Annotated[dict[Obstacle, int], Field(default_factory=dict)]
    sentences: tuple[str, ...] = ()

    def to_why(self) -> Why:
        """The domain's explanation."""
        lost = self.runner_up
        runner_up = RunnerUp(lost.offer_id, lost.cost_usd, lost.because) if lost is not None else None
        return Why(
            self.bottleneck,
            self.binding,
            runner_up,
            self.rule,
            tuple(way.to_alternative() for way in self.next_best),
            tuple(self.filtered.items()),
            self.sentences,
        )


class BlockForm(JsonPart):
    """``usd`` that a seller bills ``at`` once for ``nodes`` nodes: a minimum term, a day or a month of each.
    They are held in it ``until`` its end, or sooner."""

    at: Instant
    until: Instant
    nodes: int
    usd: Money

    def to_block(self) -> Block:
        """The domain's block."""
        return Block(self.at, self.until, self.nodes, self.usd)


class ColdStartForm(JsonPart):
    """Parts of ``cold_start_s``, in seconds: from the order to a node that runs, to the image and the weights
    on its disk, to the first token. ``basis``: whence ``launch_s``."""

    launch_s: NotNegative
    image_s: NotNegative
    weights_s: NotNegative
    engine_s: NotNegative
    basis: LaunchBasis

    def to_cold_start(self) -> ColdStart:
        """The domain's parts."""
        return ColdStart(self.launch_s, self.image_s, self.weights_s, self.engine_s, self.basis)


class PlacementForm(JsonPart):
    """One workload on one offer. Ours: ``window_use``, ``transfers``, ``work_share``, ``engine``,
    ``cold_start``, and ``billed_ahead``: what of the cost is billed in blocks of more than an hour."""

    workload: str
    kind: WorkloadKind
    offer_id: str
    provider: str
    region: str
    zone: str | None = None
    sku: str
    gpu: str
    tier: Tier
    nodes: int
    gpus: int
    replicas: int = 1
    gpus_per_replica: int
    parallelism: ParallelismForm
    precision: Precision
    segments: list[SegmentForm]
    cost_usd: Money
    paid_unused_usd: Money
    estimate: EstimateForm
    why: WhyForm
    window_use: WindowUseForm | None = None
    transfers: tuple[TransferForm, ...] = ()
    work_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    engine: ServingEngine | None = None
    billed_ahead: tuple[BlockForm, ...] = ()
    cold_start: ColdStartForm | None = None

    def to_placement(self) -> Placement:
        """The domain's placement."""
        return Placement(
            workload=self.workload,
            kind=self.kind,
            offer_id=self.offer_id,
            provider=self.provider,
            region=self.region,
            zone=self.zone,
            sku=self.sku,
            gpu=self.gpu,
            tier=self.tier,
            nodes=self.nodes,
            gpus=self.gpus,
            replicas=self.replicas,
            gpus_per_replica=self.gpus_per_replica,
            parallelism=self.parallelism.to_layout(),
            precision=self.precision,
            segments=tuple(segment.to_segment() for segment in self.segments),
            cost_usd=self.cost_usd,
            paid_unused_usd=self.paid_unused_usd,
            estimate=self.estimate.to_estimate(),
            why=self.why.to_why(),
            window_use=self.window_use.to_use() if self.window_use is not None else None,
            transfers=tuple(one.to_transfer() for one in self.transfers),
            work_share=self.work_share,
            engine=self.engine,
            billed_ahead=tuple(block.to_block() for block in self.billed_ahead),
            cold_start=self.cold_start.to_cold_start() if self.cold_start is not None else None,
        )


class PatchOperationForm(JsonPart):
    """An operation of JSON Patch (RFC 6902) on the workloads document."""

    op: PatchVerb
    path: str
    value: Any = None

    def to_operation(self) -> PatchOperation:
        """The domain's operation."""
        removes = self.op is PatchVerb.REMOVE
        return PatchOperation(self.op, self.path, None if removes else json.dumps(self.value))


class FixForm(JsonPart):
    """A change of the workloads document with which a workload is placed, at so much of its own."""

    says: str
    patch: tuple[PatchOperationForm, ...]
    cost_usd: Money

    def to_fix(self) -> Fix:
        """The domain's fix."""
        return Fix(self.says, tuple(one.to_operation() for one in self.patch), self.cost_usd)


class UnplacedForm(JsonPart):
    """A workload that was left out. Ours: ``fixes``, the nearest first."""

    workload: str
    reason: Obstacle
    nearest_fix: str
    fixes: tuple[FixForm, ...] = ()

    def to_unplaced(self) -> Unplaced:
        """The domain's line."""
        fixes = tuple(fix.to_fix() for fix in self.fixes)
        return Unplaced(self.workload, self.reason, self.nearest_fix, fixes)


class BaselineForm(JsonPart):
    """What a simpler strategy would have cost; null where it cannot run. Ours: ``completed``, false where its
    search was cut short; ``over_budget_usd``, by how much it passes the budget."""

    name: str
    cost_usd: Money | None
    why: str
    completed: bool = True
    over_budget_usd: Money = ZERO

    def to_baseline(self) -> Baseline:
        """The domain's strategy."""
        return Baseline(self.name, self.cost_usd, self.why, self.completed, self.over_budget_usd)


class ScarcityForm(JsonPart):
    """What more of a contended offer would save (ours)."""

    offer_id: str
    nodes: int
    saves_usd: Money
    workloads: tuple[str, ...]
    text: str


class WaitForm(JsonPart):
    """What the wait of one service for its run costs (ours)."""

    workload: str
    after: str
    earliest_start: Instant
    start: Instant
    usd_per_hour: NotNegativeMoney
    delay_usd: NotNegativeMoney

    def to_wait(self) -> Wait:
        """The domain's wait."""
        return Wait(
            self.workload,
            self.after,
            self.earliest_start.astimezone(UTC),
            self.start.astimezone(UTC),
            self.usd_per_hour,
            self.delay_usd,
        )


class OutlookForm(JsonPart):
    """What an offer that is not bought yet may cost; null: no history."""

    offer_id: str
    hours: float
    basis: str
    p10_usd_per_node_hour: Money | None
    p50_usd_per_node_hour: Money | None
    p90_usd_per_node_hour: Money | None

    def to_outlook(self) -> PriceOutlook:
        """The domain's outlook."""
        return PriceOutlook(
            self.offer_id,
            self.hours,
            self.basis,
            self.p10_usd_per_node_hour,
            self.p50_usd_per_node_hour,
            self.p90_usd_per_node_hour,
        )


class AssumptionForm(JsonPart):
    """Nodes that a plan counts on though nobody says how many there are, and who says what of them."""

    offer_id: str
    nodes: int
    says: str


class PlanForm(JsonPart):
    """A whole plan."""

    plan_id: str
    status: PlanStatus
    team: str
    created_at: Instant
    as_of: Instant
    seed: int
    cost_usd: Money
    bound_usd: Money | None
    gap: Annotated[float, Field(allow_inf_nan=False)] | None
    penalty_usd: Money
    solve_seconds: float
    candidates: CandidatesForm
    placements: list[PlacementForm]
    unplaced: list[UnplacedForm]
    baselines: list[BaselineForm]
    spend: list[SpendLineForm]
    scarcity: tuple[ScarcityForm, ...] = ()
    scarcity_usd_per_node_hour: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    outlooks: tuple[OutlookForm, ...] = ()
    notes: tuple[str, ...] = ()
    assumptions: tuple[AssumptionForm, ...] = ()
    delay_usd: Money = ZERO
    waits: tuple[WaitForm, ...] = ()

    def to_plan(self) -> Plan:
        """The domain's plan."""
        return Plan(
            plan_id=self.plan_id,
            status=self.status,
            team=self.team,
            created_at=self.created_at.astimezone(UTC),
            as_of=self.as_of.astimezone(UTC),
            seed=self.seed,
            cost_usd=self.cost_usd,
            bound_usd=self.bound_usd,
            gap=self.gap,
            penalty_usd=self.penalty_usd,
            solve_seconds=self.solve_seconds,
            candidates=CandidateCounts(self.candidates.evaluated, self.candidates.kept),
            placements=tuple(placement.to_placement() for placement in self.placements),
            unplaced=tuple(row.to_unplaced() for row in self.unplaced),
            baselines=tuple(baseline.to_baseline() for baseline in self.baselines),
            spend=tuple(line.to_line() for line in self.spend),
            scarcity=tuple(
                Scarcity(s.offer_id, s.nodes, s.saves_usd, s.workloads, s.text) for s in self.scarcity
            ),
            scarcity_usd_per_node_hour=self.scarcity_usd_per_node_hour,
            outlooks=tuple(outlook.to_outlook() for outlook in self.outlooks),
            notes=self.notes,
            assumptions=tuple(Assumption(a.offer_id, a.nodes, a.says) for a in self.assumptions),
            delay_usd=self.delay_usd,
            waits=tuple(wait.to_wait() for wait in self.waits),
        )


def read_plan(text: str, source: str) -> Plan:
    """The plan of a JSON text.

    Raises InputError: with the pointer of the whole document where it is no plan at all, with the
    field's pointer where a plan has a field that cannot be.
    """
    document = read_json_document(text, source)
    data = document.data
    if not isinstance(data, dict) or "plan_id" not in data or "placements" not in data:
        raise input_error(source, [document.problem("", describe(data), EXPECTED_FORM)])
    return validate(PlanForm, document).to_plan()

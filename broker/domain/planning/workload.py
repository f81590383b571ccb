"""Workloads and policies, as a team states them: no names of offers or SKUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal

from broker.domain.basics.confidence import MEDIAN
from broker.domain.basics.machines import AccessWish
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.market.offer import HostKind, Tier
from broker.domain.planning.transfer import Place
from broker.domain.workloads import document_fields as doc
from broker.domain.workloads.gpu_rules import GpuRules
from broker.domain.workloads.reoptimize_policy import ReoptimizePolicy
from broker.domain.workloads.repeats import Repeat
from broker.domain.workloads.startup import Startup
from broker.domain.workloads.traffic import Traffic
from broker.domain.workloads.training_method import (
    Adapter,
    Objective,
    Optimizer,
    TrainingMethod,
    WeightMode,
)


class WorkloadKind(StrEnum):
    """The three kinds of work."""

    TRAINING = "training"
    SERVING = "serving"
    BATCH = "batch"


class Precision(StrEnum):
    """Number format of weights and matrix products.

    ``fp4`` has block scales (NVFP4, MXFP4) and is for serving only.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT4 = "int4"


class TrainingStack(StrEnum):
    """Classes of training software.

    ``tuned``: Megatron-Core and NeMo (also MaxText) as tuned by experts. ``megatron_lm``: Megatron-LM as its
    users run it. ``fsdp``: sharding with FSDP or torchtitan. ``fsdp_compiled``: FSDP with layers and loss
    under torch.compile. ``deepspeed``: sharding with ZeRO. ``eager``: eager code (nanotron, Hugging Face).
    """

    TUNED = "tuned"
    MEGATRON_LM = "megatron_lm"
    FSDP = "fsdp"
    FSDP_COMPILED = "fsdp_compiled"
    EAGER = "eager"
    DEEPSPEED = "deepspeed"


class ServingEngine(StrEnum):
    """Serving engines. On AMD GPUs ``vllm`` is its ROCm build."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt_llm"


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The most GPUs or nodes that may be held of a provider at once."""

    gpus: doc.CountOrNone | None = None
    nodes: doc.CountOrNone | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """The most GPUs and nodes of a provider that may be held at any instant; None means no limit."""

    provider: str
    gpus: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class HeldNodes:
    """Capacity that is held already and counts against quotas. ``is_own``: the planning team holds it."""

    provider: str
    window: Window
    nodes: int
    gpus: int
    is_own: bool = True


TrainingPrecision = Annotated[Precision, doc.OneOf(p for p in Precision if p is not Precision.INT4)]
Precisions = Annotated[tuple[Precision, ...], doc.NotEmpty(), doc.OneOrList()]
NO_LIMIT = 10**9
"""The value of a limit for which a document says ``null``."""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The most pools and kinds of GPU of one service; null in a document means no limit (``NO_LIMIT``)."""

    max_pools: Annotated[doc.Count | None, doc.NullMeans(NO_LIMIT)] = None
    max_gpu_kinds: Annotated[doc.Count | None, doc.NullMeans(NO_LIMIT)] = None


@dataclass(frozen=True, slots=True)
class Providers:
    """Keys of allowed and excluded providers; an empty ``only`` allows all."""

    only: doc.Keys = ()
    exclude: doc.Keys = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """Which offers are allowed. A missing rule excludes nothing; patterns are shell-style (``us-*``).

    A workload's policy can only narrow the team's: both must allow an offer. ``quotas`` of a team apply to
    the sum of its workloads, those of a workload to it alone. ``reoptimize`` is about changes of running
    workloads, not about offers. ``geography`` names sets of countries (``config/geography.toml``).
    ``min_reliability`` is the lowest share of time up that a seller may state. ``gpus`` are the allowed GPUs.
    ``assumed_nodes`` is the stock that is assumed if it is unknown. ``premium`` is the share above the lowest
    cost that a plan with fewer pools, sellers and moves may cost. ``mix_sandbox``: the plan may order from
    sandbox and from real sellers.
    """

    regions: doc.Patterns | None = None
    countries: doc.Countries | None = None
    geography: doc.Geographies | None = None
    providers: Annotated[Providers, doc.OrNull] = Providers()
    tiers: Annotated[tuple[Tier, ...], doc.NotEmpty(), doc.OneOrList()] | None = None
    compliance: doc.Tags = ()
    quotas: Annotated[tuple[Quota, ...], doc.ByProvider(QuotaLimits, Quota), doc.OrNull] = ()
    reoptimize: Annotated[ReoptimizePolicy, doc.OrNull] = field(default_factory=ReoptimizePolicy)
    hosts: Annotated[tuple[HostKind, ...], doc.NotEmpty(), doc.OneOrList()] | None = None
    min_reliability: doc.Share | None = None
    gpus: Annotated[GpuRules, doc.OrObject("only", many=True), doc.OrNull] = field(default_factory=GpuRules)
    assumed_nodes: doc.Count | None = None
    premium: doc.Premium | None = None
    fleet: Annotated[FleetLimits, doc.OrNull] = FleetLimits()
    mix_sandbox: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """A rate that the user measured on a GPU; it replaces the prediction there."""

    gpu: doc.Gpu
    gpus: doc.Count = 1
    tokens_per_s: doc.Measured | None = None
    requests_per_s: doc.Measured | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Data (in GB, 10⁹ bytes) that the workload needs, and its location."""

    gb: doc.Gigabytes
    provider: doc.Storage
    region: doc.Name

    @property
    def place(self) -> Place:
        """The location of the data."""
        return Place(self.provider, self.region)


@dataclass(frozen=True, slots=True)
class OwnData(Dataset):
    """Data that a run of the same document makes, which is with one operator of the provider."""

    operator: str = ""

    @property
    def place(self) -> Place:
        """The location of the data."""
        return Place(self.provider, self.region, self.operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadBase:
    """Fields of every workload. ``unplaced_usd`` is the penalty for not placing it; None: it is required.

    ``access`` says how people enter its machines (None: with SSH keys), and ``startup`` what these start
    with. ``confidence`` is the chance with which it is to meet its objective (None: medians are planned).
    """

    __pydantic_config__ = doc.NEEDS_KIND

    name: doc.WorkloadName
    kind: WorkloadKind
    model: doc.NamedModel
    team: Annotated[doc.Team, doc.OrNull] = ""
    policy: Annotated[Policy, doc.OrNull] = Policy()
    unplaced_usd: doc.Usd | None = None
    measured: tuple[Measurement, ...] = ()
    access: AccessWish | None = None
    startup: Startup | None = None
    confidence: doc.Confidence | None = None

    @property
    def planned_confidence(self) -> float:
        """The chance with which the workload is to meet its objective; 0.5 plans by medians."""
        return MEDIAN if self.confidence is None else self.confidence


@dataclass(frozen=True, slots=True)
class GpuRange:
    """The fewest and the most GPUs of one run."""

    min: doc.Count = 1
    max: doc.Count | None = None


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """How often the run writes a checkpoint."""

    every_minutes: doc.SomeMinutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(WorkloadBase):
    """A training run over ``tokens``. With ``late_usd_per_hour`` it may end up to 24 h after the deadline.

    Sequences that are not ``packed`` have ``mean_tokens`` on average, at most ``sequence_length``; ``tokens``
    and ``global_batch_tokens`` count no padding. The tokens of a pair of answers (``dpo``) are those of both.
    A document says with ``repeat`` that it recurs; a request has each time as a run of its own instead.
    """

    kind: Literal[WorkloadKind.TRAINING] = WorkloadKind.TRAINING
    tokens: doc.AtLeastOne
    sequence_length: doc.Count
    global_batch_tokens: doc.AtLeastOne
    precision: TrainingPrecision = Precision.BF16
    gpus: Annotated[GpuRange, doc.OrObject("max", "integer", 1)] = GpuRange()
    earliest_start: Annotated[doc.Moment, doc.OrNull] = doc.LONG_AGO
    deadline: Annotated[doc.Moment, doc.OrNull] = doc.LONG_AGO
    repeat: Repeat | None = None
    late_usd_per_hour: doc.Usd | None = None
    headroom: doc.Share = 0.0
    checkpoint: Checkpoints | None = None
    interruptible: bool = False
    dataset: Dataset | None = None
    software: Annotated[TrainingStack, doc.OrNull] = TrainingStack.TUNED
    method: Objective = Objective.PRETRAIN
    teacher: doc.NamedModel | None = None
    adapter: Annotated[Adapter | None, doc.OrObject("kind")] = None
    optimizer: Annotated[Optimizer, doc.OrObject("name")] = field(default_factory=Optimizer)
    weights: WeightMode = WeightMode.MIXED
    offload_activations: bool = False
    packed: bool = True
    mean_tokens: doc.Count | None = None

    @property
    def training_method(self) -> TrainingMethod:
        """How it trains, as the performance core reads it."""
        return TrainingMethod(
            objective=self.method,
            adapter=self.adapter,
            optimizer=self.optimizer,
            weights=self.weights,
            offload_activations=self.offload_activations,
            mean_tokens=None if self.packed else self.mean_tokens,
            teacher=self.teacher,
        )

    @property
    def checkpoint_every_minutes(self) -> float | None:
        """Minutes between two checkpoints; None: the interval that loses least."""
        return None if self.checkpoint is None else self.checkpoint.every_minutes


@dataclass(frozen=True, slots=True)
class SpeculativeDecoding:
    """Speculative decoding: a draft model proposes ``drafted_tokens`` tokens per step.

    ``acceptance`` is the probability that a token is accepted if all tokens before it were. ``draft_cost`` is
    the time of one drafted token as a share of the time of a plain step.
    """

    drafted_tokens: doc.Drafted
    acceptance: doc.Share
    draft_cost: doc.Share = 0.05


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objective: 95th percentiles in milliseconds."""

    ttft_p95_ms: doc.Milliseconds
    itl_p95_ms: doc.Milliseconds


class Survival(StrEnum):
    """The largest loss that a service survives."""

    REPLICA = "replica"
    ZONE = "zone"


@dataclass(frozen=True, slots=True)
class Redundancy:
    """Replicas in at least ``zones`` places, and ``spare_replicas`` more than the demand needs.

    A service that ``survives`` a zone meets ``zone_loss_share`` of the hour's demand after the loss of any
    one place. By default it survives a zone if there are two or more, else a replica.
    """

    zones: doc.Zones = 1
    spare_replicas: doc.Spares = 0
    survives: Survival | None = None
    zone_loss_share: doc.Share = 0.5

    @property
    def survives_zone_loss(self) -> bool:
        """Whether the service must survive the loss of a whole place."""
        return (self.survives is Survival.ZONE) if self.survives is not None else self.zones > 1


@dataclass(frozen=True, slots=True)
class Starts:
    """When a service starts: not before the run ``after`` ends, nor before ``at``, nor before the horizon.

    ``delay_usd_per_hour`` is the cost of each hour that it waits for that run longer than necessary.
    """

    after: doc.Name | None = None
    at: doc.Moment | None = None
    delay_usd_per_hour: doc.Usd | None = None

    def without_run(self, ended_at: datetime | None) -> Starts:
        """The start of a service whose run ends at a known time (None: it is over)."""
        known = [at for at in (self.at, ended_at) if at is not None]
        return replace(self, after=None, at=max(known, default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving(WorkloadBase):
    """A fleet of replicas for as long as traffic lasts.

    ``weights`` is the location of finished weights; those of a run that it starts after are where the run
    is. ``prefix_cache_hit_share`` is a share of prompt tokens, in [0, 1]. ``drain_minutes``: how long before
    a machine is given back it gets no new request (None: 5). ``ends``: nothing is served from then on (None:
    it is served until the horizon's end). Every hour until then asks for ``min_replicas`` at least, also one
    without requests; spares and places come on top.
    """

    kind: Literal[WorkloadKind.SERVING] = WorkloadKind.SERVING
    precisions: Annotated[Precisions, doc.OrNull] = (Precision.BF16,)
    traffic: Traffic
    slo: Slo
    redundancy: Redundancy = Redundancy()
    fleet: Annotated[FleetLimits, doc.OrNull] = FleetLimits()
    starts: Annotated[Starts, doc.OrObject("at"), doc.OrNull] = Starts()
    weights: Dataset | None = None
    engine: ServingEngine = ServingEngine.VLLM
    prefix_cache_hit_share: doc.Share = 0.0
    speculation: SpeculativeDecoding | None = None
    drain_minutes: doc.DrainMinutes | None = None
    ends: doc.Moment | None = None
    min_replicas: doc.Replicas = 0

    def requests_per_s_at(self, hour_start: datetime, horizon_start: datetime) -> float:
        """The highest requests per second in the hour that begins at ``hour_start``; 0 from ``ends`` on."""
        is_over = self.ends is not None and hour_start >= self.ends
        return 0.0 if is_over else self.traffic.requests_per_s_at(hour_start, horizon_start)

    def mean_requests_per_s_at(self, hour_start: datetime, horizon_start: datetime) -> float:
        """The mean requests per second in that hour; 0 from ``ends`` on."""
        is_over = self.ends is not None and hour_start >= self.ends
        return 0.0 if is_over else self.traffic.mean_requests_per_s_at(hour_start, horizon_start)

    def ends_by(self, horizon_end: datetime) -> datetime:
        """When it ends at the latest."""
        return horizon_end if self.ends is None else min(self.ends, horizon_end)

    @property
    def starts_at(self) -> datetime | None:
        """The time at which it starts; None: with the horizon, or after a run."""
        return self.starts.at

    @property
    def starts_after(self) -> str | None:
        """The name of the run after which it starts."""
        return self.starts.after

    @property
    def delay_usd_per_hour(self) -> Decimal | None:
        """The cost of each hour that it waits for that run longer than necessary; None: it is estimated."""
        return self.starts.delay_usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(WorkloadBase):
    """Batch inference: ``requests`` to answer by the deadline, without a latency objective.

    Requests are independent. ``parts`` is the most parts that the batch may be divided into, by default any
    number. An interruption loses ``chunk_minutes`` of work. ``repeat``: as of a run.
    ``prefix_cache_hit_share`` and ``speculation`` mean the same as for a service.
    """

    kind: Literal[WorkloadKind.BATCH] = WorkloadKind.BATCH
    precisions: Annotated[Precisions, doc.OrNull] = (Precision.BF16,)
    requests: doc.AtLeastOne
    input_tokens: doc.Count
    output_tokens: doc.Count
    earliest_start: Annotated[doc.Moment, doc.OrNull] = doc.LONG_AGO
    deadline: Annotated[doc.Moment, doc.OrNull] = doc.LONG_AGO
    repeat: Repeat | None = None
    engine: ServingEngine = ServingEngine.VLLM
    prefix_cache_hit_share: doc.Share = 0.0
    speculation: SpeculativeDecoding | None = None
    interruptible: bool = True
    chunk_minutes: doc.SomeMinutes = 10.0
    parts: doc.Count | None = None


Workload = Training | Serving | Batch


def part_of(run: Training, share: float) -> Training:
    """The run with a share of its work; the fixed cost of a start does not change."""
    return run if share == 1.0 else replace(run, tokens=run.tokens * share)


def may_run_on_spot(workload: Workload) -> bool:
    """Whether capacity that may be interrupted suits the workload; the policies' tiers decide as well."""
    return not isinstance(workload, Serving) and workload.interruptible


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A validated workloads document: the input of the planner.

    ``quotas`` are those of the installation over all teams. ``held`` is the capacity that already counts
    against quotas. ``budget_confidence`` is the chance with which no more than the budget is paid in the end
    (None: no more than the budget is held). ``budget_margin_usd`` is what the planner keeps of such a budget
    for what may be paid beyond what is held; negative where less is paid than is held.
    """

    team: str
    horizon: Window
    workloads: tuple[Workload, ...]
    budget_usd: Decimal | None = None
    policy: Policy = field(default_factory=Policy)
    quotas: tuple[Quota, ...] = ()
    held: tuple[HeldNodes, ...] = ()
    budget_confidence: float | None = None
    budget_margin_usd: Decimal = ZERO
    _by_name: Mapping[str, Workload] = field(init=False, repr=False, compare=False)
    _waiting: Mapping[str, tuple[Serving, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, Workload] = {}
        waiting: dict[str, tuple[Serving, ...]] = {}
        for workload in self.workloads:
            by_name.setdefault(workload.name, workload)
            if isinstance(workload, Serving) and workload.starts_after is not None:
                waiting[workload.starts_after] = (*waiting.get(workload.starts_after, ()), workload)
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_waiting", waiting)

    @property
    def held_budget_usd(self) -> Decimal | None:
        """The most that may be held over the horizon; None without a budget."""
        return None if self.budget_usd is None else max(ZERO, self.budget_usd - self.budget_margin_usd)

    def workload(self, name: str) -> Workload:
        """The workload with this name. Raises KeyError if there is none."""
        return self._by_name[name]

    def followers(self, run: str) -> tuple[Serving, ...]:
        """Services that start when ``run`` ends."""
        return self._waiting.get(run, ())

    def missed(self, out: Collection[str]) -> tuple[Workload, ...]:
        """Of the left-out workloads ``out``, those that are missed: a service whose run is left out as well
        has nothing to serve, so that it costs no penalty and nothing requires it.
        """
        return tuple(
            w
            for w in self.workloads
            if w.name in out and not (isinstance(w, Serving) and w.starts_after in out)
        )

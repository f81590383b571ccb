"""What a team wants done. No provider words in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.window import Window
from broker.domain.market.offer import HostKind, Tier
from broker.domain.planning.model_shape import ModelShape
from broker.domain.planning.reoptimize_policy import ReoptimizePolicy
from broker.domain.planning.transfer import Place


class WorkloadKind(StrEnum):
    """The three kinds of work."""

    TRAINING = "training"
    SERVING = "serving"
    BATCH = "batch"


class Precision(StrEnum):
    """Number format of weights and matrix products; ``fp4`` with block scales (NVFP4, MXFP4), to serve in."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT4 = "int4"


class TrainingStack(StrEnum):
    """Classes of training software: tuned Megatron-Core and NeMo (also MaxText), Megatron-LM as its users run
    it, sharding (FSDP, torchtitan; DeepSpeed's ZeRO), the same with layers and loss under torch.compile, and
    eager trainers (nanotron, Hugging Face).
    """

    TUNED = "tuned"
    MEGATRON_LM = "megatron_lm"
    FSDP = "fsdp"
    FSDP_COMPILED = "fsdp_compiled"
    EAGER = "eager"
    DEEPSPEED = "deepspeed"


class ServingEngine(StrEnum):
    """Engines that serve replicas; vLLM on AMD's cards is its ROCm build."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt_llm"


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that may be held of a provider at any instant; None: no limit of that kind."""

    provider: str
    gpus: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class HeldNodes:
    """What is held already and counts against quotas; ``is_own``: by the team that asks."""

    provider: str
    window: Window
    nodes: int
    gpus: int
    is_own: bool = True


NO_LIMIT = 10**9
"""What a limit is where a document says ``null``: none."""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The most pools and kinds of GPU that one service runs on; None: not said, NO_LIMIT: as many as pay."""

    max_pools: int | None = None
    max_gpu_kinds: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Which offers are allowed. None means no rule; patterns are shell-style (``us-*``).

    A workload's policy can only narrow the team's: both must allow an offer. ``quotas`` of a team count over
    all of its workloads, those of a workload over it alone. ``reoptimize``: what may change once it runs; it
    says nothing of offers. ``geography``: names of sets of countries (``config/geography.toml``).
    ``min_reliability``: share of time up that the seller states. ``assumed_nodes``: what is counted on where
    nobody says how many there are. ``premium``: the share above the cheapest that a calmer plan may cost.
    What holds for a workload in the end, defaults included, says ``rules_of``.
    """

    regions: tuple[str, ...] | None = None
    countries: tuple[str, ...] | None = None
    geography: tuple[str, ...] | None = None
    providers_only: tuple[str, ...] | None = None
    providers_exclude: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] | None = None
    compliance: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    reoptimize: ReoptimizePolicy = field(default_factory=ReoptimizePolicy)
    hosts: tuple[HostKind, ...] | None = None
    min_reliability: float | None = None
    assumed_nodes: int | None = None
    premium: float | None = None
    fleet: FleetLimits = FleetLimits()


@dataclass(frozen=True, slots=True)
class Measurement:
    """The user's own figure on a GPU; it takes the place of a prediction there."""

    gpu: str
    gpus: int
    tokens_per_s: float | None = None
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Data (10⁹ bytes) that must be moved to where the work is. ``operator``: as in ``Place``."""

    gb: float
    provider: str
    region: str
    operator: str = ""

    @property
    def place(self) -> Place:
        """Where it lies."""
        return Place(self.provider, self.region, self.operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadBase:
    """What every workload has. ``unplaced_usd`` None: it must be placed."""

    name: str
    team: str
    model: ModelShape
    policy: Policy = Policy()
    unplaced_usd: Decimal | None = None
    measured: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(WorkloadBase):
    """A run over ``tokens``; ``late_usd_per_hour`` makes the deadline soft, at most 24 h late."""

    tokens: float
    sequence_length: int
    global_batch_tokens: float
    precision: Precision
    earliest_start: datetime
    deadline: datetime
    gpus_min: int = 1
    gpus_max: int | None = None
    late_usd_per_hour: Decimal | None = None
    headroom: float = 0.0
    checkpoint_every_minutes: float | None = None
    interruptible: bool = False
    dataset: Dataset | None = None
    software: TrainingStack = TrainingStack.TUNED

    kind = WorkloadKind.TRAINING


def part_of(run: Training, share: float) -> Training:
    """The run with a share of its work; what is fixed for each start stays."""
    return run if share == 1.0 else replace(run, tokens=run.tokens * share)


class TrafficShape(StrEnum):
    """Form of the demand curve."""

    FLAT = "flat"
    DIURNAL = "diurnal"
    HOURLY = "hourly"


@dataclass(frozen=True, slots=True)
class RequestSize:
    """A share of all requests, in (0, 1], and how long they are in tokens."""

    share: float
    input_tokens: int
    output_tokens: int


def mean_tokens(mix: Sequence[RequestSize]) -> tuple[int, int]:
    """The mean lengths, in and out, of the requests of a mix in whole tokens; 1 where there is none."""
    tokens_in = sum(size.share * size.input_tokens for size in mix)
    tokens_out = sum(size.share * size.output_tokens for size in mix)
    return max(1, round(tokens_in)), max(1, round(tokens_out))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests per second over time, and their lengths in tokens: of all, or the means of a ``mix`` of sizes
    whose shares sum to 1."""

    input_tokens: int
    output_tokens: int
    shape: TrafficShape
    peak_requests_per_s: float
    trough_share: float = 1.0
    peak_hour_utc: float = 0.0
    hourly_requests_per_s: tuple[float, ...] = ()
    mix: tuple[RequestSize, ...] = ()

    def requests_per_s_at(self, hour_start: datetime, horizon_start: datetime) -> float:
        """Demand of the hour that begins at ``hour_start``; it holds for that hour.

        Diurnal: a cosine between peak and ``trough_share`` × peak, highest at ``peak_hour_utc``.
        Hourly: the list starts at the horizon's start and repeats.
        """
        if self.shape is TrafficShape.FLAT:
            return self.peak_requests_per_s
        if self.shape is TrafficShape.HOURLY:
            index = int((hour_start - horizon_start) // timedelta(hours=1))
            return self.hourly_requests_per_s[index % len(self.hourly_requests_per_s)]
        hour = hour_start.hour + hour_start.minute / 60 + hour_start.second / 3600
        wave = (1 + math.cos(2 * math.pi * (hour - self.peak_hour_utc) / 24)) / 2
        return self.peak_requests_per_s * (self.trough_share + (1 - self.trough_share) * wave)


@dataclass(frozen=True, slots=True)
class SpeculativeDecoding:
    """A draft proposes ``drafted_tokens`` a step; each is kept with the chance ``acceptance``, given that
    those before it were. ``draft_cost``: the time of one drafted token over that of a plain step.
    """

    drafted_tokens: int
    acceptance: float
    draft_cost: float


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objective: 95th percentiles in milliseconds."""

    ttft_p95_ms: float
    itl_p95_ms: float


class Survival(StrEnum):
    """The loss after which a service goes on."""

    REPLICA = "replica"
    ZONE = "zone"


@dataclass(frozen=True, slots=True)
class Redundancy:
    """Replicas in at least ``zones`` places, and ``spare_replicas`` over demand.

    ``survives`` a zone: what is left after the loss of any one place meets ``zone_loss_share`` of the hour's
    demand. None is the default: a zone where there are two or more, else a replica.
    """

    zones: int = 1
    spare_replicas: int = 0
    survives: Survival | None = None
    zone_loss_share: float = 0.5

    @property
    def survives_zone_loss(self) -> bool:
        """Whether the loss of a whole place is covered, for ``zone_loss_share`` of the demand."""
        return (self.survives is Survival.ZONE) if self.survives is not None else self.zones > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving(WorkloadBase):
    """A fleet of replicas for as long as traffic lasts.

    Starts at ``starts_at``, or when run ``starts_after`` ends, or with the horizon; ``delay_usd_per_hour`` is
    what each hour costs that it waits for that run longer than it must. ``weights``: finished ones that lie
    somewhere; those of ``starts_after`` lie where that run is. ``prefix_cache_hit_share``: of
    the tokens of prompts, in [0, 1].
    """

    traffic: Traffic
    slo: Slo
    precisions: tuple[Precision, ...] = (Precision.BF16,)
    redundancy: Redundancy = Redundancy()
    starts_at: datetime | None = None
    starts_after: str | None = None
    delay_usd_per_hour: Decimal | None = None
    fleet: FleetLimits = FleetLimits()
    weights: Dataset | None = None
    engine: ServingEngine = ServingEngine.VLLM
    prefix_cache_hit_share: float = 0.0
    speculation: SpeculativeDecoding | None = None

    kind = WorkloadKind.SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(WorkloadBase):
    """``requests`` to answer between ``earliest_start`` and ``deadline``, without a latency objective;
    ``prefix_cache_hit_share`` and ``speculation`` as of a service."""

    requests: float
    input_tokens: int
    output_tokens: int
    earliest_start: datetime
    deadline: datetime
    precisions: tuple[Precision, ...] = (Precision.BF16,)
    engine: ServingEngine = ServingEngine.VLLM
    prefix_cache_hit_share: float = 0.0
    speculation: SpeculativeDecoding | None = None

    kind = WorkloadKind.BATCH


Workload = Training | Serving | Batch


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A workloads document, read and checked: what a planner is asked.

    ``quotas`` are the installation's, over all teams; ``held`` is what counts against all quotas already.
    """

    team: str
    horizon: Window
    workloads: tuple[Workload, ...]
    budget_usd: Decimal | None = None
    policy: Policy = field(default_factory=Policy)
    quotas: tuple[Quota, ...] = ()
    held: tuple[HeldNodes, ...] = ()
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

    def workload(self, name: str) -> Workload:
        """The workload of that name; KeyError if there is none."""
        return self._by_name[name]

    def followers(self, run: str) -> tuple[Serving, ...]:
        """Services that start when ``run`` ends."""
        return self._waiting.get(run, ())

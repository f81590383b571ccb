"""Workloads and policies, as a team states them: no names of offers or SKUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
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


NO_LIMIT = 10**9
"""The value of a limit for which a document says ``null``."""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The most pools and kinds of GPU of one service. None: not stated; NO_LIMIT: as many as are worth it."""

    max_pools: int | None = None
    max_gpu_kinds: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Which offers are allowed. None means no rule; patterns are shell-style (``us-*``).

    A workload's policy can only narrow the team's: both must allow an offer. ``quotas`` of a team apply to
    the sum of its workloads, those of a workload to it alone. ``reoptimize`` is about changes of running
    workloads, not about offers. ``geography`` names sets of countries (``config/geography.toml``).
    ``min_reliability`` is the lowest share of time up that a seller may state. ``assumed_nodes`` is the stock
    that is assumed if it is unknown. ``premium`` is the share above the lowest cost that a plan with fewer
    pools, sellers and moves may cost. ``rules_of`` gives the effective rules, including defaults.
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
    """A rate that the user measured on a GPU; it replaces the prediction there."""

    gpu: str
    gpus: int
    tokens_per_s: float | None = None
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Data (in GB, 10⁹ bytes) that the workload needs, and its location (see ``Place``)."""

    gb: float
    provider: str
    region: str
    operator: str = ""

    @property
    def place(self) -> Place:
        """The location of the data."""
        return Place(self.provider, self.region, self.operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadBase:
    """Fields of every workload. ``unplaced_usd`` is the penalty for not placing it; None: it is required."""

    name: str
    team: str
    model: ModelShape
    policy: Policy = Policy()
    unplaced_usd: Decimal | None = None
    measured: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(WorkloadBase):
    """A training run over ``tokens``. With ``late_usd_per_hour`` it may end up to 24 h after the deadline."""

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


class TrafficShape(StrEnum):
    """Form of the demand curve."""

    FLAT = "flat"
    DIURNAL = "diurnal"
    HOURLY = "hourly"


@dataclass(frozen=True, slots=True)
class RequestSize:
    """A size of requests: their share of all requests, in (0, 1], and their length in tokens."""

    share: float
    input_tokens: int
    output_tokens: int


def mean_tokens(mix: Sequence[RequestSize]) -> tuple[int, int]:
    """Mean input and output tokens of a request of ``mix``, rounded and at least 1."""
    tokens_in = sum(size.share * size.input_tokens for size in mix)
    tokens_out = sum(size.share * size.output_tokens for size in mix)
    return max(1, round(tokens_in)), max(1, round(tokens_out))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests per second over time, and their lengths in tokens.

    With a ``mix`` of sizes, whose shares sum to 1, the lengths are its means.
    """

    input_tokens: int
    output_tokens: int
    shape: TrafficShape
    peak_requests_per_s: float
    trough_share: float = 1.0
    peak_hour_utc: float = 0.0
    hourly_requests_per_s: tuple[float, ...] = ()
    mix: tuple[RequestSize, ...] = ()

    def requests_per_s_at(self, hour_start: datetime, horizon_start: datetime) -> float:
        """Requests per second in the hour that begins at ``hour_start``.

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
    """Speculative decoding: a draft model proposes ``drafted_tokens`` tokens per step.

    ``acceptance`` is the probability that a token is accepted if all tokens before it were. ``draft_cost`` is
    the time of one drafted token as a share of the time of a plain step.
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
    """The largest loss that a service survives."""

    REPLICA = "replica"
    ZONE = "zone"


@dataclass(frozen=True, slots=True)
class Redundancy:
    """Replicas in at least ``zones`` places, and ``spare_replicas`` more than the demand needs.

    A service that ``survives`` a zone meets ``zone_loss_share`` of the hour's demand after the loss of any
    one place. The default (None) is a zone if there are two or more, else a replica.
    """

    zones: int = 1
    spare_replicas: int = 0
    survives: Survival | None = None
    zone_loss_share: float = 0.5

    @property
    def survives_zone_loss(self) -> bool:
        """Whether the service must survive the loss of a whole place."""
        return (self.survives is Survival.ZONE) if self.survives is not None else self.zones > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving(WorkloadBase):
    """A fleet of replicas for as long as traffic lasts.

    It starts at ``starts_at``, or when the run ``starts_after`` ends, else at the start of the horizon.
    ``delay_usd_per_hour`` is the cost of each hour that it waits for that run longer than necessary.
    ``weights`` is the location of finished weights; the weights of a run ``starts_after`` are where the run
    is. ``prefix_cache_hit_share`` is a share of prompt tokens, in [0, 1].
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
    """Batch inference: ``requests`` to answer by the deadline, without a latency objective.

    Requests are independent. ``parts`` is the most parts that the batch may be divided into (None: any
    number). An interruption loses ``chunk_minutes`` of work. ``prefix_cache_hit_share`` and ``speculation``
    mean the same as for a service.
    """

    requests: float
    input_tokens: int
    output_tokens: int
    earliest_start: datetime
    deadline: datetime
    precisions: tuple[Precision, ...] = (Precision.BF16,)
    engine: ServingEngine = ServingEngine.VLLM
    prefix_cache_hit_share: float = 0.0
    speculation: SpeculativeDecoding | None = None
    interruptible: bool = True
    chunk_minutes: float = 10.0
    parts: int | None = None

    kind = WorkloadKind.BATCH


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
    against quotas.
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

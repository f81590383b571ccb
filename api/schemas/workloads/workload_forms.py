"""The shape of a workloads document, field by field; what fields mean together is in ``workloads``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from annotated_types import GroupedMetadata
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from api.schemas.base.parts import OneTeam, plain_digits
from api.schemas.base.validation import NAME, TRIMMED
from broker.domain.market.offer import HostKind, Tier
from broker.domain.planning.reoptimize_policy import ReoptimizeMode
from broker.domain.planning.workload import Precision, ServingEngine, Survival, TrafficShape, TrainingStack
from broker.domain.spend.budgets import LARGEST_USD

MOST_DAYS = 1830
MOST_HOURS = MOST_DAYS * 24
MOST_ZONES = 100
MOST_SPARES = 100
MOST_DRAFTED = 64
MOST_PREMIUM = 0.5
MOST_REQUESTS_PER_S = 10**9
MOST_MEASURED_PER_S = 10**12
MOST_GB = 10**9
_NUMBER = re.compile(r"\s*[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)


def _number(value: Any) -> Any:
    """Quoted numbers are numbers, true and false are not."""
    if isinstance(value, bool):
        raise ValueError("a number")
    if isinstance(value, str) and len(value) <= 64 and _NUMBER.fullmatch(value):
        return float(value.replace("_", ""))
    return value


def _money(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("an amount in USD")
    return plain_digits(value).replace("_", "") if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(GroupedMetadata):
    """Limits of a number: checked, and told in the JSON schema, where a validator before them hides them."""

    kind: Literal["number", "integer"] = "number"
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __iter__(self) -> Iterator[Any]:
        """What pydantic reads of it."""
        told = {
            "minimum": self.least,
            "exclusiveMinimum": self.above,
            "maximum": self.most,
            "exclusiveMaximum": self.below,
        }
        yield Field(ge=self.least, gt=self.above, le=self.most, lt=self.below)
        yield WithJsonSchema({"type": self.kind, **{name: n for name, n in told.items() if n is not None}})


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_number)]
AtLeastOne = Annotated[Number, Limits(least=1)]
Share = Annotated[Number, Limits(least=0, most=1)]
Premium = Annotated[Number, Limits(least=0, most=MOST_PREMIUM)]
Days = Annotated[Number, Limits(above=0, most=MOST_DAYS)]
Hours = Annotated[Number, Limits(least=0, most=MOST_HOURS)]
SomeHours = Annotated[Number, Limits(above=0, most=MOST_HOURS)]
SomeMinutes = Annotated[Number, Limits(above=0, most=MOST_HOURS * 60)]
HourOfDay = Annotated[Number, Limits(least=0, below=24)]
Milliseconds = Annotated[Number, Limits(above=0)]
Gigabytes = Annotated[Number, Limits(least=0, most=MOST_GB)]
Demand = Annotated[Number, Limits(least=0, most=MOST_REQUESTS_PER_S)]
PeakDemand = Annotated[Number, Limits(above=0, most=MOST_REQUESTS_PER_S)]
Measured = Annotated[Number, Limits(above=0, most=MOST_MEASURED_PER_S)]
Count = Annotated[Whole, Limits(kind="integer", least=1, most=10**9)]
CountOrNone = Annotated[Whole, Limits(kind="integer", least=0, most=10**9)]
Zones = Annotated[Whole, Limits(kind="integer", least=1, most=MOST_ZONES)]
Spares = Annotated[Whole, Limits(kind="integer", least=0, most=MOST_SPARES)]
Usd = Annotated[Decimal, BeforeValidator(_money), Field(ge=0, le=int(LARGEST_USD), allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Team = Annotated[Name, Field(pattern=TRIMMED), OneTeam]
Patterns = Annotated[list[Name], Field(min_length=1)]
TrainingPrecision = Literal["bf16", "fp16", "fp8", "fp4"]


class WorkloadPart(BaseModel):
    """A part of a workloads document: a field that is not listed is an error."""

    model_config = ConfigDict(extra="forbid")


class HorizonForm(WorkloadPart):
    """What time is planned. ``start``: a time, a date, ``now``, ``today``, ``tomorrow``, ``next-monday``."""

    start: str
    days: Days


class BudgetForm(WorkloadPart):
    """The most that may be spent over the horizon."""

    usd: Usd


class ProvidersForm(WorkloadPart):
    """Provider keys; an empty ``only`` is no rule."""

    only: list[Name] = []
    exclude: list[Name] = []


class ReoptimizeForm(WorkloadPart):
    """What may change as prices do; on a team and on a workload, where the more cautious word counts."""

    mode: ReoptimizeMode | None = None
    min_saving_usd: Usd | None = None
    min_saving_share: Annotated[Decimal, BeforeValidator(_money), Field(ge=0, le=1)] | None = None
    cooldown_hours: Hours | None = None
    lapse_hours: SomeHours | None = None


class QuotaForm(WorkloadPart):
    """The most GPUs or nodes that may be held of a provider at once."""

    gpus: CountOrNone | None = None
    nodes: CountOrNone | None = None


class FleetForm(WorkloadPart):
    """The most pools and kinds of GPU that one service runs on; ``null``: no limit."""

    max_pools: Count | None = None
    max_gpu_kinds: Count | None = None


class PolicyForm(WorkloadPart):
    """Where capacity may come from. A rule that is left out does not narrow anything."""

    regions: Patterns | None = None
    countries: Patterns | None = None
    geography: Patterns | None = None
    providers: ProvidersForm | None = None
    tiers: Annotated[list[Tier], Field(min_length=1)] | None = None
    compliance: list[Name] = []
    quotas: dict[Name, QuotaForm] = {}
    reoptimize: ReoptimizeForm | None = None
    hosts: Annotated[list[HostKind], Field(min_length=1)] | None = None
    min_reliability: Share | None = None
    assumed_nodes: Count | None = None
    premium: Premium | None = None
    fleet: FleetForm | None = None


class MeasuredForm(WorkloadPart):
    """The user's own figure for a GPU; it takes the place of the prediction there."""

    gpu: Name
    gpus: Count = 1
    tokens_per_s: Measured | None = None
    requests_per_s: Measured | None = None


class GpusForm(WorkloadPart):
    """How many GPUs one run may use."""

    min: Count = 1
    max: Count | None = None


class CheckpointForm(WorkloadPart):
    """How often the run saves its state."""

    every_minutes: SomeMinutes


class DatasetForm(WorkloadPart):
    """Data, in GB (10⁹ bytes), that must be where the work is."""

    gb: Gigabytes
    provider: Name
    region: Name


class RequestSizeForm(WorkloadPart):
    """A share of all requests, and how long they are."""

    share: Annotated[Number, Limits(above=0, most=1)]
    input_tokens: Count
    output_tokens: Count


class TrafficForm(WorkloadPart):
    """Requests per second over time, and their lengths in tokens: of all, or of each size of a ``mix``."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    mix: Annotated[list[RequestSizeForm], Field(min_length=1)] | None = None
    shape: TrafficShape | None = None
    peak_requests_per_s: PeakDemand | None = None
    trough_share: Share = 1.0
    peak_hour_utc: HourOfDay = 0.0
    hourly: Annotated[list[Demand], Field(min_length=1)] | None = None


class SloForm(WorkloadPart):
    """95th percentiles of time to first token and of the time between tokens."""

    ttft_p95_ms: Milliseconds
    itl_p95_ms: Milliseconds


class SpeculationForm(WorkloadPart):
    """Speculative decoding: tokens drafted a step, the chance that each is kept, and what one costs of a
    plain step's time."""

    drafted_tokens: Annotated[Whole, Limits(kind="integer", least=1, most=MOST_DRAFTED)]
    acceptance: Share
    draft_cost: Share = 0.05


class RedundancyForm(WorkloadPart):
    """Replicas in at least ``zones`` places, spares over demand, and the loss that is survived: of a place,
    the rest then meets ``zone_loss_share`` of the demand."""

    zones: Zones = 1
    spare_replicas: Spares = 0
    survives: Survival | None = None
    zone_loss_share: Share = 0.5


class StartsForm(WorkloadPart):
    """When a service starts: after a run, or at a time; and what each hour of waiting for the run costs."""

    after: Name | None = None
    at: str | None = None
    delay_usd_per_hour: Usd | None = None


def _starts(value: Any) -> Any:
    return {"at": value} if isinstance(value, str) else value


class WorkloadForm(WorkloadPart):
    """What every workload has. ``team``: another team than the document's, for shared budgets."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=NAME)]
    model: Name
    team: Team | None = None
    policy: PolicyForm | None = None
    unplaced_usd: Usd | None = None
    measured: list[MeasuredForm] = []


class TrainingForm(WorkloadForm):
    """A run over ``tokens``."""

    kind: Literal["training"]
    tokens: AtLeastOne
    sequence_length: Count
    global_batch_tokens: AtLeastOne
    precision: TrainingPrecision = "bf16"
    gpus: GpusForm = GpusForm()
    earliest_start: str | None = None
    deadline: str
    late_usd_per_hour: Usd | None = None
    headroom: Share = 0.0
    checkpoint: CheckpointForm | None = None
    interruptible: bool = False
    dataset: DatasetForm | None = None
    software: TrainingStack = TrainingStack.TUNED


class ServingForm(WorkloadForm):
    """A service under a latency objective."""

    kind: Literal["serving"]
    precisions: Annotated[list[Precision], Field(min_length=1)] | None = None
    traffic: TrafficForm
    slo: SloForm
    redundancy: RedundancyForm = RedundancyForm()
    fleet: FleetForm | None = None
    starts: Annotated[StartsForm | None, BeforeValidator(_starts)] = None
    weights: DatasetForm | None = None
    engine: ServingEngine = ServingEngine.VLLM
    prefix_cache_hit_share: Share = 0.0
    speculation: SpeculationForm | None = None


class BatchForm(WorkloadForm):
    """Requests to answer by a deadline, without a latency objective."""

    kind: Literal["batch"]
    precisions: Annotated[list[Precision], Field(min_length=1)] | None = None
    requests: AtLeastOne
    input_tokens: Count
    output_tokens: Count
    earliest_start: str | None = None
    deadline: str
    engine: ServingEngine = ServingEngine.VLLM
    prefix_cache_hit_share: Share = 0.0
    speculation: SpeculationForm | None = None


AnyWorkloadForm = Annotated[TrainingForm | ServingForm | BatchForm, Field(discriminator="kind")]


class WorkloadsForm(WorkloadPart):
    """A whole document."""

    team: Team
    horizon: HorizonForm
    budget: BudgetForm | None = None
    policy: PolicyForm | None = None
    workloads: Annotated[list[AnyWorkloadForm], Field(min_length=1)]


FORMS_BY_FIELD: Mapping[str, type[BaseModel]] = {
    "horizon": HorizonForm,
    "budget": BudgetForm,
    "policy": PolicyForm,
    "providers": ProvidersForm,
    "reoptimize": ReoptimizeForm,
    "measured": MeasuredForm,
    "gpus": GpusForm,
    "checkpoint": CheckpointForm,
    "dataset": DatasetForm,
    "weights": DatasetForm,
    "traffic": TrafficForm,
    "mix": RequestSizeForm,
    "slo": SloForm,
    "speculation": SpeculationForm,
    "redundancy": RedundancyForm,
    "fleet": FleetForm,
    "starts": StartsForm,
    "training": TrainingForm,
    "serving": ServingForm,
    "batch": BatchForm,
}

"""The fields of a workloads document, each by itself; ``workloads`` checks them together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from annotated_types import GroupedMetadata
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

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
MOST_UNKNOWN = 100
_NUMBER = re.compile(r"\s*[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)


def _number(value: Any) -> Any:
    """Accepts quoted numbers and refuses true and false."""
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
    """Limits of a number. They are checked, and added to the JSON schema by hand, because the validator
    before them hides them there.
    """

    kind: Literal["number", "integer"] = "number"
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __iter__(self) -> Iterator[Any]:
        """The annotations for pydantic."""
        told = {
            "minimum": self.least,
            "exclusiveMinimum": self.above,
            "maximum": self.most,
            "exclusiveMaximum": self.below,
        }
        yield Field(ge=self.least, gt=self.above, le=self.most, lt=self.below)
        yield WithJsonSchema({"type": self.kind, **{name: n for name, n in told.items() if n is not None}})


@dataclass(frozen=True, slots=True)
class OneOrList:
    """A list, for which one text may stand: ``bf16`` for ``[bf16]``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: [value] if isinstance(value, str) else value, handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        whole = handler(schema)
        return {"anyOf": [whole, whole["items"]]}


@dataclass(frozen=True, slots=True)
class FigureOrObject:
    """An object, for which the figure of one of its fields may stand: ``5000`` for ``{usd: 5000}``."""

    name: str
    kind: Literal["number", "integer"]
    least: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def whole(value: Any) -> Any:
            is_figure = isinstance(value, (int, float, Decimal, str)) and not isinstance(value, bool)
            return {self.name: value} if is_figure else value

        return core_schema.no_info_before_validator_function(whole, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": self.kind, "minimum": self.least}]}


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
Names = Annotated[list[Name], OneOrList()]
Patterns = Annotated[list[Name], Field(min_length=1), OneOrList()]
Precisions = Annotated[list[Precision], Field(min_length=1), OneOrList()]
TrainingPrecision = Literal["bf16", "fp16", "fp8", "fp4"]


class WorkloadPart(BaseModel):
    """A part of a workloads document. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        """Refuses an object of very many fields as a whole, before each gets an error of its own."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + MOST_UNKNOWN:
            raise ValueError(f"at most the {len(cls.model_fields)} fields {', '.join(cls.model_fields)}")
        return value


class HorizonForm(WorkloadPart):
    """The planning horizon. ``start``: a time, a date, ``now``, ``today``, ``tomorrow``, ``next-monday``."""

    start: str
    days: Days


class BudgetForm(WorkloadPart):
    """The most that may be spent over the horizon."""

    usd: Usd


class ProvidersForm(WorkloadPart):
    """Provider keys; an empty ``only`` allows all."""

    only: Names = []
    exclude: Names = []


class ReoptimizeForm(WorkloadPart):
    """What re-optimization may change; of a team's and a workload's rule, the more cautious one counts."""

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
    """The most pools and kinds of GPU of one service; ``null``: no limit."""

    max_pools: Count | None = None
    max_gpu_kinds: Count | None = None


class PolicyForm(WorkloadPart):
    """Rules of where capacity may come from. A missing rule excludes nothing."""

    regions: Patterns | None = None
    countries: Patterns | None = None
    geography: Patterns | None = None
    providers: ProvidersForm | None = None
    tiers: Annotated[list[Tier], Field(min_length=1), OneOrList()] | None = None
    compliance: Names = []
    quotas: dict[Name, QuotaForm] = {}
    reoptimize: ReoptimizeForm | None = None
    hosts: Annotated[list[HostKind], Field(min_length=1), OneOrList()] | None = None
    min_reliability: Share | None = None
    assumed_nodes: Count | None = None
    premium: Premium | None = None
    fleet: FleetForm | None = None


class MeasuredForm(WorkloadPart):
    """The user's own measurement for a GPU; it replaces the prediction there."""

    gpu: Name
    gpus: Count = 1
    tokens_per_s: Measured | None = None
    requests_per_s: Measured | None = None


class GpusForm(WorkloadPart):
    """The fewest and the most GPUs of one run."""

    min: Count = 1
    max: Count | None = None


class CheckpointForm(WorkloadPart):
    """How often the run writes a checkpoint."""

    every_minutes: SomeMinutes


class DatasetForm(WorkloadPart):
    """Data, in GB (10⁹ bytes), that the workload reads, and its location."""

    gb: Gigabytes
    provider: Name
    region: Name


class RequestSizeForm(WorkloadPart):
    """A share of all requests, and their lengths in tokens."""

    share: Annotated[Number, Limits(above=0, most=1)]
    input_tokens: Count
    output_tokens: Count


class TrafficForm(WorkloadPart):
    """Requests per second over time, and their token lengths: one length for all, or a ``mix`` of sizes."""

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
    """Speculative decoding: drafted tokens per step, the acceptance probability of each, and the cost of
    drafting one as a share of a plain step's time.
    """

    drafted_tokens: Annotated[Whole, Limits(kind="integer", least=1, most=MOST_DRAFTED)]
    acceptance: Share
    draft_cost: Share = 0.05


class RedundancyForm(WorkloadPart):
    """The number of places (``zones``) with replicas, the spare replicas, and the loss to survive.

    After the loss of a place, the rest must meet ``zone_loss_share`` of the demand.
    """

    zones: Zones = 1
    spare_replicas: Spares = 0
    survives: Survival | None = None
    zone_loss_share: Share = 0.5


class StartsForm(WorkloadPart):
    """When a service starts: after a run, or at a time; and the cost of each hour of waiting for the run."""

    after: Name | None = None
    at: str | None = None
    delay_usd_per_hour: Usd | None = None


def _starts(value: Any) -> Any:
    return {"at": value} if isinstance(value, str) else value


class WorkloadForm(WorkloadPart):
    """The fields of every workload. ``team``: whom it is for, as a note; the document's team pays."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=NAME)]
    model: Name
    team: Team | None = None
    policy: PolicyForm | None = None
    unplaced_usd: Usd | None = None
    measured: list[MeasuredForm] = []


class TrainingForm(WorkloadForm):
    """A training run over ``tokens`` tokens."""

    kind: Literal["training"]
    tokens: AtLeastOne
    sequence_length: Count
    global_batch_tokens: AtLeastOne
    precision: TrainingPrecision = "bf16"
    gpus: Annotated[GpusForm, FigureOrObject("max", "integer", 1)] = GpusForm()
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
    precisions: Precisions | None = None
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
    """Requests that must be answered by a deadline, without a latency objective."""

    kind: Literal["batch"]
    precisions: Precisions | None = None
    requests: AtLeastOne
    input_tokens: Count
    output_tokens: Count
    earliest_start: str | None = None
    deadline: str
    engine: ServingEngine = ServingEngine.VLLM
    prefix_cache_hit_share: Share = 0.0
    speculation: SpeculationForm | None = None
    interruptible: bool = True
    chunk_minutes: SomeMinutes = 10.0
    parts: Count | None = None


AnyWorkloadForm = Annotated[TrainingForm | ServingForm | BatchForm, Field(discriminator="kind")]


class WorkloadsForm(WorkloadPart):
    """A whole workloads document."""

    team: Team
    horizon: HorizonForm
    budget: Annotated[BudgetForm, FigureOrObject("usd", "number", 0)] | None = None
    policy: PolicyForm | None = None
    workloads: Annotated[list[AnyWorkloadForm], Field(min_length=1)]


FORMS_BY_FIELD: Mapping[str, type[BaseModel]] = {
    "horizon": HorizonForm,
    "budget": BudgetForm,
    "policy": PolicyForm,
    "providers": ProvidersForm,
    "reoptimize": ReoptimizeForm,
    "quotas": QuotaForm,
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

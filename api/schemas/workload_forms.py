"""The shape of a workloads document, field by field; what fields mean together is in ``workloads``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from api.schemas.parts import OneTeam
from api.schemas.validation import NAME
from broker.domain.budgets import LARGEST_USD
from broker.domain.offer import Tier
from broker.domain.reoptimize_policy import ReoptimizeMode
from broker.domain.workload import Precision, TrafficShape

_NUMBER = re.compile(r"\s*[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")


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
    return value.replace("_", "") if isinstance(value, str) else value


def _told(kind: str, **limits: float) -> WithJsonSchema:
    """What pydantic leaves out of a JSON schema where a validator stands before the limits."""
    return WithJsonSchema({"type": kind, **limits})


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0), _told("number", exclusiveMinimum=0)]
NotNegative = Annotated[Number, Field(ge=0), _told("number", minimum=0)]
Share = Annotated[Number, Field(ge=0, le=1), _told("number", minimum=0, maximum=1)]
Days = Annotated[Number, Field(gt=0, le=1830), _told("number", exclusiveMinimum=0, maximum=1830)]
HourOfDay = Annotated[Number, Field(ge=0, lt=24), _told("number", minimum=0, exclusiveMaximum=24)]
Count = Annotated[
    int, BeforeValidator(_number), Field(ge=1, le=10**9), _told("integer", minimum=1, maximum=10**9)
]
Usd = Annotated[Decimal, BeforeValidator(_money), Field(ge=0, le=int(LARGEST_USD), allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Team = Annotated[Name, OneTeam]
Patterns = Annotated[list[Name], Field(min_length=1)]
Country = Annotated[str, Field(pattern=r"^[A-Za-z]{2}$")]
TrainingPrecision = Literal["bf16", "fp16", "fp8"]


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
    cooldown_hours: NotNegative | None = None
    lapse_hours: Positive | None = None


class QuotaForm(WorkloadPart):
    """The most GPUs or nodes that may be held of a provider at once."""

    gpus: Annotated[int, BeforeValidator(_number), Field(ge=0, le=10**9)] | None = None
    nodes: Annotated[int, BeforeValidator(_number), Field(ge=0, le=10**9)] | None = None


class PolicyForm(WorkloadPart):
    """Where capacity may come from. A rule that is left out does not narrow anything."""

    regions: Patterns | None = None
    countries: (
        Annotated[list[Annotated[str, Field(pattern=r"^[A-Za-z]{2}$")]], Field(min_length=1)] | None
    ) = None
    providers: ProvidersForm | None = None
    tiers: Annotated[list[Tier], Field(min_length=1)] | None = None
    compliance: list[Name] = []
    quotas: dict[Name, QuotaForm] = {}
    reoptimize: ReoptimizeForm | None = None


class MeasuredForm(WorkloadPart):
    """The user's own figure for a GPU; it takes the place of the prediction there."""

    gpu: Name
    gpus: Count = 1
    tokens_per_s: Positive | None = None
    requests_per_s: Positive | None = None


class GpusForm(WorkloadPart):
    """How many GPUs one run may use."""

    min: Count = 1
    max: Count | None = None


class CheckpointForm(WorkloadPart):
    """How often the run saves its state."""

    every_minutes: Positive


class DatasetForm(WorkloadPart):
    """Data, in GB (10⁹ bytes), that must be where the work is."""

    gb: NotNegative
    provider: Name
    region: Name


class RequestSizeForm(WorkloadPart):
    """A share of all requests, and how long they are."""

    share: Annotated[Number, Field(gt=0, le=1)]
    input_tokens: Count
    output_tokens: Count


class TrafficForm(WorkloadPart):
    """Requests per second over time, and their lengths in tokens: of all, or of each size of a ``mix``."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    mix: Annotated[list[RequestSizeForm], Field(min_length=1)] | None = None
    shape: TrafficShape | None = None
    peak_requests_per_s: Positive | None = None
    trough_share: Share = 1.0
    peak_hour_utc: HourOfDay = 0.0
    hourly: Annotated[list[NotNegative], Field(min_length=1)] | None = None


class SloForm(WorkloadPart):
    """95th percentiles of time to first token and of the time between tokens."""

    ttft_p95_ms: Positive
    itl_p95_ms: Positive


class RedundancyForm(WorkloadPart):
    """Replicas in at least ``zones`` zones, and spares over demand."""

    zones: Count = 1
    spare_replicas: Annotated[int, BeforeValidator(_number), Field(ge=0)] = 0


class StartsForm(WorkloadPart):
    """When a service starts: after a run, or at a time."""

    after: Name | None = None
    at: str | None = None


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
    tokens: Positive
    sequence_length: Count
    global_batch_tokens: Positive
    precision: TrainingPrecision = "bf16"
    gpus: GpusForm = GpusForm()
    earliest_start: str | None = None
    deadline: str
    late_usd_per_hour: Usd | None = None
    headroom: NotNegative = 0.0
    checkpoint: CheckpointForm | None = None
    interruptible: bool = False
    dataset: DatasetForm | None = None


class ServingForm(WorkloadForm):
    """A service under a latency objective."""

    kind: Literal["serving"]
    precisions: Annotated[list[Precision], Field(min_length=1)] = [Precision.BF16]
    traffic: TrafficForm
    slo: SloForm
    redundancy: RedundancyForm = RedundancyForm()
    starts: Annotated[StartsForm | None, BeforeValidator(_starts)] = None
    weights: DatasetForm | None = None


class BatchForm(WorkloadForm):
    """Requests to answer by a deadline, without a latency objective."""

    kind: Literal["batch"]
    precisions: Annotated[list[Precision], Field(min_length=1)] = [Precision.BF16]
    requests: Positive
    input_tokens: Count
    output_tokens: Count
    earliest_start: str | None = None
    deadline: str


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
    "redundancy": RedundancyForm,
    "starts": StartsForm,
    "training": TrainingForm,
    "serving": ServingForm,
    "batch": BatchForm,
}

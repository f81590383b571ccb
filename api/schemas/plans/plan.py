"""Plans as JSON: ``broker plan --output``, ``broker check``, ``GET /v1/plans/{id}``.

Plan files may be those of an older version, so that what has a default may be left out of them.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from api.schemas.base.document import describe, input_error, read_json_document
from api.schemas.base.forms import Form
from api.schemas.base.parts import NotNegative, NotNegativeMoney
from api.schemas.base.validation import validated
from api.schemas.base.windows import SEGMENT, WINDOW_USE
from broker.domain.basics.estimate import Estimate, Parallelism, Provenance
from broker.domain.basics.node_launch import ColdStart
from broker.domain.basics.window import Segment
from broker.domain.market.billing import Block
from broker.domain.planning.patch import PatchOperation, PatchVerb
from broker.domain.planning.plan import (
    Alternative,
    Assumption,
    Baseline,
    CandidateCounts,
    ConfidencePrice,
    Fix,
    Obstacle,
    OfferPriceForecast,
    Placement,
    Plan,
    RunnerUp,
    Scarcity,
    SpendLine,
    Unplaced,
    Wait,
    Why,
)
from broker.domain.planning.recourse import Recourse
from broker.domain.planning.relaunch import Relaunch
from broker.domain.planning.stages import Stage
from broker.domain.planning.transfer import Transfer
from broker.domain.planning.window_use import WindowUse

EXPECTED_FORM = "a plan, as `broker plan --output` writes it"
Metrics = dict[str, float]

Form(
    CandidateCounts,
    name="CandidatesForm",
    about="How many candidates were evaluated, and how many passed the gates.",
)
Form(Parallelism, about="A parallel layout.", lenient=True)


class EstimateForm(BaseModel):
    """Metrics as flat numbers; ``low`` and ``high`` have the same names.

    ``at_confidence`` are those that hold with the workload's confidence, and ``expected_hours`` is the mean
    of ``hours``; both are absent where the workload is planned by medians.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: Metrics

    low: Metrics
    high: Metrics
    provenance: Provenance = Provenance.MODELLED
    at_confidence: Metrics | None = None
    expected_hours: NotNegative | None = None

    @model_validator(mode="after")
    def _same_metrics(self) -> EstimateForm:
        names = set(self.__pydantic_extra__)
        if names != set(self.low) or names != set(self.high):
            raise ValueError("the same metrics in the estimate, in low and in high")
        return self


def _estimate(form: EstimateForm) -> Estimate:
    return Estimate(
        form.__pydantic_extra__,
        form.low,
        form.high,
        form.provenance,
        form.at_confidence or {},
        form.expected_hours,
    )


def _metrics(estimate: Estimate) -> dict[str, Any]:
    return {
        **estimate.value,
        "low": dict(estimate.low),
        "high": dict(estimate.high),
        "provenance": str(estimate.provenance),
        **({"at_confidence": dict(estimate.at_confidence)} if estimate.at_confidence else {}),
        **({} if estimate.expected_hours is None else {"expected_hours": estimate.expected_hours}),
    }


def _value(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _removes_nothing(operation: dict[str, Any]) -> dict[str, Any]:
    return operation | {"value": None} if operation["op"] is PatchVerb.REMOVE else operation


Form(RunnerUp, about="The next best candidate, and why it was not chosen.")
Form(Alternative, about="One of the next best candidates.", optional={"later_hours": None})
Form(
    Why,
    about="The reasons for this placement; the fields after ``runner_up`` are additions.",
    types={
        "filtered": Annotated[
            dict[Obstacle, int],
            AfterValidator(lambda counts: tuple(counts.items())),
            PlainSerializer(lambda counts: {str(gate): count for gate, count in counts}),
        ],
    },
    optional={"binding": (), "filtered": Field(default_factory=dict)},
    lenient=True,
)
Form(
    Block,
    about="""
    An amount ``usd`` that a seller bills at once, ``at`` an instant, for ``nodes`` nodes: a minimum term, a
    day or a month of each. The nodes are held ``until`` the end of the block or earlier.""",
)
Form(
    ColdStart,
    about="""
    Parts of ``cold_start_s``, in seconds: from the order to a node that runs, to the image and the weights
    on its disk, to the first token. ``basis``: the source of ``launch_s``.""",
    types=dict.fromkeys(("launch_s", "image_s", "weights_s", "engine_s"), NotNegative),
)
Form(
    Transfer,
    about="Data that is copied from a provider for a placement; its ``cost_usd`` includes it.",
    types={"gb": NotNegative, "hours": NotNegative},
)
Form(
    Stage,
    about="""
    A part of a service's time: ``until`` an instant, replicas count by the rate that holds with its
    confidence (``confidence``), or by the median (``expected``).""",
)
Form(
    Recourse,
    about="""
    With ``chance`` a run's window or term does not suffice, and the rest runs on ``offer_id`` for ``hours``
    on average. The plan's ``recourse_usd`` sums chance × ``usd``; neither is in ``cost_usd``.""",
    types={"chance": Annotated[float, Field(ge=0, le=1)], "hours": NotNegative, "usd": NotNegativeMoney},
)
Form(
    Relaunch,
    about="""
    ``starts`` nodes are ordered later than their service begins, each with a ``chance`` of success. Of one
    that is not to be had, ``offer_id`` costs ``more_usd`` more, and what is not carried until then is worth
    ``missing_usd``. The plan's ``relaunch_usd`` sums what is expected of both.""",
    types={
        "starts": Annotated[int, Field(ge=1)],
        "chance": Annotated[float, Field(ge=0, le=1)],
        "more_usd": NotNegativeMoney,
        "missing_usd": NotNegativeMoney,
    },
)
Form(
    Placement,
    about="""One workload on one offer. Additions: ``window_use``, ``transfers``, ``work_share``,
    ``requests``, ``first_request``, ``engine``, ``cold_start``, ``disk_gb`` and ``memory_gb`` (null: the
    offer's default), ``billed_ahead``: the cost that is billed in blocks of more than an hour, and ``mode``:
    whether its seller was ``real`` or the ``sandbox``'s when the plan was made (null: not known).
    ``chance``: that the workload is done in time, or meets its objective in every hour of its first stage
    (null: not known). ``stages`` of a service: which rate of a replica counts until each instant; empty: the
    one that holds with its confidence. ``live_from``: when the first replica of a service answers (null: no
    service, or not known). ``recourse``: where a run goes on whose window does not suffice (null: it
    suffices). ``relaunch``: nodes that a service orders while it runs (null: none).""",
    types={
        "segments": tuple[Annotated[Segment, SEGMENT], ...],
        "window_use": Annotated[WindowUse, WINDOW_USE],
        "estimate": Annotated[
            EstimateForm, AfterValidator(_estimate), PlainSerializer(_metrics, return_type=EstimateForm)
        ],
        "work_share": Annotated[float, Field(gt=0, le=1)],
        "disk_gb": NotNegative,
        "memory_gb": NotNegative,
        "chance": Annotated[float, Field(ge=0, le=1)],
    },
    optional={"zone": None, "replicas": 1},
    lenient=True,
)
Form(
    PatchOperation,
    about="An operation of JSON Patch (RFC 6902) on the workloads document.",
    rename={"value_json": "value"},
    types={"value_json": Annotated[Any, AfterValidator(json.dumps), PlainSerializer(_value)]},
    unless_none=("value_json",),
    lenient=True,
    prepare=_removes_nothing,
)
Form(Fix, about="A change of the workloads document that lets the workload be placed, and its cost then.")
Form(
    Unplaced,
    about="A workload that is not placed. Addition: ``fixes``, the smallest change first.",
    lenient=True,
)
Form(
    Baseline,
    about="""
    The cost of a simpler strategy; null if it cannot run. Additions: ``completed``, false if its search was
    cut short; ``over_budget_usd``, the amount by which it exceeds the budget.""",
    lenient=True,
)
Form(
    Scarcity,
    about="The dual price of a contended offer: what one more node for one hour would save (an addition).",
)
Form(
    Wait,
    about="The cost of one service's wait for its run (an addition).",
    types={"usd_per_hour": NotNegativeMoney, "delay_usd": NotNegativeMoney},
)
Form(
    OfferPriceForecast,
    name="OutlookForm",
    about="The price forecast of an offer that is not bought yet; null: no history.",
    rename={f"{name}_usd": f"{name}_usd_per_node_hour" for name in ("p10", "p50", "p90")},
)
Form(
    Assumption,
    about="Nodes that a plan counts on although their number is unknown, and what the seller says of them.",
)
Form(
    SpendLine,
    about="""The cost of one workload, provider and tier in a part of a day.

    Additions: ``kind``, and ``billed_by``, the provider that bills data copied from it to ``provider``.
    """,
    lenient=True,
)
CONFIDENCE_PRICE = Form(
    ConfidencePrice,
    about="The costs of the same document with every workload planned at one confidence.",
    lenient=True,
)


class ConfidencePricesForm(BaseModel):
    """What the document of a plan costs at other confidences."""

    confidence_prices: list[Annotated[ConfidencePrice, CONFIDENCE_PRICE]]


PLAN = Form(
    Plan,
    about="""A whole plan. Additions: what is paid in the end, on average (``expected_cost_usd``) and at three
    quantiles (null in plans of earlier versions), and ``confidence_prices``, empty until they are told.""",
    rename={"price_forecasts": "outlooks"},
    types={
        "gap": Annotated[float, Field(allow_inf_nan=False)],
        "scarcity_usd_per_node_hour": dict[str, Annotated[float, Field(ge=0)]],
    },
    order=("penalty_usd delay_usd recourse_usd relaunch_usd solve_seconds",),
    lenient=True,
)


def read_plan(text: str, source: str) -> Plan:
    """The plan of a JSON text.

    Raises InputError: with the pointer of the whole document if it is not a plan, with the field's pointer if
    a field is wrong.
    """
    document = read_json_document(text, source)
    data = document.data
    if not isinstance(data, dict) or "plan_id" not in data or "placements" not in data:
        raise input_error(source, [document.problem("", describe(data), EXPECTED_FORM)])
    return validated(PLAN.read, document)

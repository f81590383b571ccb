"""First estimates of workloads as JSON."""

from __future__ import annotations

from typing import Annotated

from api.schemas.base.forms import Form, From
from api.schemas.base.parts import Money
from broker.domain.planning.cost_estimate import CostEstimate, GpuEstimate, WorkloadEstimate

Form(GpuEstimate)
Form(WorkloadEstimate, adds={"says": Annotated[str, From("says")]})
COST_ESTIMATE = Form(
    CostEstimate,
    adds={
        "cheapest_usd": Money,
        "median_usd": Money,
    },
)
CostEstimateForm = Annotated[CostEstimate, COST_ESTIMATE]

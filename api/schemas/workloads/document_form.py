"""A workloads document as a whole. Its workloads and policies are the dataclasses of the domain."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from broker.domain.planning.workload import Batch, Policy, Serving, Training
from broker.domain.workloads.document_fields import Confidence, Days, NotEmpty, OrNull, OrObject, Team, Usd


class WorkloadPart(BaseModel):
    """A part of a workloads document, and the dataclasses in it. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class HorizonForm(WorkloadPart):
    """The planning horizon. ``start``: a time, a date, ``now``, ``today``, ``tomorrow``, ``next-monday``."""

    start: str
    days: Days


class BudgetForm(WorkloadPart):
    """The most that may be spent over the horizon; with ``confidence``, the most that is paid in the end."""

    usd: Usd
    confidence: Confidence | None = None


AnyWorkload = Annotated[Training | Serving | Batch, Field(discriminator="kind")]


DEFAULT_CONFIDENCE = 0.8


class WorkloadsForm(WorkloadPart):
    """A whole workloads document."""

    team: Team
    horizon: HorizonForm
    budget: Annotated[BudgetForm, OrObject("usd", "number", 0)] | None = None
    policy: Annotated[Policy, OrNull] = Policy()
    confidence: Confidence = DEFAULT_CONFIDENCE
    workloads: Annotated[list[AnyWorkload], NotEmpty()]

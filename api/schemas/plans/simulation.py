"""Simulations and checks of plans as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.forms import Form, From, write
from api.schemas.base.times import Instant
from broker.domain.planning.simulation import (
    DRAWS,
    SEED,
    CostQuantiles,
    CostShare,
    Reason,
    SimulatedWorkload,
    Simulation,
)
from broker.ports.planning import PlanCheck

MOST_DRAWS = 10_000

Form(CostQuantiles)
Form(SimulatedWorkload)
Form(CostShare)
Form(Reason, name="SimulatedReasonForm")
SIMULATION = Form(Simulation, about="What may happen to a plan, over draws of what it does not know.")
SimulationForm = Annotated[Simulation, SIMULATION]


class PlanCheckForm(BaseModel):
    """Whether a plan keeps every rule, by a checker that never calls the planner.

    It is checked at the prices and with the stock that were known at ``prices_at``, when it was made.
    """

    plan_id: Annotated[str, From("plan.plan_id")]
    ok: Annotated[bool, From(lambda check: not check.violations)]
    prices_at: Annotated[Instant, From("plan.as_of")]
    violations: Annotated[list[str], From("violations")]


def check_to_document(check: PlanCheck) -> dict[str, Any]:
    """The JSON form of ``check`` as plain data."""
    return write(PlanCheckForm, check)


class SimulationRequest(BaseModel):
    """How often a plan is drawn, and the seed of the draws."""

    model_config = ConfigDict(extra="forbid")

    draws: Annotated[int, Field(ge=1, le=MOST_DRAWS)] = DRAWS
    seed: Annotated[int, Field(ge=0, lt=2**31)] = SEED

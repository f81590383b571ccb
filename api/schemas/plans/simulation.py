"""Simulations of plans as JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.forms import Form
from broker.domain.planning.simulation import (
    DRAWS,
    SEED,
    CostQuantiles,
    CostShare,
    Reason,
    SimulatedWorkload,
    Simulation,
)

MOST_DRAWS = 10_000

Form(CostQuantiles)
Form(SimulatedWorkload)
Form(CostShare)
Form(Reason, name="SimulatedReasonForm")
SIMULATION = Form(Simulation, about="What may happen to a plan, over draws of what it does not know.")
SimulationForm = Annotated[Simulation, SIMULATION]


class SimulationRequest(BaseModel):
    """How often a plan is drawn, and the seed of the draws."""

    model_config = ConfigDict(extra="forbid")

    draws: Annotated[int, Field(ge=1, le=MOST_DRAWS)] = DRAWS
    seed: Annotated[int, Field(ge=0, lt=2**31)] = SEED

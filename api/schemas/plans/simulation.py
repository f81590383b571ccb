"""Simulations of plans as JSON."""

from __future__ import annotations

from typing import Annotated

from api.schemas.base.forms import Form
from broker.domain.planning.simulation import CostQuantiles, Reason, SimulatedWorkload, Simulation

Form(SimulatedWorkload)
Form(CostQuantiles)
Form(Reason, name="SimulatedReasonForm")
SIMULATION = Form(Simulation, about="What may happen to a plan, over draws of what it does not know.")
SimulationForm = Annotated[Simulation, SIMULATION]

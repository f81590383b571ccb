"""Re-optimizations as JSON: looks, their moves, and what each saves and costs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from api.schemas.base.forms import Form, From, UtcInstant
from api.schemas.base.parts import Money
from broker.domain.moving.reoptimization import Move, MovingCost, PriceMove, Reoptimization, Risk
from broker.domain.moving.reoptimization_result import retry_at

Form(
    PriceMove,
    about="An offer's price per node-hour when the plan was made and now; null: not on sale.",
)
Form(Risk, about="What may go wrong.")
Form(
    MovingCost,
    about="What a move costs once: both places held, work done again, data that leaves; ``total_usd`` of it.",
    adds={"total_usd": Money},
)
Form(
    Move,
    about="""One workload that goes elsewhere. ``stay_usd``: what staying costs from now on (null: it cannot);
    ``saving_usd``: that less the new place; ``net_usd``: less ``cost`` too.""",
    adds={"net_usd": Money},
    order=("to_offers stay_usd saving_usd cost net_usd why prices",),
)
REOPTIMIZATION = Form(
    Reoptimization,
    about="""One look at one plan. ``before_usd``: what it costs from now on; ``after_usd``: with the moves;
    ``moving_costs_usd``: what they cost once; ``net_usd``: what is saved in the end. Of one that is
    ``unfinished``, ``guard_s``: the seconds within which it was not; ``retry_at``: when it is tried again.
    """,
    leave_out=("version",),  # guards writes of the store
    adds={
        "saving_usd": Money | None,
        "moving_costs_usd": Annotated[Money, From("cost_usd")],
        "net_usd": Money | None,
        "retry_at": Annotated[UtcInstant | None, From(retry_at)],
    },
    order=(
        "plan_id new_plan_id trigger",
        "state mode reason before_usd after_usd saving_usd moving_costs_usd net_usd lapses_at",
        "guard_s retry_at moves",
    ),
)
ReoptimizationForm = Annotated[Reoptimization, REOPTIMIZATION]


class RunningForm(BaseModel):
    """The answer to asking for a look."""

    status: Literal["running"]

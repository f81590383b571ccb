"""Re-optimizations as JSON: their moves, with the saving and cost of each."""

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
Form(Risk, about="A risk of a move.")
Form(
    MovingCost,
    about="One-time costs of a move: two places held at once, repeated work, egress; and the ``total_usd``.",
    adds={"total_usd": Money},
)
Form(
    Move,
    about="""The move of one workload. ``stay_usd``: what staying costs from now on (null: it cannot stay);
    ``saving_usd``: that less the cost of the new place; ``net_usd``: the saving less ``cost``.""",
    adds={"net_usd": Money},
    order=("to_offers stay_usd saving_usd cost net_usd why prices",),
)
REOPTIMIZATION = Form(
    Reoptimization,
    about="""Re-optimization of one plan. ``before_usd``: its cost from now on; ``after_usd``: with the moves;
    ``moving_costs_usd``: their one-time costs; ``net_usd``: the net saving. For an ``unfinished`` one,
    ``guard_s`` is the time limit in seconds that it exceeded, and ``retry_at`` the time of the next attempt.
    """,
    leave_out=("version",),  # the store's optimistic lock
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
    """The answer to a request for re-optimization."""

    status: Literal["running"]

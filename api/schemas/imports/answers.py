"""Starting points as JSON: what a source describes, and what of it is not used."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.forms import Form
from api.schemas.imports.starting_points import MOST_CHARACTERS, StartingPoint
from broker.domain.basics.left_out import LeftOut
from broker.domain.planning.workload import WorkloadKind


class StartingPointQuestion(BaseModel):
    """A source: a ``config.json``, a task or manifest, or the command of a server or of a training run."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
    kind: WorkloadKind | None = None


Form(LeftOut)
STARTING_POINT = Form(
    StartingPoint,
    about="The workload that a source describes, for a workloads document.",
)
StartingPointForm = Annotated[StartingPoint, STARTING_POINT]

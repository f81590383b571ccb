"""Networks of sellers as JSON: what is asked for, and what is there or missing."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.forms import Form
from broker.domain.holding.seller_network import NetworkPart, NetworkPlan
from broker.domain.workloads.document_fields import TRIMMED

MOST_SOURCES, MOST_REGIONS = 50, 100
Word = Annotated[str, Field(min_length=1, max_length=100, pattern=TRIMMED)]


class NetworkRequest(BaseModel):
    """A network for machines of a seller, reached from ``sources``.

    ``regions`` null: those that the seller is configured for. With ``dry_run`` nothing is made.
    """

    model_config = ConfigDict(extra="forbid")

    sources: Annotated[list[Word], Field(min_length=1, max_length=MOST_SOURCES)]
    regions: Annotated[list[Word], Field(max_length=MOST_REGIONS)] | None = None
    dry_run: bool = False


Form(NetworkPart)
NETWORK_PLAN = Form(NetworkPlan)
NetworkPlanForm = Annotated[NetworkPlan, NETWORK_PLAN]

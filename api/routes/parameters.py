"""Parameters that several routes have, with their descriptions for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from broker.domain.spend.budgets import BudgetPeriod
from broker.domain.spend.spend import CostView, Interval

LARGEST_SEED = 2**31 - 1

PlanId = Annotated[str, Path(description="The `plan_id` of a plan")]
OfferId = Annotated[str, Path(description="The `offer_id` of an offer")]
ReservationId = Annotated[str, Path(description="The `reservation_id` of a reservation")]
ReoptimizationId = Annotated[str, Path(description="The `reoptimization_id` of a re-optimization")]
SshKeyId = Annotated[str, Path(description="The `key_id` of a public SSH key")]
KeyId = Annotated[str, Path(description="The `key_id` of an API key, which is not its secret")]
WebhookId = Annotated[str, Path(description="The `webhook_id` of a webhook")]
ExportId = Annotated[str, Path(description="The `export_id` of a file that is written in the background")]
Period = Annotated[
    BudgetPeriod, Path(description="The period of the budget: a month, a quarter or a horizon")
]

OfTeam = Annotated[
    str | None,
    Query(description="Only objects of this team. A team's key is refused (403) for another team's"),
]
OfPlan = Annotated[str | None, Query(description="Only reservations of the plan with this `plan_id`")]
ProviderName = Annotated[str, Path(description="The key of a configured provider, such as `aws`")]
ProviderWords = Annotated[str | None, Query(description="Only these providers, by their keys")]
GpuWords = Annotated[
    str | None, Query(description="GPUs: a name, a family such as `H100`, or a pattern such as `H100*`")
]
TierWords = Annotated[
    str | None, Query(description="`on_demand`, `spot`, `committed` or `window`, or several of them")
]
Seed = Annotated[
    int,
    Query(ge=0, le=LARGEST_SEED, description="Seed of random draws: equal seeds give equal answers"),
]
View = Annotated[
    CostView,
    Query(description="`amortized` counts costs when capacity is used, `cash` when the provider bills them"),
]
Every = Annotated[Interval, Query(description="Length of the periods of the sums")]

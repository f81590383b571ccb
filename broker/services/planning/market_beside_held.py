"""The market that a request may use: what open reservations leave of the offers and of the quotas."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.window import Window
from broker.domain.holding.cost_of_keeping import held_of
from broker.domain.holding.quotas import held_beside
from broker.domain.planning.workload import PlanRequest
from broker.domain.reconciling.held_offers import less_others, with_held
from broker.ports.unit_of_work import UnitOfWorkFactory
from broker.services.market.usable_offers import OfferRules, UsableMarket, usable_market


async def market_beside_held(
    uow_factory: UnitOfWorkFactory,
    request: PlanRequest,
    now: datetime,
    rules: OfferRules,
    instead_of: str | None = None,
) -> tuple[PlanRequest, UsableMarket]:
    """The request with the held capacity that counts against quotas, and the offers with the stock that
    all reservations leave to it.

    ``instead_of`` is the plan in whose place the request would be: what that plan holds is there for it.
    """
    async with uow_factory(EVERY_TEAM) as uow:
        market = await usable_market(uow, now, rules)
        rows = await uow.reservations.find_open()
        replaced = () if instead_of is None else await uow.plans.find_lineage(instead_of)
    if now < request.horizon.end:
        during = Window(max(now, request.horizon.start), request.horizon.end)
        others = [row for row in rows if row.plan_id not in replaced]
        held = (one for row in rows if row.plan_id in replaced if (one := held_of(row)) is not None)
        offers = with_held(less_others(market.offers, others, during), held)
        market = replace(market, offers=offers)
    return replace(request, held=held_beside(request, rows)), market

"""The market that a request may use: what open reservations leave of the offers and of the quotas."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.window import Window
from broker.domain.holding.quotas import held_beside
from broker.domain.planning.workload import PlanRequest
from broker.domain.reconciling.held_offers import less_others
from broker.ports.unit_of_work import UnitOfWorkFactory
from broker.services.market.usable_offers import OfferRules, UsableMarket, usable_market


async def market_beside_held(
    uow_factory: UnitOfWorkFactory, request: PlanRequest, now: datetime, rules: OfferRules
) -> tuple[PlanRequest, UsableMarket]:
    """The request with the held capacity that counts against quotas, and the offers with the stock that
    all reservations leave to it.
    """
    async with uow_factory(EVERY_TEAM) as uow:
        market = await usable_market(uow, now, rules)
        rows = await uow.reservations.find_open()
    if now < request.horizon.end:
        during = Window(max(now, request.horizon.start), request.horizon.end)
        market = replace(market, offers=less_others(market.offers, rows, during))
    return replace(request, held=held_beside(request, rows)), market

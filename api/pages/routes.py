"""The pages' routes: the overview here, each other page in a file of its own."""

from __future__ import annotations

from itertools import chain, islice

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages import reference_pages
from api.pages.administration import (
    audit_pages,
    key_pages,
    settings_pages,
    ssh_key_pages,
    tabs,
    webhook_pages,
)
from api.pages.finance import export_pages, finance_pages, spend_pages
from api.pages.finance.budget_view import budget_rows
from api.pages.help import help_pages
from api.pages.market import market_pages, offer_pages
from api.pages.parts.cards import market_card, overview_cards
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import AnyVisitor
from api.pages.plans import (
    approval_pages,
    chance_pages,
    new_plan_pages,
    plan_pages,
    proposal_pages,
    reservation_pages,
    what_if_pages,
)
from api.pages.plans.plan_view import plan_row, title_of
from api.pages.plans.proposal_pages import is_of_reserved, records_of
from api.plan_requests import find_holdings
from broker.domain.basics.account import Scope
from broker.ports.planning import BusinessStatus

SHOWN_LOOKS, LOOKED_THROUGH, SHOWN_PROPOSALS = 8, 50, 3

router = page_router()


@router.get("/")
async def overview(request: Request, caller: AnyVisitor) -> Response:
    """The overview: what is known, planned and held now."""
    product = product_of(request)
    feeds = await product.offers.find_feeds()
    as_of = await product.offers.find_as_of()
    if not caller.may(Scope.PLANS_READ):
        cards = (market_card(feeds),)
        return show(request, "overview.html", "Overview", cards=cards, as_of=as_of)
    plans = await product.planning.find_current_plans(caller)
    held = await product.reservations.find_every(caller, open_only=True)
    found = await product.reoptimize.find_reoptimizations(caller, LOOKED_THROUGH)
    proposed = await product.reoptimize.find_proposed(caller)
    records = await records_of(product, caller, (*proposed, *found.items))
    others = (look for look in found.items if look not in proposed and is_of_reserved(look, records))
    looks = list(islice(chain(proposed, others), SHOWN_LOOKS))
    statuses = await product.planning.find_business_statuses(plans)
    now = product.clock.now()
    holdings = await find_holdings(product, caller, plans, statuses)
    rows = [
        plan_row(record, now, statuses.get(record.plan_id), holdings.get(record.plan_id)) for record in plans
    ]
    budgets = await product.budgets.find_statuses(caller) if caller.may(Scope.SPEND_READ) else ()
    return show(
        request,
        "overview.html",
        "Overview",
        cards=overview_cards(feeds, plans, statuses, held, now),
        budgets=budget_rows(budgets),
        plans=rows,
        waiting=sum(row.standing is BusinessStatus.WAITING for row in rows),
        proposed=proposed[:SHOWN_PROPOSALS],
        looks=looks,
        titles={plan_id: title_of(record) for plan_id, record in records.items()},
        drafts={look.plan_id for look in looks if not is_of_reserved(look, records)},
        as_of=as_of,
    )


for room in (
    what_if_pages,  # before plan_pages: /plans/compare is no plan
    new_plan_pages,  # nor is /plans/new
    plan_pages,
    chance_pages,
    approval_pages,
    reservation_pages,
    proposal_pages,
    spend_pages,
    export_pages,
    finance_pages,
    offer_pages,
    market_pages,
    reference_pages,  # before help_pages: its path is one of theirs
    help_pages,
    tabs,
    key_pages,
    ssh_key_pages,
    webhook_pages,
    audit_pages,
    settings_pages,
):
    router.include_router(room.router)

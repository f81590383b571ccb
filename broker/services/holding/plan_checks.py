"""What is asked of a plan before it is reserved: its offers, their prices, and the limits of its document."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from broker.domain.basics.errors import Conflict, FieldProblem, NotFound, OverBudget, StalePlan
from broker.domain.basics.money import ZERO, format_usd, usd_words
from broker.domain.holding.early_holding import Hold
from broker.domain.holding.holding_orders import find_drifts, placement_cost_usd
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import BudgetWatch, PlanRecord, PlanState
from broker.ports.unit_of_work import UnitOfWork


async def unreserved(uow: UnitOfWork, record: PlanRecord) -> Plan:
    """The plan of ``record``. Raises Conflict if it has nothing to reserve, or is reserved."""
    if record.plan is None or record.state not in (PlanState.DONE, PlanState.PROPOSED):
        raise Conflict(f"plan {record.plan_id} is {record.state}, so it cannot be reserved")
    if not record.plan.placements:
        raise Conflict(f"plan {record.plan_id} has no placements, so there is nothing to reserve")
    if any(other.plan_id == record.plan_id for other in await uow.reservations.find_open()):
        raise Conflict(f"plan {record.plan_id} is already reserved")
    return record.plan


async def offers_of(uow: UnitOfWork, plan: Plan) -> dict[str, Offer]:
    """The offers of ``plan`` that are on sale, by id."""
    offers = {}
    for offer_id in {placement.offer_id for placement in plan.placements}:
        try:
            offers[offer_id] = await uow.offers.find_offer(offer_id)
        except NotFound:
            continue
    return offers


async def doubts_of(uow: UnitOfWork, offer_ids: Collection[str]) -> dict[str, str]:
    """Why those of ``offer_ids`` that are in quarantine are there, by id."""
    entries = await uow.quarantine.find(None) if offer_ids else ()
    return {one.offer.offer_id: one.reason for one in entries if one.offer.offer_id in offer_ids}


async def require_prices(uow: UnitOfWork, plan: Plan, offers: Mapping[str, Offer], tolerance: float) -> None:
    """Raises StalePlan if a placement costs more than the share ``tolerance`` above its plan, or is gone."""
    gone = {placement.offer_id for placement in plan.placements} - offers.keys()
    drifts = find_drifts(plan, offers, tolerance, await doubts_of(uow, gone))
    if drifts:
        words = "; ".join(str(drift) for drift in drifts)
        problems = (drift.as_problem() for drift in drifts)
        if any(drift.now_usd is not None for drift in drifts):
            words += f" (more than {tolerance:.1%} is not accepted)"
        raise StalePlan(f"plan {plan.plan_id}: {words}; plan again: POST /v1/plans").naming(*problems)


def require_in_document(
    request: PlanRequest, plan: Plan, offers: Mapping[str, Offer], now: datetime, hold: Hold
) -> None:
    """Raises StalePlan if the horizon of ``request`` is over, and OverBudget if ``plan``, as it is to be
    held, costs more than its budget at the prices of ``offers``.
    """
    if request.horizon.end <= now:
        over = f"{request.horizon.end:%Y-%m-%d %H:%M} UTC"
        raise StalePlan(f"the horizon of plan {plan.plan_id} ended at {over}; plan again: POST /v1/plans")
    budget = request.budget_usd
    cost = sum((placement_cost_usd(p, offers[p.offer_id]) for p in plan.placements), ZERO)
    if budget is not None and cost > budget:
        when = "if it is held now" if hold is Hold.NOW else "now"
        way = f"at most {usd_words(budget)}, the budget; raise it and plan again: POST /v1/plans"
        raise OverBudget(
            f"plan {plan.plan_id} costs {usd_words(cost)} {when}, the budget is {usd_words(budget)}"
        ).naming(FieldProblem("/cost_usd", format_usd(cost), way))


async def require_hold_within_budgets(
    budgets: BudgetWatch | None, record: PlanRecord, plan: Plan, held: Plan
) -> None:
    """Raises OverBudget if ``plan``, held early as ``held``, would exceed a budget, or the limit of what
    needs an approval: finance approves what a plan costs, not what holding it early adds.
    """
    why = () if budgets is None or held is plan else await budgets.find_overruns_of_hold(record, plan, held)
    if why:
        way = "order it at its start (hold: at_start), or ask for a plan that starts now (POST /v1/plans)"
        raise OverBudget(f"{'; '.join(why)}: {way}").naming(
            FieldProblem("/hold", "now", "at_start, or a plan that starts now, which finance can approve")
        )

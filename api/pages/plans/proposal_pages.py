"""Re-optimization: its results and proposals, and starting one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from fastapi import Request
from fastapi.responses import Response

from api.bootstrap import Product
from api.http.dependencies import product_of
from api.pages.parts.forms import act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import PlanVisitor, PlanWritingVisitor
from api.pages.parts.words import usd
from api.pages.plans.plan_view import title_of
from api.sections import Card
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import NotFound
from broker.domain.basics.money import ZERO
from broker.domain.moving.reoptimization import Reoptimization
from broker.ports.planning import PlanRecord

SHOWN = 50
DONE: Mapping[str, str] = {
    "looking": "Every current plan is looked at again; load this page in a moment.",
    "accepted": "Accepted. Its plan is the one in force, and its moves begin with the next pass.",
    "rejected": "Rejected. Everything stays where it is.",
}

router = page_router()


async def records_of(
    product: Product, caller: Caller, looks: Iterable[Reoptimization]
) -> dict[str, PlanRecord]:
    """The plans that were looked at, by id; without those that are gone."""
    found: dict[str, PlanRecord] = {}
    for plan_id in {look.plan_id for look in looks}:
        try:
            found[plan_id] = await product.planning.find_plan(caller, plan_id)
        except NotFound:
            continue
    return found


def is_of_reserved(look: Reoptimization, records: Mapping[str, PlanRecord]) -> bool:
    """Whether the plan that was looked at was reserved. Of a draft there is nothing to move."""
    record = records.get(look.plan_id)
    return record is None or record.reserved_at is not None


@router.get("/proposals")
async def proposals_page(
    request: Request, caller: PlanVisitor, cursor: str | None = None, done: str = ""
) -> Response:
    """Re-optimizations, newest first, with what each would change."""
    product = product_of(request)
    page = await product.reoptimize.find_reoptimizations(caller, SHOWN, cursor)
    records = await records_of(product, caller, page.items)
    return show(
        request,
        "proposals.html",
        "Proposals",
        looks=page.items,
        titles={plan_id: title_of(record) for plan_id, record in records.items()},
        drafts={look.plan_id for look in page.items if not is_of_reserved(look, records)},
        notice=DONE.get(done, ""),
        next_cursor=page.next_cursor,
        proof=proof_of(request),
        once=new_once(),
    )


@router.get("/proposals/{reoptimization_id}")
async def proposal_page(
    request: Request, caller: PlanVisitor, reoptimization_id: str, done: str = ""
) -> Response:
    """One re-optimization: each move with its costs and risks, and the decision."""
    product = product_of(request)
    look = await product.reoptimize.find_one(caller, reoptimization_id)
    records = await records_of(product, caller, [look])
    stays = all(move.stay_usd is not None for move in look.moves)
    net_usd = sum((move.net_usd for move in look.moves), ZERO) if stays else None
    return show(
        request,
        "proposal.html",
        "Proposal",
        look=look,
        heading=title_of(records[look.plan_id]) if look.plan_id in records else "Proposal",
        cards=_cards(look, net_usd),
        net_usd=net_usd,
        notice=DONE.get(done, ""),
        proof=proof_of(request),
        once=new_once(),
    )


def _cards(look: Reoptimization, net_usd: Decimal | None) -> tuple[Card, ...]:
    """Cards of the sums. ``net_usd`` is None where something cannot stay, so nothing can be compared."""
    good = net_usd is not None and net_usd > 0
    moving = sum((move.cost.total_usd for move in look.moves), ZERO)
    return (
        Card(
            "Net saving",
            usd(net_usd),
            "it cannot stay where it is" if net_usd is None else "once moving is paid",
            "good" if good else "",
            lead=True,
        ),
        Card("As it is, from now on", usd(look.before_usd), "at the prices of the look"),
        Card("With the moves", usd(look.after_usd), "what moving costs apart"),
        Card("Moving costs once", usd(moving), "overlap, work done again, data"),
    )


@router.post("/proposals/look")
async def reoptimize_again(request: Request, caller: PlanWritingVisitor) -> Response:
    """Re-optimizes every current plan of the visitor now."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        product = product_of(request)
        product.background.start(product.reoptimize.run_for(named))
        return "/proposals?done=looking"

    return await act_once(request, caller, form, act)


@router.post("/proposals/{reoptimization_id}/accept")
@router.post("/proposals/{reoptimization_id}/reject")
async def decide(request: Request, caller: PlanVisitor, reoptimization_id: str) -> Response:
    """Accepts the proposal, whose moves begin with the next pass of the reconciler, or rejects it: everything
    stays where it is."""
    form, page = await read_form(request), f"/proposals/{reoptimization_id}"
    accepted = request.url.path.endswith("/accept")

    async def act(named: Caller) -> str:
        proposals = product_of(request).proposals
        await (proposals.accept if accepted else proposals.reject)(named, reoptimization_id)
        return f"{page}?done={'accepted' if accepted else 'rejected'}"

    return await act_once(request, caller, form, act, lambda _: page)

"""Re-optimization: what new looks at plans found, and looking again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastapi import Request
from fastapi.responses import Response

from api.bootstrap import Product
from api.dependencies import product_of
from api.pages.forms import act_once, new_once, proof_of, read_form
from api.pages.plan_view import title_of
from api.pages.rendering import page_router, show
from api.pages.session import PlanVisitor, PlanWritingVisitor
from broker.domain.account import Caller
from broker.domain.errors import NotFound
from broker.domain.reoptimization import Reoptimization

SHOWN = 50
DONE: Mapping[str, str] = {"looking": "Every current plan is looked at again; load this page in a moment."}

router = page_router()


async def titles_of(product: Product, caller: Caller, looks: Iterable[Reoptimization]) -> dict[str, str]:
    """What the looked-at plans are called, by id."""
    titles: dict[str, str] = {}
    for plan_id in {look.plan_id for look in looks}:
        try:
            titles[plan_id] = title_of(await product.planning.find_plan(caller, plan_id))
        except NotFound:
            continue
    return titles


@router.get("/proposals")
async def proposals_page(
    request: Request, caller: PlanVisitor, cursor: str | None = None, done: str = ""
) -> Response:
    """Looks at plans, newest first, with what each would change."""
    product = product_of(request)
    page = await product.reoptimize.find_reoptimizations(caller, SHOWN, cursor)
    return show(
        request,
        "proposals.html",
        "Proposals",
        looks=page.items,
        titles=await titles_of(product, caller, page.items),
        notice=DONE.get(done, ""),
        next_cursor=page.next_cursor,
        proof=proof_of(request),
        once=new_once(),
    )


@router.post("/proposals/look")
async def look_again(request: Request, caller: PlanWritingVisitor) -> Response:
    """Looks at every current plan of the visitor again, beside the timetable."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        product = product_of(request)
        product.background.start(product.reoptimize.run_for(named))
        return "/proposals?done=looking"

    return await act_once(request, caller, form, act)

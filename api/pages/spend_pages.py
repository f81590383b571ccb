"""Spend: projected and actual, by group and period."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Request
from fastapi.responses import Response

from api.dependencies import product_of
from api.pages import spend_view
from api.pages.rendering import page_router, show
from api.pages.session import SpendVisitor
from broker.domain.spend import GROUPS, Interval

router = page_router()


@router.get("/spend")
async def spend_page(
    request: Request,
    caller: SpendVisitor,
    since: Annotated[str | None, Query(alias="from")] = None,
    until: Annotated[str | None, Query(alias="to")] = None,
    interval: Interval = Interval.DAY,
    group_by: str = "team",
) -> Response:
    """Projected spend by group and period: chart and table of the same figures."""
    product = product_of(request)
    now = product.clock.now()
    group = group_by if group_by in GROUPS else "team"
    window, notice = spend_view.wished_window(since, until, now)
    charges = await product.spend.charges(caller, window)
    table = spend_view.spend_table(charges, interval, group)
    query = {
        "from": f"{window.start:%Y-%m-%d}",
        "to": f"{window.end:%Y-%m-%d}",
        "interval": interval.value,
        "group_by": group,
    }
    return show(
        request,
        "spend.html",
        "Spend",
        window=window,
        notice=notice,
        presets=spend_view.presets(now, interval, group),
        interval=interval.value,
        intervals=[one.value for one in Interval],
        group_by=group,
        groups=GROUPS,
        csv_url=f"/v1/spend/projection.csv?{urlencode(query)}",
        cards=spend_view.spend_cards(charges, table, window),
        table=table,
        as_of=await product.offers.find_as_of(),
    )

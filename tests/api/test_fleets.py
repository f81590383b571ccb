"""A fleet is one thing: over the API, on the page and in the terminal the same lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from api.pages.plans.reservation_view import progress_words
from api.reserved_fleets import grouped_fleets
from api.schemas.holding.reservation import ReservationForm
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from tests.api.house import ADMIN_KEY, Home
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer

S = ReservationState
HOUR = timedelta(hours=1)
FLEETS = "/v1/reservations/fleets"


def a_row(name: str, begin: float, end: float | None, nodes: int, **more: Any) -> Reservation:
    """Nodes at $10 an hour from ``begin`` to ``end`` hours after noon; what has begun is held."""
    is_held = begin <= 0
    unit = Unit(0, f"tag-{name}", nodes, UnitState.PLANNED)
    if is_held:
        unit = replace(unit, state=UnitState.HELD, reference=f"i-{name}", ordered_at=NOON + begin * HOUR)
    row = Reservation(
        reservation_id=f"rsv-{name}",
        team="research",
        state=S.ACTIVE if is_held else S.SCHEDULED,
        offer=an_offer(price="10"),
        nodes=nodes,
        start=NOON + begin * HOUR,
        end=None if end is None else NOON + end * HOUR,
        units=(unit,),
        created_at=NOON - 3 * HOUR,
        workload="chat",
        plan_id="plan-1",
        active_at=NOON + begin * HOUR if is_held else None,
    )
    return replace(row, **more)


ROWS = (
    a_row("base", -1, 8, 2),
    a_row("peak", 2, 4, 3),
    a_row("late", 5, 6, 1),
    a_row("gone", 1, 2, 4, state=S.FAILED, reason="no stock", created_at=NOON - 4 * HOUR),
    a_row("alone", 1, None, 5, plan_id=None, created_at=NOON),
    a_row("theirs", 1, 2, 6, plan_id=None, team="product"),
)


async def stored(home: Home) -> None:
    plan = a_plan(a_placement(an_offer(price="10"), [a_segment(0, 8)], "chat"))
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(a_record(plan))
        for row in ROWS:
            await uow.reservations.add(row)
        await uow.commit()


async def test_a_fleet_is_one_item_with_its_sizes_and_money(home: Home) -> None:
    """Owed: 2 nodes for the hour before noon. Expected: 2 × 8 + 3 × 2 + 1 × 1 node-hours at $10."""
    await stored(home)
    team = await home.team("research")
    (fleet,) = (await team.get(FLEETS, params={"open": "true", "plan_id": "plan-1"})).json()["items"]
    assert fleet == {
        "team": "research",
        "plan_id": "plan-1",
        "workload": "chat",
        "offer_id": "o-1",
        "provider": "fake",
        "sku": "sku-o-1",
        "region": fleet["region"],
        "gpu": fleet["gpu"],
        "gpus_per_node": 8,
        "tier": "on_demand",
        "state": "active",
        "reason": "",
        "nodes": 2,
        "next_change": {"at": "2026-11-23T14:00:00Z", "nodes": 5},
        "least_nodes": 2,
        "most_nodes": 5,
        "start": "2026-11-23T11:00:00Z",
        "end": "2026-11-23T20:00:00Z",
        "price_usd_per_node_hour": "10",
        "mode": None,
        "owed_usd": "20.00",
        "expected_usd": "230.00",
        "reservation_ids": ["rsv-base", "rsv-peak", "rsv-late"],
    }


async def test_what_is_over_stands_apart_and_the_newest_come_first(home: Home) -> None:
    await stored(home)
    team = await home.team("research")
    items = (await team.get(FLEETS)).json()["items"]
    assert [one["reservation_ids"][0] for one in items] == ["rsv-alone", "rsv-base", "rsv-gone"]
    assert [(one["state"], one["reason"]) for one in items][-1] == ("failed", "no stock")
    assert (items[0]["end"], items[0]["expected_usd"]) == (None, "0")


async def test_fleets_come_in_parts(home: Home) -> None:
    await stored(home)
    team = await home.team("research")
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while cursor is not None or not found:
        query = {"limit": "1"} | ({} if cursor is None else {"cursor": cursor})
        part = (await team.get(FLEETS, params=query)).json()
        assert len(part["items"]) == 1
        found += part["items"]
        cursor = part["next_cursor"]
    assert found == (await team.get(FLEETS)).json()["items"]
    assert len(found) == 3


async def test_fleets_of_another_team_do_not_exist(home: Home) -> None:
    await stored(home)
    theirs = await home.team("product")
    assert (await theirs.get(FLEETS, params={"team": "research"})).status_code == 403
    for query in ({}, {"team": "product"}, {"plan_id": "plan-1"}, {"open": "true"}):
        shown = [
            key
            for one in (await theirs.get(FLEETS, params=query)).json()["items"]
            for key in one["reservation_ids"]
        ]
        assert shown in ([], ["rsv-theirs"]), query
        assert ("plan_id" in query) <= (not shown)


async def test_the_page_and_the_terminal_tell_the_same_lines(home: Home) -> None:
    await stored(home)
    client = home.client()
    told = [
        (one["reservation_ids"], one["nodes"], one["least_nodes"], one["most_nodes"])
        for one in (await client.get(FLEETS)).json()["items"]
    ]
    rows = [ReservationForm(**one) for one in (await client.get("/v1/reservations")).json()["items"]]
    lines = grouped_fleets(rows, lambda row: row.offer_id, NOON)
    terminal = [([r.reservation_id for r in one.rows], one.nodes, one.least, one.most) for one in lines]
    assert sorted(terminal) == sorted(told)
    visitor = home.client(None)
    await visitor.post("/signin", data={"key": ADMIN_KEY})
    page = (await visitor.get("/reservations")).text
    assert page.count('data-label="State"') == len(told)
    assert re.search(r"2 nodes now, 5 from .*14:00", re.sub(r"<[^>]+>", "", page))


HELD, SCHEDULED, PENDING, RELEASING = (
    a_row("one", begin, 3, 1, state=state)
    for begin, state in ((0, S.HELD), (1, S.SCHEDULED), (1, S.PENDING), (0, S.RELEASING))
)
BOUGHT_EARLY = replace(HELD, state=S.SCHEDULED)


@pytest.mark.parametrize(
    ("rows", "releasing", "says", "is_done"),
    [
        ((), None, "Checking prices, stock and budgets", False),
        ((HELD, PENDING, PENDING), None, "1 of 3 orders placed", False),
        ((HELD, SCHEDULED, SCHEDULED), None, "1 of 1 order placed; ordered at their start: 2", True),
        ((BOUGHT_EARLY, SCHEDULED), None, "1 of 1 order placed; ordered at their start: 1", True),
        ((SCHEDULED,), None, "Nothing is ordered now; ordered at their start: 1", True),
        ((HELD, HELD, RELEASING), 4, "2 of 4 released, 1 seen gone at their sellers", False),
        ((RELEASING,), 4, "4 of 4 released, 3 seen gone at their sellers", False),
        ((), 4, "4 of 4 released, 4 seen gone at their sellers", True),
    ],
)
def test_progress_counts_what_is_done(
    rows: Sequence[Reservation], releasing: int | None, says: str, is_done: bool
) -> None:
    assert progress_words(rows, releasing) == (says, is_done)

"""The list of reservations follows what happens, and leaves the reader where they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer
from tests.pages.conftest import Open, Site

pytestmark = pytest.mark.xdist_group("browser")

HOUR = timedelta(hours=1)


PLAN = replace(a_plan(a_placement(an_offer(), [a_segment(0, 10)], "followed")), plan_id="plan-live")


def a_step(number: int, workload: str, made_at: datetime) -> Reservation:
    """A step of a fleet: one node more, from one hour later on."""
    unit = Unit(0, f"t-{workload}-{number}", 1, UnitState.PLANNED)
    return Reservation(
        f"rsv-{workload}-{number}", "research", ReservationState.SCHEDULED, an_offer(), 1,
        NOON + number * HOUR, NOON + 300 * HOUR, (unit,), made_at, workload=workload, plan_id=PLAN.plan_id,
    )  # fmt: skip


async def planned(site: Site) -> None:
    async with site.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(a_record(PLAN))
        await uow.commit()


async def store(site: Site, *rows: Reservation) -> None:
    async with site.product.store.unit_of_work(EVERY_TEAM) as uow:
        for row in rows:
            await uow.reservations.add(row)
        await uow.commit()


def refreshed(page: Page) -> None:
    """The list fetches itself, as its timer has it do."""
    with page.expect_response(lambda answer: answer.url.endswith("/reservations")) as answer:
        page.locator("#live").dispatch_event("refresh")
    assert answer.value.ok
    answer.value.finished()


def test_what_is_open_stays_open_and_keeps_the_focus(shop: Site, shopping: Open) -> None:
    shop.run(planned(shop))
    soon = shop.product.clock.now() + timedelta(minutes=1)  # others have used this shop before
    shop.run(store(shop, *(a_step(number, "followed", soon) for number in range(3))))
    page = shopping(who="team")
    page.goto("/reservations")
    row = page.get_by_role("row").filter(has_text="followed")
    summary = row.get_by_text("Each of them")
    summary.focus()
    page.keyboard.press("Enter")
    steps = row.get_by_role("listitem")
    expect(steps).to_have_count(3)
    expect(page.get_by_role("status").first).to_contain_text("Latest change: followed, 1 node")
    shop.run(store(shop, a_step(3, "followed", soon), a_step(0, "another", soon)))
    refreshed(page)
    expect(page.get_by_role("row").filter(has_text="another")).to_be_visible()
    expect(steps).to_have_count(4)
    expect(steps.first).to_be_visible()
    expect(summary).to_be_focused()
    page.keyboard.press("Enter")
    expect(steps.first).to_be_hidden()
    refreshed(page)
    expect(steps.first).to_be_hidden()
    expect(row).to_contain_text("1 to 4 nodes, 4 steps")

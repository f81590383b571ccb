"""Journeys in a real browser: from a wish to money that is spent, and back; with and without scripts."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.api.house import DOCUMENT
from tests.fakes.clock import FakeClock
from tests.pages.conftest import DESK, GATE, PHONE, Open, Site
from tests.pages.seeding import RESEARCH_PLAN

pytestmark = pytest.mark.xdist_group("browser")

NOTE = """() => setInterval(() => {
    const form = document.querySelector('form[action$="/release"]');
    const told = form.querySelector('[role=status]').textContent;
    localStorage.setItem('told', `${told}; ${form.querySelector('button').disabled}`);
}, 50)"""
"""Notes what the page says while it is being left: Playwright itself waits for the page that comes."""
NOTED = "() => (localStorage.getItem('told') || '').startsWith('1 of 1') && localStorage.getItem('told')"
SERIOUS = frozenset({"serious", "critical"})
DAY_HOURS = 24


def wish(name: str) -> str:
    """A workloads document of one run that begins now: ten hours at $20.50."""
    workload = {**DOCUMENT["workloads"][0], "name": name}
    return json.dumps({**DOCUMENT, "horizon": {"start": "now", "days": 7}, "workloads": [workload]})


def asked(page: Page, name: str) -> str:
    """Asks for a plan on the page for it; the plan's address once it is made."""
    page.goto("/plans/new?view=document")
    page.get_by_label("Workloads, as YAML or JSON").fill(wish(name))
    page.get_by_role("button", name="Make a plan").click()
    page.wait_for_url(re.compile(r"/plans/plan-"))
    expect(page.get_by_role("heading", name="Placements")).to_be_visible()
    return page.url.partition("?")[0]


def cards(page: Page) -> dict[str, str]:
    """Figures of the page's first strip, by name."""
    strip = page.locator("dl.cards").first
    names, told = strip.locator("dt").all_inner_texts(), strip.locator(".figure").all_inner_texts()
    return dict(zip(names, told, strict=True))


def test_from_a_wish_to_spend_and_back(shop: Site, shopping: Open) -> None:
    team, finance = shopping(who="team"), shopping(who="finance")
    plan = asked(team, "journey-8b")
    expect(team.get_by_text("Waits for approval.")).to_be_visible()
    expect(team.get_by_text("over the limit of $100.00 per plan")).to_be_visible()
    expect(team.get_by_text("Approve $205.00…")).to_have_count(0)

    finance.goto("/approvals")
    waiting = finance.get_by_role("article").filter(has_text="journey-8b")
    expect(waiting).to_contain_text("$205.00")
    waiting.get_by_text("Compared with simpler strategies").click()
    expect(waiting).to_contain_text("$410.00")
    waiting.get_by_text("Approve $205.00…").click()
    waiting.get_by_label("stored with the decision").fill("for the demo")
    waiting.get_by_role("button", name="Approve $205.00").click()
    expect(finance.get_by_role("status")).to_contain_text("Approved.")
    expect(finance.get_by_role("region", name="Decided")).to_contain_text("for the demo")

    team.goto(plan)
    expect(team.get_by_text("for the demo")).to_be_visible()
    team.get_by_text("Reserve for $205.00…").click()
    expect(team.get_by_text("Nothing comes back, $20.50 stays owed.")).to_be_visible()
    team.get_by_role("button", name="Reserve for $205.00").click()
    expect(team.get_by_role("status")).to_contain_text("Accepted: 1 order is bought.")
    assert len(shop.house.provider.open_instances()) == 1
    team.get_by_role("link", name="live state and history").click()
    team.get_by_role("link", name="journey-8b").click()
    expect(team.get_by_role("heading", level=1)).to_contain_text("active")
    expect(team.locator("ol.steps")).to_contain_text("Bought")

    clock = shop.house.clock
    assert isinstance(clock, FakeClock)
    clock.advance(hours=2)
    finance.goto("/spend?group_by=workload")
    assert cards(finance)["Spent"] == "$41.00"
    assert cards(finance)["Reserved"] == "$164.00"
    finance.get_by_text("Export…").click()
    finance.get_by_role("definition").filter(has_text="do not add it").get_by_text("Parquet").click()
    expect(finance.get_by_role("link", name="Download projection-rows.parquet")).to_be_visible()
    expect(finance.get_by_text("164.00 USD").first).to_be_visible()

    team.get_by_text("Release…").click()
    team.get_by_role("button", name="Release 1 node").click()
    expect(team.get_by_role("status")).to_contain_text("Release asked for")
    assert shop.house.provider.open_instances() == []
    shop.run(shop.product.reconcile.run_once())
    clock.advance(hours=5)
    shop.run(shop.product.reconcile.run_once())
    shop.run(shop.product.offers.refresh())  # what nobody confirmed for hours is planned with no more
    finance.goto("/spend?group_by=workload")
    assert (cards(finance)["Total"], cards(finance)["Spent"]) == ("$41.00", "$41.00")
    team.reload()
    expect(team.get_by_role("heading", level=1)).to_contain_text("released")


def test_a_release_that_takes_long_is_counted_and_its_button_rests(shop: Site, shopping: Open) -> None:
    page = shopping(who="finance")
    plan = asked(page, "slow-8b")
    page.get_by_text("Approve $205.00…").click()
    page.get_by_role("button", name="Approve $205.00").click()
    page.get_by_text("Reserve for $205.00…").click()
    page.get_by_role("button", name="Reserve for $205.00").click()
    expect(page.get_by_role("status")).to_contain_text("Accepted: 1 order is bought.")
    shop.house.provider.slow.set()
    page.get_by_text("Release all of it…").click()
    page.evaluate(NOTE)
    beside = page.context.new_page()
    beside.goto("/plans")
    page.get_by_role("button", name="Release everything").click(no_wait_after=True)
    try:
        told = beside.wait_for_function(NOTED).json_value()
    finally:
        shop.house.provider.slow.clear()
    assert told == "1 of 1 released, 0 seen gone at their sellers; true"
    page.wait_for_url(f"{plan}?done=released")
    expect(page.get_by_role("heading", level=1)).to_contain_text("released")


def test_progress_streams_into_the_page(shop: Site, shopping: Open) -> None:
    page = shopping(who="team")
    GATE.clear()
    try:
        page.goto("/plans/new?view=document")
        page.get_by_label("Workloads, as YAML or JSON").fill(wish("watched-8b"))
        page.get_by_role("button", name="Make a plan").click()
        expect(page.get_by_role("heading", name="The plan is being made")).to_be_visible()
        plan_id = page.url.partition("?")[0].rpartition("/")[2]
        event: dict[str, object] = {
            "state": "running", "stage": "columns", "seconds": 3.2,
            "incumbent_usd": "1234.56", "bound_usd": "1200.00", "gap": 0.028,
        }  # fmt: skip
        live = page.locator("#live")
        expect(live).to_contain_text("Planning")
        shop.loop.call_soon_threadsafe(shop.product.events.publish, plan_id, event)
        expect(live).to_contain_text("$1,234.56")
        expect(live).to_contain_text("2.80 %")
    finally:
        GATE.set()
    expect(page.get_by_role("heading", name="Placements")).to_be_visible()


def test_a_plan_that_is_being_made_is_cancelled(shop: Site, shopping: Open) -> None:
    page = shopping(who="team")
    GATE.clear()
    try:
        page.goto("/plans/new?view=document")
        page.get_by_label("Workloads, as YAML or JSON").fill(wish("regretted-8b"))
        page.get_by_role("button", name="Make a plan").click()
        page.get_by_role("button", name="Cancel this plan").click()
        expect(page.get_by_role("status")).to_contain_text("cancelled before it was made")
        expect(page.get_by_role("button", name="Cancel this plan")).to_have_count(0)
    finally:
        GATE.set()


def test_a_wrong_document_is_told_by_line(shopping: Open) -> None:
    page = shopping(who="team")
    page.goto("/plans/new?view=document")
    text = page.get_by_label("Workloads, as YAML or JSON")
    written = text.input_value()
    assert written.count("team: research") == 1
    text.fill(written.replace("kind: serving", "kind: surfing").replace("tokens: 2.0e9", "tokens: lots"))
    page.get_by_role("button", name="Make a plan").click()
    wrong = page.get_by_role("alert")
    expect(wrong).to_contain_text("/workloads/0/tokens")
    expect(wrong).to_contain_text("kind: surfing")
    lines = [int(cell) for cell in wrong.locator("td:first-child").all_inner_texts()]
    shown = text.input_value().splitlines()
    assert ["lots" in shown[line - 1] or "surfing" in shown[line - 1] for line in lines] == [True] * len(
        lines
    )
    page.get_by_label("The file replaces the text").set_input_files(
        {"name": "w.yaml", "mimeType": "text/yaml", "buffer": wish("uploaded-8b").encode()}
    )
    page.get_by_role("button", name="Make a plan").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("uploaded-8b")


def test_all_of_it_works_without_scripts(shop: Site, shopping: Open) -> None:
    team, finance = (shopping(who=who, scripts=False) for who in ("team", "finance"))
    team.goto("/plans/new?view=document")
    team.get_by_label("Workloads, as YAML or JSON").fill(wish("plain-8b"))
    team.get_by_role("button", name="Make a plan").click()
    plan = team.url.partition("?")[0]
    expect(team.get_by_role("heading", name="Placements")).to_be_visible()
    finance.goto(plan)
    finance.get_by_text("Reject…").click()
    finance.get_by_label("Reason, for the team").fill("too dear this month")
    finance.get_by_role("button", name="Reject", exact=True).click()
    team.reload()
    expect(team.get_by_text("too dear this month")).to_be_visible()
    expect(team.get_by_role("button", name=re.compile("Reserve"))).to_have_count(0)
    finance.get_by_text("Approve $205.00…").click()
    finance.get_by_role("button", name="Approve $205.00").click()
    expect(finance.get_by_role("status")).to_contain_text("Approved.")
    team.goto("/market?sort=-gpu_hour")
    prices = [Decimal(text) for text in team.locator("td[data-label='$/GPU-h']").all_inner_texts()]
    assert prices == sorted(prices, reverse=True)


@pytest.mark.parametrize("scripts", [True, False])
def test_an_offer_is_reserved_on_its_page(shop: Site, shopping: Open, scripts: bool) -> None:
    team = shopping(PHONE, who="team", scripts=scripts)
    team.goto("/market/offers/h100-c")
    team.get_by_label("Nodes").fill("101")
    team.get_by_role("button", name="Show what it costs").click()
    expect(team.get_by_text("Not reserved: the input cannot be used.")).to_be_visible()
    expect(team.get_by_label("Nodes")).to_have_value("101")
    if scripts:
        assert not [one for one in Axe().run(team).response["violations"] if one["impact"] in SERIOUS]
    team.get_by_label("Nodes").fill("2")
    team.get_by_role("button", name="Show what it costs").click()
    expect(team.get_by_text("$62.00 an hour until it is released.")).to_be_visible()
    if scripts:
        assert not [one for one in Axe().run(team).response["violations"] if one["impact"] in SERIOUS]
    team.get_by_role("button", name="Reserve 2 nodes").click()
    expect(team.get_by_text("Ordered.")).to_be_visible()
    team.get_by_text("Release…").click()
    team.get_by_role("button", name="Release 2 nodes").click()
    expect(team.get_by_role("status")).to_contain_text("Release asked for.")


def test_a_budget_runs_out_on_a_day(shop: Site, shopping: Open) -> None:
    team = shopping(who="team")
    asked(team, "budgeted-8b")
    team.get_by_role("button", name="Count it in planned spend").click()
    expect(team.get_by_text("This draft counts in planned spend.")).to_be_visible()
    page = shopping(who="finance")
    page.goto("/spend")
    page.get_by_text("Set a budget…").click()
    page.get_by_label("Team", exact=True).last.select_option("research")
    page.get_by_label("Limit, USD").fill("100k")
    page.get_by_label("Alerts at, %").fill("80, 100")
    page.get_by_role("button", name="Set the budget").click()
    expect(page.get_by_text(re.compile("Expected US dollars in whole cents"))).to_be_visible()
    expect(page.get_by_label("Limit, USD")).to_have_value("100k")
    expect(page.get_by_label("Alerts at, %")).to_have_value("80, 100")
    page.get_by_label("Limit, USD").fill("$100.50")
    page.get_by_role("button", name="Set the budget").click()
    budget = page.get_by_role("region", name="Budgets").locator("tbody tr").first
    expect(budget).to_contain_text("$100.50")
    expect(budget.locator("td[data-label='State']")).to_contain_text("over by")
    expect(budget.locator("td[data-label='State']")).to_contain_text("runs out 2026-11-2")
    more = page.get_by_role("region", name="Budgets").locator("tbody tr.why").first
    expect(more).to_contain_text(re.compile(r"Alerts at 80 % \((spent|expected) 2026-11-2"))
    expect(page.get_by_text("The budget of research, $100.50 per month, is exceeded by")).to_be_visible()
    expect(page.get_by_text("budget $100.50").first).to_be_visible()
    more.get_by_text("Remove…").click()
    more.get_by_role("button", name="Remove the budget").click()
    expect(page.get_by_text("The budget is removed.")).to_be_visible()
    expect(page.get_by_text("No budget is set.")).to_be_visible()


LOOKED_AT = (
    f"/plans/{RESEARCH_PLAN}", "/spend", "/market", "/proposals",
    "/", "/plans/new", "/approvals", "/spend/changes", "/spend/units",
    "/market/offers/lambda:gpu_8x_h200:us-east-3",
)  # fmt: skip


@pytest.mark.parametrize(("size", "scheme", "count"), [(DESK, "light", 10), (PHONE, "dark", 4)])
def test_no_serious_finding_of_axe(opened: Open, size: tuple[int, int], scheme: str, count: int) -> None:
    page = opened(size, scheme=scheme)
    found = []
    for path in LOOKED_AT[:count]:
        page.goto(path)
        for summary in page.locator("summary").all():
            if summary.is_visible():
                summary.click()
        for finding in Axe().run(page).response["violations"]:
            nodes = [node["html"][:120] for node in finding["nodes"][:3]]
            found.append((path, finding["impact"], finding["id"], nodes))
    assert [one for one in found if one[1] in SERIOUS] == []

"""The pages in a real browser: what finance sees, clicks, and reads on a phone or at night."""

from __future__ import annotations

import csv
import re
from decimal import Decimal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.pages.conftest import DESK, PHONE, Open, Site
from tests.pages.seeding import PRODUCT_PLAN, RESEARCH_PLAN

pytestmark = pytest.mark.xdist_group("browser")

PATHS = (
    "/",
    "/plans",
    f"/plans/{RESEARCH_PLAN}",
    f"/plans/{RESEARCH_PLAN}/simulation",
    "/spend",
    "/spend?interval=month",
    "/spend/changes?before=2026-11&after=2026-12",
    "/spend/units",
    "/market/gpus/H200-SXM-141GB",
    "/market/feeds/verda",
    "/proposals/reopt-1",
    "/market",
    "/reservations",
    f"/plans/{RESEARCH_PLAN}/release",
    "/approvals",
    "/proposals",
    "/plans/new",
    f"/plans/new?from={RESEARCH_PLAN}",
    f"/plans/compare?plan={RESEARCH_PLAN}&plan={PRODUCT_PLAN}",
    "/market/offers/lambda:gpu_8x_h200:us-east-3",
    "/admin/keys",
    "/admin/ssh-keys",
    "/admin/webhooks",
    "/admin/audit",
    "/admin/settings",
    "/docs",
    "/docs/guides/serve",
    "/docs/reference/settings",
    "/docs/api",
)
MONEY = re.compile(r"\$([\d,]+\.\d\d)")


def amounts(text: str) -> list[Decimal]:
    return [Decimal(found.replace(",", "")) for found in MONEY.findall(text)]


def drawn_total(page: Page) -> Decimal:
    """Sum over the marks of the chart that is shown."""
    titles = page.locator(".wide svg.chart rect title").all_text_contents()
    return sum((amounts(title)[0] for title in titles), Decimal(0))


def test_finance_signs_in_and_out(site: Site, opened: Open) -> None:
    page = opened(who=None)
    page.goto("/spend?interval=month")
    assert "/signin" in page.url
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type(site.keys["finance"])
    page.keyboard.press("Enter")
    page.wait_for_url("**/spend?interval=month")
    expect(page.get_by_role("heading", level=1)).to_have_text("Spend")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/signin")
    assert page.context.cookies() == []


def test_the_overview_leads_to_a_plan_and_its_reasons(opened: Open) -> None:
    page = opened()
    page.goto("/")
    expect(page.get_by_text("Plans, reserved and planned")).to_be_visible()
    expect(page.locator(".card.lead .figure")).to_have_text("$109,675.20")
    expect(page.locator(".notice")).to_contain_text("waits for a decision: it saves")
    looks = page.get_by_role("region", name="Re-optimizations")
    proposal = looks.locator(
        "tbody tr"
    )  # the one that waits for a decision; of a draft nothing else is listed
    expect(proposal).to_have_count(1)
    expect(proposal).to_contain_text("a draft: nothing is reserved, nothing moves")
    proposal.get_by_text("1 workload would move").click()
    expect(proposal.get_by_text("runpod's L40S fell by 14 %")).to_be_visible()
    page.get_by_role("region", name="Current plans").get_by_role("link", name="pretrain-8b, chat-70b").click()
    page.wait_for_url(f"**/plans/{RESEARCH_PLAN}")
    expect(page.locator("nav [aria-current=page]")).to_have_text("Plans")
    placements = page.get_by_role("region", name="Placements")
    shown = [amounts(cell)[0] for cell in placements.locator("tbody td[data-label=Cost]").all_text_contents()]
    assert sum(shown) == amounts(placements.locator("tfoot").inner_text())[0]
    assert sum(shown) == amounts(page.locator(".card.lead").inner_text())[0]
    reason = placements.get_by_text("needs a fabric")
    expect(reason).not_to_be_visible()
    placements.get_by_text("Why here: cheapest found among 412 offers that fit").click()
    expect(reason).to_be_visible()
    expect(page.get_by_role("region", name="Not placed")).to_contain_text("allow country SE or NO")
    assert page.locator(".wide svg.chart rect").count() == 1 + 2 * 60


def test_chart_table_and_api_have_the_same_sums(opened: Open) -> None:
    page = opened()
    for interval, group in (("day", "team"), ("month", "team"), ("month", "provider"), ("day", "kind")):
        page.goto("/spend")
        page.locator("#interval").select_option(interval)
        page.get_by_label("Grouped by").select_option(group)
        page.get_by_role("button", name="Show").click()
        page.wait_for_url(f"**interval={interval}&**group_by={group}**")
        foot = amounts(page.locator(".ledger tfoot").inner_text())[:-3]  # P10, P50, P90
        sums = page.locator(".ledger tbody td.sum").all_inner_texts()
        total = sum((amounts(text)[0] for text in sums), Decimal(0))
        assert total == foot[-1] == sum(foot[:-1]) == drawn_total(page)
        assert total == amounts(page.locator(".card.lead").inner_text())[0]
        assert len(page.locator(".legend li:not(.band)").all()) == len(foot) - 1
        link = page.get_by_text("Download CSV").get_attribute("href")
        assert link is not None
        text = page.request.get(link).text()
        assert sum(Decimal(row["usd"]) for row in csv.DictReader(text.splitlines())) == total


def test_spans_are_a_click_away_and_bad_ones_are_told(opened: Open) -> None:
    page = opened()
    page.goto("/spend")
    page.get_by_role("link", name="Next month").click()
    page.wait_for_url("**from=2026-12-01&to=2027-01-01**")
    assert all(text.startswith("2026-12-") for text in page.locator(".ledger tbody tr").all_inner_texts())
    page.goto("/spend?from=2026-12-01&to=2026-11-01")
    expect(page.get_by_role("alert")).to_contain_text("no span of time")


def test_the_market_is_narrowed(opened: Open) -> None:
    page = opened()
    page.goto("/market?view=offers")
    offers = page.get_by_role("region", name="Offers").locator("tbody tr")
    prices = [float(text) for text in offers.locator("td:nth-child(2)").all_text_contents()]
    assert prices == sorted(prices)
    assert len(prices) == 4
    page.get_by_label("GPU", exact=True).select_option("H100-SXM-80GB")
    page.get_by_label("Tier").select_option("spot")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**gpu=H100-SXM-80GB**tier=spot**")
    expect(offers).to_have_count(1)
    expect(page.get_by_label("GPU", exact=True)).to_have_value("H100-SXM-80GB")
    page.get_by_role("link", name="Clear").click()
    expect(offers).to_have_count(4)
    page.locator("#feeds-part summary").click()
    expect(page.get_by_role("region", name="Feeds")).to_contain_text("stale")
    page.goto("/market?gpu=H200-SXM-141GB")
    expect(page.get_by_role("heading", name="H200-SXM-141GB, on demand: price of a GPU-hour")).to_be_visible()
    expect(page.locator("#offers .wide svg.chart polyline")).to_have_count(1)


def test_the_market_opens_on_what_can_be_had_of_each_gpu(opened: Open) -> None:
    page = opened(PHONE)
    page.goto("/market")
    rows = page.get_by_role("region", name="GPUs").locator("tbody tr")
    assert rows.count() >= 1
    assert page.evaluate("document.documentElement.scrollHeight") < 4000
    expect(page.locator("header .who")).to_be_visible()
    page.get_by_label("GPU", exact=True).select_option("H200-SXM-141GB")
    page.wait_for_url("**gpu=H200-SXM-141GB&**")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="Clear").click()
    gpu = rows.first.locator("strong").first.inner_text()
    rows.first.get_by_role("link", name=gpu).click()
    offers = page.get_by_role("region", name="Offers").locator("tbody tr")
    assert offers.count() >= 1
    assert set(offers.locator("strong").all_inner_texts()) >= {gpu}
    answer = page.goto("/market?gpu=H1OO&country=US")
    assert answer is not None
    assert answer.status == 422
    expect(page.get_by_role("alert")).to_contain_text("H100")
    expect(page.get_by_label("Country")).to_have_value("US")
    page.goto("/market?gpu=h100")
    expect(offers.first).to_contain_text("H100")


def test_empty_pages_say_what_to_do(opened: Open) -> None:
    page = opened(who="empty")
    for path, words in (
        ("/", "No plan yet."),
        ("/plans", "No plan yet."),
        ("/spend", "Nothing is spent, reserved or planned in this time."),
        ("/reservations", "Nothing is reserved."),
    ):
        page.goto(path)
        expect(page.locator("main")).to_contain_text(words)
    answer = page.request.get(f"/plans/{PRODUCT_PLAN}")
    assert answer.status == 404
    assert "Nothing of that name exists" in answer.text()


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light")])
def test_every_page_fits_and_is_marked(opened: Open, size: tuple[int, int], scheme: str) -> None:
    page = opened(size, scheme=scheme)
    for path in PATHS:
        page.goto(path)
        wide: int = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= size[0], path
        current = page.locator("nav [aria-current=page]")
        expect(current).to_have_count(1)
        assert current.get_attribute("href") == "/" + urlsplit(path).path.split("/")[1]
        dark: bool = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(c => c < 64)"
        )
        assert dark is (scheme == "dark")
        small: float = page.evaluate(
            """Math.min(...[...document.querySelectorAll('.chart text')]
                 .filter(t => t.getBoundingClientRect().width)
                 .map(t => t.getBoundingClientRect().height), 99)"""
        )
        assert small >= 10, f"{path}: text of the chart is {small} pixels high"


def test_the_keyboard_gets_everywhere_and_shows_where_it_is(opened: Open) -> None:
    page = opened()
    page.goto("/plans")
    names = []
    for _ in range(16):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """(() => {
                 const e = document.activeElement, s = getComputedStyle(e);
                 return [e.innerText.trim().split("\\n")[0], s.outlineStyle, parseFloat(s.outlineWidth)];
               })()"""
        )
        names.append(focus[0])
        assert focus[1] != "none", focus
        assert focus[2] >= 2, focus
    assert names[:6] == [
        "Skip to content", "GPU capacity broker", "Overview", "Plans", "Approvals", "Reservations",
    ]  # fmt: skip
    assert "pretrain-8b, chat-70b, nightly-eval" in names


def test_rejected_rows_are_ten_on_a_phone_until_all_are_asked_for(opened: Open) -> None:
    page = opened(PHONE)
    page.goto("/market/feeds/runpod")
    rows = page.get_by_role("row").filter(has_text="pod-type-")
    expect(rows).to_have_count(10)
    page.get_by_label("All 14 rows").check()
    expect(rows).to_have_count(14)
    page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
    expect(page.get_by_label("All 14 rows")).to_be_hidden()
    expect(rows).to_have_count(14)

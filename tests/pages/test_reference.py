"""The reference of the API in a real browser."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.pages.conftest import DESK, PHONE, Open

pytestmark = pytest.mark.xdist_group("browser")

LOOKED_AT = (".reference > nav", "section:has(> #calendars)", "section:has(> #budgets)", "footer")
"""Parts of the page for axe, which needs minutes for all of it; the others come from the same lines."""


@pytest.mark.parametrize(
    ("size", "scheme"), [pytest.param(DESK, "light", marks=pytest.mark.slow), (PHONE, "dark")]
)
def test_the_reference_is_read_without_signing_in(opened: Open, size: tuple[int, int], scheme: str) -> None:
    page = opened(who=None, size=size, scheme=scheme)
    page.goto("/docs/api")
    expect(page.get_by_role("heading", level=1)).to_have_text("HTTP API")
    expect(page.locator("nav[aria-label=Pages] a")).to_have_text(["Help"])
    page.evaluate(
        "for (const part of document.querySelectorAll('section:has(> #budgets) details')) part.open = true"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    findings = Axe().run(page, context={"include": [[part] for part in LOOKED_AT]}).response["violations"]
    assert [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in findings] == []


def test_the_footer_leads_to_the_reference_and_its_lines_to_each_other(opened: Open) -> None:
    page = opened()
    page.goto("/market")
    page.get_by_role("link", name="API reference").click()
    expect(page).to_have_url("/docs/api")
    expect(page.locator("nav[aria-label=Pages]")).to_be_visible()
    page.get_by_role("navigation", name="Contents").get_by_role("link", name="showBudget").click()
    expect(page.locator("#showBudget")).to_be_in_viewport()
    entry = page.locator("article:has(> #showBudget)")
    entry.get_by_role("link", name="BudgetForm", exact=True).first.click()
    expect(page.locator("#schema-BudgetForm")).to_be_in_viewport()


def test_fields_and_examples_are_folded_until_they_are_asked_for(opened: Open) -> None:
    page = opened(who=None, size=PHONE)
    page.goto("/docs/api")
    folded = page.evaluate("document.documentElement.scrollHeight")
    entry = page.locator("article:has(> #showBudget)")
    expect(entry.get_by_role("table")).to_have_count(0)
    entry.get_by_text("Parameters, fields, errors and examples").click()
    expect(entry.get_by_role("table").first).to_be_visible()
    page.get_by_role("link", name="Open all fields and examples").click()
    expect(page.locator("details:not([open])")).to_have_count(0)
    expect(page.get_by_role("link", name="Fold fields and examples")).to_be_visible()
    assert folded * 4 < page.evaluate("document.documentElement.scrollHeight")

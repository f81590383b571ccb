"""The pictures of the README, of a running broker: ``python -m tests.pages.pictures URL KEY [PLAN_ID]``.

The plan is the newest, unless told; the picture ends after the chart, so that it stays readable.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Page

from tests.chromium import launched

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH = 1280
MARGIN = 24


def take(page: Page, path: str, name: str) -> None:
    """Saves a page down to the end of its first chart."""
    page.goto(path)
    page.wait_for_load_state("networkidle")
    chart = page.locator("main .panel:has(svg.chart)").first.bounding_box()
    assert chart is not None, f"{path} has no chart"
    height = chart["y"] + chart["height"] + MARGIN
    page.screenshot(
        path=IMAGES / f"{name}.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": height}, full_page=True
    )


def main(url: str, key: str, plan_id: str | None = None) -> None:
    """Takes both, or that of a plan alone."""
    with launched() as chromium:
        context = chromium.new_context(viewport={"width": WIDTH, "height": 900}, base_url=url)
        context.add_cookies([{"name": "broker_session", "value": key, "url": url}])
        page = context.new_page()
        if plan_id is not None:
            take(page, f"/plans/{plan_id}", "plan")
            return
        page.goto("/plans")
        newest = page.locator("tbody a").first.get_attribute("href")
        assert newest is not None, "no plan to show"
        take(page, newest, "plan")
        take(page, "/spend?group_by=workload", "spend")


if __name__ == "__main__":
    main(*sys.argv[1:4])

"""The reference of the API in a real browser, and against the document that it is made from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.pages.conftest import DESK, PHONE, Open

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light")])
def test_the_reference_is_read_without_signing_in(opened: Open, size: tuple[int, int], scheme: str) -> None:
    page = opened(who=None, size=size, scheme=scheme)
    page.goto("/docs/api")
    expect(page.get_by_role("heading", level=1)).to_have_text("HTTP API")
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= size[0]
    if "SHOTS" in os.environ:
        for name, at in (
            ("top", ""),
            ("offers", "#listOffers"),
            ("reserve", "#reserveOffer"),
            ("schema", "#schema-OfferForm"),
            ("problem", "#problem-not-found"),
        ):
            page.goto(f"/docs/api{at}")
            page.screenshot(path=Path(os.environ["SHOTS"]) / f"{name}-{size[0]}-{scheme}.png")
    assert Axe().run(page).response["violations"] == []

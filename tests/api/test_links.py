"""The link that ``broker up`` prints."""

from __future__ import annotations

import httpx
import pytest

from api.http.dependencies import SESSION_COOKIE
from api.one_time_links import OneTimeLinks
from tests.api.house import ADMIN_KEY, Home
from tests.fakes.clock import NOON, FakeClock


def test_a_link_is_taken_once_and_within_ten_minutes() -> None:
    clock, links = FakeClock(), OneTimeLinks()
    token, late = links.make("key", clock.now()), links.make("key", clock.now())
    assert token != late
    assert (links.take(token, clock.now()), links.take(token, clock.now())) == ("key", None)
    assert links.take("unknown", clock.now()) is None
    clock.advance(minutes=10)
    assert links.take(late, clock.now()) is None


def browser_at(home: Home, address: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=home.app, client=(address, 50_000))
    client = httpx.AsyncClient(transport=transport, base_url="http://broker")
    home.clients.append(client)
    return client


async def test_a_link_signs_in_and_leaves_no_token_in_the_address(home: Home) -> None:
    token = home.product.links.make(ADMIN_KEY, NOON)
    browser = browser_at(home, "127.0.0.1")
    assert (await browser.head("/signin/link", params={"token": token})).status_code == 405, (
        "it is not used up"
    )
    opened = await browser.get("/signin/link", params={"token": token})
    assert (opened.status_code, opened.headers["Location"]) == (303, "/signin/done")
    done = await browser.get(opened.headers["Location"])
    assert 'content="0;url=/"' in done.text
    assert token not in done.text
    assert "All teams" in (await browser.get("/")).text
    again = await browser_at(home, "127.0.0.1").get("/signin/link", params={"token": token})
    assert again.status_code == 401
    assert token not in again.text


@pytest.mark.parametrize("address", ["10.0.0.7", "::ffff:10.0.0.7", "testclient"])
async def test_a_link_is_for_this_machine(home: Home, address: str) -> None:
    token = home.product.links.make(ADMIN_KEY, NOON)
    browser = browser_at(home, address)
    assert (await browser.get("/signin/link", params={"token": token})).status_code == 401
    assert SESSION_COOKIE not in browser.cookies
    here = await browser_at(home, "127.0.0.1").get("/signin/link", params={"token": token})
    assert here.status_code == 303, "a stranger has not used it up"

"""Signing in: where it leads, whom it refuses, and who may see which page."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.http.dependencies import SESSION_COOKIE
from api.pages.parts.session import local_path
from api.sign_in_attempts import MOST_FAILURES
from broker.domain.basics.account import Scope
from tests.api.house import ADMIN_KEY, Home, House
from tests.fakes.clock import FakeClock


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    async with House(tmp_path / "broker.db").open() as living:
        yield living


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "", "/\t/evil.example",
     "/ok\r\nSet-Cookie: a=b", "javascript:alert(1)", "/a\\b"],
)  # fmt: skip
def test_no_sign_in_leads_off_the_host(path: str) -> None:
    assert local_path(path) == "/"


@pytest.mark.parametrize("path", ["/", "/spend?interval=month&group_by=team", "/plans/plan-1"])
def test_sign_in_leads_back(path: str) -> None:
    assert local_path(path) == path


async def test_strangers_are_sent_to_sign_in_and_back(home: Home) -> None:
    client = home.client(None)
    sent = await client.get("/spend?interval=month")
    assert (sent.status_code, sent.headers["Location"]) == (
        303,
        "/signin?next=%2Fspend%3Finterval%3Dmonth",
    )
    for wish, end in (("/spend?interval=month", "/spend?interval=month"), ("//evil.example", "/")):
        form = {"key": f" {ADMIN_KEY}\n", "next": wish}
        answer = await client.post("/signin", data=form)
        assert (answer.status_code, answer.headers["Location"]) == (303, end)
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"{SESSION_COOKIE}=")
    assert ADMIN_KEY not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"} <= set(cookie.split("; "))
    assert "Secure" not in cookie


async def test_over_https_the_cookie_is_secure(home: Home) -> None:
    client = home.client(None)
    answer = await client.post("https://broker/signin", data={"key": ADMIN_KEY})
    assert "Secure" in answer.headers["Set-Cookie"]


async def test_wrong_keys_and_other_sites_are_refused(home: Home) -> None:
    client = home.client(None)
    for form in ({"key": "broker_live_wrong"}, {"key": ""}, {}):
        answer = await client.post("/signin", data=form)
        assert answer.status_code == 401
        assert "Set-Cookie" not in answer.headers
        assert "unknown, expired or was revoked" in answer.text
    checks: tuple[tuple[dict[str, str], int], ...] = (
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://broker"}, 403),
        ({"Origin": "http://broker"}, 303),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://public.example"}, 303),
    )
    for headers, status in checks:
        sent = await client.post("/signin", data={"key": ADMIN_KEY}, headers=headers)
        assert sent.status_code == status
        assert (await client.post("/signout", headers=headers)).status_code == status


async def test_signing_out_ends_the_session_for_everybody_who_has_its_token(home: Home) -> None:
    client = home.client(None)
    await client.post("/signin", data={"key": ADMIN_KEY})
    token = client.cookies[SESSION_COOKIE]
    assert (await client.get("/plans")).status_code == 200
    await client.post("/signout")
    assert SESSION_COOKIE not in client.cookies
    thief = home.client(None, cookies={SESSION_COOKIE: token})
    assert (await thief.get("/plans")).headers["Location"].startswith("/signin")
    assert (await thief.get("/v1/plans")).status_code == 401


async def test_who_tries_many_keys_waits(home: Home) -> None:
    client = home.client(None)
    for _ in range(MOST_FAILURES):
        assert (await client.post("/signin", data={"key": "broker_live_wrong"})).status_code == 401
    answer = await client.post("/signin", data={"key": ADMIN_KEY})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "61")
    assert "Too many keys" in answer.text
    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(seconds=61)
    assert (await client.post("/signin", data={"key": ADMIN_KEY})).status_code == 303


async def test_words_of_strangers_are_escaped(home: Home) -> None:
    client = home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})
    evil = '"><script>alert(1)</script>'
    for page in (
        await client.get("/market", params={"gpu": evil}),
        await client.get("/signin", params={"next": "/" + evil}),
        await client.get("/plans/<script>alert(1)"),
        await client.get("/spend", params={"interval": evil}),
        await client.get("/spend", params={"from": evil, "group_by": evil}),
    ):
        assert "<script>" not in page.text
        assert page.headers["Content-Type"].startswith("text/html")


async def test_errors_are_pages(home: Home) -> None:
    client = home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})
    for path, status in (("/plans/nothing", 404), ("/plans?cursor=x", 422), ("/spend?interval=year", 422)):
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
        assert "Back to the overview" in answer.text


async def test_an_address_of_no_page_is_told_as_the_visitor_asked(home: Home) -> None:
    client = home.client(None)
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    told = await client.get("/strange/<script>", headers=browser)
    assert (told.status_code, told.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "No page has this address." in told.text
    assert "<script>" not in told.text
    for path, headers in (("/strange", {}), ("/v1/nothing", browser)):
        answer = await client.get(path, headers=headers)
        assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json")
    assert (await client.put("/v1/plans", headers=browser)).status_code == 405


async def test_pages_show_what_the_key_may_see(home: Home) -> None:
    key = await home.key("research", [Scope.SPEND_READ])
    client = home.client(None, cookies={SESSION_COOKIE: key})
    front = (await client.get("/")).text
    assert 'href="/spend"' in front
    assert 'href="/plans"' not in front
    assert (await client.get("/spend")).status_code == 200
    assert (await client.get("/plans")).status_code == 403
    assert (await client.get("/reservations")).status_code == 403


async def test_plans_in_every_state_have_a_page(home: Home) -> None:
    client = await home.team("research")
    plan = await home.plan(client)
    visitor = home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})
    page = await visitor.get(f"/plans/{plan['plan_id']}")
    assert page.status_code == 200
    assert "tune-8b" in page.text
    await client.post(f"/v1/plans/{plan['plan_id']}/reserve")
    held = await visitor.get("/reservations")
    assert "tune-8b" in held.text


async def test_what_no_page_had_yet_is_told_as_the_visitor_asked(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero byte in an address, and what nobody foresaw: pages for browsers, problems for the rest."""

    async def fail(*_: object) -> None:
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr(home.product.offers, "find_feeds", fail)
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    client = home.client(cookies={SESSION_COOKIE: ADMIN_KEY})
    for path, status, words in (
        ("/plans/a%00b", 400, "U+0000 (a control character) can be part of no name."),
        ("/market", 500, "See the server&#39;s log."),
    ):
        page = await client.get(path, headers=browser)
        assert (page.status_code, page.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
        assert words in page.text
        assert "secret" not in page.text
        assert page.headers["X-Request-Id"] in page.text
        plain = await client.get(path)
        assert (plain.status_code, plain.headers["Content-Type"]) == (status, "application/problem+json")
    for path, status in (("/v1/plans/a%00b", 400), ("/v1/providers", 500)):
        answer = await client.get(path, headers=browser)
        assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")

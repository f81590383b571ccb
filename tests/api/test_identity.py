"""Signing in at a real identity provider, Canaille over loopback, and its tokens at the API."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from pydantic import SecretStr

from api.http.dependencies import SESSION_COOKIE
from broker.settings import Settings
from tests.api.house import ADMIN_KEY, DOCUMENT, Home, House, limit
from tests.api.test_team_isolation import OWNER, RIVAL, SECRETS, STATIC, Expect, read, settle, write
from tests.canaille import CLIENT, PASSWORD, Canaille, Jwk, callback, canaille, sign_in
from tests.fakes.clock import FakeClock

pytestmark = pytest.mark.xdist_group("canaille")
AUDIENCE = "https://broker.example.org/api"
PEOPLE = {
    "ada": ["finance"],
    "bob": ["ml-research"],
    "cyd": ["ml-research"],
    "dan": ["ml-research"],
    "eve": ["gardening"],
    "fay": ["platform"],
    "gil": ["ml-research"],
    "hal": ["ml-research"],
}
TEAMS = {"finance": "*", "ml-research": "research", "ml-rivals": RIVAL}
ROLES = {
    "finance": "approver",
    "ml-research": "member",
    "ml-rivals": "member",
    "platform": "admin",
    "leads": "approver",
}


@pytest.fixture(scope="module")
def provider() -> Iterator[Canaille]:
    with canaille(PEOPLE) as running:
        yield running


def settings(issuer: str, **more: Any) -> Settings:
    return Settings(
        **{
            "admin_key": SecretStr(ADMIN_KEY),
            "poll_seconds": 3600,
            "debounce_seconds": 0,
            "oidc_issuer": issuer,
            "oidc_client_id": CLIENT,
            "oidc_audience": AUDIENCE,
            "oidc_scopes": "openid profile email groups",
            "oidc_name": "Canaille",
            "oidc_teams": TEAMS,
            "oidc_roles": ROLES,
            "oidc_default_role": "none",
            **more,
        }
    )


@pytest.fixture
def true_time() -> FakeClock:
    return FakeClock(datetime.now(UTC))


@pytest.fixture
async def home(tmp_path: Path, provider: Canaille, true_time: FakeClock) -> AsyncIterator[Home]:
    house = House(
        tmp_path / "b.db", settings=settings(provider.issuer), true_time=true_time, rules=limit("1")
    )
    async with house.open() as opened:
        yield opened


def whose(page: httpx.Response) -> str:
    found = re.search(r'class="who"[^>]*>([^<]*)<', page.text)
    return found[1] if found else f"{page.status_code} {page.headers.get('Location')}"


async def test_a_person_signs_in_and_is_who_their_groups_say(home: Home, provider: Canaille) -> None:
    for who, expected in (("bob", "Team: research only"), ("ada", "All teams"), ("fay", "All teams")):
        browser = home.client(None)
        assert "Sign in with Canaille" in (await browser.get("/signin")).text
        answer = await sign_in(browser, provider.issuer, who, "/plans")
        assert answer.status_code == 200, answer.text
        assert 'content="0;url=/plans"' in answer.text
        cookie = next(c for c in answer.headers.get_list("Set-Cookie") if c.startswith(SESSION_COOKIE))
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert whose(await browser.get("/plans")) == expected, who


async def test_history_names_the_person(home: Home, provider: Canaille) -> None:
    plan = await home.plan(await home.team("research"), DOCUMENT)
    browser = home.client(None)
    await sign_in(browser, provider.issuer, "ada")
    page = (await browser.get("/approvals")).text
    fields = dict(re.findall(r'name="(proof|once|plan_sha256|seen_usd)" value="([^"]*)"', page))
    answer = await browser.post(f"/approvals/{plan['plan_id']}/approve", data={**fields, "comment": "yes"})
    assert answer.status_code == 303, answer.text
    trail = (await home.client().get("/v1/audit", params={"object_id": plan["plan_id"]})).json()["items"]
    assert trail[0]["action"] == "plan.approve"
    assert trail[0]["actor"] == "ada@example.org (ada)"
    assert "ada@example.org (ada)" in (await browser.get("/approvals")).text


async def test_somebody_without_a_group_here_is_told_so(home: Home, provider: Canaille) -> None:
    browser = home.client(None)
    answer = await sign_in(browser, provider.issuer, "eve")
    assert answer.status_code == 403
    assert "eve@example.org signed in, but claim &#39;groups&#39; gives no role here" in answer.text
    assert SESSION_COOKIE not in browser.cookies


async def test_a_state_is_used_once_and_by_the_browser_that_began(home: Home, provider: Canaille) -> None:
    browser, other = home.client(None), home.client(None)
    back = await callback(browser, provider.issuer, "bob")
    assert (await other.get(back)).status_code == 401
    assert SESSION_COOKIE not in other.cookies
    state = browser.cookies["broker_sign_in"]
    answer = await browser.get(back)
    assert answer.status_code == 200, answer.text
    assert "broker_sign_in" not in browser.cookies
    assert (await browser.get(back)).status_code == 401
    browser.cookies.set("broker_sign_in", state, domain="broker.local", path="/signin")
    again = await browser.get(back)
    assert again.status_code == 401
    assert "used already" in again.text


async def test_a_sign_in_that_takes_too_long_or_comes_from_elsewhere_is_refused(
    home: Home, provider: Canaille, true_time: FakeClock
) -> None:
    browser = home.client(None)
    back = await callback(browser, provider.issuer, "bob")
    assert (await browser.get(re.sub(r"iss=[^&]*", "iss=https://evil.example", back))).status_code == 401
    back = await callback(browser, provider.issuer, "bob")
    true_time.advance(minutes=11)
    assert (await browser.get(back)).status_code == 401
    said = await browser.get("/signin/callback?error=access_denied&error_description=no")
    assert (said.status_code, "the identity provider says: no" in said.text.lower()) == (401, True)


async def test_a_session_is_confirmed_and_ends_when_the_person_is_removed(
    home: Home, provider: Canaille, true_time: FakeClock
) -> None:
    browsers = {}
    for who in ("bob", "cyd", "dan"):
        browsers[who] = home.client(None)
        answer = await sign_in(browsers[who], provider.issuer, who)
        assert answer.status_code == 200, (who, answer.text)
    provider.lock("cyd")
    provider.leave("dan")
    true_time.advance(minutes=9)
    for browser in browsers.values():
        assert whose(await browser.get("/plans")) == "Team: research only"
    true_time.advance(minutes=2)
    many = await asyncio.gather(*(browsers["bob"].get("/plans") for _ in range(5)))
    assert {whose(page) for page in many} == {"Team: research only"}
    for who in ("cyd", "dan"):
        assert (await browsers[who].get("/plans")).headers["Location"] == "/signin?next=%2Fplans", who
        assert (await browsers[who].get("/v1/plans")).status_code == 401
    await asyncio.sleep(1.1)  # Canaille's tokens of one second are equal, and it takes none twice
    true_time.advance(minutes=11)
    assert whose(await browsers["bob"].get("/plans")) == "Team: research only"
    true_time.advance(hours=12)
    assert (await browsers["bob"].get("/plans")).status_code == 303
    trail = (await home.client().get("/v1/audit", params={"limit": 100})).json()["items"]
    seen = sorted((row["object_id"], row["action"]) for row in trail if row["object_kind"] == "person")
    ended = [(who, "person.session_end") for who in ("cyd", "dan")]
    assert seen == sorted([*((who, "person.sign_in") for who in browsers), *ended])
    assert {row["team"] for row in trail if row["object_kind"] == "person"} == {"research"}


async def test_sign_out_ends_the_session_here_and_leads_to_the_providers_own(
    home: Home, provider: Canaille
) -> None:
    browser = home.client(None)
    await sign_in(browser, provider.issuer, "gil")
    token = browser.cookies[SESSION_COOKIE]
    answer = await browser.post("/signout")
    assert f"url={provider.issuer}/oauth/end_session?client_id=broker" in answer.text
    assert "id_token_hint=" in answer.text
    assert SESSION_COOKIE not in browser.cookies
    stolen = home.client(None, cookies={SESSION_COOKIE: token})
    assert (await stolen.get("/v1/plans")).status_code == 401
    trail = (await home.client().get("/v1/audit", params={"object_id": "gil"})).json()["items"]
    assert [row["action"] for row in trail] == ["person.sign_out", "person.sign_in"]


def minted(keys: list[Jwk], now: datetime, **changes: Any) -> str:
    """An access token as a provider makes it; a change to None leaves the claim out."""
    claims = {
        "iss": None,
        "aud": AUDIENCE,
        "sub": "svc-1",
        "iat": int(now.timestamp()),
        "exp": int((now + timedelta(minutes=5)).timestamp()),
        "groups": ["ml-research"],
        **changes,
    }
    key = RSAKey.import_key(keys[0])
    told = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode({"alg": "RS256", "kid": key.kid}, told, key)


async def status(home: Home, token: str) -> int:
    return (await home.client(token).get("/v1/plans")).status_code


async def test_a_token_opens_the_api_for_its_team_and_roles(
    home: Home, provider: Canaille, true_time: FakeClock
) -> None:
    token = minted(provider.keys, true_time.now(), iss=provider.issuer)
    client = home.client(token)
    await home.plan(client)
    trail = (await client.get("/v1/audit")).json()["items"]
    assert {entry["actor"] for entry in trail if entry["action"] == "plan.request"} == {"svc-1 (svc-1)"}
    assert (await client.post("/v1/keys", json={"name": "x", "team": "research"})).status_code == 403
    assert (await home.client().get("/v1/plans")).status_code == 200, "keys keep working"


async def test_an_access_token_of_the_provider_itself_opens_the_api(
    tmp_path: Path, provider: Canaille, true_time: FakeClock
) -> None:
    given = settings(provider.issuer, oidc_audience=CLIENT)
    async with httpx.AsyncClient() as machine:
        wish = {"grant_type": "password", "client_id": CLIENT, "scope": "openid email groups"}
        login = {"username": "hal", "password": PASSWORD}
        answer = await machine.post(f"{provider.issuer}/oauth/token", data={**wish, **login})
    async with House(tmp_path / "b.db", settings=given, true_time=true_time).open() as home:
        client = home.client(answer.json()["access_token"])
        seen = await client.get("/v1/plans")
        assert seen.status_code == 200, seen.text
        assert (await home.plan(client))["team"] == "research"


async def test_tokens_that_do_not_stand_up_are_refused(
    home: Home, provider: Canaille, true_time: FakeClock
) -> None:
    now, issuer = true_time.now(), provider.issuer
    good = minted(provider.keys, now, iss=issuer)
    assert await status(home, good) == 200
    stranger = RSAKey.generate_key(2048, parameters={"kid": str(provider.keys[0]["kid"])}, auto_kid=False)
    past = int((now - timedelta(minutes=2)).timestamp())
    future = int((now + timedelta(minutes=5)).timestamp())
    refused = {
        "expired": minted(provider.keys, now, iss=issuer, exp=past),
        "without an end": minted(provider.keys, now, iss=issuer, exp=None),
        "not valid yet": minted(provider.keys, now, iss=issuer, nbf=future),
        "made in the future": minted(provider.keys, now, iss=issuer, iat=future),
        "another audience": minted(provider.keys, now, iss=issuer, aud="https://other.example.org"),
        "no audience": minted(provider.keys, now, iss=issuer, aud=None),
        "an ID token of ours": minted(provider.keys, now, iss=issuer, aud=CLIENT),
        "another issuer": minted(provider.keys, now, iss="https://evil.example.org/"),
        "no issuer": minted(provider.keys, now),
        "no subject": minted(provider.keys, now, iss=issuer, sub=None),
        "another's key": minted([stranger.as_dict(private=True)], now, iss=issuer),
        "changed": good[:-6] + ("AAAAAA" if not good.endswith("AAAAAA") else "BBBBBB"),
        "far too long": minted(provider.keys, now, iss=issuer, groups=["ml-research"] * 3000),
    }
    for what, token in refused.items():
        answer = await home.client(token).get("/v1/plans")
        assert (answer.status_code, answer.json()["code"]) == (401, "not-authenticated"), what
    unmapped = await home.client(minted(provider.keys, now, iss=issuer, groups=["gardening"])).get(
        "/v1/plans"
    )
    assert (unmapped.status_code, unmapped.json()["code"]) == (403, "not-permitted")
    true_time.advance(minutes=7)
    assert await status(home, good) == 401


async def test_no_algorithm_without_a_private_key_is_taken(
    home: Home, provider: Canaille, true_time: FakeClock
) -> None:
    header, claims, signature = minted(provider.keys, true_time.now(), iss=provider.issuer).split(".")
    key = RSAKey.import_key(provider.keys[0])
    assert await status(home, f"{header}.{claims}.{signature}") == 200
    public = key.as_pem(private=False)
    head = encoded(json.dumps({"alg": "HS256", "typ": "JWT", "kid": key.kid}).encode())
    tokens = [
        f"{head}.{claims}.{encoded(hmac.digest(secret, f'{head}.{claims}'.encode(), 'sha256'))}"
        for secret in (public, public.strip(), b"", json.dumps(key.as_dict(private=False)).encode())
    ]
    for alg in ("none", "None", "nOnE"):
        head = encoded(json.dumps({"alg": alg, "kid": key.kid}).encode())
        tokens += [f"{head}.{claims}.", f"{head}.{claims}.{signature}"]
    for token in tokens:
        assert await status(home, token) == 401, token[:40]


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_a_rotated_key_is_found_and_an_unknown_one_asked_for_rarely(
    home: Home, provider: Canaille, true_time: FakeClock
) -> None:
    before = provider.keys
    assert await status(home, minted(before, true_time.now(), iss=provider.issuer)) == 200
    provider.rotate()
    new = minted(provider.keys, true_time.now(), iss=provider.issuer)
    assert await status(home, new) == 401, "asked again no more often than every 30 s"
    true_time.advance(seconds=31)
    assert await status(home, new) == 200
    assert await status(home, minted(before, true_time.now(), iss=provider.issuer)) == 401


async def test_the_isolation_matrix_holds_for_tokens(
    home: Home, provider: Canaille, true_time: FakeClock
) -> None:
    def of(groups: list[str]) -> httpx.AsyncClient:
        return home.client(minted(provider.keys, true_time.now(), iss=provider.issuer, groups=groups))

    owner, rival = await home.team(OWNER), of(["ml-rivals", "leads"])
    before = await read(home, rival, STATIC)
    assert not [key for key, answer in before.items() if answer in (401, 503)]
    names = await settle(home, owner)
    for key, answer in (await read(home, rival, names)).items():
        assert answer == before[key], key
        assert not [word for word in SECRETS if word in str(answer)], key
    for method, path, expect, answer in await write(home, rival, names):
        refusal = {Expect.HIDDEN: (404, "not-found"), Expect.REFUSED: (403, "not-permitted")}.get(expect)
        if refusal is None:
            assert answer.is_success, (method, path, answer.text)
        else:
            assert (answer.status_code, answer.json()["code"]) == refusal, (method, path)

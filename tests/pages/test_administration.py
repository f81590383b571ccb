"""The pages of who runs the broker: secrets are shown once, and each visitor sees and does what they may."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from api.http.dependencies import SESSION_COOKIE
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry, Scope
from broker.domain.basics.person import Person, PersonSession
from broker.domain.basics.webhook import ALL_TEAMS
from tests.api.house import ADMIN_KEY, Home, House
from tests.fakes.examples import PUBLIC_KEY
from tests.pages.test_forms import form_of

SECRET = re.compile(r"<code>((?:broker_live|whsec)_[^<]+)</code>")


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    async with House(tmp_path / "broker.db").open() as living:
        yield living


@pytest.fixture
def administrator(home: Home) -> httpx.AsyncClient:
    return home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})


async def member(home: Home) -> httpx.AsyncClient:
    return home.client(None, cookies={SESSION_COOKIE: await home.key("research")})


async def sent(client: httpx.AsyncClient, page: str, action: str, **fields: str) -> httpx.Response:
    """What a form of a page answers."""
    return await client.post(action, data={**await form_of(client, page, action), **fields})


async def test_a_key_is_made_shown_once_used_and_revoked(
    home: Home, administrator: httpx.AsyncClient
) -> None:
    form = await form_of(administrator, "/admin/keys", "/admin/keys")
    wanted = {**form, "name": "ci", "team": "research", "role": "reader", "days": "30", "person": "ann"}
    made = await administrator.post("/admin/keys", data=wanted)
    (secret,) = SECRET.findall(made.text)
    again = await administrator.post("/admin/keys", data=wanted)
    assert (again.status_code, again.headers["Location"]) == (303, "/admin/keys?done=made")
    page = (await administrator.get("/admin/keys?done=made")).text
    assert secret not in page
    assert "shown once" in page
    assert "ci, of ann" in page
    named = home.client(html.unescape(secret))
    own = (await named.get("/v1/me")).json()
    assert (own["name"], own["team"], own["scopes"]) == ("ci", "research", ["plans:read", "spend:read"])
    assert sum(key["name"] == "ci" for key in (await administrator.get("/v1/keys")).json()["items"]) == 1
    revoke = f"/admin/keys/{own['key_id']}/revoke"
    assert (await sent(administrator, "/admin/keys", revoke)).status_code == 303
    assert (await named.get("/v1/me")).status_code == 401
    assert "revoked" in (await administrator.get("/admin/keys")).text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "ci", "team": "research", "role": "usual", "days": "soon"}, "1 to 3650"),
        ({"name": "", "team": "research", "role": "usual"}, "/name"),
        ({"name": "ci", "team": "*", "role": "administrator"}, "reads"),
    ],
)
async def test_what_is_wrong_with_a_key_is_told_and_kept(
    administrator: httpx.AsyncClient, fields: dict[str, str], said: str
) -> None:
    refused = await sent(administrator, "/admin/keys", "/admin/keys", **fields)
    assert (refused.status_code, said in refused.text) == (422, True), refused.text
    assert f'value="{fields["team"]}"' in refused.text
    assert not SECRET.findall(refused.text)


LINK = re.compile(r"<code>http://broker(/signin/invitation\?token=[^<]+)</code>")


async def test_a_colleague_takes_a_key_with_a_link_that_works_once(
    home: Home, administrator: httpx.AsyncClient
) -> None:
    wanted = {"name": "grace", "team": "research", "role": "reader", "invite": "yes"}
    made = await sent(administrator, "/admin/keys", "/admin/keys", **wanted)
    (link,) = map(html.unescape, LINK.findall(made.text))
    token = link.partition("token=")[2]
    assert token not in (listed := (await administrator.get("/admin/keys?done=invited")).text)
    assert "invited until" in listed
    browser = home.client(None)
    for _ in range(2):  # programs that look at links in messages open them too
        assert "grace" in (await browser.get(link)).text
    other_site = {"Sec-Fetch-Site": "cross-site"}
    stolen = await browser.post("/signin/invitation", data={"token": token}, headers=other_site)
    assert stolen.status_code == 403
    taken = await browser.post("/signin/invitation", data={"token": token})
    (secret,) = SECRET.findall(taken.text)
    assert f"BROKER_URL=http://broker BROKER_KEY={secret}" in taken.text
    assert "Team: research only" in (await browser.get("/plans")).text
    own = (await home.client(html.unescape(secret)).get("/v1/me")).json()
    assert (own["name"], own["scopes"]) == ("grace", ["plans:read", "spend:read"])
    stranger = home.client(None)
    for again in (
        await stranger.get(link),
        await stranger.post("/signin/invitation", data={"token": token}),
        await stranger.post("/signin/invitation", content=b"\xff" * 9000),
    ):
        assert (again.status_code, "ask for another" in again.text) == (401, True), again.text
    assert SESSION_COOKIE not in stranger.cookies


async def test_a_team_sees_its_own_and_no_settings(home: Home, administrator: httpx.AsyncClient) -> None:
    await home.key("rivals")
    visitor = await member(home)
    keys = (await visitor.get("/admin/keys")).text
    assert "research" in keys
    assert "rivals" not in keys
    assert 'action="/admin/keys"' not in keys
    assert "/admin/settings" not in keys
    assert (await visitor.get("/admin/settings")).status_code == 403
    assert "BROKER_POLL_SECONDS" in (await administrator.get("/admin/settings")).text
    assert (await visitor.get("/admin")).headers["Location"] == "/admin/keys"


async def test_public_keys_are_added_and_removed(home: Home) -> None:
    visitor = await member(home)
    page = "/admin/ssh-keys"
    refused = await sent(visitor, page, page, public_key="-----BEGIN OPENSSH PRIVATE KEY-----")
    assert (refused.status_code, "id_ed25519.pub" in refused.text) == (422, True)
    added = await sent(visitor, page, page, public_key=f"{PUBLIC_KEY} ada@laptop", owner="me")
    assert added.headers["Location"] == f"{page}?done=added"
    shown = (await visitor.get(page)).text
    assert "ada@laptop" in shown
    (remove,) = re.findall(rf'action="({page}/[^"]+/remove)"', shown)
    assert (await sent(visitor, page, remove)).status_code == 303
    assert "No public key" in (await visitor.get(page)).text


async def test_a_webhook_is_made_tested_and_removed(home: Home) -> None:
    visitor = await member(home)
    page = "/admin/webhooks"
    refused = await sent(visitor, page, page, url="https://127.0.0.1/hook", events="plans.*")
    assert (refused.status_code, "plan." in refused.text) == (422, True)
    made = await sent(visitor, page, page, url="http://127.0.0.1:9/T0/secret-path", events="plan.*, budget.*")
    assert len(SECRET.findall(made.text)) == 1
    listed = (await visitor.get(page)).text
    assert "secret-path" not in listed
    assert "plan.*, budget.*" in listed
    (one,) = set(re.findall(rf'href="({page}/whk[^"]+)"', listed))
    assert (await sent(visitor, one, f"{one}/test")).headers["Location"] == f"{one}?done=tested"
    await home.product.webhooks.deliver()
    assert "pending" in (await visitor.get(one)).text
    assert (await sent(visitor, one, f"{one}/remove")).status_code == 303
    assert "No webhook" in (await visitor.get(page)).text


async def test_the_trail_is_narrowed_to_an_object(home: Home, administrator: httpx.AsyncClient) -> None:
    visitor = await member(home)
    await sent(visitor, "/admin/ssh-keys", "/admin/ssh-keys", public_key=PUBLIC_KEY, name="laptop")
    closed = AuditEntry(datetime.now(UTC), "key-1", "spend.close", "month", "2026-10", ALL_TEAMS, "")
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.accounts.add_audit(closed)
        await uow.commit()
    trail = (await administrator.get("/admin/audit")).text
    assert "ssh_key.add" in trail
    assert "key.create" in trail
    assert '<td data-label="Team">all teams</td>' in trail
    assert '<td data-label="Team">*</td>' not in trail
    (one,) = set(re.findall(r'href="(/admin/audit\?object_id=ssh[^"]+)"', trail))
    narrowed = (await administrator.get(one)).text
    assert "ssh_key.add" in narrowed
    assert "key.create" not in narrowed


async def test_people_are_listed_and_their_sessions_ended(
    home: Home, administrator: httpx.AsyncClient
) -> None:
    ada = Person("sub-1", "ada@example.org", "research", frozenset({Scope.PLANS_READ}))
    now, hour = datetime.now(UTC), timedelta(hours=1)
    session = PersonSession("ab" * 32, ada, now, now + 9 * hour, now, now + hour)
    over = replace(session, sha256="cd" * 32, expires_at=now - hour)
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.people.add_person_session(session)
        await uow.people.add_person_session(over)
        await uow.commit()
    assert (await administrator.get("/admin/keys")).text.count("<td>ada@example.org") == 1
    ended = await sent(administrator, "/admin/keys", "/admin/people/end")
    assert ended.headers["Location"] == "/admin/keys?done=ended"
    assert "ada@example.org" not in (await administrator.get("/admin/keys")).text
    trail = (await administrator.get("/admin/audit?object_id=sub-1")).text
    assert "ended by an administrator" in trail

"""Webhooks end to end: signed, stored with the change, tried again, and never into a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from sqlalchemy import text
from standardwebhooks import Webhook as Verifier

from api.clocks import SystemClock
from api.notices.webhook_sender import HttpWebhookSender
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import InputError
from broker.domain.basics.webhook import TRIES_AFTER, SendOutcome, can_match, make_secret, sign
from broker.services.accounts.webhooks import WebhooksService
from broker.settings import networks_of
from tests.api.house import DOCUMENT, OFFERS, Home, House, api_document
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import an_offer

ROOT = Path(__file__).parents[2]


@dataclass
class Receiver:
    """A server on loopback that answers ``statuses`` in turn, the last for ever."""

    url: str
    statuses: list[int] = field(default_factory=lambda: [200])
    seen: list[tuple[dict[str, str], str]] = field(default_factory=list)

    def events(self) -> list[str]:
        return [json.loads(body)["type"] for _, body in self.seen]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    told = Receiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            told.seen.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(told.statuses.pop(0) if len(told.statuses) > 1 else told.statuses[0])
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}/hook?team=1"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield told
        server.shutdown()
        thread.join()


async def hook(client: httpx.AsyncClient, url: str, *events: str) -> dict[str, Any]:
    body = {"url": url, **({"events": list(events)} if events else {})}
    answer = await client.post("/v1/webhooks", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert answer.headers["Location"] == f"/v1/webhooks/{made['webhook_id']}"
    return made


async def deliveries(client: httpx.AsyncClient, made: dict[str, Any]) -> list[dict[str, Any]]:
    shown: dict[str, Any] = (await client.get(f"/v1/webhooks/{made['webhook_id']}")).json()
    assert "secret" not in shown
    found: list[dict[str, Any]] = shown["deliveries"]
    return found


def clock_of(home: Home) -> FakeClock:
    assert isinstance(home.house.clock, FakeClock)
    return home.house.clock


async def test_another_library_verifies_what_is_sent(house: House, receiver: Receiver) -> None:
    house.clock = SystemClock()
    house.__post_init__()
    async with house.open() as home:
        client = await home.team("research")
        made = await hook(client, receiver.url)
        start = {**DOCUMENT, "horizon": {"start": "tomorrow", "days": 7}}
        plan = await home.plan(client, start)
        await home.product.webhooks.deliver()
    assert "plan.done" in receiver.events()
    for headers, body in receiver.seen:
        Verifier(made["secret"]).verify(body, headers)
    with pytest.raises(Exception, match="No matching signature"):
        Verifier(made["secret"]).verify(body + " ", headers)
    done = next(json.loads(b) for _, b in receiver.seen if json.loads(b)["type"] == "plan.done")
    assert done["data"]["object"] == {"kind": "plan", "id": plan["plan_id"]}
    assert done["data"]["money"]["change_usd"] == plan["cost_usd"], receiver.seen


async def test_events_say_what_changed_in_money(home: Home, receiver: Receiver) -> None:
    client = await home.team("research")
    await hook(client, receiver.url, "reservation.*")
    body = {"offer_id": "h100-a", "nodes": 1, "end": "2026-11-24T12:00:00Z"}
    made = (await client.post("/v1/reservations", json=body)).json()
    await home.product.webhooks.deliver()
    clock_of(home).advance(hours=2)
    await client.delete(f"/v1/reservations/{made['reservation_id']}")
    await home.product.webhooks.deliver()
    assert set(receiver.events()) <= {e for e in receiver.events() if e.startswith("reservation.")}
    money = [told for _, b in receiver.seen if (told := json.loads(b)["data"]["money"]) is not None]
    assert money[0]["before_usd"] is None
    assert Decimal(money[0]["after_usd"]) == 24 * 24
    assert [Decimal(money[-1][name]) for name in ("after_usd", "owed_usd")] == [48, 48]
    told = sum(Decimal(m["change_usd"]) for m in money)
    assert told == 48, "what is told sums to what it came to cost"
    form = {"$ref": "#/components/schemas/EventForm", "components": api_document()["components"]}
    for _, message in receiver.seen:
        assert [error.message for error in Draft202012Validator(form).iter_errors(json.loads(message))] == []


async def test_a_proposal_is_told_with_its_money_and_listed(home: Home, receiver: Receiver) -> None:
    client = await home.team("research")
    await hook(client, receiver.url, "reoptimization.*")
    plan = await home.plan(client)
    home.house.provider.offers = (*OFFERS, an_offer("h100-d", "10"))
    await home.product.offers.refresh()
    (look,) = await home.product.reoptimize.run("a test")
    await home.product.webhooks.deliver()
    (told,) = [json.loads(body)["data"] for _, body in receiver.seen]
    assert told["object"] == {"kind": "reoptimization", "id": look.reoptimization_id}
    assert told["money"]["before_usd"] == plan["cost_usd"]
    assert Decimal(told["money"]["change_usd"]) == -Decimal(str(look.net_usd))
    shown = (await client.get(f"/v1/reoptimizations/{look.reoptimization_id}")).json()
    assert (shown["state"], shown["moves"][0]["to_offers"]) == ("proposed", ["h100-d"])
    done = await client.post(f"/v1/reoptimizations/{look.reoptimization_id}/accept")
    assert (done.status_code, done.json()["state"]) == (202, "applied")
    late = await client.post(f"/v1/reoptimizations/{look.reoptimization_id}/reject")
    assert (late.status_code, late.json()["code"]) == (409, "conflict")


async def test_teams_and_patterns_keep_events_apart(home: Home, receiver: Receiver) -> None:
    ours, theirs = await home.team("research"), await home.team("product")
    made = await hook(theirs, receiver.url)
    mine = await hook(ours, receiver.url, "plan.approve")
    await home.plan(ours)
    await home.product.webhooks.deliver()
    assert [event for event in receiver.events() if event.startswith("plan")] == []
    assert (await ours.get(f"/v1/webhooks/{made['webhook_id']}")).status_code == 404
    assert (await ours.delete(f"/v1/webhooks/{made['webhook_id']}")).status_code == 404
    listed = (await ours.get("/v1/webhooks")).json()
    assert [one["webhook_id"] for one in listed["items"]] == [mine["webhook_id"]]
    assert (await ours.delete(f"/v1/webhooks/{mine['webhook_id']}")).status_code == 204
    assert (await ours.get("/v1/webhooks")).json()["items"] == []


async def test_an_administrator_is_told_of_every_team(home: Home, receiver: Receiver) -> None:
    await hook(home.client(), receiver.url, "plan.done")
    for team in ("research", "product"):
        await home.plan(await home.team(team), {**DOCUMENT, "team": team})
    await home.product.webhooks.deliver()
    assert [json.loads(body)["data"]["team"] for _, body in receiver.seen] == ["research", "product"]


async def test_a_failed_try_comes_again_later_and_then_no_more(home: Home, receiver: Receiver) -> None:
    receiver.statuses = [500, 302, 200]
    client = await home.team("research")
    made = await hook(client, receiver.url, "webhook.*")
    await home.product.webhooks.deliver()
    assert [d["state"] for d in await deliveries(client, made)] == ["pending"]
    assert await home.product.webhooks.deliver() == 0
    for wait in TRIES_AFTER[:2]:
        clock_of(home).advance(seconds=wait.total_seconds())
        await home.product.webhooks.deliver()
    (sent,) = await deliveries(client, made)
    assert (sent["state"], sent["attempts"], sent["error"]) == ("delivered", 3, "")
    assert len({headers["webhook-id"] for headers, _ in receiver.seen}) == 1
    assert len({headers["webhook-timestamp"] for headers, _ in receiver.seen}) == 3


async def test_what_never_answers_is_given_up(home: Home, receiver: Receiver) -> None:
    receiver.statuses = [503]
    client = await home.team("research")
    made = await hook(client, receiver.url, "webhook.*")
    for wait in (*TRIES_AFTER, TRIES_AFTER[-1], TRIES_AFTER[-1]):
        await home.product.webhooks.deliver()
        clock_of(home).advance(seconds=wait.total_seconds())
    (sent,) = await deliveries(client, made)
    assert (sent["state"], sent["attempts"], sent["error"]) == ("failed", len(TRIES_AFTER) + 1, "HTTP 503")
    assert len(receiver.seen) == len(TRIES_AFTER) + 1


async def test_gone_ends_a_webhook(home: Home, receiver: Receiver) -> None:
    receiver.statuses = [410]
    client = await home.team("research")
    made = await hook(client, receiver.url, "webhook.*", "plan.*")
    await home.product.webhooks.deliver()
    await home.plan(client)
    await home.product.webhooks.deliver()
    assert len(receiver.seen) == 1
    assert (await client.get(f"/v1/webhooks/{made['webhook_id']}")).json()["disabled_at"] is not None


async def test_what_waits_behind_a_failure_keeps_its_order(home: Home, receiver: Receiver) -> None:
    receiver.statuses = [500, 200]
    client = await home.team("research")
    made = await hook(client, receiver.url, "webhook.*", "plan.*")
    await home.plan(client)
    await home.product.webhooks.deliver()
    assert len(receiver.seen) == 1
    clock_of(home).advance(minutes=3)
    await home.product.webhooks.deliver()
    told = receiver.events()
    assert told[0] == told[1] == "webhook.create"
    assert told[2:] == ["plan.request", "plan.run", "plan.done"]
    assert {d["state"] for d in await deliveries(client, made)} == {"delivered"}


@dataclass
class Senders:
    """Answers by host, and what was tried in order; a host that is ``dead`` never takes anything."""

    tried: list[str] = field(default_factory=list)

    async def require_allowed(self, url: str) -> None:
        """Everything is."""

    async def send(self, url: str, headers: dict[str, str], body: str) -> SendOutcome:
        host = str(httpx.URL(url).host)
        self.tried.append(host)
        return SendOutcome(None, "no answer") if host == "dead" else SendOutcome(200, "")


async def test_a_dead_receiver_costs_one_try_and_holds_up_nobody(home: Home) -> None:
    units, senders = home.product.store.unit_of_work, Senders()
    service = WebhooksService(units, senders, home.house.clock)
    for team, url in (("loud", "https://dead/"), ("calm", "https://alive/")):
        caller = Caller(f"key-{team}", team, frozenset({Scope.SPEND_READ}))
        await service.create(caller, url, ["plan.*"])
    loud = [AuditEntry(NOON, "me", "plan.done", "plan", f"plan-{n}", "loud") for n in range(250)]
    async with units(EVERY_TEAM) as uow:
        for entry in (*loud, AuditEntry(NOON, "me", "plan.done", "plan", "plan-calm", "calm")):
            await uow.accounts.add_audit(entry)
        await uow.commit()
    await service.deliver()
    assert sorted(senders.tried) == ["alive", "dead"]
    clock_of(home).advance(seconds=TRIES_AFTER[0].total_seconds())
    await service.deliver()
    assert senders.tried.count("dead") == 2
    clock_of(home).advance(seconds=TRIES_AFTER[1].total_seconds() - 1)
    await service.deliver()
    assert senders.tried.count("dead") == 2


async def test_a_change_that_is_rolled_back_is_not_told(home: Home, receiver: Receiver) -> None:
    client = await home.team("research")
    await hook(client, receiver.url, "plan.*")
    entry = AuditEntry(NOON, "me", "plan.lost", "plan", "plan-x", "research")
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.accounts.add_audit(entry)
    await home.product.webhooks.deliver()
    assert receiver.seen == []
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.accounts.add_audit(entry)
        await uow.commit()
    await home.product.webhooks.deliver()
    assert receiver.events() == ["plan.lost"]
    async with home.product.store._engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM outbox"))).scalar() == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://localhost/",
        "https://10.1.2.3/",
        "https://192.168.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::a00:1]/",
        "https://[fd00::1]/",
        "https://100.64.0.1/",
        "https://0.0.0.0/",
        "https://224.0.0.1/",
        "https://2130706433/",
        "https://user:word@1.1.1.1/",
        "ftp://1.1.1.1/",
        "https://1.1.1.1:99999/",
        "https:///nowhere",
        "file:///etc/passwd",
        "https://" + "a" * 2000,
        "https://1.1.1.1/\r\nX-Forged: 1",
        "https://1.1.1.1/a\tb",
        "https://1.1.1.1/a b",
        "https://1.1.1.1/\u202e",
        " ",
    ],
)
async def test_inner_addresses_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="/url"):
        await HttpWebhookSender().require_allowed(url)


async def test_a_public_address_is_taken_and_loopback_only_where_it_is_allowed(receiver: Receiver) -> None:
    await HttpWebhookSender().require_allowed("https://1.1.1.1/hook")
    outcome = await HttpWebhookSender().send(receiver.url, {}, "{}")
    assert outcome.status is None
    assert receiver.seen == []
    assert (await HttpWebhookSender(allow_loopback=True).send(receiver.url, {}, "{}")).status == 200
    with pytest.raises(InputError):
        await HttpWebhookSender(allow_loopback=True).require_allowed("https://10.0.0.1/")


async def test_named_networks_are_allowed_and_nothing_beside_them(receiver: Receiver) -> None:
    inside = HttpWebhookSender(networks=networks_of("10.20.0.0/16, 127.0.0.0/8, fd00:12::/32"))
    for url in (
        "http://10.20.3.4:8065/hooks/x",
        "https://10.20.3.4/",
        "http://[fd00:12::1]/",
        "https://1.1.1.1/",
    ):
        await inside.require_allowed(url)
    for url in ("https://10.21.0.1/", "http://1.1.1.1/", "http://169.254.169.254/", "https://192.168.0.1/"):
        with pytest.raises(InputError, match="/url"):
            await inside.require_allowed(url)
    assert (await inside.send(receiver.url, {}, "{}")).status == 200
    for wrong in ("0.0.0.0/0", "8.8.8.0/24", "169.254.0.0/16", "10.20.0.1/16", "mattermost", "::/0"):
        with pytest.raises(ValueError, match="inner networks"):
            networks_of(wrong)


async def test_bad_wishes_are_pointed_at(home: Home, tmp_path: Path) -> None:
    client = await home.team("research")
    for body in (
        {"url": "https://10.0.0.1/"},
        {"url": "nothing"},
        {"url": "https://1.1.1.1", "events": []},
        {"url": "https://1.1.1.1", "events": ["plan.*", "reservations.*"]},
    ):
        answer = await client.post("/v1/webhooks", json=body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"] in ("/url", "/events", "/events/1")


def test_every_event_can_be_asked_for() -> None:
    sources = [path.read_text() for path in (ROOT / "broker").rglob("*.py") if "store" not in path.parts]
    named = r"""(?<!here\()f?"([a-z]+)\.(?!toml|csv|db|json|key)[a-z_{]+[a-z_{}.]*"[,)]"""
    families = {family for text in sources for family in re.findall(named, text)}
    assert len(families) > 5
    assert all(can_match(f"{family}.*") for family in families), families


def test_a_signature_is_the_standard_s() -> None:
    secret = make_secret(bytes(range(32)))
    at = SystemClock().now()
    Verifier(secret).verify("{}", sign(secret, "msg-1", at, "{}"))

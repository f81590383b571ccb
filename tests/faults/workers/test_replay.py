"""Every POST of the API, sent to two processes at once under one key: one effect, one answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from api.schemas.base.times import format_time
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.planning.plan import PlanStatus
from broker.ports.planning import PlanState
from broker.store import create_store
from tests.e2e.asking import document
from tests.e2e.processes import wait_for
from tests.fakes.examples import PUBLIC_KEY
from tests.faults.workers.conftest import HEADERS, Pair

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("several")]

JSON = {"Content-Type": "application/json"}
FREE_STOCK = ("latitude", "cudo", "oci")
RECORDED = {
    "/v1/plans": "plan.request",
    "/v1/plans/{plan_id}/approve": "plan.approve",
    "/v1/plans/{plan_id}/continue": "plan.request",
    "/v1/plans/{plan_id}/intend": "plan.intend",
    "/v1/plans/{plan_id}/reject": "plan.reject",
    "/v1/plans/{plan_id}/reserve": "reservation.intend",
    "/v1/reservations": "reservation.intend",
    "/v1/reservations/{reservation_id}/extend": "reservation.extend",
    "/v1/reservations/{reservation_id}/hold": "reservation.hold",
    "/v1/quarantine/{offer_id}/release": "offer.believe",
    "/v1/providers/{provider}/setup": "network.make",
    "/v1/spend/close": "spend.close",
    "/v1/webhooks": "webhook.create",
    "/v1/keys": "key.create",
    "/v1/ssh-keys": "ssh_key.add",
    "/v1/plans/{plan_id}/release": "reservation.release",
    "/v1/reservations/{reservation_id}/done": "reservation.release",
    "/v1/calendars": "key.create",
    "/v1/reoptimizations/{reoptimization_id}/accept": "reoptimization.applied",
    "/v1/reoptimizations/{reoptimization_id}/reject": "reoptimization.rejected",
}
"""The line of the audit trail that each effect leaves; a re-optimization leaves a record of its own."""

UNRECORDED = {
    "/v1/estimates",
    "/v1/plans/{plan_id}/simulate",
    "/v1/reoptimizations",
    "/v1/reservations/quote",
    "/v1/starting-points",
    "/v1/webhooks/{webhook_id}/test",
}


async def twins(pair: Pair, path: str, key: str, body: Any, **query: str) -> list[httpx.Response]:
    """The same request to both servers at once, once more when both have answered, and in other bytes."""
    headers = {**HEADERS, "Idempotency-Key": key}
    async with httpx.AsyncClient(headers=headers, timeout=120) as client:
        urls = [server.url + path for server in pair.servers]
        both = await asyncio.gather(*(client.post(url, params=query, json=body) for url in urls))
        last = [await client.post(url, params=query, json=body) for url in urls]
        other = await client.post(urls[0], params=query, content=" " + json.dumps(body), headers=JSON)
    assert other.status_code == 422, other.text
    assert other.json()["code"] == "idempotency-mismatch"
    return [*both, *last]


def one_answer(answers: list[httpx.Response]) -> httpx.Response:
    """What the first request was answered; every other said the same, or that it was still at work."""
    made = [answer for answer in answers if answer.is_success]
    for answer in answers:
        assert answer.is_success or answer.json()["code"] == "still-at-work", answer.text
    assert len({(answer.status_code, answer.content) for answer in made}) == 1
    assert [answer.headers.get("Idempotency-Replayed") for answer in answers[2:]] == ["true", "true"]
    return made[0]


async def keys_made(pair: Pair, client: httpx.Client, path: str, secret: str, wish: Any) -> int:
    """How many keys the same wish makes: its secret is told once, so that one answer differs by it."""
    before = len(recorded(client, "key.create"))
    answers = [a for a in await twins(pair, path, f"k-{path}", wish) if a.is_success]
    bodies = [answer.json() for answer in answers]
    assert [body[secret] is None for body in bodies].count(False) == 1
    assert len({body["key_id"] for body in bodies}) == 1
    return len(recorded(client, "key.create")) - before


def recorded(client: httpx.Client, action: str, object_id: str | None = None) -> list[dict[str, Any]]:
    """Lines of the audit trail with ``action``."""
    params: dict[str, str | int] = {"limit": 200, **({"object_id": object_id} if object_id else {})}
    items = client.get("/v1/audit", params=params).json()["items"]
    return [line for line in items if line["action"] == action]


def done_plan(client: httpx.Client, plan_id: str) -> dict[str, Any]:
    """The plan, once it is made."""

    def look() -> dict[str, Any] | None:
        plan: dict[str, Any] = client.get(f"/v1/plans/{plan_id}").json()
        return plan if plan["status"] not in {"queued", "running"} else None

    return wait_for("the plan", 120, look)


def looks_asked_for(client: httpx.Client) -> int:
    """How often somebody asked for a new look at the twins' one plan."""
    items = client.get("/v1/reoptimizations", params={"team": "twins"}).json()["items"]
    return sum(look["trigger"].startswith("requested by") for look in items)


def deliveries_of(client: httpx.Client, webhook_id: str) -> int:
    """How many events went to a webhook."""
    return len(client.get(f"/v1/webhooks/{webhook_id}").json()["deliveries"])


async def stopped(pair: Pair, plan_id: str) -> str:
    """A draft of the same document whose limit ended its search, as the planner would have stored it."""
    store = create_store(pair.database_url)
    async with store.unit_of_work(EVERY_TEAM) as uow:
        record = await uow.plans.find(plan_id)
        assert record.plan is not None
        plan = replace(record.plan, plan_id="plan-stopped", status=PlanStatus.FEASIBLE)
        draft = replace(record, plan_id="plan-stopped", plan=plan, intended_by=None, version=0)
        await uow.plans.add(replace(draft, reserved_at=None))
        await uow.commit()
    await store.close()
    return "plan-stopped"


async def proposed(pair: Pair, plan_id: str, name: str) -> str:
    """A proposal to stay with what the plan says, as a look would have stored it."""
    store = create_store(pair.database_url)
    async with store.unit_of_work(EVERY_TEAM) as uow:
        record = await uow.plans.find(plan_id)
        proposal = replace(record, plan_id=f"plan-{name}", state=PlanState.PROPOSED, version=0)
        await uow.plans.add(proposal)
        look = Reoptimization(
            name, record.team, plan_id, "a test", record.created_at, ProposalState.PROPOSED,
            new_plan_id=proposal.plan_id,
        )  # fmt: skip
        await uow.reoptimizations.add(look)
        await uow.commit()
    await store.close()
    return name


async def test_every_post_twice_at_once_has_one_effect(pair: Pair) -> None:
    with pair.client(0) as client:
        posts = {path for path, way in client.get("/openapi.json").json()["paths"].items() if "post" in way}
        assert posts == {*RECORDED, *UNRECORDED}, "a new POST needs a twin here"
        effects = {}

        one_answer(await twins(pair, "/v1/estimates", "k-estimate", document("twins")))

        source = {"text": "vllm serve Qwen/Qwen3-8B"}
        one_answer(await twins(pair, "/v1/starting-points", "k-source", source))

        before = len(recorded(client, "plan.request"))
        plan = one_answer(await twins(pair, "/v1/plans", "k-plan", document("twins"))).json()
        effects["/v1/plans"] = len(recorded(client, "plan.request")) - before
        plan_id = done_plan(client, plan["plan_id"])["plan_id"]

        one_answer(await twins(pair, f"/v1/plans/{plan_id}/simulate", "k-simulate", {"draws": 20}))

        one_answer(await twins(pair, f"/v1/plans/{plan_id}/intend", "k-intend", {}))
        effects["/v1/plans/{plan_id}/intend"] = len(recorded(client, "plan.intend", plan_id))

        one_answer(await twins(pair, f"/v1/plans/{plan_id}/approve", "k-approve", {}))
        effects["/v1/plans/{plan_id}/approve"] = len(recorded(client, "plan.approve", plan_id))

        taken = one_answer(await twins(pair, f"/v1/plans/{plan_id}/reserve", "k-reserve", {})).json()
        rows = client.get("/v1/reservations", params={"plan_id": plan_id, "limit": 200}).json()["items"]
        assert {r["reservation_id"] for r in rows} == {r["reservation_id"] for r in taken["reservations"]}
        effects["/v1/plans/{plan_id}/reserve"] = len(rows) // len(taken["reservations"])

        offer = next(
            o
            for p in FREE_STOCK
            for o in client.get("/v1/offers", params={"provider": p, "limit": 200}).json()["items"]
            if (o["stock"]["nodes"] or 0) >= 2 and o["tier"] == "on_demand"
        )
        open_before = len(pair.ledger(offer["provider"]))
        seen = datetime.fromisoformat(offer["observed_at"])
        end, later = (format_time(seen + timedelta(days=days)) for days in (1, 2))
        wish = {"offer_id": offer["offer_id"], "nodes": 1, "end": end}
        row = one_answer(await twins(pair, "/v1/reservations", "k-one", wish)).json()
        effects["/v1/reservations"] = len(pair.ledger(offer["provider"])) - open_before
        assert len(recorded(client, "reservation.intend", row["reservation_id"])) == 1

        path = f"/v1/reservations/{row['reservation_id']}/extend"
        one_answer(await twins(pair, path, "k-longer", {"end": later}))
        extended = recorded(client, "reservation.extend", row["reservation_id"])
        effects["/v1/reservations/{reservation_id}/extend"] = len(extended)

        days = (seen + timedelta(days=4), seen + timedelta(days=5))
        wish |= dict(zip(("start", "end"), map(format_time, days), strict=True))
        waiting = client.post("/v1/reservations", json=wish).json()
        path = f"/v1/reservations/{waiting['reservation_id']}/hold"
        one_answer(await twins(pair, path, "k-hold", {}))
        effects["/v1/reservations/{reservation_id}/hold"] = len(
            recorded(client, "reservation.hold", waiting["reservation_id"])
        )

        one_answer(await twins(pair, f"/v1/reservations/{row['reservation_id']}/done", "k-done", {}))
        ended = recorded(client, "reservation.release", row["reservation_id"])
        effects["/v1/reservations/{reservation_id}/done"] = len(ended)

        doubted = client.get("/v1/quarantine").json()["items"][0]["offer_id"]
        one_answer(await twins(pair, f"/v1/quarantine/{doubted}/release", "k-believe", {}))
        effects["/v1/quarantine/{offer_id}/release"] = len(recorded(client, "offer.believe", doubted))

        wanted = {"sources": ["203.0.113.0/24"]}
        one_answer(await twins(pair, "/v1/providers/aws/setup", "k-setup", wanted))
        effects["/v1/providers/{provider}/setup"] = len(recorded(client, "network.make", "aws"))

        told = {"url": f"{pair.sandbox.url}/events", "events": ["budget.*"]}  # and so of tests alone
        hook = one_answer(await twins(pair, "/v1/webhooks", "k-hook", told)).json()["webhook_id"]
        effects["/v1/webhooks"] = len(recorded(client, "webhook.create"))

        one_answer(await twins(pair, f"/v1/webhooks/{hook}/test", "k-test", {}))
        wait_for("the test's delivery", 60, lambda: deliveries_of(client, hook) or None)
        effects["/v1/webhooks/{webhook_id}/test"] = deliveries_of(client, hook)

        stored = one_answer(await twins(pair, "/v1/ssh-keys", "k-ssh", {"public_key": PUBLIC_KEY})).json()
        effects["/v1/ssh-keys"] = len(recorded(client, "ssh_key.add", stored["key_id"]))

        wish = {"name": "twin", "team": "twins", "scopes": ["plans:read"]}
        effects["/v1/keys"] = await keys_made(pair, client, "/v1/keys", "secret", wish)
        feed = {"name": "twin"}
        effects["/v1/calendars"] = await keys_made(pair, client, "/v1/calendars", "token", feed)

        for word in ("reject", "accept"):
            route = f"/v1/reoptimizations/{{reoptimization_id}}/{word}"
            look_id = await proposed(pair, plan_id, f"reopt-{word}")
            one_answer(await twins(pair, f"/v1/reoptimizations/{look_id}/{word}", f"k-{word}", {}))
            effects[route] = len(recorded(client, RECORDED[route], look_id))

        rejected = "plan-reopt-reject"
        one_answer(await twins(pair, f"/v1/plans/{rejected}/reject", "k-no", {"comment": "too dear"}))
        effects["/v1/plans/{plan_id}/reject"] = len(recorded(client, "plan.reject", rejected))

        closed = format_time(seen.replace(day=1) - timedelta(days=1))[:7]
        one_answer(await twins(pair, "/v1/spend/close", "k-close", {}, month=closed))
        effects["/v1/spend/close"] = len(recorded(client, "spend.close", closed))

        one_answer(await twins(pair, "/v1/reoptimizations", "k-look", {}))
        wait_for("the look", 60, lambda: looks_asked_for(client) or None)
        await asyncio.sleep(2)  # in which a second look would end
        effects["/v1/reoptimizations"] = looks_asked_for(client)

        short, before = await stopped(pair, plan_id), len(recorded(client, "plan.request"))
        one_answer(await twins(pair, f"/v1/plans/{short}/continue", "k-continue", {}))
        left = one_answer(await twins(pair, f"/v1/plans/{plan_id}/release", "k-release", {})).json()
        gone = [one["reservation_id"] for one in left["reservations"]]
        times = [len(recorded(client, "reservation.release", one)) for one in gone]
        effects["/v1/plans/{plan_id}/release"] = max(times)

        effects["/v1/plans/{plan_id}/continue"] = len(recorded(client, "plan.request")) - before

    print(f"{len(effects)} POSTs, each to 2 processes at once and twice more: effects {effects}")
    assert set(effects.values()) == {1}

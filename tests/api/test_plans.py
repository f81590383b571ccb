"""Plans over HTTP: asked for, followed, read, approved, reserved; each team its own."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from api import plan_requests
from api.notices.events import with_pauses
from api.planning.workers import PlannerProcesses
from api.routes import plans
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import Scope
from broker.ports.planning import PlanState
from broker.services.planning.planning import PlanningRules
from tests.api.house import ADMIN_KEY, DOCUMENT, Home, House, limit
from tests.fakes.clock import FakeClock
from tests.fakes.examples import ADMIN, plan_beyond_memory, refuse_to_plan
from tests.fakes.slots import Slots

YAML = """
team: research
horizon: {start: 2026-11-24T00:00:00Z, days: 7}
workloads:
  - {name: tune-8b, kind: training, model: Llama-3.1-8B, tokens: 2.0e9, sequence_length: 8192,
     global_batch_tokens: 1.0e6, precision: bf16, deadline: +4d}
"""


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_a_team_gets_a_plan(home: Home) -> None:
    team = await home.team("research")
    answer = await team.post("/v1/plans", json=DOCUMENT, params={"gap": 0.05, "seed": 7})
    assert answer.status_code == 202
    body = answer.json()
    assert answer.headers["Location"] == f"/v1/plans/{body['plan_id']}"
    assert body["status"] in {"queued", "running"}

    followed = await team.get(answer.headers["Location"] + "/events")
    assert followed.headers["Content-Type"].startswith("text/event-stream")
    told = events_of(followed.text)
    assert told[-1]["state"] == "done"

    plan = (await team.get(answer.headers["Location"])).json()
    assert (plan["plan_id"], plan["team"], plan["status"]) == (body["plan_id"], "research", "optimal")
    assert told[-1]["cost_usd"] == plan["cost_usd"]
    assert Decimal(plan["cost_usd"]) == sum(Decimal(p["cost_usd"]) for p in plan["placements"])
    assert Decimal(plan["cost_usd"]) == sum(Decimal(line["usd"]) for line in plan["spend"])
    again = events_of((await team.get(answer.headers["Location"] + "/events")).text)
    assert again == [told[-1]]


async def test_yaml_is_taken_too_and_lists_are_short(home: Home) -> None:
    team = await home.team("research")
    answer = await team.post("/v1/plans", content=YAML, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 202
    (row,) = (await team.get("/v1/plans")).json()["items"]
    assert row["plan_id"] == answer.json()["plan_id"]
    assert "placements" not in row
    assert "spend" not in row


async def test_plans_page_by_cursor(home: Home) -> None:
    team = await home.team("research")
    made = [(await team.post("/v1/plans", json=DOCUMENT)).json()["plan_id"] for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await team.get("/v1/plans", params=params)).json()
        seen += [row["plan_id"] for row in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(made)


async def test_a_failed_plan_says_why(house: House) -> None:
    house.plan_call = refuse_to_plan
    async with house.open() as home:
        team = await home.team("research")
        answer = await team.post("/v1/plans", json=DOCUMENT)
        told = events_of((await team.get(answer.headers["Location"] + "/events")).text)
        assert told[-1]["state"] == "failed"
        plan = (await team.get(answer.headers["Location"])).json()
        assert plan["status"] == "failed"
        assert "ZeroDivisionError" in plan["problem"]
        refused = await team.post(answer.headers["Location"] + "/reserve")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")


async def test_a_plan_beyond_its_memory_limit_says_what_to_do(house: House) -> None:
    house.plan_call = plan_beyond_memory
    house.executor = PlannerProcesses(1, memory_gib=1.0)
    async with house.open() as home:
        team = await home.team("research")
        answer = await team.post("/v1/plans", json=DOCUMENT)
        told = events_of((await team.get(answer.headers["Location"] + "/events")).text)
        assert told[-1]["state"] == "failed"
        problem = (await team.get(answer.headers["Location"])).json()["problem"]
        assert re.fullmatch(
            r"planning needs more memory than its process may use: it used 0\.\d\d GiB and asked for more, "
            r"the limit is 1 GiB; plan fewer workloads in one document, or raise BROKER_PLANNER_MEMORY_GIB",
            problem,
        )


async def test_another_teams_plan_does_not_exist(home: Home) -> None:
    ours, theirs = await home.team("research"), await home.team("product")
    plan_id = (await home.plan(ours))["plan_id"]
    for call in (
        theirs.get(f"/v1/plans/{plan_id}"),
        theirs.get(f"/v1/plans/{plan_id}/events"),
        theirs.post(f"/v1/plans/{plan_id}/approve"),
        theirs.post(f"/v1/plans/{plan_id}/reserve"),
    ):
        answer = await call
        assert answer.status_code == 404, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["code"] == "not-found"
    assert (await theirs.get("/v1/plans", params={"team": "research"})).status_code == 403
    assert (await theirs.get("/v1/plans")).json()["items"] == []
    assert len((await home.client().get("/v1/plans", params={"team": "research"})).json()["items"]) == 1
    stranger = await theirs.post("/v1/plans", json=DOCUMENT)
    assert (stranger.status_code, stranger.json()["code"]) == (403, "not-permitted")


async def test_finance_approves_before_anything_is_reserved(house: House) -> None:
    house.rules = limit("100")
    async with house.open() as home:
        team, finance = await home.team("research"), await home.team("research", [Scope.SPEND_APPROVE])
        plan = await home.plan(team)
        assert plan["needs_approval"]
        early = await team.post(f"/v1/plans/{plan['plan_id']}/reserve")
        assert (early.status_code, early.json()["code"]) == (409, "approval-required")
        approved = await finance.post(f"/v1/plans/{plan['plan_id']}/approve")
        assert approved.status_code == 200
        assert approved.json()["approved_by"]
        assert approved.json()["placements"] == plan["placements"]
        assert (await team.post(f"/v1/plans/{plan['plan_id']}/reserve")).status_code == 202


async def test_a_plan_is_reserved_once_whole(home: Home) -> None:
    team = await home.team("research")
    plan = await home.plan(team)
    path = f"/v1/plans/{plan['plan_id']}/reserve"
    answer = await team.post(path, headers={"Idempotency-Key": "r-1"})
    assert answer.status_code == 202
    rows = answer.json()["reservations"]
    assert {row["workload"] for row in rows} == {p["workload"] for p in plan["placements"]}
    assert answer.headers["Location"] == f"/v1/reservations?plan_id={plan['plan_id']}"
    listed = (await team.get(answer.headers["Location"])).json()["items"]
    assert sorted(row["reservation_id"] for row in listed) == sorted(row["reservation_id"] for row in rows)
    again = await team.post(path, headers={"Idempotency-Key": "r-1"})
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (again.status_code, again.content) == (202, answer.content)
    second = await team.post(path)
    assert (second.status_code, second.json()["code"]) == (409, "conflict")


async def test_a_stale_plan_is_refused(home: Home) -> None:
    team = await home.team("research")
    plan = await home.plan(team)
    dearer = tuple(
        replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour * 2) for o in home.house.offers
    )
    home.house.provider.offers = dearer
    await home.product.offers.refresh()
    answer = await team.post(f"/v1/plans/{plan['plan_id']}/reserve")
    assert (answer.status_code, answer.json()["code"]) == (409, "stale-plan")
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/placements/0/cost_usd"
    assert "plan again" in error["expected"]
    assert home.house.provider.open_instances() == []
    home.house.provider.offers = ()
    await home.product.offers.refresh()
    gone = await team.post(f"/v1/plans/{plan['plan_id']}/reserve")
    assert gone.json()["errors"][0]["pointer"] == "/placements/0/offer_id"


@pytest.mark.parametrize(
    ("body", "pointer", "line", "column"),
    [
        ("team: [1,\n", "", 2, 1),
        ('{"team": "research",\n "horizon": }', "/horizon", 2, 13),
        (YAML.replace("Llama-3.1-8B", "Lama-3.1-8B"), "/workloads/0/model", 5, 44),
        (YAML.replace("deadline: +4d", "deadline: 2026-11-20T00:00:00Z"), "/workloads/0/deadline", 6, 61),
        (YAML.replace("2.0e9", "-1"), "/workloads/0/tokens", 5, 66),
        (YAML.replace("2026-11-24", "9999-12-30"), "/horizon/start", 3, 18),
        (YAML.replace("+4d", "+9999999999d"), "/workloads/0/deadline", 6, 61),
        ("[" * 100_000, "", 1, 65),
        ("- " * 100_000, "", 1, 129),
    ],
)
async def test_bad_documents_are_pointed_at(
    home: Home, body: str, pointer: str, line: int, column: int
) -> None:
    answer = await home.client().post("/v1/plans", content=body)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "invalid-input"
    assert problem["trace_id"] == answer.headers["X-Request-Id"]
    first = problem["errors"][0]
    assert (first["pointer"], first["line"], first["column"]) == (pointer, line, column)
    assert (await home.client().get("/v1/plans")).json()["items"] == []


async def test_text_that_is_no_text_and_bodies_without_end(home: Home) -> None:
    client = home.client()
    assert (await client.post("/v1/plans", content=b"\xff\xfe\x00")).status_code == 422

    async def endless() -> Any:
        for _ in range(40):
            yield b" " * 2**18

    announced = await client.post("/v1/plans", content=b" " * (8 * 2**20 + 1))
    streamed = await client.post("/v1/plans", content=endless())
    for answer in (announced, streamed):
        assert (answer.status_code, answer.json()["code"]) == (413, "too-large")


async def test_a_listener_is_told_what_another_process_finished(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made elsewhere: only the store knows."""
    monkeypatch.setattr(plan_requests, "HEARTBEAT_S", 0.02)
    team = await home.team("research")
    done = await home.plan(team)
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        record = await uow.plans.find(done["plan_id"])
        record = await uow.plans.update(replace(record, state=PlanState.RUNNING))
        await uow.commit()
    home.product.events.publish(done["plan_id"], {"state": "running"})
    caller = await home.product.keys.verify(ADMIN_KEY)
    request = Request({"type": "http", "app": home.app, "method": "GET", "path": "/", "headers": []})
    answer = await plans.stream_plan_events(request, caller, done["plan_id"])
    lines: list[str] = []
    async for chunk in answer.body_iterator:
        lines.append(str(chunk))
        if len(lines) == 2:
            async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
                await uow.plans.update(replace(record, state=PlanState.DONE))
                await uow.commit()
    assert any(line.startswith(": ") for line in lines)
    assert events_of("".join(lines))[-1]["state"] == "done"


async def test_pauses_keep_what_comes_later() -> None:
    paused = asyncio.Event()

    async def slow() -> Any:
        for number in (1, 2):
            paused.clear()
            await paused.wait()
            yield number

    seen = []
    async for item in with_pauses(slow(), 0.01):
        seen.append(item)
        if item is None:
            paused.set()
    assert [item for item in seen if item is not None] == [1, 2]
    assert (seen[0], seen[-1]) == (None, 2)


NOTHING = (Decimal(0), Decimal(0))


async def projected(client: Any) -> tuple[Decimal, Decimal]:
    """What is expected in all, and of drafts."""
    found = (await client.get("/v1/spend/projection")).json()
    expected = [Decimal(row["usd"]) for row in found["items"] if row["basis"] == "projected"]
    return sum(expected, Decimal(0)), Decimal(found["intended_usd"])


async def made(client: Any, **params: Any) -> dict[str, Any]:
    plan_id = (await client.post("/v1/plans", json=DOCUMENT, params=params)).json()["plan_id"]
    await client.get(f"/v1/plans/{plan_id}/events")
    return await shown(client, plan_id)


async def shown(client: Any, plan_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/v1/plans/{plan_id}")).json()
    return found


async def test_drafts_count_once_and_only_where_somebody_intends_them(home: Home) -> None:
    team = await home.team("research")
    first = await made(team)
    assert (first["standing"], first["intended"]) == ("draft", False)
    assert await projected(team) == NOTHING
    misspelt = await team.post(f"/v1/plans/{first['plan_id']}/intend", json={"intend": False})
    assert (misspelt.status_code, misspelt.json()["errors"][0]["pointer"]) == (422, "/intend")
    assert (await shown(team, first["plan_id"]))["intended"] is False
    said = await team.post(f"/v1/plans/{first['plan_id']}/intend")
    assert (said.status_code, said.json()["intended"], said.json()["standing"]) == (200, True, "draft")
    cost = Decimal(first["cost_usd"])
    assert await projected(team) == (cost, cost)
    assert (await team.post(f"/v1/plans/{first['plan_id']}/intend")).status_code == 200

    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(minutes=1)
    second = await made(team, intended=True)
    assert (await shown(team, first["plan_id"]))["intended"] is False
    assert await projected(team) == (cost, cost), "the same workloads count once"
    back = await team.post(f"/v1/plans/{first['plan_id']}/intend", json={"intended": True})
    assert back.json()["standing"] == "draft", "an older draft may be the one that counts"
    assert (await shown(team, second["plan_id"]))["standing"] == "draft", "the newest may be reserved too"
    none = await team.post(f"/v1/plans/{first['plan_id']}/intend", json={"intended": False})
    assert none.json()["intended"] is False
    assert await projected(team) == NOTHING


async def test_what_is_reserved_stays_in_force_beside_later_drafts(home: Home) -> None:
    """After a restart the same document is planned once more; what holds capacity is still the plan."""
    team = await home.team("research")
    held = await made(team, intended=True)
    assert (await team.post(f"/v1/plans/{held['plan_id']}/reserve")).status_code == 202
    again = await made(team)
    stands = {one["plan_id"]: one["standing"] for one in (await team.get("/v1/plans")).json()["items"]}
    assert stands == {held["plan_id"]: "reserved", again["plan_id"]: "draft"}, "it buys a second time"
    assert [look.plan_id for look in await home.product.reoptimize.run("a test")] == [held["plan_id"]]
    assert (await projected(team))[1] == Decimal(0)

    refused = await team.post(f"/v1/plans/{held['plan_id']}/intend")
    assert refused.status_code == 409
    assert "only a draft can be intended" in refused.json()["detail"]
    for row in (await team.get("/v1/reservations")).json()["items"]:
        await team.delete(f"/v1/reservations/{row['reservation_id']}")
    for _ in range(3):
        await home.product.reconcile.run_once()
    assert (await shown(team, held["plan_id"]))["standing"] == "done"
    assert await projected(team) == NOTHING, "work that is over is not projected again"


async def test_a_rejected_plan_is_looked_at_no_more(house: House) -> None:
    house.rules = limit("0.01")
    async with house.open() as home:
        team = await home.team("research")
        plan = await made(team, intended=True)
        assert (plan["standing"], plan["intended"]) == ("waiting", True)
        assert len(await home.product.reoptimize.run("a test")) == 1
        no = await home.client().post(f"/v1/plans/{plan['plan_id']}/reject", json={"comment": "too dear"})
        assert no.json()["standing"] == "rejected"
        assert await home.product.reoptimize.run("a test") == ()
        assert await projected(team) == NOTHING
        assert (await team.post(f"/v1/plans/{plan['plan_id']}/intend")).status_code == 409
        yes = await home.client().post(f"/v1/plans/{plan['plan_id']}/approve", json={"comment": "after all"})
        assert (yes.json()["standing"], yes.json()["intended"]) == ("draft", True)
        assert (await projected(team))[1] == Decimal(plan["cost_usd"])


async def in_turn(slots: Slots, plan_id: str) -> None:
    async with asyncio.timeout(60):
        while plan_id not in slots.names:
            await asyncio.sleep(0.01)


async def three_plans(home: Home, team: httpx.AsyncClient, slots: Slots) -> list[httpx.Response]:
    """Answers on three wishes, of which the first is at work and the others wait."""
    first = await team.post("/v1/plans", json=DOCUMENT)
    await in_turn(slots, first.json()["plan_id"])
    rest = [await team.post("/v1/plans", json=DOCUMENT) for _ in range(2)]
    async with asyncio.timeout(60):
        while sum(home.product.plan_queue.waiting().values()) < len(rest):
            await asyncio.sleep(0.01)
    return [first, *rest]


async def test_a_plan_on_its_way_says_where_it_is(house: House) -> None:
    house.executor = slots = Slots()
    async with house.open() as home:
        team = await home.team("research")
        answers = await three_plans(home, team, slots)
        assert {answer.headers["Retry-After"] for answer in answers} == {"1"}
        first, second, third = (answer.json()["plan_id"] for answer in answers)
        home.product.events.publish(first, {"state": "running", "stage": "improving"})

        shown = [await team.get(f"/v1/plans/{one}") for one in (first, second, third)]
        told = [[answer.json()[name] for name in ("status", "position", "phase")] for answer in shown]
        assert told == [["running", None, "improving"], ["queued", 1, None], ["queued", 2, None]]
        assert [answer.headers["Retry-After"] for answer in shown] == ["1", "1", "2"]
        assert {answer.json()["workloads"]["workloads"][0]["name"] for answer in shown} == {"tune-8b"}
        listed = (await team.get("/v1/plans")).json()["items"]
        assert {row["plan_id"]: row["position"] for row in listed} == {first: None, second: 1, third: 2}
        assert all("workloads" not in row for row in listed)

        tag = {"If-None-Match": shown[2].headers["ETag"]}
        assert (await team.get(f"/v1/plans/{third}", headers=tag)).status_code == 304
        slots.end(first)
        await in_turn(slots, second)
        moved = await team.get(f"/v1/plans/{third}", headers=tag)
        assert (moved.status_code, moved.json()["position"]) == (200, 1)
        await team.get(f"/v1/plans/{first}/events")
        made = await team.get(f"/v1/plans/{first}")
        assert "Retry-After" not in made.headers
        assert made.json()["status"] == "optimal"
        assert made.json()["workloads"] == shown[0].json()["workloads"]
        assert made.json()["position"] is made.json()["phase"] is None


async def test_a_plan_is_cancelled(house: House) -> None:
    house.executor = slots = Slots()
    async with house.open() as home:
        team, other = await home.team("research"), await home.team("product")
        reader = await home.team("research", [Scope.PLANS_READ])
        first, second, _ = (answer.headers["Location"] for answer in await three_plans(home, team, slots))
        assert (await other.delete(second)).status_code == 404
        assert (await reader.delete(second)).status_code == 403
        for _ in range(2):
            gone = await team.delete(second)
            assert (gone.status_code, gone.content) == (204, b"")
        shown = (await team.get(second)).json()
        assert (shown["status"], shown["state"], shown["problem"]) == ("cancelled", "cancelled", None)
        assert "Retry-After" not in (await team.get(second)).headers
        assert events_of((await team.get(second + "/events")).text) == [{"state": "cancelled"}]
        refused = await team.post(second + "/reserve")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")

        slots.end(first.rsplit("/", 1)[1])
        await team.get(first + "/events")
        late = await team.delete(first)
        assert (late.status_code, late.json()["code"]) == (409, "conflict")
        assert "is done: only one that is queued or running can be cancelled" in late.json()["detail"]


async def test_a_team_with_too_much_on_its_way_is_asked_to_wait(house: House) -> None:
    house.executor = slots = Slots()
    house.rules = PlanningRules(plans_at_once=3)
    async with house.open() as home:
        team, other = await home.team("research"), await home.team("product")
        _, second, _ = await three_plans(home, team, slots)
        headers = {"Idempotency-Key": "fourth"}
        refused = await team.post("/v1/plans", json=DOCUMENT, headers=headers)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
        problem = refused.json()
        assert (problem["code"], problem["retryable"]) == ("too-many-plans", True)
        assert (problem["limit"], problem["found"], problem["allowed"]) == ("BROKER_TEAM_PLANS_AT_ONCE", 4, 3)
        theirs = await other.post("/v1/plans", json={**DOCUMENT, "team": "product"})
        assert theirs.status_code == 202
        await team.delete(second.headers["Location"])
        again = await team.post("/v1/plans", json=DOCUMENT, headers=headers)
        assert again.status_code == 202


async def test_a_stream_tells_of_the_line_and_ends_with_a_cancelled_plan(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_requests, "HEARTBEAT_S", 0.05)
    house.executor = slots = Slots()
    async with house.open() as home:
        team = await home.team("research")
        answers = await three_plans(home, team, slots)
        _, second, third = (answer.json()["plan_id"] for answer in answers)
        record = await home.product.planning.find_plan(ADMIN, third)
        told: list[object] = []
        async for event in plan_requests.plan_events(home.product, ADMIN, record):
            told += [event] if event is not None else []
            if told == [{"state": "queued", "position": 2}]:
                await team.delete(f"/v1/plans/{second}")
            if event == {"state": "queued", "position": 1}:
                await team.delete(f"/v1/plans/{third}")
        assert told == [
            {"state": "queued", "position": 2},
            {"state": "queued", "position": 1},
            {"state": "cancelled"},
        ]


async def test_a_plan_is_waited_for(house: House) -> None:
    house.executor = slots = Slots()
    async with house.open() as home:
        team = await home.team("research")
        first, *_ = [answer.json()["plan_id"] for answer in await three_plans(home, team, slots)]
        early = await team.get(f"/v1/plans/{first}", params={"wait": 0.01})
        assert (early.json()["status"], early.headers["Retry-After"]) == ("running", "1")
        waiting = asyncio.ensure_future(team.get(f"/v1/plans/{first}", params={"wait": 60}))
        assert not (await asyncio.wait({waiting}, timeout=0.1))[0]
        slots.end(first)
        made = await waiting
        assert (made.json()["status"], made.json()["plan_id"]) == ("optimal", first)
        assert "Retry-After" not in made.headers
        again = await team.get(f"/v1/plans/{first}", params={"wait": 60})
        assert again.json() == made.json()
        assert (await team.get(f"/v1/plans/{first}", params={"wait": 61})).status_code == 422


async def test_an_answer_from_stored_ids_tells_the_status_alone(home: Home) -> None:
    team = await home.team("research")
    plan = await home.plan(team)
    record = await home.product.planning.find_plan(ADMIN, plan["plan_id"])
    assert json.loads(plans._accepted(record).body)["status"] == plan["status"] == "optimal"

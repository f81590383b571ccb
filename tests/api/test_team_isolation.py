"""What a team has is nobody else's: every route of the OpenAPI document with another's key.

The routes come from the application itself, so that a new one without a declared expectation fails.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from enum import Enum, auto
from typing import Any

import httpx

from broker.domain.basics.access import ALL_TEAMS_SCOPES, EVERY_TEAM
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.moving.reoptimization import Move, ProposalState, Reoptimization
from broker.domain.planning.comparison import Variant
from broker.domain.planning.patch import PatchOperation, PatchVerb
from broker.domain.planning.plan import Baseline, Fix, Obstacle, Unplaced
from broker.ports.planning import PlanState
from tests.api.house import DOCUMENT, Home
from tests.fakes.clock import NOON
from tests.fakes.examples import PUBLIC_KEY, a_placement, a_plan, a_record, a_segment, an_offer

OWNER, RIVAL = "research", "rivals"
WORKLOAD, WAITING = "secret-tune", "secret-draft"
HOUR = timedelta(hours=1)


class Expect(Enum):
    """What another team's key gets."""

    HIDDEN = auto()
    """404, as for what does not exist."""
    REFUSED = auto()
    """403: it says whose it is, or only an administrator may."""
    SUMS = auto()
    """What it got before the owner had anything; the owner gets something else."""
    SHARED = auto()
    """The market, or what finance did for everybody: the same for all."""
    OWN = auto()
    """It acts for the caller's team alone."""


E = Expect
PLAN, FLEET = "/v1/plans/{plan_id}", "/v1/reservations/{reservation_id}"
LOOK, BUDGET = "/v1/reoptimizations/{reoptimization_id}", "/v1/budgets/{team}/{period}"
EXPECTED: Mapping[tuple[str, str], Expect] = {
    ("POST", "/v1/estimates"): E.REFUSED,  # as for a plan
    ("POST", "/v1/starting-points"): E.SHARED,
    ("POST", "/v1/plans"): E.REFUSED,  # the document names its team
    ("GET", "/v1/plans"): E.SUMS,
    ("GET", PLAN): E.HIDDEN,
    ("DELETE", PLAN): E.HIDDEN,
    ("POST", f"{PLAN}/continue"): E.HIDDEN,
    ("POST", f"{PLAN}/simulate"): E.HIDDEN,
    ("GET", f"{PLAN}/check"): E.HIDDEN,
    ("GET", f"{PLAN}/confidence-prices"): E.HIDDEN,
    ("POST", f"{PLAN}/intend"): E.HIDDEN,
    ("GET", f"{PLAN}/events"): E.HIDDEN,
    ("POST", f"{PLAN}/approve"): E.HIDDEN,
    ("POST", f"{PLAN}/reject"): E.HIDDEN,
    ("POST", f"{PLAN}/reserve"): E.HIDDEN,
    ("GET", "/v1/comparisons"): E.HIDDEN,
    ("GET", "/v1/comparisons/{comparison_id}"): E.HIDDEN,
    ("GET", f"{PLAN}/release"): E.HIDDEN,
    ("POST", f"{PLAN}/release"): E.HIDDEN,
    ("GET", f"{PLAN}/endpoints"): E.HIDDEN,
    ("GET", f"{PLAN}/endpoints/events"): E.HIDDEN,
    ("GET", f"{PLAN}/quote"): E.HIDDEN,
    ("GET", "/v1/approvals"): E.SUMS,
    ("POST", "/v1/reservations"): E.OWN,
    ("POST", "/v1/reservations/quote"): E.OWN,
    ("GET", "/v1/reservations"): E.SUMS,
    ("GET", "/v1/reservations/fleets"): E.SUMS,
    ("GET", "/v1/reservations/shortfalls"): E.SUMS,
    ("GET", FLEET): E.HIDDEN,
    ("DELETE", FLEET): E.HIDDEN,
    ("GET", f"{FLEET}/release"): E.HIDDEN,
    ("POST", f"{FLEET}/extend"): E.HIDDEN,
    ("GET", f"{FLEET}/extend"): E.HIDDEN,
    ("GET", f"{FLEET}/hold"): E.HIDDEN,
    ("POST", f"{FLEET}/hold"): E.HIDDEN,
    ("POST", f"{FLEET}/done"): E.HIDDEN,
    ("GET", "/v1/offers/{offer_id}/prices"): E.SHARED,
    ("GET", "/v1/offers/{offer_id}/forecast"): E.SHARED,
    ("GET", "/v1/prices"): E.SHARED,
    ("GET", "/v1/market"): E.SHARED,
    ("GET", "/v1/offers"): E.SHARED,
    ("GET", "/v1/offers/{offer_id}"): E.SHARED,
    ("GET", "/v1/gpus"): E.SHARED,
    ("GET", "/v1/models"): E.SHARED,
    ("GET", "/v1/me"): E.OWN,
    ("GET", "/v1/quarantine"): E.SHARED,
    ("POST", "/v1/quarantine/{offer_id}/release"): E.REFUSED,
    ("GET", "/v1/providers"): E.SHARED,
    ("POST", "/v1/providers/{provider}/setup"): E.REFUSED,
    ("POST", "/v1/reoptimizations"): E.OWN,
    ("GET", "/v1/reoptimizations"): E.SUMS,
    ("GET", LOOK): E.HIDDEN,
    ("POST", f"{LOOK}/accept"): E.HIDDEN,
    ("POST", f"{LOOK}/reject"): E.HIDDEN,
    ("GET", "/v1/spend/projection"): E.SUMS,
    ("GET", "/v1/spend/projection.csv"): E.SUMS,
    ("GET", "/v1/spend/projection.{form}"): E.SUMS,
    ("GET", "/v1/spend/projection-rows.csv"): E.SUMS,
    ("GET", "/v1/spend/projection-rows.{form}"): E.SUMS,
    ("GET", "/v1/spend/focus.csv"): E.SUMS,
    ("GET", "/v1/spend/focus.manifest.json"): E.SUMS,
    ("GET", "/v1/spend/focus.{form}"): E.SUMS,
    ("GET", "/v1/spend/exports/{export_id}"): E.HIDDEN,
    ("GET", "/v1/spend/exports/{export_id}/file"): E.HIDDEN,
    ("GET", "/v1/spend/changes"): E.SUMS,
    ("GET", "/v1/spend/interval"): E.SUMS,
    ("GET", "/v1/spend/units"): E.SUMS,
    ("GET", "/v1/spend/savings"): E.SUMS,
    ("POST", "/v1/spend/close"): E.REFUSED,
    ("GET", "/v1/spend/closed"): E.SHARED,  # which months; test_month_close.py: the cost is the team's
    ("GET", "/v1/budgets"): E.SUMS,
    ("GET", BUDGET): E.HIDDEN,
    ("PUT", BUDGET): E.HIDDEN,
    ("DELETE", BUDGET): E.HIDDEN,
    ("POST", "/v1/keys"): E.REFUSED,
    ("GET", "/v1/keys"): E.SUMS,
    ("GET", "/v1/keys/{key_id}"): E.HIDDEN,
    ("DELETE", "/v1/keys/{key_id}"): E.REFUSED,
    ("POST", "/v1/calendars"): E.OWN,
    ("POST", "/v1/ssh-keys"): E.OWN,
    ("GET", "/v1/ssh-keys"): E.SUMS,
    ("GET", "/v1/ssh-keys/{ssh_key_id}"): E.HIDDEN,
    ("DELETE", "/v1/ssh-keys/{ssh_key_id}"): E.HIDDEN,
    ("DELETE", "/v1/calendars/{key_id}"): E.HIDDEN,
    ("GET", "/v1/plans/{plan_id}/windows.ics"): E.HIDDEN,
    ("GET", "/v1/reservations.ics"): E.SUMS,
    ("POST", "/v1/webhooks"): E.OWN,
    ("GET", "/v1/webhooks"): E.SUMS,
    ("GET", "/v1/webhooks/{webhook_id}"): E.HIDDEN,
    ("POST", "/v1/webhooks/{webhook_id}/test"): E.HIDDEN,
    ("DELETE", "/v1/webhooks/{webhook_id}"): E.HIDDEN,
    ("GET", "/v1/reconciliation"): E.REFUSED,
    ("GET", "/v1/audit"): E.SUMS,
}

QUERIES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "/v1/spend/changes": (
        {"from": "2026-10", "to": "2026-11"},
        {"from": "2026-11", "to": "2026-12"},
        {"from": "{plan_id}", "to": "{plan_id}"},
    ),
    "/v1/comparisons": ({"plan": ["plan-held", "plan-draft"]},),
    "/v1/prices": ({"gpu": "H100-SXM-80GB", "tier": "on_demand"},),
    f"{FLEET}/extend": ({"end": "2026-11-25T00:00:00Z"},),
    "/v1/spend/close": ({"month": "2026-10"},),
}
"""What must be asked; else nothing is."""
BODIES: Mapping[str, object] = {
    "/v1/providers/{provider}/setup": {"sources": ["203.0.113.0/24"]},
    "/v1/estimates": DOCUMENT,
    "/v1/starting-points": {"text": "vllm serve Qwen/Qwen3-8B"},
    "/v1/plans": DOCUMENT,  # it names the owner
    f"{PLAN}/intend": {"intended": True},
    "/v1/reservations": {"offer_id": "h100-b", "nodes": 1},
    "/v1/reservations/quote": {"offer_id": "h100-b", "nodes": 1},
    f"{PLAN}/reject": {"comment": "no"},
    f"{FLEET}/extend": {"end": "2026-11-25T00:00:00Z"},
    BUDGET: {"limit_usd": "5"},
    "/v1/keys": {"name": "mine", "team": OWNER, "scopes": ["plans:read"]},
    "/v1/webhooks": {"url": "http://127.0.0.1:9/"},
    "/v1/ssh-keys": {"public_key": PUBLIC_KEY},
}
SCOPING = {"team": OWNER, "plan_id": "plan-held", "object_id": f"{OWNER}/month"}
"""Query parameters that name somebody's things."""


def a_row(name: str, begin: float, end: float, **more: Any) -> Reservation:
    """Two nodes of the owner; what began before noon is held."""
    held = begin < 0
    unit = Unit(0, f"tag-{name}", 2, UnitState.PLANNED)
    if held:
        since = NOON + begin * HOUR
        unit = replace(unit, state=UnitState.HELD, reference=f"i-{name}", ordered_at=since, began_at=since)
    row = Reservation(
        reservation_id=f"rsv-{name}",
        team=OWNER,
        state=ReservationState.ACTIVE if held else ReservationState.SCHEDULED,
        offer=an_offer("h100-b", "20.5"),
        nodes=2,
        start=NOON + begin * HOUR,
        end=NOON + end * HOUR,
        units=(unit,),
        created_at=NOON - 3 * HOUR,
        workload=WORKLOAD,
        plan_id="plan-held",
        active_at=NOON + begin * HOUR if held else None,
    )
    return replace(row, **more)


async def settle(home: Home, owner: httpx.AsyncClient) -> dict[str, str]:
    """One of everything for the owner; its names by the parameter that takes them."""
    offer = an_offer("h100-b", "20.5")
    held = a_plan(a_placement(offer, [a_segment(-2, 8, 2)], WORKLOAD), plan_id="plan-held")
    held = replace(held, baselines=(Baseline("single_provider", held.cost_usd + 7, "one seller"),))
    fix = Fix("8 GPUs", (PatchOperation(PatchVerb.ADD, "/workloads/0/gpus", '{"max": 8}'),), held.cost_usd)
    left = Unplaced("secret-left", Obstacle.SIZE, fix.says, (fix,))
    draft = a_plan(a_placement(offer, [a_segment(24, 30)], WAITING), plan_id="plan-draft", unplaced=(left,))
    variant = replace(draft, plan_id="plan-variant", unplaced=())
    move = Move(WORKLOAD, ("h100-b",), ("h100-c",), Decimal(9), "cheaper", leaves=("rsv-held",))
    look = Reoptimization("look-1", OWNER, "plan-held", "a test", NOON, ProposalState.PROPOSED, moves=(move,))
    look = replace(look, new_plan_id="plan-next")
    following = a_plan(a_placement(offer, [a_segment(0, 8, 2)], WORKLOAD), plan_id="plan-next")
    document = json.dumps({**DOCUMENT, "workloads": [{**DOCUMENT["workloads"][0], "name": WORKLOAD}]})
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.plans.add(replace(a_record(held), document=document, reserved_at=NOON - 2 * HOUR))
        asked = {**DOCUMENT, "workloads": [{**DOCUMENT["workloads"][0], "name": WAITING}]}
        await uow.plans.add(replace(a_record(draft, needs_approval=True), document=json.dumps(asked)))
        place = Variant("compare-1", "plan-held", "what if", 0)
        other = replace(a_record(variant), document=document, intended_by=None, variant=place)
        await uow.plans.add(other)
        await uow.plans.add(a_record(following, state=PlanState.PROPOSED))
        await uow.reservations.add(a_row("held", -2, 8))
        await uow.reservations.add(a_row("short", 0, 8, tries=1, tried_at=NOON, reason="no stock"))
        await uow.reoptimizations.add(look)
        await uow.commit()
    budget = await owner.put(f"/v1/budgets/{OWNER}/month", json={"limit_usd": "400"})
    assert budget.status_code == 200, budget.text
    hook = await owner.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/"})
    stored = await owner.post("/v1/ssh-keys", json={"public_key": PUBLIC_KEY})
    assert stored.status_code == 201, stored.text
    key = (await owner.get("/v1/keys")).json()["items"][0]["key_id"]
    own = await owner.post("/v1/ssh-keys", json={"public_key": PUBLIC_KEY, "name": "secret-key"})
    export = await owner.get("/v1/spend/focus.parquet")
    await finished(owner, export)
    return {
        "plan_id": "plan-draft",
        "reservation_id": "rsv-held",
        "reoptimization_id": "look-1",
        "export_id": export.json()["export_id"],
        "webhook_id": hook.json()["webhook_id"],
        "key_id": key,
        "ssh_key_id": own.json()["key_id"],
        "team": OWNER,
        "period": "month",
        "form": "parquet",
        "offer_id": "h100-b",
        "provider": "fake",
        "name": "plan.png",
        "path": "operations",
        "comparison_id": "compare-1",
    }


async def finished(client: httpx.AsyncClient, begun: httpx.Response) -> object:
    """What a file that is written in the background comes to hold."""
    assert begun.status_code == 202, begun.text
    while (job := (await client.get(begun.headers["Location"])).json())["state"] == "running":
        await asyncio.sleep(0.01)
    assert job["state"] == "done", job
    return job["manifest"]


def filled(template: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::path)?\}", lambda found: names[found[1]], template)


def asked(path: str, operation: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Queries of a route: the plain ones, and each with what names the owner's things."""
    scoping = [one["name"] for one in operation.get("parameters", []) if one["name"] in SCOPING]
    for base in QUERIES.get(path, ({},)):
        plain = {key: filled(value, names) for key, value in base.items()}
        yield plain
        for name in scoping:
            if f"{{{name}}}" not in path:
                yield {**plain, name: SCOPING[name]}


def written(method: str, path: str) -> tuple[Mapping[str, Any], object]:
    """Query and body of a request. A path that is read by a query may be changed by a body."""
    body = BODIES.get(path)
    return {} if body is not None and method != "GET" else QUERIES.get(path, ({},))[0], body


async def read(home: Home, client: httpx.AsyncClient, names: Mapping[str, str]) -> dict[str, object]:
    """Every answer to a read that has an expectation other than 404, by what was asked."""
    found: dict[str, object] = {}
    paths = home.app.openapi()["paths"]
    for (method, path), expect in EXPECTED.items():
        if method != "GET" or expect in (Expect.HIDDEN, Expect.REFUSED):
            continue
        for query in asked(path, paths[path]["get"], names):
            answer = await client.get(filled(path, names), params=query)
            key = f"{path} {json.dumps(query)}"
            if answer.status_code == 202:
                found[key] = await finished(client, answer)
            else:
                found[key] = answer.text if answer.status_code == 200 else answer.status_code
    return found


STATIC = {"plan_id": "plan-draft", "team": OWNER, "form": "parquet", "offer_id": "h100-b"}
SECRETS = (
    WORKLOAD,
    WAITING,
    "plan-held",
    "plan-draft",
    "plan-next",
    "plan-variant",
    "compare-1",
    "secret-left",
    "rsv-held",
    "rsv-short",
    "look-1",
)


async def test_every_route_says_what_another_team_gets(home: Home) -> None:
    told = {(method.upper(), path) for path, found in home.app.openapi()["paths"].items() for method in found}
    assert set(EXPECTED) == told


async def test_another_team_reads_what_it_read_before_the_owner_had_anything(home: Home) -> None:
    owner, rival = await home.team(OWNER), await home.team(RIVAL)
    before = await read(home, rival, STATIC)
    names = await settle(home, owner)
    after, owners = await read(home, rival, names), await read(home, owner, names)
    for key, answer in after.items():
        assert answer == before[key], key
        assert not [word for word in SECRETS if word in str(answer)], key
        if EXPECTED["GET", key.split(" ")[0]] is Expect.SUMS:
            assert owners[key] != answer, f"{key} tells the owner nothing: the test would see no leak"


async def write(
    home: Home, client: httpx.AsyncClient, names: Mapping[str, str]
) -> Iterator[tuple[str, str, Expect, httpx.Response]]:
    """The answer to everything that has an id, is refused, or changes something."""
    found = []
    for (method, path), expect in EXPECTED.items():
        if method == "GET" and expect not in (Expect.HIDDEN, Expect.REFUSED):
            continue
        query, body = written(method, path)
        answer = await client.request(method, filled(path, names), params=query, json=body)
        found.append((method, path, expect, answer))
    return iter(found)


async def test_what_a_team_has_does_not_exist_for_another(home: Home) -> None:
    owner, rival = await home.team(OWNER), await home.team(RIVAL)
    names = await settle(home, owner)
    before = await read(home, owner, names)
    for method, path, expect, answer in await write(home, rival, names):
        if expect is Expect.HIDDEN:
            assert (answer.status_code, answer.json()["code"]) == (404, "not-found"), (method, path)
        elif expect is Expect.REFUSED:
            assert (answer.status_code, answer.json()["code"]) == (403, "not-permitted"), (method, path)
        else:
            assert answer.is_success, (method, path, answer.text)
            assert answer.json().get("team", RIVAL) == RIVAL, (method, path)
    await home.product.background.stop()
    after = await read(home, owner, names)
    changed = {key for key in after if after[key] != before[key]}
    assert not {key for key in changed if EXPECTED["GET", key.split(" ")[0]] is Expect.SUMS}
    for method, path, expect, answer in await write(home, owner, names):
        if expect is Expect.HIDDEN:
            assert answer.status_code not in (403, 404, 405, 422), f"{method} {path}: {answer.text}"


CALENDAR = "/v1/calendars/{key_id}"
DECIDED_BY_ALL_TEAMS = {
    ("POST", f"{PLAN}/approve"),
    ("POST", f"{PLAN}/reject"),
    ("PUT", BUDGET),
    ("DELETE", BUDGET),
    ("POST", "/v1/spend/close"),
    ("POST", "/v1/estimates"),  # which reads the market alone
    ("POST", f"{PLAN}/simulate"),  # which changes nothing
    ("POST", "/v1/starting-points"),  # which reads what was sent alone
}
"""What a key of all teams may do for any team."""


async def test_a_key_of_all_teams_reads_what_each_team_reads_and_may_narrow_to_one(home: Home) -> None:
    owner, finance = await home.team(OWNER), await home.team(ALL_TEAMS, ALL_TEAMS_SCOPES)
    await home.key(RIVAL)
    names = await settle(home, owner)
    owners, every = await read(home, owner, names), await read(home, finance, names)
    for key, answer in owners.items():
        path = key.split(" ")[0]
        if EXPECTED["GET", path] is Expect.SUMS and path not in OWN_ALONE:
            assert not isinstance(every[key], int), (key, every[key])
            told = [word for word in SECRETS if word in str(answer)]
            assert told == [word for word in SECRETS if word in str(every[key])], key
    narrowed = (await finance.get("/v1/plans", params={"team": RIVAL})).json()
    assert narrowed["items"] == []
    assert len((await finance.get("/v1/plans", params={"team": OWNER})).json()["items"]) == 4


async def test_a_filter_by_another_team_is_refused_and_never_answered_with_ones_own(home: Home) -> None:
    """Every read that can be narrowed to a team; whoever may see all is told that a team does not exist."""
    owner, rival, admin = await home.team(OWNER), await home.team(RIVAL), home.client()
    names, asked_for = await settle(home, owner), 0
    for path, operations in home.app.openapi()["paths"].items():
        parameters = operations.get("get", {}).get("parameters", [])
        if not any((one["name"], one["in"]) == ("team", "query") for one in parameters):
            continue
        asked_for += 1
        query = {key: filled(word, names) for key, word in QUERIES.get(path, ({},))[0].items()}
        for team in (OWNER, "nobody", ALL_TEAMS):
            refused = await rival.get(filled(path, names), params={**query, "team": team})
            assert (refused.status_code, refused.json()["code"]) == (403, "not-permitted"), (path, team)
        unknown = await admin.get(filled(path, names), params={**query, "team": "reserch"})
        assert unknown.status_code == 422, (path, unknown.text)
        assert "nearest: research" in unknown.json()["errors"][0]["expected"], path
        own = await rival.get(filled(path, names), params={**query, "team": RIVAL})
        assert own.is_success, (path, own.text)
    assert asked_for >= 19


OWN_ALONE = frozenset({"/v1/keys", "/v1/webhooks"})
"""They say who made a key or webhook, of whatever team; there is nothing of ``SECRETS`` in them."""


async def test_a_key_of_all_teams_decides_and_changes_nothing_else(home: Home) -> None:
    owner, finance = await home.team(OWNER), await home.team(ALL_TEAMS, ALL_TEAMS_SCOPES)
    names = await settle(home, owner)
    before = (await owner.get("/v1/webhooks")).json()
    for method, path in EXPECTED:
        if method == "GET":
            continue
        query, body = written(method, path)
        answer = await finance.request(method, filled(path, names), params=query, json=body)
        if (method, path) in DECIDED_BY_ALL_TEAMS:
            assert answer.is_success, (method, path, answer.text)
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "not-permitted"), (method, path)
    assert (await owner.get("/v1/webhooks")).json() == before
    feed = (await owner.post("/v1/calendars")).json()
    ended = await finance.delete(filled(CALENDAR, {"key_id": feed["key_id"]}))
    assert (ended.status_code, ended.json()["code"]) == (403, "not-permitted")
    trail = (await owner.get("/v1/audit", params={"object_id": "plan-draft"})).json()["items"]
    assert [entry["action"] for entry in trail] == ["plan.reject", "plan.approve"]
    assert {entry["team"] for entry in trail} == {OWNER}

"""What if: variants of a plan over HTTP, compared with it, chosen, reserved."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import httpx

from tests.api.house import DOCUMENT, Home, House, limit
from tests.fakes.clock import FakeClock
from tests.fakes.examples import an_offer


async def settled(team: httpx.AsyncClient, where: str) -> dict[str, Any]:
    first = (await team.get(where)).json()
    for row in first["plans"]:
        async with team.stream("GET", f"/v1/plans/{row['plan_id']}/events") as events:
            async for _ in events.aiter_lines():
                pass
    answer = await team.get(where)
    assert "Retry-After" not in answer.headers
    body: dict[str, Any] = answer.json()
    return body


def question(plan_id: str, **change: Any) -> dict[str, Any]:
    return {"based_on": plan_id, "changes": [{"name": "change", **change}]}


async def test_each_change_becomes_a_plan_beside_its_base(home: Home) -> None:
    team = await home.team("research")
    second = {**DOCUMENT["workloads"][0], "name": "second"}
    base = await home.plan(team, {**DOCUMENT, "workloads": [*DOCUMENT["workloads"], second]})
    names = [row["name"] for row in base["workloads"]["workloads"]]
    asked = {
        "based_on": base["plan_id"],
        "changes": [
            {"name": "as it is"},
            {"name": "without the first", "patch": [{"op": "remove", "path": "/workloads/0"}]},
            {"name": "prices + 20 %", "prices": {"factor": "1.2"}},
            {"name": "shorter", "set": ["horizon.days+=-1"]},
        ],
    }
    answer = await team.post("/v1/plans", json=asked)
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert answer.headers["Location"] == f"/v1/comparisons/{body['comparison_id']}"
    found = await settled(team, answer.headers["Location"])
    assert (found["comparison_id"], found["base"]["name"]) == (body["comparison_id"], "base")
    assert [row["plan_id"] for row in found["plans"]] == body["plan_ids"]
    same, less, dearer, shorter = found["plans"]
    assert (same["difference_usd"], same["moves"]) == ("0.00", [])
    gone = {move["workload"]: move for move in less["moves"]}
    assert gone[names[0]]["says"] == "it is not in the document"
    assert Decimal(dearer["cost_usd"]) == Decimal(base["cost_usd"]) * Decimal("1.2")
    assert dearer["prices"] == {"factor": "1.2", "provider": None}
    document = (await team.get(f"/v1/plans/{shorter['plan_id']}")).json()["workloads"]
    assert document["horizon"]["days"] == base["workloads"]["horizon"]["days"] - 1
    for row in found["plans"]:
        total = sum((Decimal(move["difference_usd"]) for move in row["moves"]), Decimal(0))
        assert total == Decimal(row["difference_usd"]) == Decimal(row["cost_usd"]) - Decimal(base["cost_usd"])


async def test_variants_are_explorations_until_one_is_chosen(house: House) -> None:
    house.rules = limit("0.01")
    async with house.open() as home:
        team = await home.team("research")
        base = await home.plan(team)
        assert isinstance(house.clock, FakeClock)
        house.clock.advance(seconds=1)  # of two drafts that are intended the newer one counts
        answer = await team.post("/v1/plans", json=question(base["plan_id"]))
        await settled(team, answer.headers["Location"])
        (plan_id,) = answer.json()["plan_ids"]
        variant = (await team.get(f"/v1/plans/{plan_id}")).json()
        assert (variant["standing"], variant["needs_approval"]) == ("draft", False)
        assert (variant["based_on"], variant["change"]) == (base["plan_id"], "change")
        assert (await team.get(f"/v1/plans/{base['plan_id']}")).json()["standing"] == "waiting"

        early = await team.post(f"/v1/plans/{plan_id}/reserve")
        assert (early.status_code, "choose it first" in early.json()["detail"]) == (409, True)
        assert f"`broker plans {plan_id} --intend`" in early.json()["detail"]
        chosen = (await team.post(f"/v1/plans/{plan_id}/intend")).json()
        assert (chosen["standing"], chosen["needs_approval"]) == ("waiting", True)
        waits = await team.post(f"/v1/plans/{plan_id}/reserve")
        assert waits.json()["code"] == "approval-required"
        assert (await team.get(f"/v1/plans/{base['plan_id']}")).json()["standing"] == "superseded"


async def test_what_a_plan_holds_is_there_for_its_variants(house: House) -> None:
    """The one node of the cheapest offer is reserved by the base, in whose place the variant would be."""
    house.offers = (an_offer("last", "10", stock=1), an_offer("dear", "30"))
    house.__post_init__()
    async with house.open() as home:
        team = await home.team("research")
        base = await home.plan(team)
        reserved = await team.post(f"/v1/plans/{base['plan_id']}/reserve")
        assert reserved.status_code == 202, reserved.text
        another = await home.plan(team)
        assert another["placements"][0]["offer_id"] == "dear", "a second plan finds it taken"
        answer = await team.post("/v1/plans", json=question(base["plan_id"]))
        (variant,) = (await settled(team, answer.headers["Location"]))["plans"]
        assert (variant["difference_usd"], variant["moves"]) == ("0.00", [])


async def test_a_plan_at_assumed_prices_cannot_be_chosen(home: Home) -> None:
    team = await home.team("research")
    base = await home.plan(team)
    answer = await team.post("/v1/plans", json=question(base["plan_id"], prices={"factor": 2}))
    await settled(team, answer.headers["Location"])
    (plan_id,) = answer.json()["plan_ids"]
    refused = await team.post(f"/v1/plans/{plan_id}/intend")
    assert refused.status_code == 409
    assert "assumes prices 2 times today's" in refused.json()["detail"]


async def test_a_wrong_question_says_where_it_is_wrong(home: Home) -> None:
    team = await home.team("research")
    base = await home.plan(team)
    asked = {
        "based_on": base["plan_id"],
        "changes": [
            {"name": "a", "patch": [{"op": "remove", "path": "/workloads/77"}]},
            {"name": "b", "set": ["nothing=1"]},
            {"name": "c", "set": ["horizon.days=-3"]},
        ],
    }
    answer = await team.post("/v1/plans", json=asked)
    assert answer.status_code == 422
    found = {problem["pointer"] for problem in answer.json()["errors"]}
    assert found == {"/changes/0/patch/0", "/changes/1/set/0", "/changes/2"}
    repeated = {**asked, "changes": [{"name": "a"}, {"name": "a", "prices": {"factor": 0}}]}
    answer = await team.post("/v1/plans", json=repeated)
    assert "/changes/1/prices/factor" in {problem["pointer"] for problem in answer.json()["errors"]}
    unknown = await team.post("/v1/plans", json=question("plan-nowhere"))
    assert unknown.status_code == 404


async def test_a_question_is_answered_once_for_one_idempotency_key(home: Home) -> None:
    team = await home.team("research")
    base = await home.plan(team)
    headers = {"Idempotency-Key": "what-if-1"}
    first = await team.post("/v1/plans", json=question(base["plan_id"]), headers=headers)
    again = await team.post("/v1/plans", json=question(base["plan_id"]), headers=headers)
    assert again.json() == first.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len((await team.get("/v1/plans")).json()["items"]) == 2


async def test_any_plans_can_be_compared_within_a_team(home: Home) -> None:
    team, other = await home.team("research"), await home.team("product")
    first, second = await home.plan(team), await home.plan(team)
    where = f"/v1/comparisons?plan={first['plan_id']}&plan={second['plan_id']}"
    found = (await team.get(where)).json()
    assert (found["comparison_id"], found["plans"][0]["difference_usd"]) == (None, "0.00")
    assert (await other.get(where)).status_code == 404
    answer = await team.post("/v1/plans", json=question(first["plan_id"]))
    assert (await other.get(answer.headers["Location"])).status_code == 404
    assert (await other.post("/v1/plans", json=question(first["plan_id"]))).status_code == 404
    assert DOCUMENT["team"] == "research"

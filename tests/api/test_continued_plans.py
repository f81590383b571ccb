"""The search of a plan is continued over HTTP and from its page; both plans say so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from broker.domain.basics.account import Scope
from tests.api.house import DOCUMENT, Home, House
from tests.fakes.examples import stop_early
from tests.pages.test_forms import form_of, visitor


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with House(tmp_path / "broker.db", plan_call=stop_early).open() as made:
        yield made


async def stopped(team: httpx.AsyncClient) -> str:
    """A plan that its limit stopped."""
    asked = (await team.post("/v1/plans", json=DOCUMENT, params={"gap": 0.05, "seed": 7})).json()
    made = (await team.get(f"/v1/plans/{asked['plan_id']}", params={"wait": 30})).json()
    assert made["status"] == "feasible"
    return str(made["plan_id"])


async def test_a_plan_is_continued(home: Home) -> None:
    team = await home.team("research")
    old = await stopped(team)
    headers = {"Idempotency-Key": "once"}
    asked = await team.post(f"/v1/plans/{old}/continue", params={"time_limit_s": 60}, headers=headers)
    assert asked.status_code == 202
    new = asked.json()["plan_id"]
    assert asked.headers["Location"] == f"/v1/plans/{new}"
    again = await team.post(f"/v1/plans/{old}/continue", params={"time_limit_s": 60}, headers=headers)
    assert again.json()["plan_id"] == new
    made = (await team.get(f"/v1/plans/{new}", params={"wait": 30})).json()
    assert (made["continues"], made["continued_by"]) == (old, None)
    assert made["workloads"]["workloads"][0]["name"] == "tune-8b"
    told = (await team.get(f"/v1/plans/{old}")).json()
    assert (told["continues"], told["continued_by"]) == (None, new)
    listed = {row["plan_id"]: row for row in (await team.get("/v1/plans")).json()["items"]}
    assert (listed[new]["continues"], listed[old]["continued_by"]) == (old, new)


async def test_what_cannot_be_continued_says_why(home: Home) -> None:
    team, other = await home.team("research"), await home.team("other")
    old = await stopped(team)
    assert (await other.post(f"/v1/plans/{old}/continue")).status_code == 404
    assert (await team.post("/v1/plans/plan-unknown/continue")).status_code == 404
    wrong = await team.post(f"/v1/plans/{old}/continue", params={"time_limit_s": 0})
    assert (wrong.status_code, "time_limit_s" in wrong.text) == (422, True)
    await team.post(f"/v1/plans/{old}/reserve")
    refused = await team.post(f"/v1/plans/{old}/continue")
    assert refused.status_code == 409
    assert refused.json()["detail"].startswith(f"plan {old} cannot be continued: it was reserved")


async def test_the_page_has_the_button_and_both_plans_are_linked(home: Home) -> None:
    old = f"/plans/{await stopped(await home.team('research'))}"
    client = await visitor(home)
    page = (await client.get(old)).text
    assert "not proven within 5 % of the best possible" in page
    answer = await client.post(f"{old}/continue", data=await form_of(client, old, f"{old}/continue"))
    assert answer.status_code == 303
    new = answer.headers["Location"].partition("?")[0]
    await home.client().get(f"/v1{new}", params={"wait": 30})
    assert f'continues the search of <a href="{old}">' in (await client.get(new)).text
    assert f'continued by <a href="{new}">' in (await client.get(old)).text
    assert "Continue the search" not in (await (await visitor(home, Scope.PLANS_READ)).get(old)).text

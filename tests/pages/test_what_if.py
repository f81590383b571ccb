"""Questions, fixes and comparisons on the pages."""

from __future__ import annotations

import asyncio
import html
import json
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.pages.parts.words import linked
from api.schemas.workloads.shortest import as_yaml, shortened
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.identity import make_id
from broker.domain.planning.patch import PatchOperation, PatchVerb
from broker.domain.planning.plan import Fix, Obstacle, Unplaced
from broker.domain.planning.workload_document import to_document
from tests.api.house import DOCUMENT, Home, House
from tests.fakes.clock import NOON
from tests.pages.test_forms import form_of, visitor

EXAMPLES = Path(__file__).parents[2] / "fixtures" / "examples"
NOW = datetime(2026, 11, 27, 9, tzinfo=UTC)


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    async with House(tmp_path / "broker.db").open() as living:
        yield living


async def a_plan(home: Home) -> str:
    team = await home.team("research")
    plan_id: str = (await home.plan(team, {**DOCUMENT, "horizon": {"start": "now", "days": 7}}))["plan_id"]
    return plan_id


async def made(home: Home, page: str) -> dict[str, Any]:
    team = await home.team("research")
    while True:
        found: dict[str, Any] = (await team.get(f"/v1{page}")).json()
        if all(row["cost_usd"] is not None for row in found["plans"]):
            return found
        await asyncio.sleep(0.02)


async def test_a_question_leads_to_a_comparison_with_its_curve(home: Home) -> None:
    client, plan_id = await visitor(home), await a_plan(home)
    page = f"/plans/{plan_id}"
    name = DOCUMENT["workloads"][0]["name"]
    form = await form_of(client, page, f"{page}/what-if")
    asked = await client.post(f"{page}/what-if", data={**form, "question": f"deadline-{name}"})
    location = asked.headers["Location"]
    assert location.startswith("/comparisons/compare-"), asked.text
    again = await client.post(f"{page}/what-if", data={**form, "question": f"deadline-{name}"})
    assert again.headers["Location"] == location
    found = await made(home, location)
    text = html.unescape((await client.get(location)).text)
    assert f"Cost against deadline of {name}" in text
    for row in found["plans"]:
        assert f'<a href="/plans/{row["plan_id"]}">{row["name"]}</a>' in text
        assert f'<a href="/plans/{row["plan_id"]}"><circle' in text

    variant = f"/plans/{found['plans'][0]['plan_id']}"
    text = (await client.get(variant)).text
    assert "Choose this plan" in text
    assert "The savings cannot be compared" in text, "the planner of this house compares no strategies"
    assert "The savings cannot be compared" not in (await client.get(page)).text
    assert f'action="{variant}/reserve"' not in text
    chosen = await client.post(f"{variant}/intend", data=await form_of(client, variant, f"{variant}/intend"))
    assert chosen.status_code == 303
    assert f'action="{variant}/reserve"' in (await client.get(variant)).text


async def test_written_changes_are_planned_and_wrong_ones_told(home: Home) -> None:
    client, plan_id = await visitor(home), await a_plan(home)
    page = f"/plans/{plan_id}"
    name = DOCUMENT["workloads"][0]["name"]
    form = await form_of(client, page, f"{page}/what-if")
    wish = {**form, "question": "own", "changes": f"{name}.tokens*=2\nprices*=1.2; {name}.deadline+=24h\n"}
    asked = await client.post(f"{page}/what-if", data=wish)
    found = await made(home, asked.headers["Location"])
    assert [row["name"] for row in found["plans"]] == [
        f"{name}.tokens*=2",
        f"prices*=1.2; {name}.deadline+=24h",
    ]
    text = (await client.get(asked.headers["Location"])).text
    assert "it cannot be bought" in text
    assert "<svg" not in text, "nothing to draw: two fields vary"
    form = await form_of(client, page, f"{page}/what-if")
    wrong = await client.post(f"{page}/what-if", data={**form, "question": "own", "changes": "nothing=1"})
    assert (wrong.status_code, "a path that begins with" in html.unescape(wrong.text)) == (422, True)
    unknown = await client.post(f"{page}/what-if", data={**form, "question": "colour"})
    assert unknown.status_code == 422


async def test_a_fix_is_applied_by_its_button(home: Home) -> None:
    client, plan_id = await visitor(home), await a_plan(home)
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        record = await uow.plans.find(plan_id)
        assert record.plan is not None
        name = record.plan.placements[0].workload
        fix = Fix(
            "GPUs up to 8",
            (PatchOperation(PatchVerb.ADD, "/workloads/0/gpus/max", "8"),),
            record.plan.cost_usd,
        )
        left = replace(record.plan, unplaced=(Unplaced(name, Obstacle.SIZE, fix.says, (fix,)),))
        await uow.plans.update(replace(record, plan=left))
        await uow.commit()
    page = f"/plans/{plan_id}"
    form = await form_of(client, page, f"{page}/fix")
    assert (form["workload"], form["fix"]) == (name, "1")
    made_plan = await client.post(f"{page}/fix", data=form)
    team = await home.team("research")
    where = made_plan.headers["Location"].partition("?")[0]
    document = (await team.get(f"/v1{where}")).json()["workloads"]
    assert document["workloads"][0]["gpus"]["max"] == 8
    refused = await client.post(f"{page}/fix", data={**form, "once": "other", "fix": "2"})
    assert refused.status_code == 422


async def test_plans_are_ticked_and_compared(home: Home) -> None:
    client = await visitor(home)
    first, second = await a_plan(home), await a_plan(home)
    text = (await client.get("/plans")).text
    assert sorted(re.findall(r'name="plan" value="([^"]+)"', text)) == sorted((first, second))
    page = await client.get("/plans/compare", params={"plan": [second, first]})
    assert (page.status_code, "What moves" in page.text) == (200, True)
    alone = await client.get("/plans/compare", params={"plan": first})
    assert (alone.status_code, "tick them in the list" in alone.text) == (422, True)
    assert "1 plan was ticked" in alone.text
    assert re.findall(r'name="plan" value="([^"]+)" checked', alone.text) == [first]
    none = await client.get("/plans/compare")
    assert (none.status_code, "0 plans were ticked" in none.text) == (422, True)
    assert "Compare the ticked plans" in none.text


async def test_an_error_leads_to_the_pages_that_it_names(home: Home) -> None:
    client, plan_id = await visitor(home), await a_plan(home)
    form = await form_of(client, f"/plans/{plan_id}", f"/plans/{plan_id}/intend")
    gone = f"/plans/{plan_id[:-1]}{'1' if plan_id.endswith('0') else '0'}"
    text = (await client.post(f"{gone}/intend", data=form)).text
    assert f'<a href="{gone}">' in text
    assert 'href="/docs/api#problem-not-found"' in text
    assert f'<a href="{gone}">' not in (await client.get(gone)).text, "no page leads to itself"


def test_links_of_a_message_are_those_of_known_pages_alone() -> None:
    made = make_id("rsv", NOON, bytes(10))
    told = (
        f"<b>{made}</b>: see plan-7 or x{made}; plan again: POST /v1/plans, not POST /v1/plans/{made}/approve"
    )
    assert str(linked(told)) == (
        f'&lt;b&gt;<a href="/reservations/{made}">{made}</a>&lt;/b&gt;: see plan-7 or x{made}; plan again: '
        f'<a href="/plans/new">New plan</a>, not POST /v1/plans/'
        f'<a href="/reservations/{made}">{made}</a>/approve'
    )


async def test_the_document_of_a_plan_comes_back_short(home: Home) -> None:
    client, plan_id = await visitor(home), await a_plan(home)
    text = html.unescape((await client.get("/plans/new", params={"from": plan_id})).text)
    area = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", text, re.S)
    assert area is not None
    document = yaml.safe_load(area.group(1))
    assert document["workloads"][0].keys() <= DOCUMENT["workloads"][0].keys() | {"deadline", "precision"}
    other = home.client(None, cookies={"broker_session": await home.key("product")})
    assert (await other.get("/plans/new", params={"from": plan_id})).status_code == 404


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_short_document_means_the_same_and_has_no_word_too_many(path: Path) -> None:
    request = read_workloads(path.read_text(), source=path.name, base=None, now=NOW)
    long = to_document(request)
    short = shortened(json.loads(json.dumps(long)), NOW)
    read = read_workloads(as_yaml(short), source="short", base=None, now=NOW)
    assert read == request
    assert len(json.dumps(short)) < 0.8 * len(json.dumps(long))
    assert "policy" not in short["workloads"][0] or short["workloads"][0]["policy"]

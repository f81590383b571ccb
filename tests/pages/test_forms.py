"""Forms that change something: whose they are, that they act once, and what they refuse."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from api.http.dependencies import SESSION_COOKIE
from broker.domain.basics.account import Scope
from tests.api.house import ADMIN_KEY, DOCUMENT, Home, House, limit
from tests.fakes.slots import Slots
from tests.pages.seeding import seed

HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
OTHER_SITE = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    async with House(tmp_path / "broker.db", rules=limit("100")).open() as living:
        yield living


async def visitor(home: Home, *scopes: Scope) -> httpx.AsyncClient:
    key = await home.key("research", scopes or None)
    return home.client(None, cookies={SESSION_COOKIE: key})


async def a_plan(home: Home) -> str:
    team = await home.team("research")
    plan_id: str = (await home.plan(team, {**DOCUMENT, "horizon": {"start": "now", "days": 7}}))["plan_id"]
    return plan_id


async def form_of(client: httpx.AsyncClient, page: str, action: str) -> dict[str, str]:
    """Hidden fields of a page's form, as a browser would send them."""
    text = (await client.get(page)).text
    form = re.search(rf'action="{re.escape(action)}".*?</form>', text, re.S)
    assert form is not None, f"{page} has no form for {action}"
    return dict(HIDDEN.findall(form.group()))


async def test_only_a_page_of_the_session_can_act(home: Home) -> None:
    client, plan = await visitor(home), f"/plans/{await a_plan(home)}"
    form = await form_of(client, plan, f"{plan}/approve")
    other = await form_of(await visitor(home), plan, f"{plan}/approve")
    for sent, headers in (
        ({**form, "proof": ""}, {}),
        ({**form, "proof": form["proof"][:-1] + "x"}, {}),
        ({**form, "proof": other["proof"]}, {}),
        (form, OTHER_SITE),
        (form, {"Origin": "https://evil.example"}),
    ):
        answer = await client.post(f"{plan}/approve", data=sent, headers=headers)
        assert answer.status_code == 403, sent
    page = await client.get(plan)
    assert "Waits for approval." in page.text
    assert (await client.post(f"{plan}/approve", data=form)).status_code == 303
    assert (await home.client(None).post(f"{plan}/approve", data=form)).status_code == 303, "to sign in"


async def test_a_form_sent_twice_acts_once(home: Home) -> None:
    client = await visitor(home)
    form = await form_of(client, "/plans/new", "/plans/new")
    wish = {**form, "workloads": "team: research\n"}
    assert (await client.post("/plans/new", data=wish)).status_code == 422
    wish = {**form, "workloads": re.sub("'", '"', repr(DOCUMENT))}
    first, second = [await client.post("/plans/new", data=wish) for _ in range(2)]
    assert first.headers["Location"] == second.headers["Location"]
    assert len((await home.product.planning.find_plans(await home.product.keys.find_visitor(
        client.cookies[SESSION_COOKIE]))).items) == 1  # fmt: skip
    changed = await client.post("/plans/new", data={**wish, "workloads": wish["workloads"] + " "})
    assert changed.status_code == 422
    assert (await client.post("/plans/new", data={**wish, "once": ""})).status_code == 422


async def test_a_plan_is_cancelled_while_it_is_made(tmp_path: Path, migrated_sqlite: Path) -> None:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    slots = Slots()
    async with House(tmp_path / "broker.db", executor=slots).open() as home:
        client, reader = await visitor(home), await visitor(home, Scope.PLANS_READ)
        team = await home.team("research")
        first, second = [(await team.post("/v1/plans", json=DOCUMENT)).json()["plan_id"] for _ in range(2)]
        await asyncio.wait_for(_one_each(home, slots), 60)
        running = slots.names[0]
        waiting = second if running == first else first
        page, other = f"/plans/{waiting}", f"/plans/{running}"
        assert "next in the queue" in (await client.get(page)).text
        assert "Planning" in (await client.get(other)).text
        assert f'action="{page}/cancel"' not in (await reader.get(page)).text
        form = await form_of(client, page, f"{page}/cancel")
        refused = await client.post(f"{page}/cancel", data={**form, "proof": ""})
        assert refused.status_code == 403
        assert (await client.post(f"{page}/cancel", data=form)).headers["Location"] == page
        text = (await client.get(page)).text
        assert "This plan was cancelled before it was made." in text
        assert f'action="{page}/cancel"' not in text
        assert "cancelled" in (await client.get("/plans")).text
        form = await form_of(client, other, f"{other}/cancel")
        slots.end(running)
        await team.get(f"/v1/plans/{running}/events")
        late = await client.post(f"{other}/cancel", data=form)
        assert (late.status_code, "can be cancelled" in late.text) == (409, True)


async def _one_each(home: Home, slots: Slots) -> None:
    """One plan is at work and one waits."""
    queue = home.product.plan_queue
    while not (queue.waiting() and slots.names):
        await asyncio.sleep(0.01)


async def test_figures_that_moved_since_are_not_agreed_to(home: Home) -> None:
    client, plan = await visitor(home), f"/plans/{await a_plan(home)}"
    approve = await form_of(client, plan, f"{plan}/approve")
    for wrong, status in (
        ({"plan_sha256": "0" * 64}, 409),
        ({"plan_sha256": ""}, 422),
        ({"cost_now_usd": "x"}, 422),
    ):
        assert (await client.post(f"{plan}/approve", data={**approve, **wrong})).status_code == status
    assert (await client.post(f"{plan}/approve", data=approve)).status_code == 303
    reserve = await form_of(client, plan, f"{plan}/reserve")
    for seen in ("204.99", "much", ""):
        again = {**reserve, "once": f"once-{seen}", "seen_usd": seen}
        answer = await client.post(f"{plan}/reserve", data=again)
        assert (answer.status_code, home.house.provider.writes()) == (409, 0)
    assert (await client.post(f"{plan}/reserve", data=reserve)).status_code == 303
    assert len(home.house.provider.open_instances()) == 1
    assert await told(client, f"{plan}/holding") == ["1 of 1 order placed", "end"]
    release = await form_of(client, plan, f"{plan}/release")
    assert (await client.post(f"{plan}/release", data=release)).status_code == 303
    assert home.house.provider.open_instances() == []


async def test_a_plan_says_how_other_tools_take_it(home: Home) -> None:
    client, plan_id = await visitor(home), await a_plan(home)
    plan = f"/plans/{plan_id}"
    drafted = (await client.get(plan)).text
    assert f"broker export {plan_id} --to" in drafted
    assert "do not reserve the plan too" in drafted
    assert "broker hosts" not in drafted
    assert (await client.get(f"/v1{plan}/windows.ics")).text.startswith("BEGIN:VCALENDAR")
    for action in ("approve", "reserve"):
        form = await form_of(client, plan, f"{plan}/{action}")
        assert (await client.post(f"{plan}/{action}", data=form)).status_code == 303
    await home.product.background.stop()
    held = (await client.get(plan)).text
    assert f"broker hosts {plan_id} --format" in held
    assert f"broker endpoints {plan_id} --format" in held
    assert "do not reserve the plan too" not in held


async def told(client: httpx.AsyncClient, stream: str) -> list[str]:
    """What a stream of events says until it ends."""
    answer = await client.get(stream)
    assert answer.headers["Content-Type"].startswith("text/event-stream"), answer.text
    return re.findall("^data: (.*)$", answer.text, re.M)


async def test_progress_is_told_to_who_sees_the_plan(home: Home) -> None:
    client, plan = await visitor(home), f"/plans/{await a_plan(home)}"
    assert await told(client, f"{plan}/holding") == ["Checking prices, stock and budgets"], "asked again"
    stranger = home.client(None, cookies={SESSION_COOKIE: await home.key("rivals")})
    assert (await stranger.get(f"{plan}/holding")).status_code == 404
    over = await told(client, f"{plan}/holding?releasing=2")
    assert over == ["2 of 2 released, 2 seen gone at their sellers", "end"]


async def test_a_key_does_what_its_scopes_allow(home: Home) -> None:
    plan = f"/plans/{await a_plan(home)}"
    reader = await visitor(home, Scope.PLANS_READ)
    page = await reader.get(plan)
    assert page.status_code == 200
    assert "<form" not in page.text.replace('<form method="post" action="/signout">', "")
    assert (await reader.get("/plans/new")).status_code == 403
    planner = await visitor(home, Scope.PLANS_READ, Scope.PLANS_WRITE)
    proof = (await form_of(planner, "/plans/new", "/plans/new"))["proof"]
    for action in ("approve", "reject", "reserve", "release"):
        data = {
            "proof": proof, "once": action, "comment": "no", "plan_sha256": "x", "seen_usd": "205.00",
        }  # fmt: skip
        answer = await planner.post(f"{plan}/{action}", data=data)
        assert answer.status_code == (303 if action == "release" else 403), action
    assert home.house.provider.writes() == 0


async def test_budgets_are_amounts_of_money(home: Home) -> None:
    await home.key("research")
    client = home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})
    form = await form_of(client, "/spend", "/spend/budgets")
    base = {**form, "team": "research", "period": "month", "thresholds": "50, 80 %"}
    for number, wrong in enumerate(
        ("", "nan", "-5", "much", "1e99", "inf", "1.000,50", "1,5", "10.005", "١٠٠")
    ):
        sent = {**base, "once": f"n{number}", "limit_usd": wrong}
        answer = await client.post("/spend/budgets", data=sent)
        assert answer.status_code == 422, wrong
        assert 'id="b-limit_usd-problem"' in answer.text, "it stands at its field"
        assert f'value="{wrong}"' in answer.text, "and the form is filled in"
    assert (await client.post("/spend/budgets", data={**base, "once": "p", "period": "day", "limit_usd": "5"})
            ).status_code == 422  # fmt: skip
    for number, (field, wrong, told) in enumerate(
        (
            ("team", "reserch", "nearest: research"),
            ("thresholds", "half", "whole percents"),
            ("thresholds", "80, 50", "ascending order"),
        )
    ):
        sent = {**base, "once": f"f{number}", "limit_usd": "5", field: wrong}
        answer = await client.post("/spend/budgets", data=sent)
        assert answer.status_code == 422, wrong
        assert f'id="b-{field}-problem"' in answer.text
        assert told in answer.text
    assert "No budget is set." in (await client.get("/spend")).text
    answer = await client.post("/spend/budgets", data={**base, "limit_usd": "$12,500.00"})
    assert answer.status_code == 303
    shown = (await client.get("/spend")).text
    assert "$12,500.00" in shown
    assert "80 %" in shown
    once = {**base, "once": "gone"}
    assert (await client.post("/spend/budgets/remove", data=once)).status_code == 303
    assert "No budget is set." in (await client.get("/spend")).text


async def test_a_filter_of_spend_that_names_nothing_is_told_with_the_nearest(home: Home) -> None:
    plan_id = await a_plan(home)
    client_of_api, client = home.client(), home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})
    answer = await client.get("/spend?team=resarch")
    assert answer.status_code == 422
    assert "nearest: research" in answer.text
    for path in ("/v1/spend/projection", "/v1/spend/focus.csv", "/v1/budgets", "/v1/reservations",
                 "/v1/approvals", "/v1/spend/interval"):  # fmt: skip
        refused = await client_of_api.get(path, params={"team": "resarch"})
        assert refused.status_code == 422, path
        (problem,) = refused.json()["errors"]
        assert problem["pointer"] == "/team"
        assert "nearest: research" in problem["expected"]
        assert (await client_of_api.get(path, params={"team": "research"})).status_code == 200, path
    placed = (await client_of_api.get(f"/v1/plans/{plan_id}")).json()["placements"][0]["workload"]
    for name, word in (("workload", f"{placed}t"), ("provider", "lamda")):
        refused = await client_of_api.get("/v1/spend/projection", params={name: word})
        assert refused.status_code == 422
        assert "nearest: " in refused.json()["errors"][0]["expected"]


async def test_words_of_strangers_are_escaped_in_what_was_written(home: Home) -> None:
    client = await visitor(home)
    form = await form_of(client, "/plans/new", "/plans/new")
    evil = "team: '</textarea><script>alert(1)</script>'\n"
    answer = await client.post("/plans/new", data={**form, "workloads": evil})
    assert answer.status_code == 422
    assert "<script>alert" not in answer.text
    broken = await client.post(
        "/plans/new", content=b"\xff\xfe", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert broken.status_code == 422


async def test_a_proposal_is_rejected_once_and_then_over(home: Home) -> None:
    await seed(home.product)
    client = home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})
    page = "/proposals/reopt-1"
    overview = (await client.get("/")).text
    assert f'<a href="{page}">A proposal for pretrain-8b, chat-70b, nightly-eval</a> waits' in overview
    assert "it saves <strong>$2,310.18</strong>" in overview
    form = await form_of(client, page, f"{page}/reject")
    assert (await client.post(f"{page}/reject", data=form)).headers["Location"] == f"{page}?done=rejected"
    assert "waits for a decision" not in (await client.get("/")).text
    over = await client.get(page)
    assert "rejected by" in over.text
    assert f'action="{page}/accept"' not in over.text
    accept = {"proof": form["proof"], "once": "late"}
    assert (await client.post(f"{page}/accept", data=accept)).status_code == 409
    assert (await client.get("/proposals/nothing")).status_code == 404

"""What a team has is nobody else's: every page, and every form, with another's session."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import httpx
from fastapi.routing import iter_route_contexts

from broker.domain.basics.access import ALL_TEAMS_SCOPES
from broker.domain.basics.webhook import ALL_TEAMS
from tests.api.house import DOCUMENT, Home
from tests.api.test_team_isolation import OWNER, RIVAL, SECRETS, E, Expect, filled, read, settle
from tests.fakes.examples import PUBLIC_KEY


async def test_pages_say_whose_data_they_show_and_why_a_list_is_empty(home: Home) -> None:
    owner = await home.team(OWNER)
    await settle(home, owner)
    shown = {}
    for name, client in (
        ("team", await home.team("finance")),
        ("all", await home.team(ALL_TEAMS, ALL_TEAMS_SCOPES)),
        ("admin", home.client()),
    ):
        await client.post("/signin", data={"key": client.headers["Authorization"].split()[1]})
        shown[name] = client
    for path in ("/plans", "/approvals", "/reservations", "/proposals", "/spend?group_by=workload"):
        lonely = (await shown["team"].get(path)).text
        assert "Team: finance only" in lonely, path
        assert "You see team finance only" in lonely, path
        for name in ("all", "admin"):
            page = (await shown[name].get(path)).text
            assert ">All teams<" in page, (name, path)
            assert "You see team" not in page, (name, path)
            assert [word for word in SECRETS if word in page], (name, path)
    assert "Team: research<" in (await shown["all"].get("/spend?team=research")).text
    refused = await shown["team"].get("/spend?team=research")
    assert (refused.status_code, "Team: finance only" in refused.text) == (403, True)


async def test_no_page_shows_what_another_team_has(home: Home) -> None:
    owner, rival = await home.team(OWNER), await home.team(RIVAL)
    names = {**await settle(home, owner), "provider": "fake", "gpu": "H100-SXM-80GB"}
    for client in (owner, rival):
        signed = await client.post("/signin", data={"key": client.headers["Authorization"].split()[1]})
        assert signed.status_code == 303, signed.text
    shown = set()
    for route in iter_route_contexts(home.app.routes):
        path = route.path or ""
        if "GET" not in (route.methods or ()) or path in UNSIGNED or path.startswith("/v1/"):
            continue
        here = filled(f"{path}{PAGE_QUERIES.get(path, '')}", names)
        own, foreign = await owner.get(here), await rival.get(here)
        assert not [word for word in SECRETS if word in foreign.text and word not in here], path
        if any(name in path for name in OWNED):
            assert own.status_code == 200, (path, own.text)
            assert foreign.status_code == 404, path
        if any(word in own.text for word in SECRETS):
            shown.add(path)
    assert shown >= {"/", "/plans", "/approvals", "/reservations", "/proposals", "/spend"}


OWNED = ("plan_id", "comparison_id", "reservation_id", "reoptimization_id", "export_id", "plans/compare")


def forms(home: Home) -> set[str]:
    """The paths that pages' forms are sent to."""
    paths = {
        route.path or "" for route in iter_route_contexts(home.app.routes) if "POST" in (route.methods or ())
    }
    return {path for path in paths if not path.startswith("/v1/")} - SIGNING


async def send(client: httpx.AsyncClient, path: str, names: Mapping[str, str]) -> httpx.Response:
    """Sends a form as the page of this session would, about the owner's things."""
    proof = re.search(r'name="proof" value="([^"]*)"', (await client.get("/plans/new")).text)
    assert proof is not None
    fields = {**FIELDS, "proof": proof[1], "once": path}
    return await client.post(filled(path, names), data=fields)


async def test_every_form_says_what_another_team_gets(home: Home) -> None:
    assert set(FORMS) == forms(home)


async def test_no_form_of_a_page_acts_on_what_another_team_has(home: Home) -> None:
    owner, rival = await home.team(OWNER), await home.team(RIVAL)
    names = await settle(home, owner)
    for client in (owner, rival):
        signed = await client.post("/signin", data={"key": client.headers["Authorization"].split()[1]})
        assert signed.status_code == 303, signed.text
    before = await read(home, owner, names)
    for path, expect in FORMS.items():
        answer = await send(rival, path, names)
        allowed = {Expect.HIDDEN: {404}, Expect.REFUSED: {403}, Expect.OWN: {200, 303}}
        assert answer.status_code in allowed[expect], (path, answer.text)
        assert not [word for word in SECRETS if word in answer.text and word not in filled(path, names)], path
    await home.product.background.stop()
    assert await read(home, owner, names) == before
    assert home.house.provider.writes() == 0
    for path, expect in FORMS.items():
        if expect is Expect.HIDDEN:
            answer = await send(owner, path, names)
            assert answer.status_code not in (403, 404, 405, 422), f"{path}: {answer.text}"


FORMS: Mapping[str, Expect] = {
    "/plans/new": E.REFUSED,  # the document names its team
    "/plans/new/estimate": E.REFUSED,
    "/plans/{plan_id}/cancel": E.HIDDEN,
    "/plans/{plan_id}/reserve": E.HIDDEN,
    "/plans/{plan_id}/release": E.OWN,  # ends what the visitor's team holds of it, which is nothing
    "/plans/{plan_id}/again": E.HIDDEN,
    "/plans/{plan_id}/continue": E.HIDDEN,
    "/plans/{plan_id}/intend": E.HIDDEN,
    "/plans/{plan_id}/what-if": E.HIDDEN,
    "/plans/{plan_id}/confidence": E.HIDDEN,
    "/plans/{plan_id}/fix": E.HIDDEN,
    "/plans/{plan_id}/approve": E.HIDDEN,
    "/plans/{plan_id}/reject": E.HIDDEN,
    "/approvals/{plan_id}/approve": E.HIDDEN,
    "/approvals/{plan_id}/reject": E.HIDDEN,
    "/reservations/{reservation_id}/extend": E.HIDDEN,
    "/reservations/{reservation_id}/hold": E.HIDDEN,
    "/reservations/{reservation_id}/release": E.HIDDEN,
    "/proposals/look": E.OWN,
    "/proposals/{reoptimization_id}/accept": E.HIDDEN,
    "/proposals/{reoptimization_id}/reject": E.HIDDEN,
    "/spend/budgets": E.HIDDEN,
    "/spend/budgets/remove": E.HIDDEN,
    "/spend/close": E.REFUSED,
    "/market/offers/{offer_id:path}/reserve": E.OWN,
    "/admin/keys": E.REFUSED,
    "/admin/keys/{key_id}/revoke": E.REFUSED,
    "/admin/people/end": E.REFUSED,
    "/admin/ssh-keys": E.REFUSED,  # the form names its team
    "/admin/ssh-keys/{ssh_key_id}/remove": E.HIDDEN,
    "/admin/webhooks": E.OWN,
    "/admin/webhooks/{webhook_id}/test": E.HIDDEN,
    "/admin/webhooks/{webhook_id}/remove": E.HIDDEN,
}
FIELDS = {
    "workloads": json.dumps(DOCUMENT),
    "intended": "yes",
    "comment": "no",
    "plan_sha256": "x",
    "seen_usd": "1000000.00",
    "team": OWNER,
    "period": "quarter",
    "limit_usd": "5",
    "month": "2026-10",
    "thresholds": "50, 100",
    "question": "prices",
    "workload": "secret-left",
    "fix": "1",
    "nodes": "1",
    "end": "2026-11-26T00:00",
    "start": "2026-11-25T00:00",  # so that no launch is learned from
    "seen_usd_per_node_hour": "1000",
    "public_key": PUBLIC_KEY,
    "url": "http://127.0.0.1:9/",
}
SIGNING = frozenset({"/signin", "/signin/invitation", "/signout"})
PAGE_QUERIES = {
    "/plans/compare": "?plan=plan-held&plan=plan-draft",
    "/spend": "?group_by=workload",
    "/spend/changes": "?from={plan_id}&to={plan_id}",
}
UNSIGNED = frozenset({"/signin", "/openapi.json", "/healthz", "/readyz", "/metrics"})

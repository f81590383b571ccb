"""Keys over HTTP."""

from __future__ import annotations

import pytest

from broker.domain.basics.account import Scope
from tests.api.house import Home

ONCE = ("secret", "invitation_url")
WISH = {"name": "ci", "team": "research", "scopes": ["plans:read", "plans:write"]}


async def test_a_key_is_made_used_and_revoked(home: Home) -> None:
    admin = home.client()
    answer = await admin.post("/v1/keys", json=WISH)
    assert answer.status_code == 201
    made = answer.json()
    assert answer.headers["Location"] == f"/v1/keys/{made['key_id']}"
    team = home.client(made["secret"])
    assert (await team.get("/v1/plans")).status_code == 200
    assert (await team.get("/v1/spend/projection")).status_code == 403
    listed = (await team.get("/v1/keys")).json()["items"]
    assert listed == [{name: value for name, value in made.items() if name not in ONCE}]
    for _ in range(2):
        assert (await admin.delete(f"/v1/keys/{made['key_id']}")).status_code == 204
    assert (await team.get("/v1/plans")).status_code == 401
    assert (await admin.get(f"/v1/keys/{made['key_id']}")).json()["revoked_at"] is not None
    trail = (await admin.get("/v1/audit", params={"object_id": made["key_id"]})).json()["items"]
    assert [entry["action"] for entry in trail] == ["key.revoke", "key.create"]


async def test_a_repeat_makes_one_key_and_shows_no_secret(home: Home) -> None:
    admin = home.client()
    headers = {"Idempotency-Key": "k-1"}
    first, again = [(await admin.post("/v1/keys", json=WISH, headers=headers)).json() for _ in range(2)]
    assert first["secret"].startswith("broker_live_")
    assert again == {**first, "secret": None}


async def test_an_invitation_is_a_link_that_a_repeat_does_not_have(home: Home) -> None:
    admin = home.client()
    wish, headers = {**WISH, "invitation_hours": 2}, {"Idempotency-Key": "k-2"}
    first, again = [(await admin.post("/v1/keys", json=wish, headers=headers)).json() for _ in range(2)]
    assert (first["secret"], again) == (None, {**first, "invitation_url": None})
    browser = home.client(None)
    assert "You are invited" in (await browser.get(first["invitation_url"])).text
    assert (
        await home.client(first["invitation_url"].partition("token=")[2]).get("/v1/me")
    ).status_code == 401
    for wrong in (0, 721, "soon"):
        answer = await admin.post("/v1/keys", json={**WISH, "invitation_hours": wrong})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/invitation_hours")


async def test_only_administrators_make_and_end_keys(home: Home) -> None:
    team = await home.team("research", [scope for scope in Scope if scope is not Scope.ADMIN])
    assert (await team.post("/v1/keys", json=WISH)).status_code == 403
    (mine,) = (await team.get("/v1/keys")).json()["items"]
    assert (await team.delete(f"/v1/keys/{mine['key_id']}")).status_code == 403
    other = await home.team("product")
    assert (await other.get(f"/v1/keys/{mine['key_id']}")).status_code == 404


async def test_a_key_without_scopes_has_those_of_its_kind(home: Home) -> None:
    admin = home.client()
    made = [(await admin.post("/v1/keys", json={"name": "ada", "team": team})).json() for team in ("*", "ml")]
    assert made[0]["scopes"] == ["plans:read", "spend:approve", "spend:read"]
    assert made[1]["scopes"] == ["plans:read", "plans:write", "reservations:write", "spend:read"]


async def test_nobody_ends_the_key_they_ask_with(home: Home) -> None:
    admin = home.client()
    own = next(k for k in (await admin.get("/v1/keys")).json()["items"] if "admin" in k["scopes"])
    answer = await admin.delete(f"/v1/keys/{own['key_id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["everything"]}, "/scopes/0"),
        ({"team": " "}, "/team"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"expires_at": "2030-01-01"}, "/expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-14:00"}, "/expires_at"),
        ({"expires_at": 4_000_000_000}, "/expires_at"),
        ({"team": "*"}, "/scopes"),
        ({"team": "*", "scopes": ["admin"]}, "/scopes"),
        ({"admin": True}, "/admin"),
    ],
)
async def test_a_wrong_wish_names_its_field(home: Home, change: dict[str, object], pointer: str) -> None:
    answer = await home.client().post("/v1/keys", json=WISH | change)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text


async def test_a_key_learns_its_team_and_scopes(home: Home) -> None:
    team = await home.team("research", (Scope.PLANS_READ,))
    told = (await team.get("/v1/me")).json()
    assert (told["name"], told["team"], told["scopes"]) == ("test", "research", ["plans:read"])
    assert told["key_id"] == (await team.get("/v1/keys")).json()["items"][0]["key_id"]
    assert "admin" in (await home.client().get("/v1/me")).json()["scopes"]
    assert (await home.client(None).get("/v1/me")).status_code == 401

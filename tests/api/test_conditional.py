"""Who has the present answer is told so, any change gives another tag, and large answers are compressed."""

from __future__ import annotations

import json
from unittest.mock import patch

from api.http.conditional import tagged
from api.routes import plans
from tests.api.house import DOCUMENT, Home
from tests.fakes.clock import FakeClock


async def test_a_plan_is_written_once_a_version_and_not_sent_twice(home: Home) -> None:
    team = await home.team("research")
    path = (await team.post("/v1/plans", json=DOCUMENT)).headers["Location"]
    await team.get(path + "/events")
    first = await team.get(path)
    tag = first.headers["ETag"]
    with patch.object(plans, "record_to_document", side_effect=AssertionError("written again")):
        again = await team.get(path)
        none = await team.get(path, headers={"If-None-Match": f'"other", {tag}'})
        any_tag = await team.get(path, headers={"If-None-Match": "*"})
    assert (again.status_code, again.content, again.headers["ETag"]) == (200, first.content, tag)
    assert (none.status_code, none.content, none.headers["ETag"]) == (304, b"", tag)
    assert any_tag.status_code == 304
    assert none.headers["Cache-Control"] == first.headers["Cache-Control"] == "private, no-cache"

    assert (await team.post(f"{path}/intend")).status_code == 200
    changed = await team.get(path, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["ETag"] != tag
    assert (first.json()["intended"], changed.json()["intended"]) == (False, True)
    assert first.json() | {"intended": True, "standing": changed.json()["standing"]} == changed.json()


async def test_another_team_is_not_told_that_a_plan_is_unchanged(home: Home) -> None:
    team, other = await home.team("research"), await home.team("serving")
    path = (await team.post("/v1/plans", json=DOCUMENT)).headers["Location"]
    tag = (await team.get(path)).headers["ETag"]
    assert (await other.get(path, headers={"If-None-Match": tag})).status_code == 404


def test_when_it_was_reckoned_is_told_and_is_no_change() -> None:
    (tag, body), (same, later) = (tagged({"usd": "1"}, but_for={"as_of": at}) for at in ("noon", "night"))
    assert tag == same != tagged({"usd": "2"}, but_for={"as_of": "noon"})[0]
    assert json.loads(body) == {"usd": "1", "as_of": "noon"}
    assert json.loads(later)["as_of"] == "night"


async def test_sums_are_unchanged_until_they_are_others(home: Home) -> None:
    team = await home.team("research")
    path = "/v1/spend/projection"
    first = await team.get(path)
    tag = first.headers["ETag"]
    assert tag.startswith('W/"')
    clock = home.house.clock
    assert isinstance(clock, FakeClock)
    clock.advance(seconds=5)
    later = await team.get(path)
    assert later.headers["ETag"] == tag
    assert (await team.get(path, headers={"If-None-Match": tag})).status_code == 304

    plan = (await team.post("/v1/plans", json=DOCUMENT)).headers["Location"]
    await team.get(plan + "/events")
    await team.post(f"{plan}/intend")
    changed = await team.get(path, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.json()["items"] != first.json()["items"]
    narrowed = await team.get(path, params={"group_by": "provider"}, headers={"If-None-Match": tag})
    assert narrowed.status_code == 200


async def test_answers_are_compressed_and_streams_of_events_are_not(home: Home) -> None:
    team = await home.team("research")
    path = (await team.post("/v1/plans", json=DOCUMENT)).headers["Location"]
    told = await team.get(path + "/events")
    assert "Content-Encoding" not in told.headers
    pages = ["/docs/api", path, "/static/style.css"]
    for page in pages:
        packed = await team.get(page)
        plain = await team.get(page, headers={"Accept-Encoding": "identity"})
        assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == ("gzip", "Accept-Encoding"), (
            page
        )
        assert "Content-Encoding" not in plain.headers
        assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"]) / 2, page
        assert packed.text == plain.text
    table = await team.get("/v1/spend/projection.xlsx")
    assert (table.status_code, "Content-Encoding" in table.headers) == (200, False)

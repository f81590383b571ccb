"""A document that cannot be planned in its limit is refused when it comes."""

from __future__ import annotations

from tests.api.house import DOCUMENT, Home


async def test_too_short_a_limit_is_refused_with_one_that_would_do(home: Home) -> None:
    team = await home.team("research")
    (one,) = DOCUMENT["workloads"]
    many = {**DOCUMENT, "workloads": [{**one, "name": f"run-{i}"} for i in range(600)]}
    answer = await team.post("/v1/plans", json=many, params={"time_limit_s": 5})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["pointer"], error["found"]) == ("/time_limit_s", "5 s for 600 workloads")
    assert error["expected"] == "at least 20 s, or a document with fewer workloads"
    assert (await team.get("/v1/plans")).json()["items"] == []

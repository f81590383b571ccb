"""One key, one effect: replays, mismatches, twins, and failures that give the key back."""

from __future__ import annotations

import asyncio

from tests.api.house import DOCUMENT, Home
from tests.fakes.provider import Fault

WISH = {"offer_id": "h100-a", "nodes": 1}
PATH = "/v1/reservations"


async def test_the_first_answer_comes_again(home: Home) -> None:
    client = home.client(None)
    client.headers.update({"Idempotency-Key": "k-1", "Authorization": f"Bearer {await home.key('research')}"})
    first, second = [await client.post(PATH, json=WISH) for _ in range(2)]
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert second.headers["Location"] == first.headers["Location"]
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len(home.house.provider.ledger) == 1


async def test_another_body_or_query_under_the_key_is_refused(home: Home) -> None:
    client = home.client()
    client.headers["Idempotency-Key"] = "k-1"
    await client.post(PATH, json=WISH)
    await client.post("/v1/plans?gap=0.1", json=DOCUMENT)
    for answer in (
        await client.post(PATH, json={**WISH, "nodes": 2}),
        await client.post("/v1/plans?gap=0.2", json=DOCUMENT),
    ):
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency-mismatch")
    assert len(home.house.provider.ledger) == 1


async def test_teams_do_not_share_keys(home: Home) -> None:
    for team in ("research", "product"):
        client = await home.team(team)
        answer = await client.post(PATH, json=WISH, headers={"Idempotency-Key": "k-1"})
        assert "Idempotency-Replayed" not in answer.headers
    assert len(home.house.provider.ledger) == 2


async def test_twins_at_once_have_one_effect(home: Home) -> None:
    client = await home.team("research")
    headers = {"Idempotency-Key": "k-1"}
    answers = await asyncio.gather(*(client.post(PATH, json=WISH, headers=headers) for _ in range(6)))
    assert len(home.house.provider.ledger) == 1
    assert {answer.status_code for answer in answers} <= {202, 409}
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["code"] == "still-at-work"
            assert answer.json()["retryable"] is True
            assert int(answer.headers["Retry-After"]) > 0
    assert len({a.content for a in answers if a.status_code == 202}) == 1


async def test_a_failure_gives_the_key_back(home: Home) -> None:
    client = await home.team("research")
    headers = {"Idempotency-Key": "k-1"}
    home.house.provider.fail("reserve", Fault.NO_CAPACITY)
    assert (await client.post(PATH, json=WISH, headers=headers)).status_code == 409
    assert (await client.post(PATH, json=WISH, headers=headers)).status_code == 202


async def test_keys_have_a_length(home: Home) -> None:
    client = home.client()
    for key, status in (("", 422), ("x" * 256, 422), ("x" * 255, 202)):
        answer = await client.post(PATH, json=WISH, headers={"Idempotency-Key": key})
        assert answer.status_code == status, answer.text
        if status == 422:
            assert answer.json()["errors"][0]["pointer"] == "/headers/Idempotency-Key"

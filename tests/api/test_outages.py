"""A database that goes away under requests: 503 to be tried again, which tells no address of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from broker.store.statement_limit import answered_within
from tests.api.house import ADMIN_KEY, DOCUMENT, Home, House
from tests.fakes.clock import FakeClock
from tests.postgres import PostgresServer

GARBAGE = "broker_live_nobody_has_this_key"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that only this module stops."""
    made = PostgresServer()
    yield made
    made.stop()


@pytest.fixture
async def home(server: PostgresServer, tmp_path: Path) -> AsyncIterator[Home]:
    async with House(tmp_path / "unused.db", url=server.create_database()).open() as opened:
        yield opened


def assert_told(answer: httpx.Response) -> None:
    """A problem document that says what may be done, and nothing of where the database is."""
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["Retry-After"]) > 0
    problem = answer.json()
    assert (problem["code"], problem["retryable"]) == ("store-unavailable", True)
    assert problem["detail"] == "the database does not answer"
    for word in ("socket", "host", "port", "/tmp", "5432", "postgres", "test_", GARBAGE):
        assert word not in answer.text, word


def at(home: Home, moment: str, count: int, act: Callable[[], None]) -> None:
    """``act`` once, when a connection is about to do ``moment`` for the ``count``-th time from now."""
    seen = 0

    def look(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            act()

    event.listen(home.product.store._engine.sync_engine, moment, look)


async def test_a_stopped_server_is_503_for_every_key_until_it_is_back(
    home: Home, server: PostgresServer
) -> None:
    client, stranger, nobody = home.client(), home.client(GARBAGE), home.client(None)
    assert (await client.get("/v1/plans")).status_code == 200
    server.pause()
    try:
        for answer in (
            await client.get("/v1/plans"),
            await client.get("/v1/offers"),
            await client.post("/v1/plans", json=DOCUMENT, headers={"Idempotency-Key": "k"}),
            await stranger.get("/v1/plans"),
        ):
            assert_told(answer)
        assert (await nobody.get("/v1/plans")).status_code == 401
        page = await nobody.post("/signin", data={"key": ADMIN_KEY})
        assert page.status_code == 503
        assert "socket" not in page.text
        ready = await nobody.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, False)
        assert (await nobody.get("/healthz")).status_code == 200
    finally:
        server.resume()
    assert (await client.get("/v1/plans")).status_code == 200
    assert (await stranger.get("/v1/plans")).status_code == 401
    assert (await nobody.get("/readyz")).json()["database"]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before_cursor_execute", "rollback", "commit"])
async def test_a_connection_that_ends_within_a_request_is_no_defect_of_ours(
    home: Home, server: PostgresServer, moment: str, count: int
) -> None:
    url, client = home.house.url or "", home.client()
    at(home, moment, count, lambda: server.end_connections(url))
    for answer in (
        await client.get("/v1/keys"),
        await client.post("/v1/keys", json={"name": "ci", "team": "research", "scopes": ["plans:read"]}),
        await client.delete("/v1/keys/nobody"),
    ):
        if answer.status_code == 503:
            assert_told(answer)
        else:
            assert answer.status_code in {200, 201, 404}, answer.text
    assert (await client.get("/v1/keys")).status_code == 200


async def test_a_call_does_not_wait_for_a_server_that_hangs(home: Home, server: PostgresServer) -> None:
    client = home.client()
    assert (await client.get("/v1/plans")).status_code == 200
    with server.frozen(), answered_within(0.5):
        async with asyncio.timeout(120):
            assert_told(await client.get("/v1/plans"))
            assert_told(await client.post("/v1/plans", json=DOCUMENT, headers={"Idempotency-Key": "hung"}))
    with answered_within(60):
        assert (await client.get("/v1/plans")).status_code == 200


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
async def test_what_hangs_within_a_call_is_bought_once(
    home: Home, server: PostgresServer, count: int
) -> None:
    client, frozen = home.client(), ExitStack()
    plan = await home.plan(client)
    at(home, "commit", count, lambda: frozen.enter_context(server.frozen()))
    path = f"/v1/plans/{plan['plan_id']}/reserve"
    with frozen, answered_within(0.5):
        async with asyncio.timeout(120):
            answer = await client.post(path, headers={"Idempotency-Key": "once"})
    assert answer.status_code in {202, 503}, answer.text
    for _ in range(6):
        assert isinstance(home.house.clock, FakeClock)
        home.house.clock.advance(minutes=3)
        await home.product.reconcile.run_once()
    rows = (await client.get("/v1/reservations")).json()["items"]
    held = [reference for row in rows for reference in row["provider_references"]]
    provider = home.house.provider
    assert sorted(held) == sorted(instance.reference for instance in provider.open_instances())
    assert len({line.tag for line in provider.ledger}) == len(provider.ledger)


async def test_readiness_does_not_wait_for_a_server_that_hangs(home: Home, server: PostgresServer) -> None:
    nobody = home.client(None)
    assert (await nobody.get("/readyz")).json()["database"]
    with server.frozen():
        for _ in range(3):
            async with asyncio.timeout(60):
                assert not (await nobody.get("/readyz")).json()["database"]
        assert len([task for task in asyncio.all_tasks() if "Store._ask" in repr(task)]) == 1
    answered = False
    async with asyncio.timeout(120):
        while not answered:
            answered = (await nobody.get("/readyz")).json()["database"]

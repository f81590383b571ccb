"""What piles up goes when it is too old, a few rows in each transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry, RememberedAnswer
from broker.domain.basics.webhook import Delivery, DeliveryState, Webhook
from broker.domain.market.market import ChangeKind, OfferChange
from broker.domain.market.offer import Offer
from broker.services.accounts.retention import RetentionRules, RetentionService
from broker.store import Store
from broker.store.accounts.retention import SqlRetentionRepository
from broker.store.team_session import TeamSession
from tests.fakes.clock import FakeClock
from tests.store.examples import HOUR, NOON, offer
from tests.store.test_offers import poll, record

DAY = timedelta(days=1)
RULES = RetentionRules(answers_days=7, deliveries_days=30, audit_days=90, rounds_days=10)
COUNT = 40


async def pruned(store: Store, at: datetime, at_once: int = 500) -> dict[str, int]:
    service = RetentionService(store.unit_of_work, FakeClock(at), rules=RULES, at_once=at_once)
    return dict(await service.prune())


async def lived(store: Store) -> None:
    """A day each: an answered key, a delivery that is over and one that is not, an entry of the trail."""
    async with store.unit_of_work(EVERY_TEAM) as unit:
        webhook = Webhook("hook", "research", "https://a.example/x", ("*",), "whsec_x", NOON, "key", None)
        await unit.webhooks.add(webhook)
        for day in range(COUNT):
            at = NOON + day * DAY
            await unit.accounts.remember(RememberedAnswer("research", f"k-{day}", "POST /v1/plans", "", at))
            await unit.accounts.add_audit(AuditEntry(at, "key", "plan.run", "plan", f"p-{day}", "research"))
            sent = Delivery(day, "hook", f"m-{day}", "{}", DeliveryState.DELIVERED, 1, at, "")
            failed = replace(sent, event_id=1000 + day, state=DeliveryState.FAILED)
            waiting = replace(sent, event_id=2000 + day, state=DeliveryState.PENDING)
            await unit.webhooks.add_deliveries([sent, failed, waiting])
        await unit.commit()


async def test_what_is_too_old_goes_and_the_rest_stays(store: Store) -> None:
    await lived(store)
    assert await pruned(store, NOON + COUNT * DAY) == {
        "answers": 33,
        "deliveries": 20,
        "audit": 0,
        "rounds": 0,
    }
    assert await pruned(store, NOON + COUNT * DAY) == dict.fromkeys(
        ("answers", "deliveries", "audit", "rounds"), 0
    )
    assert (await pruned(store, NOON + 100 * DAY))["audit"] == 10
    async with store.unit_of_work(EVERY_TEAM) as unit:
        left = await unit.webhooks.find_deliveries("hook", 1000)
        trail = await unit.accounts.find_audit(100, None)
    assert [one.state for one in left] == [DeliveryState.PENDING] * COUNT
    assert [entry.object_id for entry in trail.items] == [f"p-{day}" for day in range(39, 9, -1)]


async def say(store: Store, at: datetime, offers: Sequence[Offer], provider: str) -> None:
    seen = [replace(one, provider=provider, observed_at=at) for one in offers]
    changes = tuple(OfferChange(ChangeKind.PRICE, one.offer_id, provider, at, None, None) for one in seen)
    await record(store, replace(poll(len(seen), at, provider=provider), changes=changes), seen)


async def test_rounds_go_but_for_the_newest_of_each_provider_and_what_offers_name(store: Store) -> None:
    for hour in range(5):
        await say(store, NOON + hour * HOUR, [offer("a", str(10 + hour)), offer("b")], "aws")
    await say(store, NOON, [offer("c")], "vast")
    assert (await pruned(store, NOON + 11 * DAY))["rounds"] == 3
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.offers.find_rejected("aws") is not None
        assert await unit.offers.find_rejected("vast") is not None
        assert len(await unit.offers.find_current()) == 3
        left = await unit.offers.find_changes(NOON - DAY, 100)
    assert [(change.offer_id, (change.at - NOON) // HOUR) for change in left] == [
        ("a", 0), ("b", 0), ("c", 0), ("a", 4), ("b", 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("forget", "index"),
    [
        (SqlRetentionRepository.forget_answers, "ix_remembered_answers_created_at"),
        (SqlRetentionRepository.forget_deliveries, "ix_deliveries_state_next_at"),
        (SqlRetentionRepository.forget_audit, "ix_audit_entries_at_audit_id"),
        (SqlRetentionRepository.forget_rounds, "ix_rounds_started_at"),
    ],
)
async def test_what_is_too_old_is_found_by_an_index(store: Store, forget: Any, index: str) -> None:
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    engine = store._engine
    is_sqlite = engine.dialect.name == "sqlite"
    event.listen(engine.sync_engine, "before_cursor_execute", note)
    async with TeamSession(engine, EVERY_TEAM) as session:
        await forget(SqlRetentionRepository(session), NOON, 500)
    event.remove(engine.sync_engine, "before_cursor_execute", note)
    async with engine.connect() as connection:
        if not is_sqlite:
            await connection.execute(text("SET enable_seqscan = off"))  # the tables are empty
        how = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
        told = await connection.exec_driver_sql(how + asked[0][0], asked[0][1])
        assert index in " ".join(str(row) for row in told)


async def test_no_transaction_removes_many_rows(store: Store) -> None:
    await lived(store)
    removed: list[int] = [0]

    def count(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            removed[-1] += cursor.rowcount

    def end(_connection: Any) -> None:
        removed.append(0)

    event.listen(store._engine.sync_engine, "after_cursor_execute", count)
    event.listen(store._engine.sync_engine, "commit", end)
    gone = await pruned(store, NOON + COUNT * DAY, at_once=4)
    assert sum(removed) == sum(gone.values()) == 53
    assert max(removed) == 4

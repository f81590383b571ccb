"""Claims of idempotency keys, the audit trail, the installation's id."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from ulid import ULID

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.account import AuditEntry, RememberedAnswer
from broker.domain.basics.errors import InputError, NotFound
from broker.store import Store
from tests import strategies
from tests.store.examples import HOUR, NOON

CLAIM = RememberedAnswer("research", "k-1", "POST /v1/plans", "cd" * 32, NOON)
DONE = replace(CLAIM, status=202, body='{"plan_id": "p"}', headers='{"Location": "/v1/plans/p"}')


async def claim(store: Store, answer: RememberedAnswer = CLAIM) -> RememberedAnswer | None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.accounts.remember(answer)
        await unit.commit()
    return found


async def test_a_claim_is_given_once_then_the_answer(store: Store) -> None:
    assert await claim(store) is None
    assert await claim(store, replace(CLAIM, body_sha256="other")) == CLAIM
    assert await claim(store, replace(CLAIM, route="POST /v1/reservations")) is None
    assert await claim(store, replace(CLAIM, team="ops")) is None

    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.accounts.complete(DONE)
        await unit.commit()

    assert await claim(store) == DONE


async def test_a_claim_given_back_can_be_had_again(store: Store) -> None:
    await claim(store)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.accounts.forget(CLAIM.team, CLAIM.key, CLAIM.route)
        await unit.commit()

    assert await claim(store) is None


async def test_only_a_claim_can_be_completed(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        with pytest.raises(NotFound, match="idempotency key 'k-1'"):
            await unit.accounts.complete(DONE)


async def test_of_many_claims_at_once_one_is_given(store: Store) -> None:
    outcomes = await asyncio.gather(*(claim(store) for _ in range(6)))

    assert sorted(outcomes, key=lambda outcome: outcome is not None) == [None, *[CLAIM] * 5]


async def test_a_claim_waits_for_another_that_is_not_committed(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as first:
        assert await first.accounts.remember(CLAIM) is None
        second = asyncio.create_task(claim(store))
        await asyncio.sleep(0.1)
        assert not second.done()

    assert await second is None


@settings(max_examples=10)
@given(strategies.audit_entries)
async def test_any_audit_entry_comes_back_exactly(store: Store, drawn: AuditEntry) -> None:
    entry = replace(drawn, team=str(ULID()))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.accounts.add_audit(entry)
        await unit.commit()

    async with store.unit_of_work(TeamScope(entry.team)) as unit:
        assert (await unit.accounts.find_audit(10, None)).items == (entry,)


async def test_the_audit_trail_pages_newest_first(store: Store) -> None:
    entries = [
        AuditEntry(NOON + (n // 2) * HOUR, "key-1", "reserve", "reservation", f"r{n % 2}", "research")
        for n in range(4)
    ]
    async with store.unit_of_work(EVERY_TEAM) as unit:
        for entry in entries:
            await unit.accounts.add_audit(entry)
        await unit.commit()

    async with store.unit_of_work(EVERY_TEAM) as unit:
        first = await unit.accounts.find_audit(3, None)
        second = await unit.accounts.find_audit(3, first.next_cursor)
        one = await unit.accounts.find_audit(3, None, object_id="r1")
        with pytest.raises(InputError, match="cursor"):
            await unit.accounts.find_audit(3, "WyIyMDI2LTExLTIzVDEyOjAwOjAwKzAwOjAwIiwieCJd")

    assert [*first.items, *second.items] == entries[::-1]
    assert one.items == (entries[3], entries[1])


async def test_the_installation_has_one_id_for_good(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        first = await unit.accounts.install_id()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.accounts.install_id() == first

    assert re.fullmatch("[0-9a-f]{8}", first)

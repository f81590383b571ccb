"""Keys and sessions, on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.account import ApiKey, Scope, Session
from broker.domain.basics.errors import Conflict, InputError, NotFound
from broker.services.accounts.keys import KeysService
from broker.store import Store, create_store
from tests.fakes.clock import FakeClock
from tests.store.examples import NOON

KEY = ApiKey("key-1", "ci", "research", frozenset({Scope.PLANS_READ, Scope.ADMIN}), "ab" * 32, NOON)
LATER = NOON + timedelta(hours=1)
SESSION = Session("12" * 32, KEY.key_id, NOON, LATER)


async def stored(store: Store, *keys: ApiKey) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        for key in keys:
            await unit.keys.add(key)
        await unit.commit()


async def test_a_key_is_found_by_its_hash_and_its_id(store: Store) -> None:
    ended = replace(KEY, key_id="key-2", sha256="ef" * 32, revoked_at=NOON, expires_at=LATER)
    await stored(store, KEY, ended)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.keys.find_by_hash(KEY.sha256) == KEY
        assert await unit.keys.find_by_hash(ended.sha256) == ended
        assert await unit.keys.find_by_hash("0" * 64) is None
        assert await unit.keys.find("key-2") == ended
        with pytest.raises(NotFound, match="key-3"):
            await unit.keys.find("key-3")


async def test_one_hash_is_one_key(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.keys.add(KEY)
        with pytest.raises(Conflict, match="key key-2 already exists"):
            await unit.keys.add(replace(KEY, key_id="key-2"))


async def test_keys_come_newest_first_page_by_page_of_a_team(store: Store) -> None:
    new = replace(KEY, key_id="key-2", sha256="cd" * 32, created_at=LATER)
    other = replace(KEY, key_id="key-3", sha256="ef" * 32, team="product")
    await stored(store, KEY, new, other)
    async with store.unit_of_work(TeamScope("research")) as unit:
        first = await unit.keys.find_page(1, None)
        rest = await unit.keys.find_page(1, first.next_cursor)
        assert (first.items, rest.items, rest.next_cursor) == ((new,), (KEY,), None)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert len((await unit.keys.find_page(10, None)).items) == 3


async def test_revoking_ends_the_sessions_and_keeps_the_first_instant(store: Store) -> None:
    await stored(store, KEY)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.keys.add_session(SESSION)
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.keys.find_session(SESSION.sha256) == (SESSION, KEY)
    for at in (NOON, LATER):
        async with store.unit_of_work(EVERY_TEAM) as unit:
            await unit.keys.revoke(KEY.key_id, at)
            await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert (await unit.keys.find(KEY.key_id)).revoked_at == NOON
        assert await unit.keys.find_session(SESSION.sha256) is None


async def test_sessions_that_are_over_are_forgotten_with_the_next(store: Store) -> None:
    await stored(store, KEY)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.keys.add_session(SESSION)
        await unit.keys.add_session(Session("34" * 32, KEY.key_id, LATER, LATER + timedelta(hours=1)))
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.keys.find_session(SESSION.sha256) is None
        assert await unit.keys.find_session("34" * 32) is not None
        await unit.keys.drop_session("34" * 32)
        assert await unit.keys.find_session("34" * 32) is None


async def test_standing_keys_of_a_team_are_those_not_revoked(store: Store) -> None:
    ended = replace(KEY, key_id="key-2", sha256="ef" * 32, revoked_at=NOON)
    over = replace(KEY, key_id="key-3", sha256="cd" * 32, created_at=LATER, expires_at=LATER)
    await stored(store, over, KEY, ended, replace(KEY, key_id="key-4", sha256="12" * 32, team="product"))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.keys.find_unrevoked("research") == (KEY, over)


async def test_of_several_keys_given_at_once_one_stands(store: Store, database_url: str) -> None:
    """Brokers that start together, some with the setting's old value, some with its new one."""
    if not database_url.startswith("postgresql"):
        pytest.skip("a SQLite file has one process")
    others = [create_store(database_url) for _ in range(5)]
    services = [KeysService(each.unit_of_work, FakeClock()) for each in (store, *others)]
    secrets = [f"given-key-number-{number % 2}-of-many" for number in range(6)]
    outcomes = await asyncio.gather(
        *(service.ensure_admin_key(secret) for service, secret in zip(services, secrets, strict=True)),
        return_exceptions=True,
    )
    for each in others:
        await each.close()
    assert len(await services[0].find_given_keys()) == 1
    assert all(outcome is None or isinstance(outcome, InputError) for outcome in outcomes)


async def test_an_invitation_becomes_a_key_once_and_never_after_its_end(store: Store) -> None:
    open_one = replace(KEY, invited_until=KEY.created_at)
    revoked = replace(open_one, key_id="key-2", sha256="c" * 64, revoked_at=KEY.created_at)
    await stored(store, open_one, revoked)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.keys.find_by_hash(KEY.sha256) == open_one
        accepted = [await unit.keys.accept(open_one, one * 64) for one in ("d", "e")]
        assert (accepted, await unit.keys.accept(revoked, "f" * 64)) == ([True, False], False)
        assert await unit.keys.find_by_hash("d" * 64) == replace(KEY, sha256="d" * 64)

"""Keys: made, verified, expired, revoked; sessions of the pages."""

import itertools
from datetime import timedelta

import pytest

from broker.domain.account import Caller, Scope
from broker.domain.errors import Conflict, InputError, NotAuthenticated, NotFound, NotPermitted
from broker.services.keys import SESSION_TIME, KeysService
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ADMIN, ALICE, BOB
from tests.fakes.store import Tables

READING = frozenset({Scope.PLANS_READ})


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def keys(tables: Tables, clock: FakeClock) -> KeysService:
    counter = itertools.count(1)
    return KeysService(
        tables.unit_of_work, clock, random_bytes=lambda size: next(counter).to_bytes(size, "big")
    )


async def test_a_key_opens_and_only_its_hash_is_kept(keys: KeysService, tables: Tables) -> None:
    key, secret = await keys.create_key("ci", "research", READING, ADMIN)
    assert secret.startswith(f"broker_live_{key.key_id}_")
    assert secret not in repr(tables)
    caller = await keys.verify(secret)
    assert (caller.team, caller.may(Scope.PLANS_WRITE)) == ("research", False)
    assert tables.audit[0].action == "key.create"


@pytest.mark.parametrize("secret", [None, "", "broker_live_x_y"])
async def test_no_or_wrong_keys_are_refused(keys: KeysService, secret: str | None) -> None:
    with pytest.raises(NotAuthenticated):
        await keys.verify(secret)
    with pytest.raises(NotAuthenticated):
        await keys.find_visitor(secret)


async def test_the_admin_key_is_given_or_made(keys: KeysService) -> None:
    assert await keys.ensure_admin_key("my-own-key-of-many-characters") == "my-own-key-of-many-characters"
    assert await keys.ensure_admin_key("my-own-key-of-many-characters") == "my-own-key-of-many-characters"
    made = await keys.ensure_admin_key()
    for secret in ("my-own-key-of-many-characters", made):
        assert (await keys.verify(secret)).may(Scope.ADMIN)


async def test_only_an_administrator_makes_and_ends_keys(keys: KeysService) -> None:
    key, _ = await keys.create_key("ci", "research", READING, ADMIN)
    with pytest.raises(NotPermitted):
        await keys.create_key("x", "research", READING, ALICE)
    with pytest.raises(NotPermitted):
        await keys.revoke(ALICE, key.key_id)


async def test_a_team_sees_its_own_keys(keys: KeysService) -> None:
    key, _ = await keys.create_key("ci", "research", READING, ADMIN)
    assert (await keys.find_keys(ALICE)).items == (key,)
    assert (await keys.find_keys(BOB, team="research")).items == ()
    assert (await keys.find_keys(ADMIN)).items == (key,)
    with pytest.raises(NotFound):
        await keys.find_key(BOB, key.key_id)


async def test_an_expired_key_opens_nothing(keys: KeysService, clock: FakeClock) -> None:
    with pytest.raises(InputError, match="still to come"):
        await keys.create_key("ci", "research", READING, ADMIN, NOON)
    _, secret = await keys.create_key("ci", "research", READING, ADMIN, NOON + timedelta(hours=1))
    token = await keys.sign_in(secret)
    assert (await keys.find_visitor(token)).team == "research"
    clock.advance(hours=1)
    with pytest.raises(NotAuthenticated):
        await keys.verify(secret)
    with pytest.raises(NotAuthenticated):
        await keys.find_visitor(token)


async def test_a_revoked_key_ends_with_its_sessions_for_good(keys: KeysService, tables: Tables) -> None:
    key, secret = await keys.create_key("ci", "research", READING, ADMIN)
    token = await keys.sign_in(secret)
    await keys.revoke(ADMIN, key.key_id)
    await keys.revoke(ADMIN, key.key_id)
    for refused in (keys.verify(secret), keys.find_visitor(token), keys.sign_in(secret)):
        with pytest.raises(NotAuthenticated):
            await refused
    assert [entry.action for entry in tables.audit] == ["key.create", "key.revoke"]


async def test_nobody_revokes_the_key_they_ask_with(keys: KeysService) -> None:
    key, secret = await keys.create_key("boss", "admin", frozenset(Scope), ADMIN)
    boss: Caller = await keys.verify(secret)
    with pytest.raises(Conflict, match="the one that asks"):
        await keys.revoke(boss, key.key_id)


async def test_a_session_ends_by_time_and_by_signing_out(
    keys: KeysService, tables: Tables, clock: FakeClock
) -> None:
    _, secret = await keys.create_key("ci", "research", READING, ADMIN)
    first, second = await keys.sign_in(secret), await keys.sign_in(secret)
    assert first not in repr(tables)
    await keys.sign_out(first)
    with pytest.raises(NotAuthenticated):
        await keys.find_visitor(first)
    assert (await keys.find_visitor(second)).team == "research"
    clock.advance(seconds=SESSION_TIME.total_seconds())
    with pytest.raises(NotAuthenticated, match="over"):
        await keys.find_visitor(second)

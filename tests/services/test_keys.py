"""Keys: made, verified, expired, revoked; sessions of the pages."""

import hashlib
import itertools
from datetime import timedelta

import pytest

from broker.domain.basics.account import ApiKey, Caller, Scope
from broker.domain.basics.errors import Conflict, InputError, NotAuthenticated, NotFound, NotPermitted
from broker.services.accounts.keys import LOCAL_KEY_TIME, SESSION_TIME, KeysService
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


GIVEN, NEXT = "my-own-key-of-many-characters", "another-key-of-many-characters"


async def test_an_empty_key_signs_nobody_in_even_where_its_hash_is_stored(
    keys: KeysService, tables: Tables
) -> None:
    digest = hashlib.sha256(b"").hexdigest()  # earlier versions stored it
    tables.keys[digest] = ApiKey("env-e3b0c44298fc", "admin", "admin", frozenset(Scope), digest, NOON)
    for ask in (keys.verify, keys.sign_in, keys.find_visitor):
        with pytest.raises(NotAuthenticated):
            await ask("")
    assert tables.sessions == {}


async def test_a_given_key_opens_everything_and_ends_the_one_before_with_its_sessions(
    keys: KeysService, tables: Tables
) -> None:
    for _ in range(2):
        await keys.ensure_admin_key(GIVEN)
    token = await keys.sign_in(GIVEN)
    _, other = await keys.create_key("boss", "admin", frozenset(Scope))
    assert (await keys.verify(GIVEN)).may(Scope.ADMIN)
    assert [key.key_id for key in await keys.find_given_keys()] == [(await keys.verify(GIVEN)).key_id]

    await keys.ensure_admin_key(NEXT)
    for refused in (keys.verify(GIVEN), keys.find_visitor(token), keys.sign_in(GIVEN)):
        with pytest.raises(NotAuthenticated):
            await refused
    for secret in (NEXT, other):
        assert (await keys.verify(secret)).may(Scope.ADMIN)
    told = [(entry.actor, entry.action) for entry in tables.audit]
    assert told == [("installation", f"key.{word}") for word in ("create", "create", "create", "revoke")]
    assert "replaced by env-" in tables.audit[-1].detail


async def test_a_given_key_that_was_replaced_or_revoked_never_comes_back(keys: KeysService) -> None:
    await keys.ensure_admin_key(GIVEN)
    await keys.ensure_admin_key(NEXT)
    with pytest.raises(InputError, match=r"BROKER_ADMIN_KEY: found key env-.* replaced or revoked"):
        await keys.ensure_admin_key(GIVEN)
    await keys.revoke(ADMIN, (await keys.verify(NEXT)).key_id)
    with pytest.raises(InputError, match="expected another key"):
        await keys.ensure_admin_key(NEXT)
    with pytest.raises(NotAuthenticated):
        await keys.verify(GIVEN)


async def test_a_given_key_is_an_administrators_that_lasts(keys: KeysService, clock: FakeClock) -> None:
    _, teams = await keys.create_key("ci", "research", READING)
    _, short = await keys.create_key("x", "admin", frozenset(Scope), expires_at=NOON + timedelta(hours=1))
    clock.advance(hours=2)
    for secret, why in ((teams, "not an administrator's"), (short, "has expired")):
        with pytest.raises(InputError, match=f"BROKER_ADMIN_KEY: found key .*{why}"):
            await keys.ensure_admin_key(secret)


async def test_a_local_key_is_used_again_until_its_last_day(
    keys: KeysService, clock: FakeClock, tables: Tables
) -> None:
    kept: list[str] = []
    first = await keys.ensure_local_key(None, kept.append)
    assert (first.is_new, first.expires_at, kept) == (True, NOON + LOCAL_KEY_TIME, [first.secret])
    assert first.secret not in repr(first)
    clock.advance(seconds=(LOCAL_KEY_TIME - timedelta(days=1, seconds=1)).total_seconds())
    again = await keys.ensure_local_key(first.secret, kept.append)
    assert (again.is_new, again.secret, len(kept)) == (False, first.secret, 1)
    clock.advance(seconds=2)
    second = await keys.ensure_local_key(first.secret, kept.append)
    assert (second.is_new, kept[-1]) == (True, second.secret)
    assert (await keys.verify(second.secret)).may(Scope.ADMIN)
    with pytest.raises(NotAuthenticated):
        await keys.verify(first.secret)
    assert [entry.action for entry in tables.audit] == ["key.create", "key.create", "key.revoke"]
    clock.advance(seconds=LOCAL_KEY_TIME.total_seconds())
    with pytest.raises(NotAuthenticated):
        await keys.verify(second.secret)


async def test_a_new_local_key_ends_those_without_an_end_and_no_other(keys: KeysService) -> None:
    _, endless = await keys.create_key("local admin", "admin", frozenset(Scope))
    _, boss = await keys.create_key("boss", "admin", frozenset(Scope))
    await keys.ensure_admin_key(GIVEN)
    elsewhere = await keys.ensure_local_key(None, lambda _: None)
    here = await keys.ensure_local_key("a key of another database", lambda _: None)
    for secret in (boss, GIVEN, elsewhere.secret, here.secret):
        assert (await keys.verify(secret)).may(Scope.ADMIN)
    with pytest.raises(NotAuthenticated):
        await keys.verify(endless)


async def test_a_local_key_that_others_could_read_is_replaced(keys: KeysService) -> None:
    first = await keys.ensure_local_key(None, lambda _: None)
    second = await keys.ensure_local_key(first.secret, lambda _: None, is_private=False)
    assert second.is_new
    with pytest.raises(NotAuthenticated):
        await keys.verify(first.secret)


async def test_a_local_key_that_cannot_be_kept_opens_nothing(keys: KeysService, tables: Tables) -> None:
    def fail(_: str) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await keys.ensure_local_key(None, fail)
    assert tables.keys == {}


async def test_only_an_administrator_makes_and_ends_keys(keys: KeysService) -> None:
    key, _ = await keys.create_key("ci", "research", READING, ADMIN)
    with pytest.raises(NotPermitted):
        await keys.create_key("x", "research", READING, ALICE)
    with pytest.raises(NotPermitted):
        await keys.revoke(ALICE, key.key_id)


async def test_a_team_sees_its_own_keys(keys: KeysService) -> None:
    key, _ = await keys.create_key("ci", "research", READING, ADMIN)
    assert (await keys.find_keys(ALICE)).items == (key,)
    with pytest.raises(NotPermitted, match="sees team product alone"):
        await keys.find_keys(BOB, team="research")
    assert (await keys.find_keys(ADMIN)).items == (key,)
    with pytest.raises(NotFound):
        await keys.find_key(BOB, key.key_id)


async def test_an_expired_key_opens_nothing(keys: KeysService, clock: FakeClock) -> None:
    with pytest.raises(InputError, match="a time in the future"):
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


async def test_a_calendar_s_token_signs_nobody_in(keys: KeysService) -> None:
    """The token stands in an address that calendar programs store and send on."""
    _, token = await keys.create_calendar(ADMIN, "team calendar", "research")
    assert (await keys.verify_calendar(token)).scopes == {Scope.PLANS_READ}
    for refused in (keys.sign_in(token), keys.find_visitor(token), keys.verify(token)):
        with pytest.raises(NotAuthenticated, match="opens calendars alone"):
            await refused


async def test_nobody_revokes_the_key_they_ask_with(keys: KeysService) -> None:
    key, secret = await keys.create_key("boss", "admin", frozenset(Scope), ADMIN)
    boss: Caller = await keys.verify(secret)
    with pytest.raises(Conflict, match="cannot revoke itself"):
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
    with pytest.raises(NotAuthenticated, match="has ended"):
        await keys.find_visitor(second)


DAY = timedelta(days=1)


async def test_an_invitation_is_exchanged_once_for_a_key_that_nobody_else_has_seen(
    keys: KeysService, tables: Tables
) -> None:
    invited, token = await keys.create_key("grace", "research", READING, ADMIN, invited_for=DAY)
    assert (await keys.find_invitation(token)).key_id == invited.key_id
    for opens in (keys.verify, keys.sign_in, keys.find_visitor):
        with pytest.raises(NotAuthenticated):
            await opens(token)
    key, secret = await keys.accept(token)
    assert (await keys.verify(secret)).team == "research"
    assert (key.key_id, key.invited_until) == (invited.key_id, None)
    assert token not in repr(tables)
    assert secret not in repr(tables)
    for again in (keys.accept, keys.find_invitation):
        with pytest.raises(NotAuthenticated, match="ask for another"):
            await again(token)
    actions = [(entry.action, entry.actor) for entry in tables.audit]
    assert actions == [("key.invite", ADMIN.key_id), ("key.accept", invited.key_id)]


async def test_an_invitation_ends_with_its_time_and_when_it_is_revoked(
    keys: KeysService, clock: FakeClock
) -> None:
    late = (await keys.create_key("grace", "research", READING, ADMIN, invited_for=DAY))[1]
    gone, taken_back = await keys.create_key("ada", "research", READING, ADMIN, invited_for=2 * DAY)
    await keys.revoke(ADMIN, gone.key_id)
    clock.advance(hours=24)
    for token in (late, taken_back, "unknown", ""):
        with pytest.raises(NotAuthenticated):
            await keys.accept(token)


async def test_only_administrators_invite(keys: KeysService) -> None:
    with pytest.raises(NotPermitted):
        await keys.create_key("grace", "research", READING, ALICE, invited_for=DAY)

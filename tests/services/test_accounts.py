import itertools

import pytest

from broker.domain.account import RequestClaim, Scope
from broker.domain.errors import (
    Conflict,
    IdempotencyMismatch,
    InsufficientCapacity,
    NotAuthenticated,
    NotPermitted,
    StoreUnavailable,
)
from broker.services.accounts import AccountsService, Answer
from tests.fakes.clock import FakeClock
from tests.fakes.examples import ADMIN, ALICE, BOB
from tests.fakes.store import Tables


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def accounts(tables: Tables) -> AccountsService:
    counter = itertools.count(1)
    return AccountsService(
        tables.unit_of_work, FakeClock(), random_bytes=lambda size: next(counter).to_bytes(size, "big")
    )


async def test_a_key_opens_and_only_its_hash_is_kept(accounts: AccountsService, tables: Tables) -> None:
    key, secret = await accounts.create_key("ci", "research", frozenset({Scope.PLANS_READ}), ADMIN)
    assert secret.startswith(f"broker_live_{key.key_id}_")
    assert secret not in repr(tables)
    caller = await accounts.verify(secret)
    assert (caller.team, caller.may(Scope.PLANS_WRITE)) == ("research", False)
    assert tables.audit[0].action == "key.create"


@pytest.mark.parametrize("secret", [None, "", "broker_live_x_y"])
async def test_no_or_wrong_keys_are_refused(accounts: AccountsService, secret: str | None) -> None:
    with pytest.raises(NotAuthenticated):
        await accounts.verify(secret)


async def test_the_admin_key_is_given_or_made(accounts: AccountsService) -> None:
    assert await accounts.ensure_admin_key("my-own") == "my-own"
    assert await accounts.ensure_admin_key("my-own") == "my-own"
    made = await accounts.ensure_admin_key()
    for secret in ("my-own", made):
        assert (await accounts.verify(secret)).may(Scope.ADMIN)


async def test_only_an_administrator_makes_keys(accounts: AccountsService) -> None:
    with pytest.raises(NotPermitted):
        await accounts.create_key("x", "research", frozenset(), ALICE)


async def test_one_key_has_one_effect(accounts: AccountsService) -> None:
    effects: list[int] = []

    async def act() -> Answer:
        effects.append(1)
        return Answer(202, "{}")

    first = await accounts.once(ALICE, "k", "POST /v1/plans", b"body", act)
    again = await accounts.once(ALICE, "k", "POST /v1/plans", b"body", act)
    assert (first.replayed, again.replayed, len(effects)) == (False, True, 1)
    with pytest.raises(IdempotencyMismatch):
        await accounts.once(ALICE, "k", "POST /v1/plans", b"other", act)
    await accounts.once(BOB, "k", "POST /v1/plans", b"other", act)
    await accounts.once(ALICE, None, "POST /v1/plans", b"body", act)
    assert len(effects) == 3


async def test_a_twin_waits_and_a_failure_gives_the_key_back(accounts: AccountsService) -> None:
    async def fail() -> Answer:
        with pytest.raises(Conflict, match="still at work"):
            await accounts.once(ALICE, "k", "r", b"", fail)
        raise InsufficientCapacity("fake", "no stock")

    async def succeed() -> Answer:
        return Answer(202, "done")

    with pytest.raises(InsufficientCapacity):
        await accounts.once(ALICE, "k", "r", b"", fail)
    assert (await accounts.once(ALICE, "k", "r", b"", succeed)).body == "done"


async def test_after_an_unmeant_failure_the_key_stays_taken(accounts: AccountsService) -> None:
    async def crash() -> Answer:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await accounts.once(ALICE, "k", "r", b"", crash)
    with pytest.raises(Conflict):
        await accounts.once(ALICE, "k", "r", b"", crash)


@pytest.mark.parametrize("stored", [(), ("rsv-1", "rsv-2")])
async def test_what_failed_in_the_middle_is_taken_over_with_what_it_had_stored(
    accounts: AccountsService, tables: Tables, stored: tuple[str, ...]
) -> None:
    claim = RequestClaim(ALICE.team, "k", "r")

    async def fail() -> Answer:
        async with tables.unit_of_work() as uow:
            await uow.accounts.bind(claim if stored else None, stored)
            await uow.commit()
        raise StoreUnavailable("the database failed")

    async def act() -> Answer:
        return Answer(202, "anew")

    async def again(ids: tuple[str, ...]) -> Answer:
        return Answer(202, " ".join(ids))

    with pytest.raises(StoreUnavailable):
        await accounts.once(ALICE, "k", "r", b"", fail, again)
    answers = [await accounts.once(ALICE, "k", "r", b"", act, again) for _ in range(2)]
    assert [answer.body for answer in answers] == [" ".join(stored) or "anew"] * 2
    assert [answer.replayed for answer in answers] == [False, True]


async def test_what_a_provider_refused_is_undone_and_begins_anew(
    accounts: AccountsService, tables: Tables
) -> None:
    async def refused() -> Answer:
        async with tables.unit_of_work() as uow:
            await uow.accounts.bind(RequestClaim(ALICE.team, "k", "r"), ("rsv-1",))
            await uow.commit()
        raise InsufficientCapacity("fake", "no stock")

    async def act() -> Answer:
        return Answer(202, "anew")

    async def again(ids: tuple[str, ...]) -> Answer:
        raise AssertionError(ids)

    with pytest.raises(InsufficientCapacity):
        await accounts.once(ALICE, "k", "r", b"", refused, again)
    assert (await accounts.once(ALICE, "k", "r", b"", act, again)).body == "anew"


async def test_the_audit_trail_shows_the_own_team(accounts: AccountsService) -> None:
    await accounts.create_key("a", "research", frozenset(), ADMIN)
    await accounts.create_key("b", "product", frozenset(), ADMIN)
    assert [entry.team for entry in (await accounts.find_audit(ALICE)).items] == ["research"]
    assert len((await accounts.find_audit(ADMIN)).items) == 2

import pytest

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.account import AuditEntry, IdempotencyKey
from broker.domain.basics.errors import (
    Conflict,
    IdempotencyMismatch,
    InsufficientCapacity,
    StoreUnavailable,
)
from broker.ports.unit_of_work import UnitOfWork
from broker.services.accounts.accounts import AccountsService, Answer
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ADMIN, ALICE, BOB
from tests.fakes.store import Tables


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def accounts(tables: Tables) -> AccountsService:
    return AccountsService(tables.unit_of_work, FakeClock())


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
        with pytest.raises(Conflict, match="still in progress"):
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


@pytest.mark.parametrize(
    ("failure", "told", "replayed"),
    [(StoreUnavailable("it failed"), "it failed", False), (None, "does not answer", True)],
)
async def test_what_ended_without_a_database_is_stored_once_it_is_there_again(
    tables: Tables, failure: StoreUnavailable | None, told: str, replayed: bool
) -> None:
    away = False

    def unit_of_work(scope: TeamScope) -> UnitOfWork:
        if away:
            raise StoreUnavailable("the database does not answer")
        return tables.unit_of_work(scope)

    accounts = AccountsService(unit_of_work, FakeClock())

    async def act() -> Answer:
        nonlocal away
        away = True
        if failure is not None:
            raise failure
        return Answer(202, "first")

    async def act_again() -> Answer:
        return Answer(202, "second")

    with pytest.raises(StoreUnavailable, match=told):
        await accounts.once(ALICE, "k", "r", b"", act)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await accounts.catch_up()
    away = False
    with pytest.raises(Conflict, match="still in progress"):
        await accounts.once(ALICE, "k", "r", b"", act_again)
    await accounts.catch_up()
    answer = await accounts.once(ALICE, "k", "r", b"", act_again)
    assert (answer.replayed, answer.body) == (replayed, "first" if replayed else "second")


@pytest.mark.parametrize("stored", [(), ("rsv-1", "rsv-2")])
async def test_what_failed_in_the_middle_is_taken_over_with_what_it_had_stored(
    accounts: AccountsService, tables: Tables, stored: tuple[str, ...]
) -> None:
    claim = IdempotencyKey(ALICE.team, "k", "r")

    async def fail() -> Answer:
        async with tables.unit_of_work(EVERY_TEAM) as uow:
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
        async with tables.unit_of_work(EVERY_TEAM) as uow:
            await uow.accounts.bind(IdempotencyKey(ALICE.team, "k", "r"), ("rsv-1",))
            await uow.commit()
        raise InsufficientCapacity("fake", "no stock")

    async def act() -> Answer:
        return Answer(202, "anew")

    async def again(ids: tuple[str, ...]) -> Answer:
        raise AssertionError(ids)

    with pytest.raises(InsufficientCapacity):
        await accounts.once(ALICE, "k", "r", b"", refused, again)
    assert (await accounts.once(ALICE, "k", "r", b"", act, again)).body == "anew"


async def test_a_secret_is_not_remembered(accounts: AccountsService, tables: Tables) -> None:
    async def act() -> Answer:
        return Answer(201, "secret", remembered="no secret")

    answers = [await accounts.once(ALICE, "k", "r", b"", act) for _ in range(2)]
    assert [answer.body for answer in answers] == ["secret", "no secret"]


async def test_the_audit_trail_shows_the_own_team(accounts: AccountsService, tables: Tables) -> None:
    async with tables.unit_of_work(EVERY_TEAM) as uow:
        for team in ("research", "product"):
            await uow.accounts.add_audit(AuditEntry(NOON, "key-1", "key.create", "key", "key-2", team))
        await uow.commit()
    assert [entry.team for entry in (await accounts.find_audit(ALICE)).items] == ["research"]
    assert len((await accounts.find_audit(ADMIN)).items) == 2

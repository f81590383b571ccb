"""A seller's list of leases that is retired, missing or of another form: nothing is lost, or bought twice.

The true list of each seller is the exchange of its fixtures; then one of the answers that it is made of is
another. Judges are the references that the true list told, and a ledger of a seller that was bought from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import respx

from broker.domain.basics.errors import LeasesUnreadable
from broker.domain.holding.reservation import Lease, ReservationState
from broker.services.holding.reconcile import ReconcileRules, ReconcileService
from providers.registry import SPECS
from providers.spec import Capability, ProviderAdapter
from tests.contract.exchanges import SECRET, build, exchanges, mount
from tests.fakes.examples import ALICE, an_offer
from tests.fakes.provider import FakeProvider, Fault
from tests.services.conftest import SETTLE, House

SELLERS = tuple(name for name, spec in SPECS.items() if Capability.RESERVE in spec.capabilities)
BREAKS: Mapping[str, Mapping[str, Any]] = {
    "retired": {"status": 410, "json": {"error": "gone", "message": "use the next version"}},
    "missing": {"status": 404, "json": {"error": "not_found", "message": "no such route"}},
    "missing, as a page": {"status": 404, "text": "<html><h1>404</h1></html>"},
    "a text": {"json": "retired"},
    "renamed": {"json": {"renamed": [{"id": 1}]}},
    "a number": {"json": 7},
}


def full_list(name: str) -> dict[str, Any]:
    """An exchange that lists leases, the one with most answers."""
    found = [e for e in exchanges(name) if e["call"] == "list_leases" and e.get("leases")]
    return max(found, key=lambda exchange: len(exchange["answers"]))


def broken_lists(name: str) -> Iterator[tuple[int, str, list[dict[str, Any]]]]:
    """Each answer of the list but those that give tokens, broken in each way."""
    answers = full_list(name)["answers"]
    for index, answer in enumerate(answers):
        if "access_token" in json.dumps(answer):
            continue
        for how, instead in BREAKS.items():
            route = {"method": answer["method"], "path": answer["path"]}
            yield index, how, [*answers[:index], {**route, **instead}, *answers[index + 1 :]]


async def unreadable_list(name: str, how: str) -> list[dict[str, Any]]:
    """The answers of a list that cannot be read, because the list itself (nothing beside it) is broken."""
    for _, way, answers in broken_lists(name):
        if way == how:
            try:
                await listed(name, answers)
            except LeasesUnreadable:
                return answers
    raise AssertionError(f"{name} reads every list that is {how}")


async def listed(name: str, answers: Sequence[Mapping[str, Any]]) -> Sequence[Lease]:
    adapter = build(SPECS[name])
    assert isinstance(adapter, ProviderAdapter)
    try:
        with respx.mock(assert_all_called=False) as router:
            mount(router, name, list(answers))
            return await adapter.list_leases()
    finally:
        await adapter.aclose()


@pytest.mark.parametrize("name", SELLERS)
async def test_a_list_that_cannot_be_read_tells_so_and_loses_nothing(name: str) -> None:
    """Answers beside the list (what became of an order) may fail without harm; the list itself may not."""
    true = {lease.reference for lease in await listed(name, full_list(name)["answers"])}
    assert true
    told: list[tuple[str, LeasesUnreadable]] = []
    for index, how, answers in broken_lists(name):
        try:
            shown = {lease.reference for lease in await listed(name, answers)}
        except LeasesUnreadable as error:
            told.append((how, error))
        else:
            assert true <= shown, (index, how)
    assert {how for how, _ in told} == set(BREAKS)
    for how, failure in told:
        assert failure.provider == name
        assert failure.status == BREAKS[how].get("status", 200)
        assert f"{failure.endpoint} answered (HTTP {failure.status}" in str(failure)
        assert how != "retired" or "(HTTP 410: it is retired)" in str(failure)
        assert SECRET not in str(failure)


class Elsewhere:
    """A seller that was bought from, whose list is the one of an adapter."""

    def __init__(self, seller: FakeProvider, name: str, answers: Sequence[Mapping[str, Any]]) -> None:
        self._seller, self._name, self._answers = seller, name, answers

    def __getattr__(self, word: str) -> Any:
        return getattr(self._seller, word)

    async def list_leases(self) -> Sequence[Lease]:
        return await listed(self._name, self._answers)


@pytest.mark.parametrize("how", ["retired", "missing", "a text"])
@pytest.mark.parametrize("name", SELLERS)
async def test_what_is_held_there_stays_and_other_sellers_go_on(name: str, how: str) -> None:
    house = House()
    house.sell(an_offer("held"), an_offer("lost"))
    await house.reservations.reserve_offer(ALICE, "held", 1)
    await house.settle(2)
    house.provider.fail("reserve", Fault.LOST_AFTER)
    await house.reservations.reserve_offer(ALICE, "lost", 1)
    before, writes = house.rows(), house.provider.writes()
    assert house.states() == [ReservationState.ACTIVE, ReservationState.UNKNOWN]
    owned = house.provider.open_instances()
    assert len(owned) == 2

    answers = await unreadable_list(name, how)
    other = FakeProvider(house.clock, provider="other")
    sellers: dict[str, Any] = {"fake": Elsewhere(house.provider, name, answers), "other": other}
    reconcile = ReconcileService(*house.parts(sellers), rules=ReconcileRules(order_grace=SETTLE))
    for _ in range(4):
        house.clock.advance(minutes=10)
        report = await reconcile.run_once()
        assert [unread.provider for unread in report.unread] == ["fake"]
        assert any(error.startswith(f"{name}: its list of leases cannot be read") for error in report.errors)
    assert other.calls == ["list"] * 4
    assert house.rows() == before
    assert house.provider.writes() == writes
    assert house.provider.open_instances() == owned

    await house.settle(2)
    assert house.states() == [ReservationState.ACTIVE, ReservationState.ACTIVE]
    assert house.provider.open_instances() == owned
    house.assert_agreement()


async def test_since_when_a_list_cannot_be_read_is_kept_until_it_can(house: House) -> None:
    first = house.clock.now()
    house.provider.fail("list", Fault.DOWN, Fault.DOWN)
    await house.reconcile.run_once()
    house.clock.advance(minutes=1)
    await house.reconcile.run_once()
    (unread,) = house.reconcile.unread_lists().values()
    assert (unread.provider, unread.since) == ("fake", first)
    assert isinstance(unread.error, str)
    assert unread.error.startswith("fake: ")
    house.clock.advance(minutes=1)
    report = await house.reconcile.run_once()
    assert (report.unread, house.reconcile.unread_lists()) == ((), {})


@pytest.fixture
def house() -> House:
    return House()

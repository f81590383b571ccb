import asyncio
import time
from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import (
    InputError,
    NotFound,
    NotPermitted,
    PayloadUnreadable,
    ProviderUnavailable,
    StoreUnavailable,
)
from broker.domain.market.contract_prices import ContractPrice
from broker.domain.market.freshness import fresh_offers
from broker.domain.market.market import ChangeKind, PollRound
from broker.domain.market.offer import OfferBatch
from broker.domain.market.offer_pages import OfferFilter
from broker.domain.market.price_gate import Doubt, GateRules
from broker.services.market.offers import OffersService
from tests.fakes.clock import FakeClock
from tests.fakes.examples import an_offer
from tests.fakes.provider import FakeProvider, Fault
from tests.fakes.store import Tables


class Broken:
    """An adapter with a bug."""

    provider = "broken"

    async def list_offers(self, observed_at: object) -> OfferBatch:
        raise KeyError("price")


class Slow:
    """An adapter that answers when it may."""

    provider = "slow"

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def list_offers(self, observed_at: object) -> OfferBatch:
        await self.may_answer.wait()
        return OfferBatch(())


async def test_a_round_stores_offers_and_changes() -> None:
    clock, tables = FakeClock(), Tables()
    source = FakeProvider(clock, offers=(an_offer("a", "2"), an_offer("b", "3")))
    service = OffersService(tables.unit_of_work, {"fake": source}, clock)
    (first,) = await service.refresh()
    assert {change.kind for change in first.changes} == {ChangeKind.NEW}

    clock.advance(minutes=1)
    source.offers = (an_offer("a", "1.5"), an_offer("c", "9"))
    (second,) = await service.refresh(["fake"])

    kinds = {change.offer_id: change.kind for change in second.changes}
    assert kinds == {"a": ChangeKind.PRICE, "b": ChangeKind.GONE, "c": ChangeKind.NEW}
    assert [offer.offer_id for offer in await service.find_offers()] == ["a", "c"]
    assert await service.find_offers(OfferFilter(gpu="L4")) == ()
    assert await service.find_as_of() == clock.now()


async def test_a_round_is_heard_before_the_slowest_feed_answers() -> None:
    clock, tables = FakeClock(), Tables()
    fast, slow = FakeProvider(clock, "fast", offers=(an_offer("a", provider="fast"),)), Slow()
    heard: list[str] = []

    def hear(round_: PollRound) -> None:
        heard.append(round_.provider)
        slow.may_answer.set()

    service = OffersService(tables.unit_of_work, {"fast": fast, "slow": slow}, clock)
    rounds = await asyncio.wait_for(service.refresh(heard=hear), 60)
    assert heard == ["fast", "slow"]
    assert {round_.provider for round_ in rounds} == {"fast", "slow"}


async def test_no_poll_goes_on_unseen_when_the_store_fails_for_one_feed() -> None:
    clock, tables = FakeClock(), Tables()
    fast, slow = FakeProvider(clock, "fast", offers=(an_offer("a", provider="fast"),)), Slow()
    service = OffersService(tables.unit_of_work, {"fast": fast, "slow": slow}, clock)
    heard: list[str] = []

    def hear(round_: PollRound) -> None:
        heard.append(round_.provider)
        if round_.provider == "fast":
            asyncio.get_running_loop().call_soon(slow.may_answer.set)
            raise StoreUnavailable("the database does not answer")

    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(service.refresh(heard=hear), 60)
    assert heard == ["fast", "slow"]


async def test_one_failing_provider_leaves_the_others_alone_and_its_offers_standing() -> None:
    clock, tables = FakeClock(), Tables()
    good = FakeProvider(clock, "good", offers=(an_offer("g", provider="good"),))
    bad = FakeProvider(clock, "bad", offers=(an_offer("x", provider="bad"),))
    service = OffersService(tables.unit_of_work, {"good": good, "bad": bad, "broken": Broken()}, clock)
    await service.refresh()
    bad.fail("list_offers", Fault.DOWN)
    clock.advance(minutes=30)

    rounds = {round_.provider: round_ for round_ in await service.refresh()}

    assert rounds["good"].error is None
    assert "down" in (rounds["bad"].error or "")
    assert "KeyError" in (rounds["broken"].error or "")
    assert {offer.offer_id for offer in await service.find_offers()} == {"g", "x"}
    feeds = {feed.provider: feed for feed in await service.find_feeds()}
    assert feeds["good"].stale_since is None
    assert feeds["bad"].stale_since is not None


async def test_offers_without_a_price_and_doubles_are_rejected_with_a_reason() -> None:
    clock, tables = FakeClock(), Tables()
    source = FakeProvider(clock, offers=(an_offer("a", "0"), an_offer("b", "1"), an_offer("b", "2")))
    (round_,) = await OffersService(tables.unit_of_work, {"fake": source}, clock).refresh()
    assert round_.offers == 1
    assert [(row.row, "zero" in row.reason or "twice" in row.reason) for row in round_.rejected] == [
        ("a", True),
        ("b", True),
    ]


async def test_a_silent_feed_turns_stale() -> None:
    clock, tables = FakeClock(), Tables()
    service = OffersService(
        tables.unit_of_work, {"fake": FakeProvider(clock)}, clock, stale_after=timedelta(minutes=5)
    )
    assert (await service.find_feeds())[0].last_success_at is None
    await service.refresh()
    seen = clock.now()
    clock.advance(minutes=6)
    assert (await service.find_feeds())[0].stale_since == seen


async def test_dead_slow_and_unreadable_feeds_do_not_hold_up_the_rest() -> None:
    clock, tables, failing = FakeClock(), Tables(), False
    dead = {f"p{n}": ProviderUnavailable(f"p{n}", "connection refused") for n in range(3)}
    faults = {**dead, "p3": PayloadUnreadable("p3", "no JSON"), "p4": None}

    class Feed:
        def __init__(self, provider: str) -> None:
            self.provider = provider

        async def list_offers(self, observed_at: datetime) -> OfferBatch:
            if failing and self.provider in faults:
                fault = faults[self.provider]
                if fault is not None:
                    raise fault
                await asyncio.sleep(600)
            offer = an_offer(f"o-{self.provider}", provider=self.provider, observed_at=observed_at)
            return OfferBatch((offer,))

    sources = {f"p{n}": Feed(f"p{n}") for n in range(25)}
    service = OffersService(tables.unit_of_work, sources, clock, poll_timeout_s=1.0)
    await service.refresh()
    failing = True
    clock.advance(minutes=12)
    began = time.monotonic()
    rounds = await service.refresh()
    assert time.monotonic() - began < 60
    assert {round_.provider for round_ in rounds if round_.error is not None} == set(faults)
    feeds = {feed.provider: feed for feed in await service.find_feeds()}
    assert {name for name, feed in feeds.items() if feed.stale_since is not None} == set(faults)
    assert "no answer within 1 s" in str(feeds["p4"].last_error)
    offers = await service.find_offers()
    usable = fresh_offers(offers, feeds.values(), clock.now(), timedelta(minutes=10))
    assert (len(offers), len(usable)) == (25, 20), "shown with their age, and not planned with"


async def test_an_unknown_provider_is_named() -> None:
    service = OffersService(Tables().unit_of_work, {}, FakeClock())
    with pytest.raises(InputError, match="nowhere"):
        await service.refresh(["nowhere"])


async def test_prices_over_time() -> None:
    clock, tables = FakeClock(), Tables()
    source = FakeProvider(clock, offers=(an_offer("a", "2"),))
    service = OffersService(tables.unit_of_work, {"fake": source}, clock)
    await service.refresh()
    assert tables.points[0].price_usd_per_node_hour == Decimal(2)


async def test_a_doubtful_price_waits_until_it_is_released_and_no_longer_than_its_price() -> None:
    clock, tables = FakeClock(), Tables()
    source = FakeProvider(clock, offers=(an_offer("a", "10"), an_offer("b", "10")))
    rules = GateRules(least_of_before=Decimal("0.4"), most_of_before=Decimal(3))
    service = OffersService(tables.unit_of_work, {"fake": source}, clock, gate=rules)
    await service.refresh()

    source.offers = (an_offer("a", "0.1"), an_offer("b", "9"))
    (round_,) = await service.refresh()
    assert round_.offers == 1
    assert [offer.offer_id for offer in await service.find_offers()] == ["b"]
    (entry,) = await service.find_quarantine()
    assert (entry.offer.offer_id, entry.doubt, entry.released_at) == ("a", Doubt.JUMP, None)

    administrator = Caller("key-1", "ops", frozenset({Scope.ADMIN}))
    await service.release_from_quarantine(administrator, "a")
    await service.release_from_quarantine(administrator, "a")
    assert [audit.action for audit in tables.audit] == ["offer.believe"]
    await service.refresh()
    assert {offer.offer_id for offer in await service.find_offers()} == {"a", "b"}

    source.offers = (an_offer("a", "0.01"), an_offer("b", "9"))
    await service.refresh()
    assert [offer.offer_id for offer in await service.find_offers()] == ["b"]
    with pytest.raises(NotFound):
        await service.release_from_quarantine(administrator, "b")


async def test_only_an_administrator_believes_a_price() -> None:
    service = OffersService(Tables().unit_of_work, {}, FakeClock())
    with pytest.raises(NotPermitted):
        await service.release_from_quarantine(Caller("k", "t", frozenset({Scope.PLANS_WRITE})), "a")


async def test_contract_prices_are_stored_with_the_list_price_and_do_not_look_like_a_jump() -> None:
    clock, tables = FakeClock(), Tables()
    source = FakeProvider(clock, offers=(an_offer("a", "10"),))
    contract = ContractPrice(
        "MSA", "fake", "*", "*", None, date(2000, 1, 1), date(2100, 1, 1), discount_share=Decimal("0.7")
    )
    rules = GateRules(least_of_before=Decimal("0.4"), most_of_before=Decimal(3))
    service = OffersService(tables.unit_of_work, {"fake": source}, clock, gate=rules, contracts=[contract])
    for _ in range(2):
        await service.refresh()
        (offer,) = await service.find_offers()
        assert offer.price_usd_per_node_hour == Decimal("3.0")
        assert offer.at_list_price().price_usd_per_node_hour == Decimal(10)


async def test_peers_are_asked_once_a_round_and_lists_of_others_prices_are_none() -> None:
    clock, tables = FakeClock(), Tables()
    sources = {
        name: FakeProvider(clock, name, offers=(an_offer(f"{name}/a", "20", provider=name),))
        for name in ("a", "b", "c", "list", "odd")
    }
    rules = GateRules(least_of_peers=Decimal("0.2"), peers_least=3)
    service = OffersService(tables.unit_of_work, sources, clock, gate=rules, price_lists={"list"})
    await service.refresh()
    sources["odd"].offers = (an_offer("odd/a", "1", provider="odd"),)
    del sources["c"]
    tables.offers.pop("c/a")
    await service.refresh()
    assert await service.find_quarantine() == ()
    tables.put_offers(an_offer("d/a", "20", provider="d"))
    await service.refresh()
    assert [entry.doubt for entry in await service.find_quarantine()] == [Doubt.OUTLIER]


async def test_first_prices_are_compared_with_one_another() -> None:
    clock, tables = FakeClock(), Tables()
    usd = {"a": "20", "b": "20", "c": "20", "odd": "1", "free": "0"}
    sources = {
        name: FakeProvider(clock, name, offers=(an_offer(f"{name}/a", price, provider=name),))
        for name, price in usd.items()
    }
    rules = GateRules(least_of_peers=Decimal("0.2"), peers_least=3)
    service = OffersService(tables.unit_of_work, sources, clock, gate=rules)
    rounds = await service.refresh()
    assert [round_.provider for round_ in rounds] == list(usd)
    assert [entry.offer.offer_id for entry in await service.find_quarantine()] == ["odd/a"]
    clock.advance(minutes=1)
    heard: list[str] = []
    again = await service.refresh(heard=lambda round_: heard.append(round_.provider))
    assert [change for round_ in again for change in round_.changes] == []
    assert sorted(heard) == sorted(usd), "what is doubted already is stored once a round"


async def test_a_new_seller_is_compared_with_those_already_on_sale() -> None:
    clock, tables = FakeClock(), Tables()
    tables.put_offers(*(an_offer(f"{name}/a", "20", provider=name) for name in ("a", "b", "c")))
    odd = FakeProvider(clock, "odd", offers=(an_offer("odd/a", "1", provider="odd"),))
    rules = GateRules(least_of_peers=Decimal("0.2"), peers_least=3)
    service = OffersService(tables.unit_of_work, {"odd": odd}, clock, gate=rules)
    await service.refresh()
    assert [entry.doubt for entry in await service.find_quarantine()] == [Doubt.OUTLIER]

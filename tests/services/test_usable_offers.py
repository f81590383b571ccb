"""What a plan may be made of is the same whether the market was seen before or not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.catalogue import load_launch_table
from broker.domain.holding.launches import LaunchAttempt, LaunchBook, LaunchOutcome
from broker.domain.holding.refusals import after_refusals
from broker.domain.holding.spot import SpotBook, SpotTime
from broker.domain.market.freshness import fresh_offers
from broker.domain.market.market import FeedHealth
from broker.domain.market.offer import GpuPool, Offer, Stock, StockLevel, Tier
from broker.domain.market.stock_pools import shared
from broker.services.market.usable_offers import Experience, OfferRules
from tests.depth import examples
from tests.store.examples import NOON, offer

MINUTE = timedelta(minutes=1)
SELLERS = ("aws", "vast", "verda", "lambda")
MAX_AGE = 10 * MINUTE

market_offers = st.builds(
    lambda name, seller, tier, nodes, pool, age: replace(
        offer(name, provider=seller, tier=tier, observed_at=NOON - age * MINUTE),
        stock=Stock(StockLevel.SOME, nodes, pool),
    ),
    st.sampled_from([f"o-{n}" for n in range(12)]),
    st.sampled_from(SELLERS),
    st.sampled_from([Tier.SPOT, Tier.ON_DEMAND]),
    st.none() | st.integers(1, 9),
    st.none() | st.builds(GpuPool, st.sampled_from("pq"), st.none() | st.integers(0, 80)),
    st.integers(0, 14),
)
markets = st.lists(market_offers, max_size=8, unique_by=lambda one: one.offer_id)
feeds = st.lists(
    st.builds(
        lambda seller, age: FeedHealth(seller, NOON - age * MINUTE, None, None, None, 1, 0, None),
        st.sampled_from(SELLERS),
        st.integers(0, 14),
    ),
    unique_by=lambda feed: feed.provider,
)
attempts = st.builds(
    lambda number, name, seller, ago, outcome: LaunchAttempt(
        f"r-{number}",
        name,
        seller,
        "p5.48xlarge",
        "us-east-1",
        NOON - ago * MINUTE,
        NOON - ago * MINUTE,
        outcome,
        NOON if outcome is LaunchOutcome.USABLE else None,
    ),
    st.integers(0, 99),
    st.sampled_from([f"o-{n}" for n in range(12)]),
    st.sampled_from(SELLERS),
    st.integers(1, 200),
    st.sampled_from(LaunchOutcome),
)
spells = st.builds(
    SpotTime,
    st.sampled_from(SELLERS),
    st.just("p5.48xlarge"),
    st.sampled_from(["o-1", "o-2"]),
    st.floats(1, 99),
    st.integers(0, 3),
)
experiences = st.builds(Experience, st.lists(attempts, max_size=5), st.lists(spells, max_size=2))
TABLE = load_launch_table()


def one_by_one(
    market: tuple[Offer, ...], health: list[FeedHealth], known: Experience, rules: OfferRules, later: int
) -> tuple[Offer, ...]:
    """Every step over the whole market."""
    now = NOON + later * MINUTE
    sold = [one for one in market if rules.can_be_ordered(one)]
    fresh = shared(fresh_offers(sold, health, now, rules.max_age, rules.not_orderable))
    told = after_refusals(LaunchBook(known.launches, now).with_statistics(fresh), known.launches, now)
    return rules.launch_times.with_launch_times(
        SpotBook(known.times, rules.spot).with_rates(told), known.launches
    )


@settings(max_examples=examples(150))
@given(
    st.lists(markets.map(tuple), min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 1), feeds, experiences, st.integers(0, 9)), min_size=1, max_size=5),
)
def test_kept_and_reckoned_anew_are_the_same(
    known_markets: list[tuple[Offer, ...]],
    asked: list[tuple[int, list[FeedHealth], Experience, int]],
) -> None:
    rules = OfferRules(MAX_AGE, frozenset({"lambda"}), lambda one: one.offer_id != "o-3", launch_times=TABLE)
    for number, health, known, later in asked:
        market = known_markets[number % len(known_markets)]
        found = rules.ready.usable(market, health, known, NOON + later * MINUTE, rules)
        assert found == one_by_one(market, health, known, rules, later)


def test_a_market_that_was_seen_is_not_gone_through_again() -> None:
    looked: list[str] = []

    def can_be_ordered(one: Offer) -> bool:
        looked.append(one.offer_id)
        return True

    rules = OfferRules(MAX_AGE, can_be_ordered=can_be_ordered, launch_times=TABLE)
    market = tuple(offer(f"o-{n}", provider=SELLERS[n % 2]) for n in range(6))
    first = rules.ready.usable(market, [], Experience(), NOON, rules)
    again = rules.ready.usable(market, [], Experience(), NOON + MINUTE, rules)
    assert again is first
    assert len(looked) == len(market)

"""Markets over time: played forward, cut, told as points, and what was bought of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.schemas.market.history import read_points
from broker.domain.basics.errors import InputError
from broker.domain.basics.window import Window
from broker.domain.holding.holding_orders import Intent
from broker.domain.market.market import PricePoint
from broker.domain.market.market_history import MarketHistory, MarketReplay, history_of
from broker.domain.market.offer import Offer, Tier
from broker.domain.moving.replay_ledger import Ledger
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer
from tests.fakes.market_csv import points_csv

HOUR = timedelta(hours=1)
markets = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3), min_size=1, max_size=6
).map(lambda said: [(NOON + n * HOUR, _offers(asked)) for n, asked in enumerate(said)])


def _offers(asked: dict[str, int]) -> tuple[Offer, ...]:
    return tuple(an_offer(key, str(usd)) for key, usd in asked.items())


def prices(market: dict[str, Offer]) -> dict[str, Decimal]:
    return {key: offer.price_usd_per_node_hour for key, offer in market.items()}


@given(markets)
def test_a_history_played_again_is_the_markets_that_it_was_made_of(
    said: list[tuple[datetime, tuple[Offer, ...]]],
) -> None:
    replayed = MarketReplay(history_of(said))
    seen = {at: prices(replayed.market) for at, _ in replayed.steps()}

    before: dict[str, Decimal] = {}
    for at, offers in said:
        before = seen.get(at, before)
        assert before == {offer.offer_id: offer.price_usd_per_node_hour for offer in offers}


@given(markets, st.integers(0, 4))
def test_a_cut_history_begins_with_what_was_in_force(
    said: list[tuple[datetime, tuple[Offer, ...]]], hour: int
) -> None:
    start = NOON + (hour + 0.5) * HOUR
    whole = history_of(said)
    cut = MarketReplay(whole.within(Window(start, NOON + 10 * HOUR)))
    first = next((prices(cut.market) for at, _ in cut.steps() if at == start), {})

    in_force = [offers for at, offers in said if at <= start][-1]
    assert first == {offer.offer_id: offer.price_usd_per_node_hour for offer in in_force}


@given(markets)
def test_points_come_back_from_their_csv(said: list[tuple[datetime, tuple[Offer, ...]]]) -> None:
    history = history_of(said)
    assert read_points(points_csv(history), "points", history.offers) == history.points


@pytest.mark.parametrize(
    ("row", "pointer"),
    [
        ("soon,a,1,,true", "/at"),
        ("2026-11-23T12:00:00,a,1,,true", "/at"),
        ("2026-11-23T12:00:00Z,z,1,,true", "/offer_id"),
        ("2026-11-23T12:00:00Z,a,0,,true", "/price_usd_per_node_hour"),
        ("2026-11-23T12:00:00Z,a,NaN,,true", "/price_usd_per_node_hour"),
        ("2026-11-23T12:00:00Z,a,1,-1,true", "/stock_nodes"),
        ("2026-11-23T12:00:00Z,a,٣,,true", "/price_usd_per_node_hour"),
        ("2026-11-23T12:00:00Z,a,1,٣,true", "/stock_nodes"),
        ("2026-11-23T12:00:00Z,a,1,,yes", "/available"),
        ("2026-11-23T12:00:00Z,a,1", "/available"),
    ],
)
def test_a_bad_row_is_named_with_its_line(row: str, pointer: str) -> None:
    text = "at,offer_id,price_usd_per_node_hour,stock_nodes,available\n2026-11-23T11:00:00Z,a,1,,true\n"
    with pytest.raises(InputError) as caught:
        read_points(text + row + "\n", "prices.csv", {"a": an_offer("a", "1")})
    assert {(problem.pointer, problem.line) for problem in caught.value.problems} >= {(pointer, 3)}


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InputError, match="stock_nodes"):
        read_points("at,offer_id,price_usd_per_node_hour,available\n", "prices.csv", {})


def bought(tier: Tier, hours: float, changes: dict[float, str], left_at: float | None = None) -> Decimal:
    """The bill of two nodes at 10 USD whose price then changes."""
    offer = replace(an_offer("a", "10"), tier=tier, billing_increment_s=3600)
    points = [PricePoint("a", NOON, Decimal(10), None, True)]
    points += [PricePoint("a", NOON + h * HOUR, Decimal(usd), None, True) for h, usd in changes.items()]
    played, ledger = MarketReplay(MarketHistory({"a": offer}, tuple(points))), Ledger()
    for at, _ in played.steps():
        if at == NOON:
            ledger.take([Intent(played.market["a"], 2, NOON, NOON + hours * HOUR, "chat")], NOON)
        else:
            ledger.float_to(played.market, at)
    if left_at is not None:
        ledger.leave("b1", NOON + left_at * HOUR)
    return ledger.total_usd()


def test_what_is_ordered_keeps_its_price_and_spot_floats() -> None:
    changes = {2.0: "20", 5.0: "5"}
    assert bought(Tier.ON_DEMAND, 8, changes) == 2 * 8 * 10
    assert bought(Tier.ON_DEMAND, 8, changes, left_at=2.5) == 2 * 3 * 10
    assert bought(Tier.SPOT, 8, changes) == 2 * (2 * 10 + 3 * 20 + 3 * 5)
    assert bought(Tier.SPOT, 8, changes, left_at=2.5) == 2 * (2 * 10 + 1 * 20)
    assert bought(Tier.SPOT, 8, {}) == bought(Tier.ON_DEMAND, 8, {})


def test_what_is_planned_is_bought_at_the_price_of_its_day_or_never() -> None:
    offer, ledger = an_offer("a", "10"), Ledger()
    later = [Intent(offer, 1, NOON + n * HOUR, NOON + 9 * HOUR, "chat") for n in (3, 4)]
    ledger.take(later, NOON)

    assert ledger.total_usd() == 0
    assert [number for number, _ in ledger.due(NOON + 3.5 * HOUR)] == ["p1"]
    assert [(h.is_bought, h.nodes) for h in ledger.held(NOON, {})] == [(False, 1), (False, 1)]
    ledger.leave("p2", NOON)
    assert [number for number, _ in ledger.due(NOON + 9 * HOUR)] == ["p1"]


def test_spot_that_is_taken_away_is_told() -> None:
    spot = replace(an_offer("a", "10"), tier=Tier.SPOT)
    ledger = Ledger()
    ledger.take([Intent(spot, 2, NOON, NOON + 8 * HOUR, "train")], NOON)

    assert ledger.float_to({"a": spot}, NOON + HOUR) == {}
    assert {held.workload for held in ledger.float_to({}, NOON + 2 * HOUR).values()} == {"train"}
    assert ledger.nodes_of("a", NOON + HOUR) == 2

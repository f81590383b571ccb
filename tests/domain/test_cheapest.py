"""The cheapest ways to have a GPU now."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.window import Segment
from broker.domain.market.cheapest import LONG, cheapest_by_gpu
from broker.domain.market.offer import Offer, Tier, WindowKind, WindowTerms
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer

HOUR = timedelta(hours=1)


def of(tier: Tier, usd: str, gpu: str = "H100-SXM-80GB") -> Offer:
    offer = an_offer(f"{gpu}-{tier}-{usd}", usd)
    return replace(offer, tier=tier, sku=replace(offer.sku, gpu=gpu))


kinds = st.builds(
    of, st.sampled_from(Tier), st.sampled_from(["8", "9", "16", "24"]), st.sampled_from(["L4", "B200"])
)


def price(offer: Offer) -> Decimal:
    return offer.price_usd_per_node_hour


@given(st.lists(kinds, max_size=12))
def test_each_cheapest_is_the_minimum_of_its_tier(market: list[Offer]) -> None:
    rows = cheapest_by_gpu(sorted(market, key=price), NOON)
    assert [row.gpu for row in rows] == sorted({offer.sku.gpu for offer in market})
    for row in rows:
        mine = [offer for offer in market if offer.sku.gpu == row.gpu]
        assert row.offers == len(mine)
        for told, tier in ((row.on_demand, Tier.ON_DEMAND), (row.spot, Tier.SPOT), (row.window, Tier.WINDOW)):
            least = min((price(offer) for offer in mine if offer.tier is tier), default=None)
            assert (told and price(told)) == least


def test_thirty_days_are_held_without_interruption_and_no_longer() -> None:
    spot, demand = of(Tier.SPOT, "8"), of(Tier.ON_DEMAND, "24")
    long_commitment = replace(of(Tier.COMMITTED, "9"), min_hours=8760)
    ends = replace(of(Tier.ON_DEMAND, "16"), available_until=NOON + LONG - HOUR)
    (row,) = cheapest_by_gpu([spot, long_commitment, ends, demand], NOON)
    assert row.long == demand
    (row,) = cheapest_by_gpu([replace(long_commitment, min_hours=720), demand], NOON)
    assert row.long is not None
    assert row.long.tier is Tier.COMMITTED


def test_a_window_counts_for_thirty_days_where_it_is_free_that_long() -> None:
    def window(until: timedelta, lead_hours: float = 0.0, kind: WindowKind = WindowKind.ORDERBOOK) -> Offer:
        terms = WindowTerms(kind, (Segment(NOON - HOUR, NOON + until, 4),), lead_hours=lead_hours)
        return replace(of(Tier.WINDOW, "9"), window=terms)

    lasts = [
        cheapest_by_gpu([offer], NOON)[0].long is not None
        for offer in (
            window(LONG),
            window(LONG - HOUR),
            window(LONG, lead_hours=1),
            window(LONG, kind=WindowKind.LISTED),
        )
    ]
    assert lasts == [True, False, False, False]

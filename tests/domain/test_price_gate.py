"""The price gate: what is refused, what waits, what lifts a doubt."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.catalogue import load_gate_rules
from broker.domain.market.offer import Offer, OfferBatch, Tier
from broker.domain.market.price_gate import (
    Before,
    Doubt,
    Gated,
    GateRules,
    PeerPrice,
    Peers,
    gate_batch,
    quarantine_news,
)
from tests.domain.test_billing import T0, offer

RULES = GateRules(
    floors_usd_per_gpu_hour={"H100-SXM-80GB": Decimal("0.02")},
    least_of_before=Decimal("0.4"),
    most_of_before=Decimal(3),
    least_of_peers=Decimal("0.2"),
    most_of_peers=Decimal(8),
    most_age=timedelta(days=30),
)


def priced(usd: str, name: str = "a") -> Offer:
    return replace(offer(offer_id=name), price_usd_per_node_hour=Decimal(usd), observed_at=T0)


def gated(*offers: Offer, before: Before | None = None, hours: float = 0) -> Gated:
    return gate_batch(OfferBatch(offers), RULES, before or Before(), T0 + timedelta(hours=hours))


def peers(of: Offer, *usd_per_gpu_hour: str) -> Peers:
    return Peers(
        PeerPrice(f"seller-{i}", of.sku.gpu, of.tier, Decimal(usd)) for i, usd in enumerate(usd_per_gpu_hour)
    )


@pytest.mark.parametrize("usd", ["0", "-1", "NaN", "Infinity"])
def test_what_is_no_price_is_refused_for_good(usd: str) -> None:
    result = gated(priced(usd))
    assert (result.batch.offers, result.quarantine) == ((), ())
    assert "not above zero" in result.batch.rejected[0].reason


def test_an_id_that_comes_twice_is_refused_the_second_time() -> None:
    result = gated(priced("20"), priced("21"))
    assert [o.price_usd_per_node_hour for o in result.batch.offers] == [Decimal(20)]
    assert "twice" in result.batch.rejected[0].reason


def test_a_price_under_the_electricity_of_its_gpus_waits() -> None:
    cheap = priced("0.05")
    (entry,) = gated(cheap).quarantine
    assert entry.doubt is Doubt.FLOOR
    assert "electricity" in entry.reason


def test_a_jump_waits_and_is_measured_from_the_last_believed_price() -> None:
    before = Before({"a": Decimal(20)})
    first = gated(priced("2"), before=before)
    assert first.batch.offers == ()
    assert first.quarantine[0].doubt is Doubt.JUMP
    held = Before({}, {"a": first.quarantine[0]})
    assert gated(priced("3"), before=held).batch.offers == ()
    assert gated(priced("19"), before=held).batch.offers != ()


def test_a_jump_that_lasts_is_believed() -> None:
    entry = gated(priced("2"), before=Before({"a": Decimal(20)})).quarantine[0]
    held = Before({}, {"a": entry})
    assert gated(priced("2"), before=held, hours=23).quarantine == (entry,)
    believed = gated(priced("2"), before=held, hours=24)
    assert (len(believed.batch.offers), believed.quarantine) == (1, ())


def test_an_outlier_is_told_from_other_sellers_only_and_time_does_not_lift_it() -> None:
    seen = priced("8")  # 1 USD per GPU-hour
    known = peers(seen, "10", "11", "9")
    (entry,) = gated(seen, before=Before(peers=known)).quarantine
    assert entry.doubt is Doubt.OUTLIER
    later = gated(seen, before=Before({}, {"a": entry}, known), hours=1000 * 0 + 48)
    assert later.quarantine[0].since == entry.since
    assert gated(seen, before=Before(peers=peers(seen, "10", "11"))).quarantine == ()
    of_itself = Peers(PeerPrice(seen.provider, seen.sku.gpu, Tier.ON_DEMAND, Decimal(10)) for _ in range(9))
    assert gated(seen, before=Before(peers=of_itself)).quarantine == ()


def test_an_old_word_waits() -> None:
    (entry,) = gated(priced("20"), hours=31 * 24).quarantine
    assert entry.doubt is Doubt.AGE


def test_a_released_price_is_believed_until_it_changes() -> None:
    entry = replace(gated(priced("0.05")).quarantine[0], released_at=T0, released_by="ops")
    known = Before({}, {"a": entry})
    again = gated(priced("0.05"), before=known)
    assert (len(again.batch.offers), again.quarantine) == (1, (entry,))
    assert gated(priced("0.06"), before=known).batch.offers == ()


@given(st.lists(st.decimals(allow_nan=True, allow_infinity=True), max_size=12))
def test_every_offer_is_used_refused_or_waits(prices: list[Decimal]) -> None:
    offers = [replace(priced("1", f"o{i}"), price_usd_per_node_hour=usd) for i, usd in enumerate(prices)]
    result = gated(*offers)
    used = {o.offer_id for o in result.batch.offers}
    refused = {row.row for row in result.batch.rejected}
    waiting = {entry.offer.offer_id for entry in result.quarantine}
    assert used | refused | waiting == {o.offer_id for o in offers}
    assert len(used) + len(refused) + len(waiting) == len(offers)


def test_the_rules_of_the_house_load() -> None:
    rules = load_gate_rules()
    assert 0 < rules.least_of_before < 1 < rules.most_of_before
    assert rules.floors_usd_per_gpu_hour["H100-SXM-80GB"] == Decimal("0.021")


@pytest.mark.parametrize(("hours", "believed"), [(23.99, False), (24, True), (30, True)])
def test_a_jump_that_is_polled_again_and_again_is_believed_a_day_after_it_was_first_seen(
    hours: float, believed: bool
) -> None:
    """Each poll is an observation of its own: the doubt is as old as the first of them."""
    waiting = gated(priced("2"), before=Before({"a": Decimal(20)})).quarantine[0]
    for hour in (*range(1, int(hours)), hours):
        polled = replace(priced("2"), observed_at=T0 + timedelta(hours=hour))
        result = gated(polled, before=Before({}, {"a": waiting}), hours=hour)
        if result.quarantine:
            (waiting,) = result.quarantine
            assert waiting.since == T0
            assert waiting.offer.observed_at == polled.observed_at
    assert (result.quarantine == ()) is believed
    assert (len(result.batch.offers) == 1) is believed


@pytest.mark.parametrize(
    ("usd", "doubted"),
    [("7.99", True), ("8", False), ("20", False), ("60", False), ("60.01", True)],
)
def test_a_jump_is_beyond_its_limits_and_not_at_them(usd: str, doubted: bool) -> None:
    result = gated(priced(usd), before=Before({"a": Decimal(20)}))
    assert [entry.doubt for entry in result.quarantine] == ([Doubt.JUMP] if doubted else [])


@pytest.mark.parametrize(("usd", "doubted"), [("0.15", True), ("0.16", False)])
def test_a_price_at_the_electricity_is_believed(usd: str, doubted: bool) -> None:
    """Eight GPUs draw $0.02 an hour each."""
    assert bool(gated(priced(usd)).quarantine) is doubted


@pytest.mark.parametrize(("days", "doubted"), [(30, False), (30.001, True)])
def test_a_word_of_the_greatest_age_is_believed(days: float, doubted: bool) -> None:
    assert bool(gated(priced("20"), hours=24 * days).quarantine) is doubted


def test_news_of_the_quarantine_are_what_came_changed_or_went() -> None:
    before = Before({"a": Decimal(20), "b": Decimal(20)})
    a, b = gated(priced("2"), priced("3", "b"), before=before).quarantine
    same = replace(a, offer=replace(a.offer, observed_at=T0 + timedelta(hours=1)))
    cheaper = gated(priced("1"), before=before).quarantine[0]
    assert quarantine_news({}, [a, b]) == ((a, b), ())
    assert quarantine_news({"a": a, "b": b}, [same]) == ((), ("b",)), "seen again, and nothing else"
    assert quarantine_news({"a": a, "b": b}, [cheaper, b]) == ((cheaper,), ())


@pytest.mark.parametrize(
    ("usd", "doubted"), [("1.59", True), ("1.60", False), ("192", False), ("192.01", True)]
)
def test_a_price_at_the_edge_of_what_others_ask_is_believed(usd: str, doubted: bool) -> None:
    """Eight GPUs; others ask $1 to $3, so $0.20 to $24 a GPU is believed."""
    before = Before(peers=peers(priced(usd), "1", "2", "3"))
    found = [entry.doubt for entry in gated(priced(usd), before=before).quarantine]
    assert found == [Doubt.OUTLIER] * doubted


@pytest.mark.parametrize(("was", "doubted"), [("0", False), ("-1", False), ("1", True), ("0.5", True)])
def test_a_jump_is_from_a_price(was: str, doubted: bool) -> None:
    """What was free before is no price to measure by; a dollar and half of one are."""
    result = gated(priced("20"), before=Before({"a": Decimal(was)}))
    assert [entry.doubt for entry in result.quarantine] == [Doubt.JUMP] * doubted

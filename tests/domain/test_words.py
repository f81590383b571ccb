"""Windows, traffic, reservations and model shapes keep their rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.catalogue import load_gpus, load_models, resolve_model
from broker.domain.basics.errors import Conflict, InputError
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.freshness import fresh_offers
from broker.domain.market.market import ChangeKind, diff_rounds
from broker.domain.market.offer import Stock, StockLevel
from broker.domain.market.sku import LinkKind
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.provider_facts import infer_intra_node
from tests.domain.test_billing import T0, at, offer


def test_windows_that_touch_do_not_overlap() -> None:
    assert not Window(at(0), at(1)).overlaps(Window(at(1), at(2)))
    assert Window(at(0), at(2)).intersection(Window(at(1), at(3))) == Window(at(1), at(2))


def test_naive_times_and_empty_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Window(datetime(2026, 1, 1), at(1))  # noqa: DTZ001  the naive time is the point
    with pytest.raises(ValueError, match="end after"):
        Window(at(1), at(1))


def test_diurnal_traffic_peaks_and_troughs_where_it_says() -> None:
    traffic = Traffic(100, 100, TrafficShape.DIURNAL, 12.0, trough_share=0.4, peak_hour_utc=15)
    assert traffic.requests_per_s_at(at(15), T0) == pytest.approx(12.0)
    assert traffic.requests_per_s_at(at(27), T0) == pytest.approx(0.4 * 12.0)


@given(st.integers(0, 2000))
def test_hourly_traffic_repeats_from_the_horizon_start(hour: int) -> None:
    hourly = tuple(float(i) for i in range(168))
    traffic = Traffic(1, 1, TrafficShape.HOURLY, 167.0, hourly=hourly)
    assert traffic.requests_per_s_at(T0 + timedelta(hours=hour), T0) == hour % 168


def test_released_is_final() -> None:
    reservation = Reservation(
        "r", "t", ReservationState.RELEASED, offer(), 1, T0, None, (), datetime.now(UTC)
    )
    with pytest.raises(Conflict, match="released"):
        reservation.moved_to(ReservationState.ACTIVE)


def test_rounds_differ_by_what_changed() -> None:
    before = [offer(offer_id="same"), offer(offer_id="gone"), offer(offer_id="dearer")]
    after = [
        offer(offer_id="same"),
        offer(offer_id="dearer", price_usd_per_node_hour=Decimal(25)),
        offer(offer_id="new"),
    ]
    kinds = {change.offer_id: change.kind for change in diff_rounds(before, after, T0)}
    assert kinds == {"gone": ChangeKind.GONE, "dearer": ChangeKind.PRICE, "new": ChangeKind.NEW}


def test_every_catalogue_row_reads() -> None:
    assert len(load_gpus()) >= 40
    assert len(load_models()) >= 70


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "Mixtral-8x7B", "DeepSeek-V3", "Qwen3-235B-A22B"])
def test_counted_parameters_agree_with_the_published_table(name: str) -> None:
    shape = load_models()[name]
    counted = shape.with_counted_params()
    assert counted.total_params == pytest.approx(shape.total_params, rel=0.002)
    assert counted.active_params == pytest.approx(shape.active_params, rel=0.002)


def test_an_unknown_model_is_named_with_its_neighbours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nearest: .*Llama-3\.1-70B"):
        resolve_model("llama-3.1-70", tmp_path, "/workloads/0/model", "w.yaml")


def test_links_follow_from_form_factors_only() -> None:
    link = infer_intra_node("H100-SXM-80GB", 8)
    assert link is not None
    assert (link.kind, link.gbyte_s) == (LinkKind.NVLINK, 900.0)
    assert infer_intra_node("H100-SXM-80GB", 1) is None
    assert infer_intra_node("no such GPU", 8) is None


def test_offers_of_a_price_list_are_not_acted_on() -> None:
    of_seller, of_list = offer(offer_id="a"), replace(offer(offer_id="b"), provider="skypilot")
    usable = fresh_offers([of_seller, of_list], [], T0, timedelta(hours=1), not_orderable={"skypilot"})
    assert [found.offer_id for found in usable] == ["a"]


def test_a_silent_feed_is_believed_less_and_then_not_at_all() -> None:
    one, most = replace(offer(), observed_at=T0, stock=Stock(StockLevel.HIGH, 10)), timedelta(minutes=10)
    left = [fresh_offers([one], [], T0 + timedelta(minutes=m), most) for m in (5, 7.5, 9, 10, 10.1)]
    assert [[found.stock.nodes for found in offers] for offers in left] == [[10], [5], [2], [0], []]
    uncounted = replace(one, stock=Stock(StockLevel.HIGH))
    assert fresh_offers([uncounted], [], T0 + timedelta(minutes=9), most) == (uncounted,)

"""Which rows of a search can be bought: not those that are over, nor those that cannot run the order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from providers.vast.offers import parse, parse_offers

NOW = datetime(2026, 11, 25, 19, tzinfo=UTC)
ROW: dict[str, Any] = {
    "id": 201,
    "machine_id": 107,
    "gpu_name": "H200",
    "num_gpus": 8,
    "gpu_ram": 143771,
    "dph_base": Decimal("19.2"),
    "dph_total": Decimal("19.2089"),
    "geolocation": "Quebec, CA",
    "hosting_type": 1,
}


def end(hours: float) -> Decimal:
    return Decimal((NOW + timedelta(hours=hours)).timestamp())


@pytest.mark.parametrize(
    ("said", "hours"),
    [
        ({"end_date": end(36), "duration": Decimal(129600)}, 36),
        ({"end_date": end(36)}, 36),
        ({"duration": Decimal(7200)}, 2),
        ({}, None),
    ],
)
def test_an_offer_ends_with_its_host_s_term(said: dict[str, Any], hours: float | None) -> None:
    (offer,) = parse_offers([{**ROW, **said}], NOW).offers
    assert offer.available_until == (None if hours is None else NOW + timedelta(hours=hours))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"end_date": end(-1), "duration": Decimal(-3600)}, "its host's offer has ended"),
        ({"end_date": end(0)}, "its host's offer has ended"),
        ({"duration": Decimal(0)}, "its host's offer has ended"),
        ({"direct_port_count": 0}, "no open port, which direct SSH needs"),
        ({"cuda_max_good": Decimal("12.4")}, "its driver supports CUDA 12.4, the image needs 12.8"),
    ],
)
def test_what_cannot_be_used_is_no_offer(said: dict[str, Any], reason: str) -> None:
    batch = parse_offers([{**ROW, **said}], NOW, Decimal("12.8"))
    assert batch.offers == ()
    assert [row.reason for row in batch.rejected] == [reason]


def recorded(*rows: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [("bundles.json", json.dumps({"offers": rows}, default=float).encode())]


def test_a_recorded_answer_is_read_as_of_when_it_was_given() -> None:
    """Two days later its 36 hours are over, but the rows themselves say when they were not."""
    row = {**ROW, "end_date": end(36), "duration": Decimal(129600)}
    (offer,) = parse(recorded(row), NOW + timedelta(days=2)).offers
    assert (offer.observed_at, offer.available_until) == (NOW, NOW + timedelta(hours=36))


def test_a_term_that_is_over_is_no_offer_whatever_is_said_to_be_left() -> None:
    """As a search gives it two days after its end, and in a recorded answer whose other rows are later."""
    stale = {**ROW, "id": 2, "end_date": end(36), "duration": Decimal(129600)}
    assert parse_offers([stale], NOW + timedelta(days=2)).offers == ()
    later = {**ROW, "id": 3, "end_date": end(96), "duration": Decimal(48 * 3600)}
    batch = parse(recorded(stale, later), NOW + timedelta(days=5))
    assert [offer.available_until for offer in batch.offers] == [NOW + timedelta(hours=96)]
    assert [row.reason for row in batch.rejected] == ["its host's offer has ended"]


def test_hosts_that_run_the_image_are_offers() -> None:
    row = {**ROW, "cuda_max_good": Decimal("12.8"), "direct_port_count": 1}
    assert len(parse_offers([row], NOW, Decimal("12.8")).offers) == 1

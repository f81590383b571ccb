"""Market and plan documents: exact both ways, and plain words for other forms."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.schemas.market.market import market_to_document, read_market
from api.schemas.plans.plan import PLAN, read_plan
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.estimate import Estimate, Provenance
from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.plan import Plan
from tests import strategies

AS_OF = datetime(2026, 11, 23, tzinfo=UTC)
OFFERS = strategies.offers.filter(lambda offer: offer.tier is not Tier.WINDOW or offer.window is not None)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    """An estimate as plans carry it: finite metrics, the same ones in all three parts."""
    names = draw(st.lists(st.sampled_from(["hours", "mfu", "tokens_per_s", "kv_tokens"]), unique=True))
    value, low, high = ({name: draw(strategies.positives) for name in names} for _ in range(3))
    return Estimate(value, low, high, draw(st.sampled_from(Provenance)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan with such estimates."""
    plan = draw(strategies.plans)
    placements = tuple(replace(placement, estimate=draw(estimates())) for placement in plan.placements)
    return replace(plan, placements=placements)


OFFER: dict[str, Any] = {
    "offer_id": "lambda/us-east-1/gpu_8x_h100_sxm5/on_demand",
    "provider": "lambda",
    "sku": "gpu_8x_h100_sxm5",
    "region": "us-east-1",
    "gpu": "H100-SXM-80GB",
    "gpus_per_node": 8,
    "gpu_memory_gb": 80,
    "tier": "on_demand",
    "price_usd_per_node_hour": "23.92",
}


def market(**fields: Any) -> str:
    return json.dumps({"as_of": "2026-11-23T00:00:00Z", "offers": [{**OFFER, **fields}]})


def test_what_our_launches_taught_comes_back_and_says_what_follows_from_it() -> None:
    plain = read_market(market(), "m").offers[0]
    taught = replace(plain, learned=LaunchStatistics(0.4, 6.0, 5, StatisticsLevel.OFFER))
    document = market_to_document(AS_OF, [taught, plain])
    first, second = document["offers"]
    assert first["learned"] == {
        "success_share": 0.4,
        "minutes_to_usable": 6.0,
        "attempts": 5,
        "basis": "offer",
        "wait_minutes": 28.5,
        "wait_usd_per_node": "11.36",
        "taken_for_sold_out": True,
    }
    assert second["learned"] is None
    document["offers"] = [first]
    assert read_market(json.dumps(document), "m").offers == (taught,)


def problems(text: str) -> tuple[FieldProblem, ...]:
    with pytest.raises(InputError) as raised:
        read_market(text, "m.json")
    return raised.value.problems


@given(st.lists(OFFERS, max_size=3, unique_by=lambda offer: offer.offer_id))
def test_offers_survive_json_exactly(offers: list[Offer]) -> None:
    text = json.dumps(market_to_document(AS_OF, offers), allow_nan=False)
    read = read_market(text, "m.json")
    assert read.as_of == AS_OF
    assert list(read.offers) == offers


@given(plans())
def test_plans_survive_json_exactly(plan: Plan) -> None:
    text = json.dumps(PLAN.write(plan), allow_nan=False)
    assert read_plan(text, "p.json") == plan


def test_amounts_are_text_and_times_end_in_z() -> None:
    offer = read_market(market(upfront_usd="1E+3"), "m").offers[0]
    document = market_to_document(AS_OF, [offer])
    assert document["as_of"] == "2026-11-23T00:00:00Z"
    row = document["offers"][0]
    assert (row["price_usd_per_node_hour"], row["upfront_usd"]) == ("23.92", "1000")
    assert row["observed_at"] == "2026-11-23T00:00:00Z"


def test_a_measured_fabric_rate_is_kept_and_written_where_someone_measured_it() -> None:
    told = {"kind": "ethernet", "gbit_s_per_node": 1000, "max_nodes": 80, "domain": None}
    for fabric in (told, told | {"measured_gbit_s_per_node": 400}):
        offer = read_market(market(fabric=fabric), "m").offers[0]
        assert offer.sku.fabric is not None
        assert offer.sku.fabric.measured_gbit_s_per_node == fabric.get("measured_gbit_s_per_node")
        assert market_to_document(AS_OF, [offer])["offers"][0]["fabric"] == fabric


def test_left_out_fields_have_plain_meanings_and_extra_fields_are_kept_out() -> None:
    offer = read_market(market(colour="green", window=None), "m").offers[0]
    assert offer.price_usd_per_node_hour == Decimal("23.92")
    assert offer.tier is Tier.ON_DEMAND
    assert offer.stock.nodes is None
    assert offer.native.currency == "USD"
    assert offer.max_nodes_in_one_run == 1
    assert "colour" not in market_to_document(AS_OF, [offer])["offers"][0]


@pytest.mark.parametrize(
    ("fields", "pointer", "found", "expected"),
    [
        ({"price_usd_per_node_hour": "cheap"}, "/offers/0/price_usd_per_node_hour", "cheap", "USD"),
        ({"price_usd_per_node_hour": "-1"}, "/offers/0/price_usd_per_node_hour", "-1", "at least 0"),
        ({"price_usd_per_node_hour": "NaN"}, "/offers/0/price_usd_per_node_hour", "NaN", "finite"),
        ({"tier": "weekly"}, "/offers/0/tier", "weekly", "spot"),
        ({"tier": "window"}, "/offers/0", "object", "a window"),
        ({"gpus_per_node": 0}, "/offers/0/gpus_per_node", "0", "at least 1"),
        ({"fabric": {"kind": "string"}}, "/offers/0/fabric/kind", "string", "infiniband"),
        ({"observed_at": "yesterday"}, "/offers/0/observed_at", "yesterday", "2026"),
        ({"observed_at": "2026-11-23T00:00:00"}, "/offers/0/observed_at", "2026", "zone"),
        (
            {"window": {"kind": "slots", "anchor_utc": "25:00"}},
            "/offers/0/window/anchor_utc",
            "25:00",
            "form",
        ),
        (
            {"window": {"kind": "listed", "segments": [{"start": "2026-11-23T00:00:00Z",
             "end": "2026-11-22T00:00:00Z", "nodes": 1}]}},
            "/offers/0/window/segments/0", "object", "end after",
        ),
    ],
)  # fmt: skip
def test_a_wrong_field_of_an_offer_is_named(
    fields: dict[str, Any], pointer: str, found: str, expected: str
) -> None:
    told = problems(market(**fields))
    assert told[0].pointer == pointer
    assert found in told[0].found
    assert expected in told[0].expected
    assert told[0].line == 1


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"team": "t", "workloads": []}',
        '{"as_of": "x"}',
        "3",
        '{"offers": 3, "as_of": 4}',
        "null",
    ],
)
def test_a_file_of_another_form_is_told_the_form(text: str) -> None:
    (problem,) = problems(text)
    assert "broker offers --json" in problem.expected


@pytest.mark.parametrize(
    ("text", "line", "column"), [('{"as_of": "x",\n  oops}', 2, 3), ("", 1, 1), ("a,b\n1,2\n", 1, 1)]
)
def test_malformed_json_says_line_and_column(text: str, line: int, column: int) -> None:
    (problem,) = problems(text)
    assert (problem.line, problem.column) == (line, column)


def test_an_id_that_comes_twice_is_refused() -> None:
    rows = json.loads(market())["offers"] * 2
    (problem,) = problems(json.dumps({"as_of": "2026-11-23T00:00:00Z", "offers": rows}))
    assert problem.pointer == "/offers/1/offer_id"


def test_many_problems_are_counted_not_poured_out() -> None:
    rows = [{**OFFER, "tier": "x", "offer_id": str(i)} for i in range(500)]
    told = problems(json.dumps({"as_of": "2026-11-23T00:00:00Z", "offers": rows}))
    assert len(told) == 21
    assert "480 more" in told[-1].found


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("[" * 100_000, "more than 64 levels", "a document less deep"),
        ('{"a":' * 100_000, "more than 64 levels", "a document less deep"),
        ("9" * 5000, "5000 digits", "numbers with fewer digits"),
    ],
)
def test_hostile_json_is_refused(text: str, found: str, expected: str) -> None:
    (problem,) = problems(text)
    assert found in problem.found
    assert problem.expected == expected


def test_a_plan_of_another_form_is_told_the_form() -> None:
    with pytest.raises(InputError, match="broker plan --output"):
        read_plan(market(), "p.json")


@given(plans().filter(lambda plan: bool(plan.placements)))
def test_a_plans_field_that_cannot_be_is_named(plan: Plan) -> None:
    document = PLAN.write(plan)
    document["placements"][0]["kind"] = "mining"
    with pytest.raises(InputError) as raised:
        read_plan(json.dumps(document), "p.json")
    assert raised.value.problems[0].pointer == "/placements/0/kind"

"""Offers, prices and feeds over HTTP; cursors lose and repeat nothing."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.http.cursors import page_of
from api.http.dependencies import SESSION_COOKIE
from broker.catalogue import load_models, resolve_gpu
from broker.domain.basics.errors import InputError
from broker.domain.market.offer import Stock, StockLevel
from broker.domain.market.price_gate import GateRules
from providers.spec import Missing
from tests.api.house import ADMIN_KEY, Home, House
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import an_offer


def cursor_of(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@given(
    st.lists(st.tuples(st.decimals(0, 100, places=3), st.text(max_size=4)), unique=True, max_size=30),
    st.integers(1, 7),
)
def test_pages_hold_everything_once_in_order(keys: list[tuple[Decimal, str]], limit: int) -> None:
    seen: list[tuple[Decimal, str]] = []
    cursor: str | None = None
    while True:
        page, cursor = page_of(keys, lambda key: key, limit, cursor)
        seen.extend(page)
        if cursor is None:
            break
    assert seen == sorted(keys)


@pytest.mark.parametrize(
    "cursor",
    ["nonsense", "é", "e30=", cursor_of([]), cursor_of(["NaN", "a"]), cursor_of(["sNaN", "a"]),
     cursor_of(["Infinity", "a"]), cursor_of([{}, "a"]), cursor_of(7), cursor_of(["1"])],
)  # fmt: skip
def test_strange_cursors_are_bad_input(cursor: str) -> None:
    with pytest.raises(InputError, match="next_cursor"):
        page_of([(Decimal(1), "a")], lambda key: key, 1, cursor)


async def test_offers_page_to_the_end(tmp_path: Path) -> None:
    offers = tuple(an_offer(f"o-{n:02}", str(10 + n % 5)) for n in range(23))
    async with House(tmp_path / "b.db", offers=offers).open() as home:
        client, seen, cursor = home.client(), [], None
        while True:
            params = {"limit": 4} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/v1/offers", params=params)).json()
            seen += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    assert sorted(offer["offer_id"] for offer in seen) == [offer.offer_id for offer in offers]
    prices = [Decimal(offer["price_usd_per_node_hour"]) for offer in seen]
    assert prices == sorted(prices)


async def test_offers_are_narrowed_shown_and_not_found(home: Home) -> None:
    client = home.client()
    assert len((await client.get("/v1/offers", params={"gpu": "H100-SXM-80GB"})).json()["items"]) == 3
    assert (await client.get("/v1/offers", params={"gpu": "L40S"})).json()["items"] == []
    assert (await client.get("/v1/offers/h100-a")).json()["price_usd_per_node_hour"] == "24"
    assert (await client.get("/v1/offers/nothing")).status_code == 404
    for params in ({"limit": 0}, {"limit": 201}, {"cursor": "x"}, {"cursor": "y" * 600}):
        answer = await client.get("/v1/offers", params=params)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-input")
        assert answer.json()["errors"][0]["pointer"] == "/" + next(iter(params))


async def test_ids_with_slashes_have_prices(tmp_path: Path) -> None:
    clock = FakeClock()
    house = House(tmp_path / "b.db", clock=clock, offers=(an_offer("fake/a b/c", "10"),))
    async with house.open() as home:
        clock.advance(hours=1)
        house.provider.offers = (an_offer("fake/a b/c", "12.5"),)
        await home.product.offers.refresh()
        clock.advance(hours=1)
        client = home.client()
        assert (await client.get("/v1/offers/fake/a b/c")).json()["offer_id"] == "fake/a b/c"
        points = (await client.get("/v1/offers/fake/a b/c/prices")).json()["items"]
        assert [Decimal(point["price_usd_per_node_hour"]) for point in points] == [10, Decimal("12.5")]
        late = {"from": (NOON + timedelta(minutes=90)).isoformat(), "to": "2026-11-24"}
        points = (await client.get("/v1/offers/fake/a b/c/prices", params=late)).json()["items"]
        assert [Decimal(point["price_usd_per_node_hour"]) for point in points] == [Decimal("12.5")]


async def test_providers_tell_their_health(home: Home) -> None:
    (feed,) = (await home.client().get("/v1/providers")).json()["items"]
    assert (feed["provider"], feed["offers"], feed["stale_since"]) == ("fake", 3, None)
    assert feed["last_success_at"] == "2026-11-23T12:00:00Z"
    assert feed["rejected_rows"] == []
    polling = (feed["poll_every_s"], feed["failures_in_a_row"], feed["breaker"], feed["next_poll_at"])
    assert polling == (3600.0, 0, "closed", "2026-11-23T13:00:00Z")


async def test_a_seller_that_lacks_a_setting_is_told_on_both_faces(home: Home) -> None:
    (feed,) = (await home.client().get("/v1/providers")).json()["items"]
    assert (feed["orderable"], feed["missing_settings"]) == (True, [])
    home.product.missing = {"fake": (Missing(("BROKER_FAKE_SSH_KEY", "BROKER_FAKE_KEY_ID"), "a public key"),)}
    (feed,) = (await home.client().get("/v1/providers")).json()["items"]
    assert not feed["orderable"]
    missing = {"variables": ["BROKER_FAKE_SSH_KEY", "BROKER_FAKE_KEY_ID"], "says": "a public key"}
    assert feed["missing_settings"] == [missing]
    visitor = home.client(None)
    await visitor.post("/signin", data={"key": ADMIN_KEY})
    shown = "accepts no orders: BROKER_FAKE_SSH_KEY or BROKER_FAKE_KEY_ID is not set"
    assert shown in (await visitor.get("/market")).text
    page = (await visitor.get("/market/feeds/fake")).text
    assert "<code>BROKER_FAKE_SSH_KEY</code> or <code>BROKER_FAKE_KEY_ID</code> (a public key)" in page


async def test_a_doubtful_price_is_shown_and_released_by_an_administrator(tmp_path: Path) -> None:
    rules = GateRules(floors_usd_per_gpu_hour={"H100-SXM-80GB": Decimal(1)})
    offers = (an_offer("good/one", "24"), an_offer("odd/price", "0.5"))
    async with House(tmp_path / "b.db", offers=offers, gate=rules).open() as home:
        client = home.client()
        (entry,) = (await client.get("/v1/quarantine")).json()["items"]
        assert (entry["offer_id"], entry["doubt"], entry["released_at"]) == ("odd/price", "floor", None)
        visitor = home.client(None)
        await visitor.post("/signin", data={"key": ADMIN_KEY})
        page = (await visitor.get("/market")).text
        assert "Quarantine" in page
        assert "odd/price" in page

        answer = await client.post("/v1/quarantine/odd/price/release")
        assert answer.json()["released_by"]
        assert (await client.post("/v1/quarantine/no/such/release")).status_code == 404
        await home.product.offers.refresh()
        shown = (await client.get("/v1/offers")).json()["items"]
        assert {offer["offer_id"] for offer in shown} == {"good/one", "odd/price"}


async def test_what_our_launches_taught_is_told_and_shown(home: Home) -> None:
    client = home.client()
    assert {offer["learned"] for offer in (await client.get("/v1/offers")).json()["items"]} == {None}
    asked = await client.post("/v1/reservations", json={"offer_id": "h100-a", "nodes": 1})
    assert asked.status_code == 202
    for learned in (
        (await client.get("/v1/offers/h100-a")).json()["learned"],
        (await client.get("/v1/offers")).json()["items"][0]["learned"],
    ):
        assert (learned["attempts"], learned["taken_for_sold_out"]) == (1, False)
    visitor = home.client(None, cookies={SESSION_COOKIE: ADMIN_KEY})
    assert "(1 launch)" in (await visitor.get("/market", params={"view": "offers"})).text


async def test_offers_are_found_by_family_pattern_and_traits(tmp_path: Path) -> None:
    big = an_offer("big", "24")
    small = replace(an_offer("small", "9"), country="DE", region="eu-1")
    small = replace(small, sku=replace(small.sku, gpus_per_node=2))
    gone = replace(an_offer("gone", "1"), stock=Stock(StockLevel.NONE, 0))
    async with House(tmp_path / "b.db", offers=(big, small, gone)).open() as home:
        client = home.client()

        async def ids(**params: str) -> list[str]:
            answer = await client.get("/v1/offers", params=params)
            assert answer.status_code == 200, answer.text
            return [offer["offer_id"] for offer in answer.json()["items"]]

        whole = await ids()
        assert await ids(gpu="h100") == await ids(gpu="H100*") == await ids(gpu="H100-SXM-80GB,L40S") == whole
        assert await ids(region="EU-*") == ["small"]
        assert await ids(gpus_per_node="2,4") == ["small"]
        assert await ids(country="de") == ["small"]
        assert set(await ids(orderable="true")) == {"big", "small"}
        first = (await client.get("/v1/offers", params={"orderable": "true", "limit": 1})).json()
        rest = {"orderable": "true", "cursor": first["next_cursor"]}
        second = (await client.get("/v1/offers", params=rest)).json()
        assert {one["offer_id"] for one in first["items"] + second["items"]} == {"big", "small"}
        assert second["next_cursor"] is None


async def test_a_word_that_names_nothing_is_refused_with_the_nearest(home: Home) -> None:
    client = home.client()
    for path, params, near in (
        ("/v1/offers", {"gpu": "H1OO"}, "H100"),
        ("/v1/offers", {"tier": "ondemand"}, "on_demand"),
        ("/v1/offers", {"provider": "foo"}, "a provider's key"),
        ("/v1/offers", {"region": "mars-*"}, "a region on sale now"),
        ("/v1/prices", {"gpu": "H1000", "tier": "spot"}, "H100"),
        ("/v1/prices", {"gpu": "H100", "tier": "spot"}, "one GPU: "),
    ):
        answer = await client.get(path, params=params)
        assert answer.status_code == 422, (path, params)
        (error,) = answer.json()["errors"]
        assert error["pointer"] in {f"/{name}" for name in params}
        assert near in error["expected"]


async def test_models_are_listed_and_found_by_either_name(home: Home) -> None:
    team = await home.team("research")
    every = (await team.get("/v1/models")).json()["items"]
    assert [row["model"] for row in every] == sorted(load_models())
    by_name = {row["model"]: row for row in every}
    mixtral = by_name["Mixtral-8x7B"]
    assert (mixtral["hugging_face"], mixtral["experts"]) == ("mistralai/Mixtral-8x7B-v0.1", 8)
    assert mixtral["active_params"] < mixtral["total_params"]
    assert by_name["gpt-oss-120b"]["published_precision"] == "fp4"
    for words in ("mistralai/mix", "MIXTRAL-8x7"):
        (one,) = (await team.get("/v1/models", params={"q": words, "limit": 1})).json()["items"]
        assert one == by_name[one["model"]]
    assert (await team.get("/v1/models", params={"q": "no such"})).json()["items"] == []


async def test_kinds_of_gpu_have_data_sheets_and_offers(home: Home) -> None:
    team = await home.team("research")
    rows = {row["gpu"]: row for row in (await team.get("/v1/gpus")).json()["items"]}
    h100 = rows["H100-SXM-80GB"]
    assert (h100["architecture"], h100["memory_gb"], h100["fp8_tflops"]) == ("Hopper", 80, 1979)
    assert h100["offers"] == len((await team.get("/v1/offers")).json()["items"]) > 0
    assert rows["L4"]["offers"] == 0
    for row in rows.values():
        for name in row["aliases"]:
            assert resolve_gpu(name, "", "test") == row["gpu"]
    assert rows["A10G"]["aliases"] == ["A10G-24GB"]
    first = (await team.get("/v1/gpus", params={"limit": 2})).json()
    assert len(first["items"]) == 2
    assert first["next_cursor"]

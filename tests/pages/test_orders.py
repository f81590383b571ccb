"""An order of one offer on its page: what it costs is shown first, and a refusal comes back to it."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from html import unescape
from pathlib import Path

import httpx
import pytest

from api.http.dependencies import SESSION_COOKIE
from broker.domain.basics.account import Scope
from broker.domain.market.offer import Stock, StockLevel
from broker.domain.market.sku import SoldAmount
from tests.api.house import Home, House
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms
from tests.fakes.provider import Fault

HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
HOUR = timedelta(hours=1)
CHEAP, DEAR, FEW = an_offer("cheap", "10", stock=4), an_offer("dear", "12"), an_offer("few", "9", stock=1)
SLOTS = an_offer("slots", "10", window=slot_terms(NOON, 96))
WHOLE = an_offer("whole", "10", upfront="480", window=listed_terms(NOON + HOUR, 24))
DISK = SoldAmount(100.0, 80.0, 1000.0, Decimal("0.001"))
SIZED = replace(an_offer("sized", "10", stock=4), disk=DISK)
SOLD_OUT = replace(an_offer("gone", "8"), stock=Stock(StockLevel.NONE, 0))


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    offers = (CHEAP, DEAR, FEW, SLOTS, WHOLE, SIZED, SOLD_OUT)
    async with House(tmp_path / "broker.db", offers=offers).open() as living:
        yield living


async def visitor(home: Home, *scopes: Scope) -> httpx.AsyncClient:
    return home.client(None, cookies={SESSION_COOKIE: await home.key("research", scopes or None)})


async def quoted(
    client: httpx.AsyncClient, offer: str, status: int = 200, **typed: str
) -> tuple[str, dict[str, str]]:
    """The page with the order that was typed, and the hidden fields of its confirmation."""
    answer = await client.get(f"/market/offers/{offer}", params=typed)
    assert answer.status_code == status, answer.text
    form = re.search(rf'action="/market/offers/{offer}/reserve".*?</form>', answer.text, re.S)
    return unescape(answer.text), dict(HIDDEN.findall(form.group())) if form is not None else {}


async def ordered(client: httpx.AsyncClient, offer: str, fields: dict[str, str]) -> httpx.Response:
    return await client.post(f"/market/offers/{offer}/reserve", data=fields)


async def test_an_order_is_confirmed_and_then_placed_once(home: Home) -> None:
    client = await visitor(home)
    page, form = await quoted(client, "cheap", nodes="3", end="2026-11-24T12:00")
    assert "3 nodes of 8 × H100-SXM-80GB" in page
    assert "for team research" in page
    assert "$720.00" in page
    assert "Nothing comes back, $30.00 stays owed." in page
    assert home.house.provider.open_instances() == []
    for _ in range(2):
        answer = await ordered(client, "cheap", form)
        assert answer.status_code == 303, answer.text
    page = (await client.get(answer.headers["Location"])).text
    assert "Ordered." in page
    (row,) = (await (await home.team("research")).get("/v1/reservations")).json()["items"]
    assert (row["nodes"], row["end"]) == (3, "2026-11-24T12:00:00Z")
    assert row["limit_usd_per_node_hour"] == "10.000000"
    assert len(home.house.provider.open_instances()) == 3


async def test_an_order_of_more_disk_costs_what_it_says(home: Home) -> None:
    """400 GB more at 0.001: 10.40 a node-hour, 249.60 a day."""
    client = await visitor(home)
    page, form = await quoted(client, "sized", nodes="1", end="2026-11-24T12:00", disk_gb="500")
    assert "1 node of 8 × H100-SXM-80GB</strong> with 500 GB of disk" in page
    assert "$249.60" in page
    answer = await ordered(client, "sized", form)
    assert answer.status_code == 303, answer.text
    (row,) = (await (await home.team("research")).get("/v1/reservations")).json()["items"]
    assert (row["price_usd_per_node_hour"], row["limit_usd_per_node_hour"]) == ("10.400000", "10.400000")
    assert len(home.house.provider.open_instances()) == 1


@pytest.mark.parametrize(
    ("offer", "field", "gb", "says"),
    [
        ("sized", "disk_gb", 2000, "GB from 80 to 1000"),
        ("sized", "disk_gb", 50, "GB from 80 to 1000"),
        ("sized", "memory_gb", 64, "nothing: it is"),
        ("cheap", "disk_gb", 300, "nothing: it is"),
    ],
)
async def test_an_amount_that_is_not_sold_is_refused_at_its_field(
    home: Home, offer: str, field: str, gb: float, says: str
) -> None:
    wish = {"offer_id": offer, "nodes": 1, field: gb}
    answer = await (await home.team("research")).post("/v1/reservations", json=wish)
    assert answer.status_code == 422, answer.text
    (problem,) = answer.json()["errors"]
    assert problem["pointer"] == f"/{field}"
    assert says in problem["expected"]


async def test_an_order_without_an_end_says_its_price_an_hour(home: Home) -> None:
    page, form = await quoted(await visitor(home), "cheap", nodes="2")
    assert "$20.00 an hour" in page
    assert form["nodes"] == "2"


async def test_a_reservation_says_what_a_day_longer_and_a_release_come_to(home: Home) -> None:
    """Two nodes at $10 an hour for six hours: a day more adds 48 node-hours; an hour has begun."""
    wish = {"offer_id": "cheap", "nodes": 2, "end": "2026-11-23T18:00:00Z"}
    row = (await (await home.team("research")).post("/v1/reservations", json=wish)).json()
    page = unescape((await (await visitor(home)).get(f"/reservations/{row['reservation_id']}")).text)
    assert "A day longer adds $480.00; an hour of 2 nodes costs $20.00." in page
    assert 'value="2026-11-24T18:00"' in page
    assert (
        "Nothing comes back, $20.00 stays owed. A release now saves $100.00 against holding it until its end."
        in page
    )


async def test_a_time_off_the_grid_is_told_as_the_window_that_covers_it(home: Home) -> None:
    page, form = await quoted(
        await visitor(home), "slots", nodes="1", start="2026-11-23T14:10", end="2026-11-23T15:50"
    )
    assert "You asked for" in page
    assert "all of it paid at the purchase" in page
    answer = await ordered(await visitor(home), "slots", form)
    assert answer.status_code == 403, "a form of another session"


async def test_a_listed_window_is_chosen_and_not_typed(home: Home) -> None:
    client = await visitor(home)
    page = unescape((await client.get("/market/offers/whole")).text)
    (window,) = re.findall(r'<option value="([^"]+)"', page)
    page, form = await quoted(client, "whole", nodes="1", window=window)
    assert "$240.00" in page
    assert (await ordered(client, "whole", form)).status_code == 303


@pytest.mark.parametrize(
    ("typed", "field", "says"),
    [
        ({"nodes": "many"}, "nodes", "a whole number from 1 on"),
        ({"nodes": "9"}, "nodes", "at most the provider's stock of 4"),
        ({"nodes": "1", "end": "soon"}, "end", "a date, or a date with a time"),
        ({"nodes": "1", "end": "2026-11-20"}, "end", "a time after start and after now"),
    ],
)
async def test_a_wrong_field_keeps_what_was_typed_and_names_what_can_be_had(
    home: Home, typed: dict[str, str], field: str, says: str
) -> None:
    page, form = await quoted(await visitor(home), "cheap", 422, **typed)
    assert form == {}
    assert says in page
    assert f'id="{field}-problem"' in page
    assert f'value="{typed[field]}"' in page
    assert "/market/offers/dear?" in page
    assert ("/market/offers/few?" in page) == (typed["nodes"] != "9"), "one node is left of it"
    assert "/market/offers/gone?" not in page


async def test_a_refused_order_comes_back_with_other_offers(home: Home) -> None:
    client = await visitor(home)
    _, form = await quoted(client, "cheap", nodes="2", end="2026-11-24T12:00")
    home.house.provider.fail("reserve", Fault.NO_CAPACITY)
    answer = await ordered(client, "cheap", form)
    page = unescape(answer.text)
    assert answer.status_code == 409
    assert "Not reserved: the provider has no stock." in page
    assert 'value="2026-11-24T12:00"' in page
    (dear,) = re.findall(r'href="(/market/offers/dear\?[^"]+)"', page)
    asked = {name: str(word) for name, word in httpx.URL(dear).params.items()}
    page, _ = await quoted(client, "dear", 200, **asked)
    assert "$576.00" in page


async def test_nothing_is_bought_above_the_price_of_the_page(home: Home) -> None:
    client = await visitor(home)
    _, form = await quoted(client, "cheap", nodes="1")
    home.house.provider.offers = (replace(CHEAP, price_usd_per_node_hour=DEAR.price_usd_per_node_hour),)
    await home.product.offers.refresh()
    answer = await ordered(client, "cheap", form)
    assert answer.status_code == 409
    assert "costs $12.00 per node-hour now" in unescape(answer.text)
    assert home.house.provider.open_instances() == []


async def test_an_order_over_a_budget_is_refused_before_it_is_placed(home: Home) -> None:
    team = await home.team("research")
    answer = await team.put("/v1/budgets/research/month", json={"limit_usd": "100"})
    assert answer.status_code == 200
    page, form = await quoted(await visitor(home), "cheap", 409, nodes="1", end="2026-11-24T12:00")
    assert "would exceed its budget of $100.00 per month by $140.00" in page
    assert form == {}
    wish = {"offer_id": "cheap", "nodes": 1, "end": "2026-11-24T12:00:00Z"}
    refused = await team.post("/v1/reservations", json=wish)
    assert refused.status_code == 409
    assert refused.json()["type"].endswith("over-budget")
    assert (await team.get("/v1/reservations")).json()["items"] == []
    within = await team.post("/v1/reservations", json=wish | {"end": "2026-11-23T20:00:00Z"})
    assert within.status_code == 202


@pytest.mark.parametrize(
    ("offer", "scopes", "why"),
    [
        ("cheap", (Scope.PLANS_READ,), "lacks the scope reservations:write"),
        ("gone", (), "no node is left"),
    ],
)
async def test_a_page_says_why_nothing_can_be_ordered(
    home: Home, offer: str, scopes: tuple[Scope, ...], why: str
) -> None:
    page, form = await quoted(await visitor(home, *scopes), offer, nodes="1")
    assert why in page
    assert form == {}
    assert "Show what it costs" not in page


async def test_a_price_list_cannot_be_ordered_from(home: Home) -> None:
    home.product.offers.takes_orders = lambda offer: offer.offer_id != "cheap"
    page, _ = await quoted(await visitor(home), "cheap")
    assert "an entry of a price list" in page

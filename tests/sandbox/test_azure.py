from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.sandbox.conftest import START, Bench

ROOT = "/azure/subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute"
VERSION = "?api-version=2026-04-01"
PRICES = "/azure/api/retail/prices"
SIZE, CARD, REGION = "Standard_ND96isr_H100_v5", "Standard_NC96ads_A100_v4", "eastus"


def path(group: str, name: str = "") -> str:
    return f"{ROOT}/capacityReservationGroups/{group}" + (f"/capacityReservations/{name}" if name else "")


async def make_group(bench: Bench, name: str, kind: str) -> None:
    body = {"location": REGION, "properties": {"reservationType": kind}}
    await bench.json("PUT", path(name) + VERSION, body)


def order(size: str, count: int, **schedule: Any) -> dict[str, Any]:
    properties = {"scheduleProfile": schedule} if schedule else {}
    return {"location": REGION, "sku": {"name": size, "capacity": count}, "properties": properties}


async def put(bench: Bench, group: str, name: str, body: Any, version: str = VERSION) -> httpx.Response:
    return await bench.call("PUT", path(group, name) + version, body)


def block(days_ahead: int, days: int) -> dict[str, str]:
    start = START.date() + timedelta(days=days_ahead)
    return {"start": start.isoformat(), "end": (start + timedelta(days=days)).isoformat()}


async def test_prices_need_no_key_and_come_in_pages(bench: Bench) -> None:
    linux = "serviceName eq 'Virtual Machines' and contains(armSkuName, 'Standard_N')"
    page = (await bench.client.get(PRICES, params={"$filter": linux}, headers={"Authorization": ""})).json()
    assert (page["Count"], page["BillingCurrency"]) == (100, "USD")
    rows = page["Items"]
    while page["NextPageLink"]:
        page = (await bench.client.get(page["NextPageLink"])).json()
        rows += page["Items"]
    prices = {row["skuName"]: row["retailPrice"] for row in rows if row["armRegionName"] == REGION}
    assert (prices["ND96isr_H100_v5 Spot"], prices["ND96isr_H100_v5 Low Priority"]) == (18.17, 41.094)
    assert all(row["armSkuName"].startswith("Standard_N") for row in rows)
    assert {row["type"] for row in rows} == {"Consumption", "Reservation"}


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ("armSkuName eq 'Standard_D4s_v5'", 1),
        ("armSkuName eq 'standard_d4s_v5'", 0),
        ("priceType eq 'Consumption' and contains(armSkuName, 'D4s')", 1),
    ],
)
async def test_filters_compare_with_case(bench: Bench, wanted: str, count: int) -> None:
    answer = (await bench.client.get(PRICES, params={"$filter": wanted})).json()
    assert answer["Count"] == count


@pytest.mark.parametrize(
    "wanted",
    ["retailPrice gt 3", "not contains(skuName, 'Spot')", "size eq 'x'", "armSkuName eq 'x' and", "'"],
)
async def test_other_filters_are_refused(bench: Bench, wanted: str) -> None:
    answer = await bench.client.get(PRICES, params={"$filter": wanted})
    assert (answer.status_code, answer.json()["Error"]["Code"]) == (400, "BadRequest")


async def test_tokens_are_asked_for_by_form_and_expire(bench: Bench) -> None:
    form = {"grant_type": "client_credentials", "client_id": "i", "client_secret": "s", "scope": "x/.default"}
    token = (await bench.client.post("/azure/t/oauth2/v2.0/token", data=form)).json()
    bearer = {"Authorization": f"Bearer {token['access_token']}"}
    url = f"{ROOT}/capacityReservationGroups{VERSION}"
    assert (await bench.client.get(url, headers=bearer)).status_code == 200
    await bench.advance(token["expires_in"] + 1)
    refused = await bench.client.get(url, headers=bearer)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "ExpiredAuthenticationToken")
    bad = await bench.client.post("/azure/t/oauth2/v2.0/token", data={**form, "client_secret": ""})
    assert (bad.status_code, bad.json()["error"]) == (401, "invalid_client")
    nameless = await bench.client.get(f"{ROOT}/capacityReservationGroups")
    assert nameless.json()["error"]["code"] == "MissingApiVersionParameter"


@pytest.mark.parametrize(
    ("count", "schedule", "size", "version"),
    [
        (3, block(2, 3), SIZE, VERSION),
        (4, block(2, 15), SIZE, VERSION),
        (4, block(2, 24), SIZE, VERSION),
        (4, block(57, 3), SIZE, VERSION),
        (4, block(-1, 3), SIZE, VERSION),
        (4, {"start": "2026-11-25"}, SIZE, VERSION),
        (4, block(2, 3), CARD, VERSION),
        (4, block(2, 3), SIZE, "?api-version=2024-11-01"),
    ],
)
async def test_blocks_that_are_not_sold(
    bench: Bench, count: int, schedule: dict[str, str], size: str, version: str
) -> None:
    await make_group(bench, "g", "Block")
    answer = await put(bench, "g", "r", order(size, count, **schedule), version)
    assert (answer.status_code, await bench.ledger()) == (400, [])


async def test_todays_block_is_sold_until_half_past_eleven(bench: Bench) -> None:
    await bench.stock("azure", SIZE, 8, REGION)
    await make_group(bench, "g1", "Block")
    await make_group(bench, "g2", "Block")
    early = await put(bench, "g1", "r", order(SIZE, 1, **block(0, 1)))
    assert early.json()["properties"]["scheduleProfile"] == {
        "start": "2026-11-23T12:00:00Z",
        "end": "2026-11-24T11:30:00Z",
    }
    await bench.advance(2.5 * 3600)
    assert (await put(bench, "g2", "r", order(SIZE, 1, **block(0, 1)))).status_code == 400


async def test_blocks_share_what_there_is_on_each_day(bench: Bench) -> None:
    await bench.stock("azure", SIZE, 8, REGION)
    for name, days_ahead in (("a", 2), ("b", 4), ("c", 3)):
        await make_group(bench, name, "Block")
        assert (await put(bench, name, name, order(SIZE, 8, **block(days_ahead, 2)))).status_code == 201
    await bench.advance(3)
    states = [
        (await bench.json("GET", path(name, name) + VERSION))["properties"]["provisioningState"]
        for name in ("a", "b", "c")
    ]
    assert states == ["Succeeded", "Succeeded", "Failed"]


async def test_the_same_order_again_is_the_same_reservation(bench: Bench) -> None:
    await make_group(bench, "g", "Targeted")
    assert (await put(bench, "g", "r", order(CARD, 1))).status_code == 201
    assert (await put(bench, "g", "r", order(CARD, 1))).status_code == 200
    changed = await put(bench, "g", "r", order(CARD, 2))
    assert (changed.status_code, changed.json()["error"]["code"]) == (409, "PropertyChangeNotAllowed")
    second = await put(bench, "g", "other", order(CARD, 1))
    assert (second.status_code, len(await bench.ledger())) == (409, 1)


async def test_a_name_can_be_used_again_and_the_ledger_keeps_both(bench: Bench) -> None:
    await make_group(bench, "g", "Targeted")
    for _ in range(2):
        await put(bench, "g", "r", order(CARD, 1))
        await bench.advance(60)
        assert (await bench.call("DELETE", path("g", "r") + VERSION)).status_code == 202
        await bench.advance(60)
    assert [row["released_at"] is not None for row in await bench.ledger()] == [True, True]
    assert (await bench.call("DELETE", path("g", "r") + VERSION)).status_code == 204
    assert (await bench.call("DELETE", path("g") + VERSION)).status_code == 200


async def test_dense_sizes_take_no_targeted_reservation(bench: Bench) -> None:
    await make_group(bench, "g", "Targeted")
    answer = await put(bench, "g", "r", order(SIZE, 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "InvalidParameter")


async def test_answers_carry_the_markets_own_time(bench: Bench) -> None:
    await bench.advance(86400)
    answer = await bench.client.get(PRICES)
    assert answer.headers["date"].startswith("Tue, 24 Nov 2026 09:00")

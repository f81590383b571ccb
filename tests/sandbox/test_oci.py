"""OCI's form of prices, reports, reservations and refusals, as a plain client sees them."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from tests.sandbox.conftest import Bench

IAAS = "/oci/iaas.us-chicago-1.oraclecloud.com/20160918"
HELD = f"{IAAS}/computeCapacityReservations"
PRICES = "/oci/apexapps.oracle.com/pls/apex/cetools/api/v1/products/?currencyCode=USD"
DOMAIN = "Uocm:US-CHICAGO-1-AD-1"
SHAPE = "BM.GPU.H200.8"


def signed(body: bytes | None = None, **other: str) -> dict[str, str]:
    """Headers of the right form, with a signature of no key."""
    names = "date (request-target) host" + (" content-length content-type x-content-sha256" if body else "")
    headers = {"date": format_datetime(datetime.now(UTC), usegmt=True)}
    if body:
        headers["content-type"] = "application/json"
        headers["x-content-sha256"] = base64.b64encode(hashlib.sha256(body).digest()).decode()
    headers["authorization"] = (
        f'Signature algorithm="rsa-sha256",headers="{names}",keyId="t/u/f",signature="AAAA",version="1"'
    )
    return headers | other


async def post(bench: Bench, path: str, wish: Any, **headers: str) -> httpx.Response:
    body = json.dumps(wish).encode()
    return await bench.client.post(path, content=body, headers=signed(body, **headers))


async def get(bench: Bench, path: str) -> httpx.Response:
    return await bench.client.get(path, headers=signed())


def wish(count: int = 1, name: str = "w1") -> dict[str, Any]:
    configs = [{"instanceShape": SHAPE, "reservedCount": count}]
    return {
        "compartmentId": "t",
        "availabilityDomain": DOMAIN,
        "displayName": name,
        "instanceReservationConfigs": configs,
    }


async def test_prices_are_for_everybody_and_follow_the_market(bench: Bench) -> None:
    items = {row["partNumber"]: row for row in (await bench.json("GET", PRICES))["items"]}
    assert items["B98415"]["currencyCodeLocalizations"][0]["prices"] == [
        {"model": "PAY_AS_YOU_GO", "value": 10.0}
    ]
    assert items["B108806"]["metricName"] == "Node Per Hour"
    await bench.json("POST", "/_sandbox/market", {"provider": "oci", "sku": "VM.GPU.A10.2", "price_usd": "5"})
    items = {row["partNumber"]: row for row in (await bench.json("GET", PRICES))["items"]}
    item = items["B95909"]
    assert item["currencyCodeLocalizations"][0]["prices"][0]["value"] == 2.5


async def test_what_is_held_is_billed_by_the_hour_until_it_is_deleted(bench: Bench) -> None:
    await bench.stock("oci", SHAPE, 3, "us-chicago-1")
    made = (await post(bench, HELD, wish(2))).json()
    asked = {
        "compartmentId": "t",
        "availabilityDomain": DOMAIN,
        "shapeAvailabilities": [{"instanceShape": SHAPE}, {"instanceShape": "BM.GPU.Q9000.8"}],
    }
    lines = (await post(bench, f"{IAAS}/computeCapacityReports", asked)).json()["shapeAvailabilities"]
    assert [(line["availabilityStatus"], line["availableCount"]) for line in lines] == [
        ("AVAILABLE", 1),
        ("HARDWARE_NOT_SUPPORTED", None),
    ]
    await bench.advance(5400)
    deleted = await bench.client.delete(f"{HELD}/{made['id']}", headers=signed())
    assert deleted.status_code == 204
    (row,) = await bench.ledger(made["id"])
    assert (row["tag"], row["nodes"], row["billed_usd"]) == ("w1", 2, "320.000000")


async def test_refusals_are_in_ocis_words(bench: Bench) -> None:
    await bench.stock("oci", SHAPE, 1, "us-chicago-1")
    full = await post(bench, HELD, wish(2))
    assert (full.status_code, full.json()) == (
        500,
        {"code": "InternalError", "message": "Out of host capacity."},
    )
    unsigned = await bench.client.get(HELD, headers={"authorization": ""})
    assert (unsigned.status_code, unsigned.json()["code"]) == (401, "NotAuthenticated")
    missing = await post(bench, HELD, {"compartmentId": "t"})
    assert (missing.status_code, missing.json()["code"]) == (400, "MissingParameter")
    elsewhere = await post(bench, HELD, {**wish(), "availabilityDomain": "Uocm:PHX-AD-1"})
    assert elsewhere.json()["code"] == "InvalidParameter"
    gone = await get(bench, f"{HELD}/ocid1.capacityreservation.oc1..none")
    assert (gone.status_code, gone.json()["code"]) == (404, "NotAuthorizedOrNotFound")
    nowhere = await get(bench, HELD.replace("us-chicago-1", "eu-nowhere-9") + "?compartmentId=t")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "NotFound")


@pytest.mark.parametrize(
    "wrong",
    [
        {"date": format_datetime(datetime.now(UTC) - timedelta(minutes=9), usegmt=True)},
        {"x-content-sha256": "AAAA"},
        {"authorization": 'Signature algorithm="rsa-sha256",headers="date host",keyId="t/u/f",signature="A"'},
    ],
)
async def test_a_signature_of_the_wrong_form_is_refused(bench: Bench, wrong: dict[str, str]) -> None:
    answer = await post(bench, HELD, wish(), **wrong)
    assert (answer.status_code, answer.json()["code"]) == (401, "NotAuthenticated")


async def test_a_reservation_that_is_made_cannot_be_deleted_yet(bench: Bench) -> None:
    await bench.stock("oci", SHAPE, 1, "us-chicago-1")
    made = (await post(bench, HELD, wish())).json()
    early = await bench.client.delete(f"{HELD}/{made['id']}", headers=signed())
    assert (early.status_code, early.json()["code"]) == (409, "IncorrectState")


async def test_capacity_lost_after_the_create_ends_the_reservation(bench: Bench) -> None:
    await bench.stock("oci", SHAPE, 1, "us-chicago-1")
    fault = {"provider": "oci", "operation": "create", "kind": "async_out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", fault)
    made = (await post(bench, HELD, wish())).json()
    assert made["lifecycleState"] == "CREATING"
    await bench.advance(60)
    assert (await get(bench, f"{HELD}/{made['id']}")).json()["lifecycleState"] == "DELETED"
    (row,) = await bench.ledger(made["id"])
    assert (row["failed"], row["billed_usd"]) == (True, "0")

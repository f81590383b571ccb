import base64
import json
from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from providers.sandbox.market import draw
from providers.sandbox.sellers.gcp.leases import MOST_WAIT_S
from providers.sandbox.sellers.gcp.market import FAMILIES
from tests.sandbox.conftest import START, Bench

ROOT = "/gcp/compute/v1/projects/research"
SKUS = "/gcp/v1/services/6F81-5844-456A/skus"
ZONE, TYPE = "us-central1-b", "a4-highgpu-8g"
FUTURES = f"{ROOT}/zones/{ZONE}/futureReservations"
DAY_S = 86400


def usd(sku: dict[str, Any]) -> Decimal:
    price = sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]
    return int(price["units"]) + Decimal(price["nanos"]) / 10**9


def reservation(name: str, machine_type: str, count: int, **more: Any) -> dict[str, Any]:
    specific = {"count": str(count), "instanceProperties": {"machineType": machine_type}}
    return {"name": name, "specificReservation": specific, **more}


def spot(name: str, zone: str, machine_type: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"broker-{name}",
        "machineType": f"zones/{zone}/machineTypes/{machine_type}",
        "scheduling": {"provisioningModel": "SPOT"},
        "disks": [{"boot": True}],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }


def window(name: str, start: str, end: str, count: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"broker-{name}",
        "planningStatus": "SUBMITTED",
        "reservationMode": "CALENDAR",
        "reservationName": name,
        "specificSkuProperties": {
            "totalCount": str(count),
            "instanceProperties": {"machineType": TYPE},
        },
        "timeWindow": {"startTime": start, "endTime": end},
        **more,
    }


def question(count: int, machine_type: str = TYPE, **more: Any) -> dict[str, Any]:
    spec = {
        "targetResources": {
            "specificSkuResources": {"machineType": machine_type, "instanceCount": str(count)}
        },
        "timeRangeSpec": {
            "startTimeNotEarlierThan": "2026-11-28T00:00:00Z",
            "startTimeNotLaterThan": "2027-01-10T00:00:00Z",
            "minDuration": "86400s",
            "maxDuration": "259200s",
        },
        **more,
    }
    return {"futureResourcesSpecs": {"ask": spec}}


async def advise(bench: Bench, body: dict[str, Any], region: str = "us-central1") -> Any:
    return await bench.call("POST", f"{ROOT}/regions/{region}/advice/calendarMode", body)


async def best_of(bench: Bench, count: int) -> dict[str, Any]:
    answer = (await advise(bench, question(count))).json()
    found: dict[str, Any] = answer["recommendations"][0]["recommendationsPerSpec"]["ask"]
    return found


async def status_of(bench: Bench, name: str) -> str:
    row = await bench.json("GET", f"{FUTURES}/{name}")
    return str(row["status"]["procurementStatus"])


async def test_the_parts_of_every_node_sum_to_its_recorded_price(bench: Bench) -> None:
    parts: defaultdict[tuple[str, str], dict[str, Decimal]] = defaultdict(dict)
    for row in (await bench.json("GET", SKUS))["skus"]:
        text, (region, *_) = row["description"], row["serviceRegions"]
        plain = not any(word in text for word in ("Calendar", "DWS", "Reserved", "Commitment", "Spot"))
        if plain and row["category"]["usageType"] == "OnDemand":
            words = text.partition(" running in ")[0].partition(" in ")[0]
            parts[region, "on_demand"][words] = usd(row)
    checked = 0
    for cell in bench.app.state.market.inventory("gcp"):
        family = FAMILIES[cell.labels["family"]]
        if cell.tier != "on_demand" or not family.vm or family.name == "a3-megagpu":
            continue
        rates = parts[cell.region, "on_demand"]
        total = rates[family.sku] * cell.gpus
        total += rates[f"{family.vm} Instance Core"] * family.vcpus * cell.gpus
        total += rates[f"{family.vm} Instance Ram"] * family.memory_gib * cell.gpus
        total += rates["SSD backed Local Storage"] * 375 * family.ssds * cell.gpus / 730
        assert cell.usd_per_hour is not None
        assert total == cell.usd_per_hour * cell.gpus
        checked += 1
    assert checked > 60


async def test_the_price_list_has_its_traps(bench: Bench) -> None:
    rows = {row["description"]: row for row in (await bench.json("GET", SKUS))["skus"]}
    assert usd(rows["Reserved Nvidia H100 80GB GPU in Americas"]) == 0
    spot_slice = rows["Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Tokyo"]
    assert spot_slice["category"]["usageType"] == "OnDemand"
    assert usd(rows["DWS Calendar Mode A4 Nvidia B200 (1 gpu slice) in Netherlands"]) == Decimal("11.277")
    memory = rows["A3 Instance Ram running in Taiwan"]["pricingInfo"][0]["pricingExpression"]
    assert memory["usageUnit"] == "GiBy.h"


async def test_pages_end_and_tell_where_to_go_on(bench: Bench) -> None:
    whole = await bench.json("GET", SKUS)
    assert whole["nextPageToken"] == ""
    seen, token = [], ""
    while True:
        page = await bench.json("GET", f"{SKUS}?pageSize=70&pageToken={token}")
        seen += page["skus"]
        token = page["nextPageToken"]
        if not token:
            break
    assert seen == whole["skus"]
    first = await bench.json("GET", f"{ROOT}/aggregated/machineTypes?maxResults=5")
    assert sum(len(scope["machineTypes"]) for scope in first["items"].values()) == 5
    assert first["nextPageToken"] == "5"


async def test_who_may_ask(bench: Bench) -> None:
    nobody = {"Authorization": ""}
    denied = await bench.call("GET", f"{ROOT}/aggregated/instances", headers=nobody)
    assert (denied.status_code, denied.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert (await bench.call("GET", SKUS, headers=nobody)).status_code == 403
    for key in ({"headers": {**nobody, "x-goog-api-key": "k"}}, {"headers": nobody, "params": {"key": "k"}}):
        assert (await bench.call("GET", SKUS, **key)).status_code == 200


async def test_tokens_live_an_hour_of_the_markets_time(bench: Bench) -> None:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"iss": "a@b", "aud": "t", "scope": "s", "iat": 0, "exp": 3600}
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": f"{part({'alg': 'RS256'})}.{part(claims)}.c2ln",
    }
    token = (await bench.client.post("/gcp/token", data=form)).json()["access_token"]
    mine = {"Authorization": f"Bearer {token}"}
    assert (await bench.call("GET", f"{ROOT}/aggregated/instances", headers=mine)).status_code == 200
    await bench.advance(3601)
    assert (await bench.call("GET", f"{ROOT}/aggregated/instances", headers=mine)).status_code == 401
    for change in (
        {"grant_type": "password"},
        {"assertion": "one.two"},
        {"assertion": f"{part({'alg': 'none'})}.{part(claims)}.c2ln"},
        {"assertion": f"{part({'alg': 'RS256'})}.{part(claims | {'exp': 9999})}.c2ln"},
    ):
        assert (await bench.client.post("/gcp/token", data=form | change)).status_code == 400


async def test_advice_says_where_and_why_not(bench: Bench) -> None:
    best = await best_of(bench, 2)
    assert (best["location"], best["startTime"][:10] >= "2026-11-28") == (f"zones/{ZONE}", True)
    denied = question(2, locationPolicy={"locations": {f"zones/{ZONE}": {"preference": "DENY"}}})
    answer = (await advise(bench, denied)).json()
    assert "location" not in answer["recommendations"][0]["recommendationsPerSpec"]["ask"]
    await bench.stock("gcp", TYPE, 0, ZONE)
    none = await best_of(bench, 2)
    assert "location" not in none
    assert none["otherLocations"][f"zones/{ZONE}"]["status"] == "NO_CAPACITY"
    empty: dict[str, Any] = {"futureResourcesSpecs": {}}
    for refused in (question(81), question(2, machine_type="g2-standard-12"), empty):
        assert (await advise(bench, refused)).status_code == 400
    assert (await advise(bench, question(2), "mars-north1")).status_code == 400


async def test_a_window_goes_through_its_states(bench: Bench) -> None:
    best = await best_of(bench, 2)
    await bench.json("POST", FUTURES, window("w1", best["startTime"], best["endTime"]))
    assert await status_of(bench, "w1") == "PENDING_APPROVAL"
    await bench.advance(5)
    assert await status_of(bench, "w1") == "APPROVED"
    while (await status_of(bench, "w1")) == "APPROVED":
        await bench.advance(DAY_S / 4)
    assert await status_of(bench, "w1") == "PROCURING"
    refused = await bench.call("POST", f"{FUTURES}/w1/cancel", {})
    assert (refused.status_code, refused.json()["error"]["errors"][0]["reason"]) == (400, "conditionNotMet")
    await bench.advance(DAY_S)
    assert await status_of(bench, "w1") == "FULFILLED"
    made = await bench.json("GET", f"{ROOT}/zones/{ZONE}/reservations/w1")
    assert (made["status"], made["specificReservation"]["count"]) == ("READY", "2")
    listed = (await bench.json("GET", f"{ROOT}/aggregated/reservations"))["items"]
    assert [row["name"] for row in listed[f"zones/{ZONE}"]["reservations"]] == ["w1"]
    await bench.advance(4 * DAY_S)
    gone = await bench.call("GET", f"{ROOT}/zones/{ZONE}/reservations/w1")
    assert gone.status_code == 404
    (entry,) = await bench.ledger(f"zones/{ZONE}/futureReservations/w1")
    days = int(best["endTime"][8:10]) - int(best["startTime"][8:10])
    assert Decimal(entry["billed_usd"]) == 2 * 24 * days * Decimal("90.216")
    assert (await bench.call("DELETE", f"{FUTURES}/w1")).status_code == 200
    assert (await bench.call("GET", f"{FUTURES}/w1")).status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        {"reservationMode": "DEFAULT"},
        {"namePrefix": "w"},
        {"name": "Not_A_Name"},
        {"timeWindow": {"startTime": "2026-12-01T00:00:00Z", "endTime": "2026-12-01T06:00:00Z"}},
        {"timeWindow": {"startTime": "2026-12-01T00:00:00Z", "endTime": "2027-12-01T06:00:00Z"}},
        {"timeWindow": {"startTime": "2025-12-01T00:00:00Z", "endTime": "2026-12-09T00:00:00Z"}},
        {"timeWindow": {"startTime": "soon", "endTime": "later"}},
        {"specificSkuProperties": {"totalCount": "2"}},
        {"specificSkuProperties": {"totalCount": "99", "instanceProperties": {"machineType": TYPE}}},
    ],
)
async def test_windows_that_calendar_mode_does_not_sell(bench: Bench, change: dict[str, Any]) -> None:
    body = window("w2", "2026-12-01T00:00:00Z", "2026-12-03T00:00:00Z") | change
    assert (await bench.call("POST", FUTURES, body)).status_code == 400
    assert await bench.ledger() == []


async def test_a_window_that_is_taken_fails_in_its_operation(bench: Bench) -> None:
    await bench.stock("gcp", TYPE, 3, ZONE)
    body = window("w3", "2026-12-01T00:00:00Z", "2026-12-03T00:00:00Z")
    await bench.json("POST", FUTURES, body)
    accepted = await bench.json("POST", FUTURES, body | {"name": "w4"})
    await bench.advance(1)
    failed = await bench.json("GET", f"{ROOT}/zones/{ZONE}/operations/{accepted['name']}")
    assert failed["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert len(await bench.ledger()) == 1


async def test_one_request_id_buys_once_and_a_name_is_free_again_when_its_holder_is_gone(
    bench: Bench,
) -> None:
    path = f"{ROOT}/zones/asia-east1-c/instances"
    body = spot("s1", "asia-east1-c", "a3-highgpu-1g")
    first = await bench.json("POST", f"{path}?requestId=r1", body)
    again = await bench.json("POST", f"{path}?requestId=r1", body)
    assert (first["name"], len(await bench.ledger())) == (again["name"], 1)
    assert (await bench.call("POST", f"{path}?requestId=r2", body)).status_code == 409
    assert (await bench.json("GET", f"{path}/s1"))["status"] == "STAGING"
    await bench.advance(10)
    assert (await bench.json("GET", f"{path}/s1"))["status"] == "RUNNING"
    await bench.json("DELETE", f"{path}/s1")
    assert (await bench.json("GET", f"{path}/s1"))["status"] == "STOPPING"
    await bench.advance(10)
    assert (await bench.call("DELETE", f"{path}/s1")).status_code == 404
    await bench.json("POST", f"{path}?requestId=r3", body)
    await bench.advance(10)
    assert (await bench.json("GET", f"{path}/s1"))["status"] == "RUNNING"
    rows = await bench.ledger()
    assert [row["released_at"] is None for row in rows] == [False, True]
    assert len({row["instance_id"] for row in rows}) == 2


async def test_a_reservation_ends_at_its_time_and_takes_stock_in_whole_machines(bench: Bench) -> None:
    await bench.stock("gcp", "a3-highgpu-8g", 3, "us-east4-a")
    path = f"{ROOT}/zones/us-east4-a/reservations"
    until = {"deleteAtTime": "2026-11-23T15:00:00Z"}
    await bench.json("POST", path, reservation("r1", "a3-highgpu-8g", 2, **until))
    short = await bench.json("POST", path, reservation("r2", "a3-highgpu-8g", 2))
    assert short["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    await bench.advance(6 * 3600)
    assert (await bench.call("GET", f"{path}/r1")).status_code == 404
    (entry,) = await bench.ledger()
    assert Decimal(entry["billed_usd"]) == pytest.approx(2 * 6 * Decimal("87.83248"), rel=Decimal("0.001"))


@pytest.mark.parametrize(
    ("zone", "body"),
    [
        ("mars-north1-a", reservation("r1", "a3-highgpu-8g", 1)),
        ("us-east4-a", reservation("r1", "z9-giga-1g", 1)),
        ("us-east4-a", reservation("r1", "a3-highgpu-8g", 0)),
        ("us-east4-a", {"name": "r1"}),
        ("us-east4-a", []),
    ],
)
async def test_orders_that_make_no_sense(bench: Bench, zone: str, body: Any) -> None:
    answer = await bench.call("POST", f"{ROOT}/zones/{zone}/reservations", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)


async def test_faults_have_googles_forms(bench: Bench) -> None:
    async def faulty(kind: str, operation: str, method: str, path: str, body: Any = None) -> Any:
        wish = {"provider": "gcp", "operation": operation, "kind": kind, "count": 1}
        await bench.json("POST", "/_sandbox/faults", wish)
        return await bench.call(method, path, body)

    place = f"{ROOT}/zones/us-east4-a/reservations"
    none = await faulty("out_of_capacity", "create", "POST", place, reservation("r1", "a3-highgpu-8g", 1))
    assert (none.status_code, none.json()["status"]) == (200, "DONE")
    assert none.json()["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    every = f"{ROOT}/aggregated/reservations"
    slow = await faulty("rate_limited", "get", "GET", every)
    assert (slow.status_code, slow.json()["error"]["errors"][0]["reason"]) == (403, "rateLimitExceeded")
    slow = await faulty("rate_limited", "list", "GET", SKUS)
    assert (slow.status_code, slow.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    broken = await faulty("http_500", "get", "GET", every)
    assert broken.json()["error"]["errors"][0]["reason"] == "backendError"
    assert (await bench.call("GET", "/gcp/compute/v2/nothing")).status_code == 404
    assert (await bench.call("GET", f"{every}?filter=a~b")).status_code == 400


FLEX_TYPE, FLEX_ZONE = "a4-highgpu-8g", "us-east4-b"


def flex(name: str, run_s: int = 36_000, valid_s: int = 7_200) -> dict[str, Any]:
    return {
        **spot(name, FLEX_ZONE, FLEX_TYPE),
        "scheduling": {"provisioningModel": "FLEX_START", "maxRunDuration": {"seconds": str(run_s)}},
        "params": {"requestValidForDuration": {"seconds": str(valid_s)}},
    }


def named(least: float, most: float) -> tuple[str, float]:
    """A name whose request finds capacity after ``least`` to ``most`` seconds."""
    for number in range(1000):
        wait = MOST_WAIT_S * draw(7, "flex-start", f"zones/{FLEX_ZONE}/instances/flex-{number}")
        if least <= wait <= most:
            return f"flex-{number}", int(wait)
    raise AssertionError("no such wait")


async def flex_status(bench: Bench, name: str) -> Any:
    answer = await bench.call("GET", f"{ROOT}/zones/{FLEX_ZONE}/instances/{name}")
    return answer.json()["status"] if answer.is_success else answer.status_code


async def test_flex_start_begins_when_capacity_appears_and_runs_for_its_time(bench: Bench) -> None:
    name, wait = named(1000, 6000)
    path = f"{ROOT}/zones/{FLEX_ZONE}/instances"
    operation = await bench.json("POST", path, flex(name))
    assert (operation["status"], await flex_status(bench, name)) == ("RUNNING", "PENDING")
    waiting = await bench.json("GET", f"{path}/{name}")
    assert "lastStartTimestamp" not in waiting
    await bench.advance(wait - 60)
    assert await flex_status(bench, name) == "PENDING"
    await bench.advance(60 + bench.app.state.durations.boot_s + 1)
    row = await bench.json("GET", f"{path}/{name}")
    assert row["status"] == "RUNNING"
    begun = datetime.fromisoformat(row["lastStartTimestamp"])
    assert abs((begun - START).total_seconds() - wait) < 30
    await bench.advance(36_000)
    assert await flex_status(bench, name) == 404
    (entry,) = await bench.ledger(f"zones/{FLEX_ZONE}/instances/{name}")
    assert Decimal(entry["billed_usd"]) == Decimal("644.40")


async def test_flex_start_that_finds_no_capacity_in_time_lapses_and_costs_nothing(bench: Bench) -> None:
    name, _ = named(7300, MOST_WAIT_S)
    operation = await bench.json("POST", f"{ROOT}/zones/{FLEX_ZONE}/instances", flex(name))
    await bench.advance(7201)
    assert await flex_status(bench, name) == 404
    look = await bench.json("GET", f"{ROOT}/zones/{FLEX_ZONE}/operations/{operation['name']}")
    assert look["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    (entry,) = await bench.ledger(f"zones/{FLEX_ZONE}/instances/{name}")
    assert Decimal(entry["billed_usd"]) == 0


async def test_a_flex_start_request_is_withdrawn_at_no_cost(bench: Bench) -> None:
    name, wait = named(3000, 6000)
    path = f"{ROOT}/zones/{FLEX_ZONE}/instances"
    await bench.json("POST", path, flex(name))
    await bench.json("DELETE", f"{path}/{name}")
    await bench.advance(wait + 3600)
    (entry,) = await bench.ledger(f"zones/{FLEX_ZONE}/instances/{name}")
    assert Decimal(entry["billed_usd"]) == 0


@pytest.mark.parametrize(("run_s", "valid_s", "field"), [(60, 90, "maxRunDuration"), (3600, 60, "Valid")])
async def test_flex_start_durations_have_bounds(bench: Bench, run_s: int, valid_s: int, field: str) -> None:
    body = flex("flex-x", run_s, valid_s)
    answer = await bench.call("POST", f"{ROOT}/zones/{FLEX_ZONE}/instances", body)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]

"""google-api-python-client and google-auth as independent clients of the sandbox's Google Cloud.

The client builds its calls from Google's own discovery documents, which it carries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import httplib2
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth import credentials as google_credentials
from google.oauth2 import service_account
from google_auth_httplib2 import AuthorizedHttp, Request
from googleapiclient import discovery
from googleapiclient.errors import HttpError

from providers.sandbox.server import SandboxHandle

PROJECT, ZONE = "research", "us-central1-b"
CALENDAR_TYPE = "a4-highgpu-8g"


SANDBOX_SEED = 7


def service_account_info(token_uri: str) -> dict[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "k1",
        "private_key": pem,
        "client_email": f"broker@{PROJECT}.iam.gserviceaccount.com",
        "token_uri": token_uri,
    }


def signed_in(sandbox: SandboxHandle) -> google_credentials.Credentials:
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    info = service_account_info(f"{sandbox.url}/gcp/token")
    made = service_account.Credentials.from_service_account_info(info, scopes=scopes)  # type: ignore[no-untyped-call]
    assert isinstance(made, google_credentials.Credentials)
    return made


@pytest.fixture(scope="module")
def build(sandbox: SandboxHandle) -> Iterator[Callable[[str], Any]]:
    plain = httplib2.Http(proxy_info=None)
    http = AuthorizedHttp(signed_in(sandbox), http=plain)
    made = []

    def make(name: str) -> Any:
        path = "/compute/v1/" if name == "compute" else "/"
        client = discovery.build(
            name,
            "v1",
            http=http,
            static_discovery=True,
            client_options={"api_endpoint": f"{sandbox.url}/gcp{path}"},
        )
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
    plain.close()


@pytest.fixture(scope="module")
def compute(build: Callable[[str], Any]) -> Any:
    return build("compute")


def control(sandbox: SandboxHandle, path: str, **body: Any) -> Any:
    with httpx.Client(base_url=sandbox.url, trust_env=False) as client:
        answer = client.post(path, json=body) if body else client.get(path)
    assert answer.is_success, answer.text
    return answer.json()


def done(compute: Any, operation: dict[str, Any]) -> dict[str, Any]:
    zone = operation["zone"].rpartition("/")[2]
    while operation["status"] != "DONE":
        operation = (
            compute.zoneOperations().get(project=PROJECT, zone=zone, operation=operation["name"]).execute()
        )
    return operation


def days_ahead(sandbox: SandboxHandle, days: int) -> str:
    now = datetime.fromisoformat(control(sandbox, "/_sandbox/clock")["now"])
    return (now.replace(hour=0, minute=0, second=0) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_google_auth_gets_a_token_for_its_assertion(sandbox: SandboxHandle) -> None:
    account = signed_in(sandbox)
    http = httplib2.Http(proxy_info=None)
    account.refresh(Request(http))  # type: ignore[no-untyped-call]
    http.close()
    assert str(account.token).startswith("ya29.")
    assert account.valid


def test_the_price_list_is_read_page_by_page(build: Callable[[str], Any]) -> None:
    skus = build("cloudbilling").services().skus()
    request = skus.list(parent="services/6F81-5844-456A", pageSize=50, currencyCode="USD")
    rows, pages = [], 0
    while request is not None:
        answer = request.execute()
        rows += answer["skus"]
        pages += 1
        request = skus.list_next(request, answer)
    assert pages > 3
    assert len({row["skuId"] for row in rows}) == len(rows)
    slice_ = next(row for row in rows if row["description"].startswith("A4 Nvidia B200 (1 gpu slice)"))
    price = slice_["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]
    assert (price["units"], price["nanos"]) == ("16", 110_000_000)


def test_machine_types_name_their_accelerators(compute: Any) -> None:
    request = compute.machineTypes().aggregatedList(project=PROJECT, filter='name eq "a3-.*"', maxResults=20)
    found: dict[str, list[dict[str, Any]]] = {}
    while request is not None:
        answer = request.execute()
        for scope, content in answer["items"].items():
            found.setdefault(scope, []).extend(content["machineTypes"])
        request = compute.machineTypes().aggregatedList_next(request, answer)
    (row,) = [row for row in found["zones/us-east4-a"] if row["name"] == "a3-highgpu-8g"]
    assert (row["guestCpus"], row["memoryMb"]) == (208, 1872 * 1024)
    assert row["accelerators"] == [{"guestAcceleratorType": "nvidia-h100-80gb", "guestAcceleratorCount": 8}]
    assert all(row["name"].startswith("a3-") for rows in found.values() for row in rows)


def test_advice_then_a_future_reservation_then_its_end(sandbox: SandboxHandle, compute: Any) -> None:
    spec = {
        "deploymentType": "DENSE",
        "targetResources": {"specificSkuResources": {"machineType": CALENDAR_TYPE, "instanceCount": "4"}},
        "timeRangeSpec": {
            "startTimeNotEarlierThan": days_ahead(sandbox, 5),
            "startTimeNotLaterThan": days_ahead(sandbox, 50),
            "minDuration": "172800s",
            "maxDuration": "604800s",
        },
    }
    asked = {"futureResourcesSpecs": {"spec": spec}}
    advice = compute.advice().calendarMode(project=PROJECT, region="us-central1", body=asked).execute()
    best = advice["recommendations"][0]["recommendationsPerSpec"]["spec"]
    assert (best["location"], best["recommendationType"]) == (f"zones/{ZONE}", "FUTURE_RESERVATION")

    futures = compute.futureReservations()
    body = {
        "name": "train-w1",
        "description": "broker-client-w1",
        "planningStatus": "SUBMITTED",
        "reservationMode": "CALENDAR",
        "deploymentType": "DENSE",
        "reservationName": "train-w1",
        "specificSkuProperties": {
            "totalCount": "4",
            "instanceProperties": {"machineType": CALENDAR_TYPE},
        },
        "timeWindow": {"startTime": best["startTime"], "endTime": best["endTime"]},
    }
    place = {"project": PROJECT, "zone": ZONE}
    once = {**place, "requestId": "3e0c9f8e-7b67-4b9e-8f16-4d0f3a9b0a11", "body": body}
    first = futures.insert(**once).execute()
    assert futures.insert(**once).execute()["name"] == first["name"]
    assert "error" not in done(compute, first)
    with pytest.raises(HttpError) as refused:
        futures.insert(**place, body=body).execute()
    assert refused.value.resp.status == 409

    row = futures.get(**place, futureReservation="train-w1").execute()
    assert row["status"]["procurementStatus"] == "PENDING_APPROVAL"
    assert row["specificSkuProperties"]["totalCount"] == "4"
    control(sandbox, "/_sandbox/clock", advance_s=10)
    scopes = futures.aggregatedList(project=PROJECT).execute()["items"]
    (listed,) = scopes[f"zones/{ZONE}"]["futureReservations"]
    assert (listed["name"], listed["status"]["procurementStatus"]) == ("train-w1", "APPROVED")

    with pytest.raises(HttpError) as refused:
        futures.delete(**place, futureReservation="train-w1").execute()
    assert refused.value.resp.status == 400
    done(compute, futures.cancel(**place, futureReservation="train-w1").execute())
    assert (
        futures.get(**place, futureReservation="train-w1").execute()["status"]["procurementStatus"]
        == "CANCELLED"
    )
    done(compute, futures.delete(**place, futureReservation="train-w1").execute())
    assert not futures.aggregatedList(project=PROJECT).execute().get("items")
    (entry,) = [
        row for row in control(sandbox, "/_sandbox/ledger")["instances"] if row["tag"] == "broker-client-w1"
    ]
    assert (entry["nodes"], entry["billed_usd"]) == (4, "0.000000")


def test_a_reservation_is_made_seen_and_deleted(sandbox: SandboxHandle, compute: Any) -> None:
    place = {"project": PROJECT, "zone": "asia-east1-c"}
    body = {
        "name": "now-1",
        "specificReservationRequired": True,
        "specificReservation": {"count": "2", "instanceProperties": {"machineType": "a3-highgpu-1g"}},
    }
    assert "error" not in done(compute, compute.reservations().insert(**place, body=body).execute())
    control(sandbox, "/_sandbox/clock", advance_s=3600)
    row = compute.reservations().get(**place, reservation="now-1").execute()
    assert (row["status"], row["specificReservation"]["count"]) == ("READY", "2")
    done(compute, compute.reservations().delete(**place, reservation="now-1").execute())
    control(sandbox, "/_sandbox/clock", advance_s=10)
    with pytest.raises(HttpError) as refused:
        compute.reservations().get(**place, reservation="now-1").execute()
    assert refused.value.resp.status == 404
    (entry,) = [row for row in control(sandbox, "/_sandbox/ledger")["instances"] if row["tag"] == "now-1"]
    assert float(entry["billed_usd"]) == pytest.approx(2 * 12.71266, rel=0.02)


def test_a_flex_start_instance_waits_runs_and_is_deleted(sandbox: SandboxHandle, compute: Any) -> None:
    place = {"project": PROJECT, "zone": "us-east4-b"}
    body = {
        "name": "flex-client-0",
        "description": "flex-client-0",
        "machineType": "zones/us-east4-b/machineTypes/a4-highgpu-8g",
        "scheduling": {
            "provisioningModel": "FLEX_START",
            "maxRunDuration": {"seconds": "7200"},
            "instanceTerminationAction": "DELETE",
        },
        "params": {"requestValidForDuration": {"seconds": "7200"}},
        "disks": [{"boot": True, "initializeParams": {"sourceImage": "debian-12"}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }
    inserted = compute.instances().insert(**place, body=body).execute()
    assert inserted["operationType"] == "insert"
    row = compute.instances().get(**place, instance="flex-client-0").execute()
    assert (row["status"], row["scheduling"]["provisioningModel"]) == ("PENDING", "FLEX_START")
    control(sandbox, "/_sandbox/clock", advance_s=7200)
    assert "error" not in done(compute, inserted)
    row = compute.instances().get(**place, instance="flex-client-0").execute()
    assert row["status"] == "RUNNING"
    assert datetime.fromisoformat(row["lastStartTimestamp"]).tzinfo is not None
    done(compute, compute.instances().delete(**place, instance="flex-client-0").execute())


def test_a_stockout_is_an_operation_that_failed(sandbox: SandboxHandle, compute: Any) -> None:
    control(sandbox, "/_sandbox/market", provider="gcp", sku="a3-highgpu-8g", region="us-east4-a", stock=0)
    place = {"project": PROJECT, "zone": "us-east4-a"}
    body = {
        "name": "none-1",
        "specificReservation": {"count": "1", "instanceProperties": {"machineType": "a3-highgpu-8g"}},
    }
    failed = done(compute, compute.reservations().insert(**place, body=body).execute())
    assert failed["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"


def test_errors_carry_googles_reasons(sandbox: SandboxHandle, compute: Any) -> None:
    with pytest.raises(HttpError) as refused:
        compute.reservations().get(project=PROJECT, zone=ZONE, reservation="nobody").execute()
    (detail,) = json.loads(refused.value.content)["error"]["errors"]
    assert detail["reason"] == "notFound"
    control(sandbox, "/_sandbox/faults", provider="gcp", operation="get", kind="rate_limited", count=1)
    with pytest.raises(HttpError) as refused:
        compute.reservations().aggregatedList(project=PROJECT).execute()
    assert (refused.value.resp.status, refused.value.reason) == (403, "Rate Limit Exceeded")

"""Latitude's own SDK as an independent client of the sandbox: it sends and parses by its models."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from latitudesh_python_sdk import Latitudesh
from latitudesh_python_sdk.models import APIError

from providers.sandbox import SandboxHandle, start_in_background

PLAN, SITE = "g3-h100-small", "NYC"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SandboxHandle]:
    handle = start_in_background(0, 11)
    stock = {"provider": "latitude", "sku": PLAN, "region": SITE, "stock": 1}
    httpx.post(f"{handle.url}/_sandbox/market", json=stock).raise_for_status()
    yield handle
    handle.stop()


@pytest.fixture
def latitude(sandbox: SandboxHandle) -> Iterator[Any]:
    with Latitudesh(bearer="any-key", server_url=f"{sandbox.url}/latitude") as client:
        yield client


def wish(hostname: str) -> dict[str, Any]:
    attributes = {
        "project": "broker",
        "plan": PLAN,
        "site": SITE,
        "operating_system": "ubuntu_24_04_x64_lts",
        "hostname": hostname,
        "billing": "hourly",
    }
    return {"type": "servers", "attributes": attributes}


def hostnames(latitude: Any) -> list[str]:
    found: list[str] = []
    page = latitude.servers.list(page_size=1)
    while page is not None:
        found += [row.attributes.hostname for row in page.result.data]
        page = page.next()
    return found


def test_plans_are_read(latitude: Any) -> None:
    plans = {row.attributes.slug: row.attributes for row in latitude.plans.list(filter_gpu=True).data}
    gpu = plans["g4-b300-large"].specs.gpu
    assert (gpu.count, gpu.vram_per_gpu, gpu.interconnect) == (8, 288, "800Gbps Dual Plane RoCE")
    usa = plans[PLAN].regions[0]
    assert (usa.pricing["USD"].hour, usa.pricing["USD"].month) == (3.37, 1230)
    assert usa.locations.in_stock_count[SITE] == 1


def test_a_server_is_made_listed_and_deleted(sandbox: SandboxHandle, latitude: Any) -> None:
    made = latitude.servers.create(data=wish("broker-sdk")).data
    assert made.attributes.status == "starting_deploy"
    with pytest.raises(APIError, match="SERVERS_OUT_OF_STOCK") as refused:
        latitude.servers.create(data=wish("broker-sdk-2"))
    assert refused.value.status_code == 422
    assert hostnames(latitude) == ["broker-sdk"]
    httpx.post(f"{sandbox.url}/_sandbox/clock", json={"advance_s": 60}).raise_for_status()
    assert latitude.servers.get(server_id=made.id).data.attributes.status == "on"
    latitude.servers.delete(server_id=made.id)
    assert hostnames(latitude) == []
    with pytest.raises(APIError, match="not_found"):
        latitude.servers.delete(server_id=made.id)
    (row,) = [
        row
        for row in httpx.get(f"{sandbox.url}/_sandbox/ledger").json()["instances"]
        if row["instance_id"] == made.id
    ]
    assert (row["tag"], row["released_at"] is not None) == ("broker-sdk", True)

"""pydo, DigitalOcean's own Python client, as an independent client of the sandbox.

It refuses a bearer token without TLS, hence ``enforce_https=False`` in every call.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pydo
import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from providers.sandbox import SandboxHandle

SKU = "gpu-mi325x1-256gb"
PLAIN = {"enforce_https": False}


@pytest.fixture
def client(sandbox: SandboxHandle) -> Iterator[Any]:
    made = pydo.Client("token", endpoint=f"{sandbox.url}/digitalocean", retry_total=0)
    with made:
        yield made


def advance(sandbox: SandboxHandle, seconds: float) -> None:
    httpx.post(f"{sandbox.url}/_sandbox/clock", json={"advance_s": seconds}).raise_for_status()


def test_sizes_are_read_page_by_page(client: Any) -> None:
    rows: list[Any] = []
    while True:
        page = client.sizes.list(per_page=7, page=1 + len(rows) // 7, **PLAIN)
        rows += page["sizes"]
        if "next" not in page["links"].get("pages", {}):
            break
    sizes = {row["slug"]: row for row in rows}
    assert sizes[SKU]["gpu_info"]["vram"]["amount"] == 256
    assert len(sizes) == page["meta"]["total"]


def test_a_gpu_droplet_is_made_listed_and_destroyed(client: Any, sandbox: SandboxHandle) -> None:
    region = next(s for s in client.sizes.list(per_page=200, **PLAIN)["sizes"] if s["slug"] == SKU)[
        "regions"
    ][0]
    body = {"name": "by-pydo", "region": region, "size": SKU, "image": "gpu-amd-base", "tags": ["pydo"]}
    made = client.droplets.create(body=body, **PLAIN)
    droplet_id = made["droplet"]["id"]
    with pytest.raises(HttpResponseError, match="pending event"):
        client.droplets.destroy(droplet_id, **PLAIN)
    advance(sandbox, 60)
    assert client.droplets.get(droplet_id, **PLAIN)["droplet"]["status"] == "active"
    listed = client.droplets.list(type="gpus", **PLAIN)["droplets"]
    assert [row["id"] for row in listed] == [droplet_id]
    assert client.droplets.list(**PLAIN)["droplets"] == []
    client.droplets.destroy(droplet_id, **PLAIN)
    assert client.droplets.list(type="gpus", **PLAIN)["droplets"] == []


def test_errors_arrive_as_the_client_knows_them(client: Any, sandbox: SandboxHandle) -> None:
    body = {"name": "n", "region": "tor1", "size": "gpu-b300x8-2304gb-spot", "image": "gpu-h100x8-base"}
    with pytest.raises(HttpResponseError, match="not available in this region"):
        client.droplets.create(body=body, **PLAIN)
    assert client.droplets.get(1, **PLAIN)["id"] == "not_found"
    stranger = pydo.Client("", endpoint=f"{sandbox.url}/digitalocean", retry_total=0)
    with stranger, pytest.raises(ClientAuthenticationError, match="Unable to authenticate you"):
        stranger.sizes.list(**PLAIN)

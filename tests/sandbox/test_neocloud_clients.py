"""Own Python clients of Verda, RunPod, Vast.ai, Hyperstack, Prime Intellect and Vultr, against the sandbox.

Lambda has none: the one here was made from its OpenAPI file.

Each runs in the environment ``clients`` (``tests/peers_env.py``; its pins exclude ours), with its own models
and errors: ``tests/peers/use_client.py``. RunPod's speaks
GraphQL, of which only prices are read here; of Prime's command line, the API classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from providers.sandbox import SandboxHandle, start_in_background
from tests.peers_env import run

TAG = "broker-by-client"

pytestmark = [pytest.mark.xdist_group("peers"), pytest.mark.timeout(420)]


@pytest.fixture
def sandbox() -> Iterator[SandboxHandle]:
    handle = start_in_background(0, 11)
    yield handle
    handle.stop()


@pytest.fixture
def use(sandbox: SandboxHandle, tmp_path: Path) -> Any:
    def by_client(client: str, provider: str) -> Any:
        where = (f"{sandbox.url}/{provider}", sandbox.url)
        return run("clients", "use_client.py", client, *where, environ={"HOME": str(tmp_path)})

    return by_client


def billed(sandbox: SandboxHandle, provider: str) -> list[dict[str, Any]]:
    rows = httpx.get(f"{sandbox.url}/_sandbox/ledger").json()["instances"]
    return [row for row in rows if row["provider"] == provider]


def test_verda(use: Any, sandbox: SandboxHandle) -> None:
    found = use("verda", "verda")
    assert found["types"]["1H100.80S.32V"] == [2.29, 0.8015]
    assert all(spot > 0 for usual, spot in found["types"].values() if usual)
    (row,) = billed(sandbox, "verda")
    assert found["ordered"] == [row["instance_id"], row["sku"], TAG, row["region"]]
    assert found["statuses"] == ["ordered", "running"]
    assert found["hardware"] == [1, 80]
    assert [name for name, _ in found["stored"]] == ["laptop", "setup"]
    assert found["named"] == [True, True]
    assert (found["address"][0], found["address"][1][:4]) == (None, "127.")
    assert found["kept"] == 0
    early, again = found["refusals"]
    assert "Can't discontinue a provisioning instance" in early
    assert "Can't discontinue a discontinued instance" in again
    assert found["left"] == []
    assert row["released_at"]


def test_runpod(use: Any) -> None:
    found = use("runpod", "runpod")
    assert found["gpus"] >= 10
    assert (found["detail"]["securePrice"], found["detail"]["memoryInGb"]) == (0.99, 48)
    assert found["detail"]["lowestPrice"]["uninterruptablePrice"] == 0.79
    (stranger,) = found["refusals"]
    assert stranger.startswith("AuthenticationError")


def test_vast(use: Any, sandbox: SandboxHandle) -> None:
    found = use("vast", "vast")
    assert {(name, count >= 2) for name, count, _ in found["offers"]} == {("H100 SXM", True)}
    prices = [price for _, _, price in found["offers"]]
    assert prices == sorted(prices)
    rows = billed(sandbox, "vast")
    assert len(rows) > 25, "more than a page of instances"
    assert sorted(found["made"]) == sorted(int(row["instance_id"]) for row in rows)
    assert [row[0] for row in found["mine"]] == sorted(found["made"])
    assert {row[2] for row in found["mine"]} == {"running"}
    assert found["seen"][:2] == [found["made"][0], TAG]
    assert ["410" in found["refusals"][0], "404" in found["refusals"][1]] == [True, True]
    assert found["left"] == []
    assert all(row["released_at"] for row in rows)


def test_hyperstack(use: Any, sandbox: SandboxHandle) -> None:
    found = use("hyperstack", "hyperstack")
    assert found["prices"]["H100-80G-SXM5"] == 2.4
    assert "H100-80G-SXM5" in found["models"]
    (row,) = billed(sandbox, "hyperstack")
    assert found["flavor"][0] == row["sku"]
    assert found["ordered"] == [int(row["instance_id"]), TAG]
    assert found["statuses"] == ["CREATING", "ACTIVE"]
    assert found["labels"] == [TAG]
    assert found["listed"] == [1, [int(row["instance_id"])]]
    assert [text.partition(":")[0] for text in found["refusals"]] == ["NotFoundException"] * 2
    assert found["left"] == 0
    assert row["released_at"]


def test_prime_intellect(use: Any, sandbox: SandboxHandle) -> None:
    found = use("prime", "prime_intellect")
    assert found["offers"] > 100, "more than a page of offers"
    assert found["fabrics"] == ["Infiniband", "RoCE"]
    gpu, count, price = found["row"]
    (row,) = billed(sandbox, "prime_intellect")
    assert found["ordered"] == [row["instance_id"], TAG, gpu, count, price]
    assert found["statuses"] == ["PROVISIONING", "ACTIVE"]
    assert found["listed"] == [1, [row["instance_id"]]]
    gone, unknown = found["refusals"]
    assert "HTTP 404" in gone
    assert "HTTP 422" in unknown
    assert found["left"] == 0
    assert row["released_at"]


def test_lambda(use: Any, sandbox: SandboxHandle) -> None:
    found = use("lambda", "lambda")
    assert found["types"]["gpu_1x_a10"] == [129, 1, "1x A10 (24 GB PCIe)"]
    (row,) = billed(sandbox, "lambda")
    assert found["ordered"] == [row["instance_id"], row["sku"], row["region"]]
    assert found["first"] == [row["instance_id"], TAG, "booting"]
    assert found["listed"] == [[row["instance_id"], "active", row["region"], row["sku"]]]
    assert found["terminated"] == [row["instance_id"]]
    assert found["refusals"] == ["global/invalid-parameters"]
    assert found["left"] == []
    assert row["released_at"]


def test_vultr(use: Any, sandbox: SandboxHandle) -> None:
    found = use("vultr", "vultr")
    (row,) = billed(sandbox, "vultr")
    assert found["plans"][row["sku"]] > 0
    assert found["ordered"] == [row["instance_id"], row["sku"], row["region"]]
    assert found["codes"] == [202, 204]
    assert found["listed"] == [[row["instance_id"], TAG, "pending"]]
    assert found["seen"] == [TAG, "active"]
    assert [name for name, _ in found["stored"]] == ["laptop"]
    assert found["address"][0] == "0.0.0.0"
    assert found["address"][1] == found["address"][2] != "0.0.0.0"
    assert found["kept"] == 0
    assert [text.partition("\n")[0] for text in found["refusals"]] == [
        "ApiException: (404)",
        "ApiException: (400)",
    ]
    assert found["left"] == 0
    assert row["released_at"]

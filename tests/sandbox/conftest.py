from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from providers.sandbox import Sandbox, SandboxHandle, create_sandbox

START = datetime(2026, 11, 23, 9, 0, tzinfo=UTC)
SIGNED = (
    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261123/{region}/ec2/aws4_request, "
    "SignedHeaders=content-type;host;x-amz-date, Signature=" + "0" * 64
)


class Bench:
    """A sandbox in memory, and a client of it."""

    def __init__(self, app: Sandbox, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return await self.client.request(method, path, json=body, **more)

    async def json(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = await self.call(method, path, body, **more)
        assert answer.is_success, answer.text
        return answer.json()

    async def advance(self, seconds: float) -> None:
        await self.json("POST", "/_sandbox/clock", {"advance_s": seconds})

    async def ledger(self, instance_id: str | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await self.json("GET", "/_sandbox/ledger"))["instances"]
        return [row for row in rows if instance_id in {None, row["instance_id"]}]

    async def stock(self, provider: str, sku: str, stock: int, region: str | None = None) -> None:
        body: dict[str, Any] = {"provider": provider, "sku": sku, "stock": stock}
        await self.json("POST", "/_sandbox/market", body | ({"region": region} if region else {}))

    async def ec2(self, action: str, region: str = "us-east-1", **params: str) -> httpx.Response:
        data = {"Action": action, "Version": "2016-11-15", **params}
        headers = {"Authorization": SIGNED.format(region=region)}
        return await self.client.post("/aws/", data=data, headers=headers)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    app = create_sandbox(7, clock_start=START)
    headers = {"Authorization": "Bearer any-key"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://sandbox", headers=headers) as client:
        yield Bench(app, client)
    app.close()


@pytest.fixture(scope="module")
def sandbox(sandbox_market: SandboxHandle) -> SandboxHandle:
    """One over real sockets, for all tests of a module."""
    return sandbox_market

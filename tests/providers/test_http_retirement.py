"""What a seller says of endpoints that are to go, or went, is in the log, once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import respx
from structlog.testing import capture_logs

from broker.domain.basics.errors import LeaseNotFound, OrderRejected
from providers.http import Operation, ProviderHttp, classify_by_status

BASE = "http://provider.test"
EVENT = "provider_endpoint_retires"


@pytest.fixture
async def client() -> AsyncIterator[ProviderHttp]:
    built = ProviderHttp("somebody", BASE, classify_by_status, secrets=("hush-hush",))
    yield built
    await built.aclose()


@respx.mock
async def test_an_endpoint_that_is_to_go_is_told_once(client: ProviderHttp) -> None:
    headers = {
        "Deprecation": "@1767225600",
        "Sunset": "Thu, 31 Dec 2026 23:59:59 GMT",
        "Link": "</v2>; rel=x",
    }
    respx.get(f"{BASE}/v1/hush-hush/leases").mock(return_value=httpx.Response(200, headers=headers))
    with capture_logs() as logs:
        for _ in range(3):
            await client.request("GET", "/v1/hush-hush/leases", operation=Operation.LEASES)
    (told,) = [entry for entry in logs if entry["event"] == EVENT]
    assert (told["log_level"], told["provider"], told["status"]) == ("warning", "somebody", 200)
    assert told["endpoint"] == "GET /v1/***/leases"
    assert (told["deprecation"], told["sunset"]) == (headers["Deprecation"], headers["Sunset"])
    assert told["link"] == headers["Link"]


@respx.mock
async def test_an_endpoint_that_is_gone_is_told_and_an_offer_that_is_gone_is_not(
    client: ProviderHttp,
) -> None:
    respx.get(f"{BASE}/leases").mock(return_value=httpx.Response(410))
    respx.put(f"{BASE}/asks/1").mock(return_value=httpx.Response(410))
    with capture_logs() as logs:
        with pytest.raises(OrderRejected):
            await client.request("PUT", "/asks/1", operation=Operation.ORDER)
        with pytest.raises(LeaseNotFound) as caught:
            await client.request("GET", "/leases", operation=Operation.LEASES)
    assert [entry["endpoint"] for entry in logs if entry["event"] == EVENT] == ["GET /leases"]
    assert (caught.value.endpoint, caught.value.status) == ("GET /leases", 410)

"""Lists of leases are read to their end, whatever a page leaves unsaid."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import respx

from broker.domain.basics.errors import LeasesUnreadable
from providers.registry import SPECS
from providers.spec import ProviderAdapter
from tests.contract.exchanges import BASE_URL, build


def seller(name: str) -> ProviderAdapter:
    adapter = build(SPECS[name])
    assert isinstance(adapter, ProviderAdapter)
    return adapter


def contract(number: int) -> dict[str, Any]:
    shape = {"intervals": ["2026-12-01T00:00:00Z", "2026-12-02T00:00:00Z"], "quantities": [1]}
    return {
        "object": "contract",
        "id": f"cont_{number}",
        "status": "active",
        "instance_type": "h100i",
        "created_at": "2026-11-21T12:00:01Z",
        "shape": shape,
    }


@respx.mock
async def test_contracts_that_no_order_explains_may_lie_on_a_second_page() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        start = int(request.url.params.get("offset", 0))
        rows = [contract(number) for number in range(30)][start:][:20]
        return httpx.Response(200, json={"object": "list", "data": rows, "has_more": start + 20 < 30})

    respx.get(f"{BASE_URL}/v0/orders").mock(
        return_value=httpx.Response(200, json={"object": "list", "data": [], "has_more": False})
    )
    respx.get(url__startswith=f"{BASE_URL}/v0/contracts").mock(side_effect=answer)
    adapter = seller("sfcompute")
    shown = [lease.reference for lease in await adapter.list_leases()]
    assert shown == [f"cont_{number}" for number in range(30)]
    await adapter.aclose()


@respx.mock
async def test_contracts_without_an_end_are_no_list() -> None:
    page = {"object": "list", "data": [contract(1)], "has_more": True}
    respx.get(f"{BASE_URL}/v0/orders").mock(
        return_value=httpx.Response(200, json={"object": "list", "data": [], "has_more": False})
    )
    respx.get(url__startswith=f"{BASE_URL}/v0/contracts").mock(return_value=httpx.Response(200, json=page))
    adapter = seller("sfcompute")
    with pytest.raises(LeasesUnreadable, match="a list of more than 100 rows"):
        await adapter.list_leases()
    await adapter.aclose()


@respx.mock
@pytest.mark.parametrize("total", [{}, {"total_count": 130}])
async def test_pods_are_listed_to_the_end_with_a_total_and_without(total: dict[str, int]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        start, size = (int(request.url.params[name]) for name in ("offset", "limit"))
        pods = [{"id": f"p-{number}", "name": "x", "status": "ACTIVE"} for number in range(130)]
        return httpx.Response(200, json={"data": pods[start : start + size], **total})

    respx.get(url__startswith=f"{BASE_URL}/api/v1/pods/").mock(side_effect=answer)
    adapter = seller("prime_intellect")
    assert len({lease.reference for lease in await adapter.list_leases()}) == 130
    await adapter.aclose()

"""OCI's lists: pages are followed to the end, and no further than there can be any."""

from itertools import count
from typing import Any

import httpx
import pytest
import respx

from broker.domain.basics.errors import LeasesUnreadable
from providers.oci import SPEC
from providers.spec import ProviderAdapter
from tests.contract.exchanges import BASE_URL, build

MOST_PAGES = 50


@pytest.fixture
async def oci() -> Any:
    adapter = build(SPEC)
    assert isinstance(adapter, ProviderAdapter)
    yield adapter
    await adapter.aclose()


def serve(router: respx.MockRouter, tokens: Any) -> Any:
    """One region, whose reservations go on with the next of ``tokens`` as long as there is one."""
    region = [{"regionName": "eu-frankfurt-1", "status": "READY"}]
    router.get(url__regex=f"{BASE_URL}.*/regionSubscriptions.*").respond(json=region)

    def page(_: httpx.Request) -> httpx.Response:
        token = next(tokens, None)
        row = {"id": f"ocid1.{token}", "displayName": "a", "lifecycleState": "ACTIVE"}
        return httpx.Response(200, json=[row], headers={"opc-next-page": token} if token else {})

    return router.get(url__regex=f"{BASE_URL}.*/computeCapacityReservations.*").mock(side_effect=page)


async def test_pages_that_never_end_are_given_up(oci: ProviderAdapter) -> None:
    with respx.mock(assert_all_called=False) as router:
        route = serve(router, (f"page-{number}" for number in count()))
        with pytest.raises(LeasesUnreadable, match=f"does not end within {MOST_PAGES} pages"):
            await oci.list_leases()
    assert route.call_count == MOST_PAGES


async def test_a_circle_of_several_pages_is_seen_at_once(oci: ProviderAdapter) -> None:
    with respx.mock(assert_all_called=False) as router:
        route = serve(router, iter(("a", "b", "c", "a", "b")))
        with pytest.raises(LeasesUnreadable, match="repeats a page"):
            await oci.list_leases()
    assert route.call_count == 4


async def test_a_list_may_have_as_many_pages(oci: ProviderAdapter) -> None:
    with respx.mock(assert_all_called=False) as router:
        serve(router, (f"page-{number}" for number in range(MOST_PAGES - 1)))
        assert len(await oci.list_leases()) == MOST_PAGES

"""Keys that the broker registers at a seller: when nothing is ordered for them, and which ones it removes."""

from __future__ import annotations

import httpx
import pytest
import respx

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.machines import PublicKey
from broker.domain.holding.reservation import Order
from providers.registry import SPECS
from providers.shadeform import Shadeform
from providers.spec import settings_from_environment
from tests.fakes.market_control import hasty, ledger, market_now
from tests.fakes.provider import keeping

KEYS = tuple(
    PublicKey(
        f"key-{n}", f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICApaeQoxoir3DDcvTFSsiNd0+6fKaZrTd1Hgr8r9n3{n}"
    )
    for n in "ABC"
)


def shadeform(sandbox: str) -> Shadeform:
    settings = settings_from_environment(SPECS["shadeform"], {}, sandbox)
    assert settings is not None
    return Shadeform(settings, hasty)


async def ordered(adapter: Shadeform, sandbox: str, tag: str, *keys: PublicKey) -> Order:
    offers = (await adapter.list_offers(market_now(sandbox))).offers
    return Order(tag, offers[0], 1, keys=keys)


async def test_nothing_is_ordered_where_a_key_cannot_be_registered(sandbox: str) -> None:
    adapter = shadeform(sandbox)
    order = await ordered(adapter, sandbox, "broker-keyless-0", KEYS[0])
    with respx.mock(assert_all_called=False) as router:
        router.get(f"{sandbox}/shadeform/v1/sshkeys").mock(return_value=httpx.Response(503))
        router.route(host="127.0.0.1").pass_through()
        with pytest.raises(
            OrderRejected, match="nothing was ordered, its public SSH keys could not be registered"
        ):
            await adapter.reserve(order)
    assert ledger(sandbox, order.tag) == []
    await adapter.aclose()


async def test_only_keys_of_the_broker_that_no_machine_has_are_removed(sandbox: str) -> None:
    adapter = shadeform(sandbox)
    headers = {"X-API-KEY": "sandbox"}
    with httpx.Client(base_url=f"{sandbox}/shadeform/v1", headers=headers, trust_env=False) as somebody:
        somebody.post("/sshkeys/add", json={"name": "by hand", "public_key": f"{KEYS[2].line} me@home"})
    leases = [
        await adapter.reserve(await ordered(adapter, sandbox, f"broker-keyed-{number}", key))
        for number, key in enumerate(KEYS[:2])
    ]
    await adapter.release(leases[0])
    await adapter.drop_keys(keeping(KEYS[0].line))
    await adapter.drop_keys(keeping())
    assert {key.line for key in await adapter.account_keys()} == {KEYS[1].line, KEYS[2].line}
    await adapter.release(leases[1])
    await adapter.drop_keys(keeping())
    assert [key.name for key in await adapter.account_keys()] == ["by hand"]
    await adapter.aclose()

"""The network of a seller's machines, over every adapter that makes one, against the sandbox market."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import respx

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    OrderRejected,
    ProviderError,
    ProviderUnavailable,
)
from broker.domain.holding.reservation import Lease
from broker.domain.holding.seller_network import PORTS, NetworkRules
from broker.domain.market.offer import Offer
from broker.provider_facts import load_provider_facts
from providers.client import Entry
from providers.gcp.auth import TokenSource
from providers.gcp.compute import Compute, classify
from providers.http import HttpPolicy, Operation, ProviderHttp
from providers.network_setup import NetworkSetup
from providers.registry import SPECS
from providers.spec import settings_from_environment
from tests.contract.journey import HOST, KEYS, REGION_OF_AZURE, START, Market, order_of
from tests.fakes.market_control import hasty

NAMES = sorted(name for name, spec in SPECS.items() if issubclass(spec.adapter, NetworkSetup))
OFFICE, HOME = NetworkRules(("203.0.113.0/24",)), NetworkRules(("198.51.100.7/32", "203.0.113.0/24"))
NOWHERE = {
    "aws": {"security_group": "sg-0123456789abcdef0"},
    "azure": {
        "subnet": "/subscriptions/sandbox/resourceGroups/broker/providers/Microsoft.Network/x/subnets/y"
    },
    "gcp": {"network": "global/networks/elsewhere"},
}
"""A network that is not there, as an order would name it."""


def test_every_seller_whose_orders_depend_on_a_network_is_here() -> None:
    assert sorted(NOWHERE) == NAMES
    assert all(load_provider_facts(name).address is not None for name in NAMES)


class Account:
    """One account of a seller at the sandbox."""

    def __init__(self, name: str, adapter: Any, market: Market) -> None:
        self.name, self.adapter, self.market = name, adapter, market
        self.regions = adapter.network_regions() or (REGION_OF_AZURE,)

    def writes(self) -> int:
        """How many calls changed something so far."""
        return sum(
            request.method != "GET" and b"Action=Describe" not in request.content
            for request, _ in self.market.heard
            if "token" not in request.url.path
        )

    async def machine_offers(self) -> list[Offer]:
        """Offers of machines that join the network."""
        offers = (await self.adapter.list_offers(START)).offers
        return [
            offer
            for offer in offers
            if self.adapter.entry_of(offer) is Entry.KEYS
            and offer.window is None
            and offer.region in (self.regions if self.regions != ("",) else {offer.region})
        ]

    async def buy(self, network: dict[str, str]) -> Lease:
        """A machine in ``network``, of the first offer that is in stock."""
        for number, offer in enumerate(await self.machine_offers()):
            order = replace(order_of(f"broker-{self.name}-{number}", offer), keys=KEYS, network=network)
            try:
                lease: Lease = await self.adapter.reserve(order)
            except InsufficientCapacity:
                continue
            return lease
        raise AssertionError("nothing is in stock")


@asynccontextmanager
async def account(name: str) -> AsyncIterator[Account]:
    market = Market()
    settings = settings_from_environment(SPECS[name], {}, HOST)
    assert settings is not None
    adapter = SPECS[name].build(settings, hasty)
    try:
        with respx.mock(assert_all_called=False) as router:
            router.route(host="127.0.0.1").mock(side_effect=market.answer)
            yield Account(name, adapter, market)
    finally:
        await adapter.aclose()
        market.close()


@pytest.mark.parametrize("name", NAMES)
async def test_a_plan_changes_nothing_and_says_what_is_missing(name: str) -> None:
    async with account(name) as one:
        plan = await one.adapter.plan_network(OFFICE, one.regions)
        assert one.writes() == 0
        assert plan.missing
        assert not any(part.made for part in plan.parts)
        assert {part.region for part in plan.parts} == set(one.regions)
        assert any("203.0.113.0/24" in part.says and "22 and 8000" in part.says for part in plan.parts)
        assert plan.address_usd_per_node_hour > 0
        assert plan.source.startswith("https://")


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_made_is_found_again_and_made_once(name: str) -> None:
    async with account(name) as one:
        made = await one.adapter.make_network(OFFICE, one.regions)
        assert not made.missing
        before = one.writes()
        again = await one.adapter.make_network(OFFICE, one.regions)
        assert one.writes() == before
        assert [(part.kind, part.reference, part.made) for part in again.parts] == [
            (part.kind, part.reference, False) for part in made.parts
        ]
        assert not (await one.adapter.plan_network(OFFICE, one.regions)).missing


@pytest.mark.parametrize("name", NAMES)
async def test_other_sources_change_who_is_let_in(name: str) -> None:
    async with account(name) as one:
        await one.adapter.make_network(HOME, one.regions)
        narrower = await one.adapter.plan_network(OFFICE, one.regions)
        assert narrower.missing, "a source too many is not as wanted"
        await one.adapter.make_network(OFFICE, one.regions)
        assert not (await one.adapter.plan_network(OFFICE, one.regions)).missing
        assert (await one.adapter.plan_network(HOME, one.regions)).missing
        fewer = NetworkRules(OFFICE.sources, PORTS[:1])
        assert (await one.adapter.plan_network(fewer, one.regions)).missing, "a port too many is not either"


@pytest.mark.parametrize("name", NAMES)
async def test_orders_name_the_network_that_was_made_and_are_refused_without_it(name: str) -> None:
    async with account(name) as one:
        with pytest.raises(OrderRejected):
            await one.buy(NOWHERE[name])
        made = await one.adapter.make_network(OFFICE, one.regions)
        ids = {part.kind: part.reference for part in made.parts if part.region == one.regions[0]}
        one.regions = one.regions[:1]
        lease = await one.buy(ids)
        assert lease.tag
        named = [value for kind, value in ids.items() if kind in NOWHERE[name]]
        sent = [request.content.decode() for request, _ in one.market.heard if request.method != "GET"]
        assert any(str(value) in text for value in named for text in sent[-2:])


@pytest.mark.parametrize("name", NAMES)
async def test_the_price_of_a_machine_contains_its_address(name: str) -> None:
    address = load_provider_facts(name).address
    assert address is not None
    async with account(name) as one:
        offer = next(offer for offer in await one.machine_offers() if offer.native.currency == "USD")
        usd = address.spot_per_hour or address.per_hour
        disk = offer.disk
        default = 0 if disk is None else disk.usd_per_gb_hour * round(disk.default_gb * 10**6) / 10**6
        assert offer.price_usd_per_node_hour == (offer.native.amount + usd + default).quantize(
            offer.price_usd_per_node_hour
        )


async def test_a_default_vpc_that_is_gone_is_made_again() -> None:
    async with account("aws") as one:
        region = one.regions[0]
        await one.adapter.make_network(OFFICE, [region])
        plan = await one.adapter.plan_network(OFFICE, [region])
        (vpc,) = [part.reference for part in plan.parts if part.kind == "vpc"]
        await one.adapter.ec2.call(region, "DeleteVpc", {"VpcId": vpc}, Operation.ORDER, repeatable=False)
        with pytest.raises(OrderRejected, match="No default VPC"):
            await one.buy({})
        again = await one.adapter.make_network(OFFICE, [region])
        assert [part.made for part in again.parts] == [True, True, True]
        assert again.parts[0].reference != vpc


async def test_a_scale_set_without_any_network_is_not_sent() -> None:
    async with account("azure") as one:
        machine = replace(one.adapter._options.machine, standing_subnet="")
        one.adapter._options = replace(one.adapter._options, machine=machine)
        before = one.writes()
        with pytest.raises(OrderRejected, match=r"broker providers setup azure --region \w+"):
            await one.buy({})
        assert one.writes() == before


def operation(status: str, **more: object) -> httpx.Response:
    return httpx.Response(200, json={"name": "operation-1", "status": status, **more})


FAILED = {"error": {"errors": [{"code": "PERMISSION_DENIED", "message": "an organisation forbids it"}]}}


@pytest.mark.parametrize(
    ("answers", "error", "says"),
    [
        ([operation("RUNNING"), operation("DONE")], None, ""),
        ([operation("DONE", **FAILED)], CredentialsRejected, "an organisation forbids it"),
        ([operation("RUNNING")] * 7, ProviderUnavailable, "still RUNNING; repeat the command"),
    ],
)
async def test_a_change_of_google_is_waited_for(
    answers: list[httpx.Response], error: type[ProviderError] | None, says: str
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    http = ProviderHttp("gcp", HOST, classify, HttpPolicy())
    compute = Compute(http, TokenSource(http, "token", f"{HOST}/token"), "p", sleep)
    with respx.mock() as router:
        router.post(f"{HOST}/compute/v1/projects/p/global/networks").mock(return_value=operation("PENDING"))
        looks = router.get(f"{HOST}/compute/v1/projects/p/global/operations/operation-1")
        looks.mock(side_effect=answers)
        reply = await compute.call("POST", "global/networks", Operation.ORDER, json={})
        if error is None:
            await compute.finished(reply)
        else:
            with pytest.raises(error, match=says):
                await compute.finished(reply)
        assert looks.call_count == len(answers) == len(waited)
    assert waited == sorted(waited), "later looks are further apart"
    await http.aclose()

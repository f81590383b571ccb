"""The network of scale sets in a region: a security group, and a virtual network with a subnet that has it.

A scale set's subnet lies in the region of its VMs. Public addresses of SKU Standard let nobody in without a
security group. Source: REST API of Microsoft.Network (virtual networks, network security groups).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from broker.domain.basics.errors import ProviderUnavailable
from broker.domain.holding.seller_network import NetworkRules
from providers.azure.arm import Arm
from providers.azure.windows import PROVIDER
from providers.http import Operation
from providers.network_setup import NETWORK_NAME, Ids, NetworkStep
from providers.payload import Name, PayloadModel

API_VERSION = "2024-05-01"
"""API version of Microsoft.Network."""
GROUP, SUBNET = "security_group", "subnet"
ADDRESSES = "10.64.0.0/16"
"""The private addresses of a region's machines; networks of two regions are not joined."""
READY_WAITS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds to wait before each look at a resource that is being made."""
_FIRST_PRIORITY = 100
Sleep = Callable[[float], Awaitable[None]]


class _Rule(PayloadModel):
    direction: str = ""
    access: str = ""
    protocol: str = ""
    destinationPortRange: str = ""
    sourceAddressPrefixes: tuple[str, ...] = ()


class _NamedRule(PayloadModel):
    properties: _Rule = _Rule()


class _Link(PayloadModel):
    id: str = ""


class _SubnetParts(PayloadModel):
    networkSecurityGroup: _Link = _Link()


class _Subnet(PayloadModel):
    id: str = ""
    name: str = ""
    properties: _SubnetParts = _SubnetParts()


class _Parts(PayloadModel):
    provisioningState: str = ""
    securityRules: tuple[_NamedRule, ...] = ()
    subnets: tuple[_Subnet, ...] = ()


class _Resource(PayloadModel):
    id: Name
    properties: _Parts = _Parts()


class RegionNetwork:
    """The calls that find and make the network of one region."""

    def __init__(self, arm: Arm, region: str, rules: NetworkRules, sleep: Sleep = asyncio.sleep) -> None:
        self._arm, self._region, self._rules, self._sleep = arm, region, rules, sleep
        self._name = f"{NETWORK_NAME}-{region}"

    def steps(self) -> Sequence[NetworkStep]:
        """Its parts in the order of making."""
        says = f"security group {self._name}, which {self._rules.says}"
        network = f"virtual network {self._name} of {ADDRESSES} with a subnet"
        return (
            NetworkStep(GROUP, says, self._find_group, self._make_group),
            NetworkStep(SUBNET, network, self._find_subnet, self._make_subnet),
        )

    async def _find_group(self, _: Ids) -> str | None:
        found = await self._read(self._path("networkSecurityGroups"))
        rules = [one.properties for one in found.properties.securityRules]
        lets_in = {
            (rule.destinationPortRange, source)
            for rule in rules
            if (rule.direction, rule.access, rule.protocol.lower()) == ("Inbound", "Allow", "tcp")
            for source in rule.sourceAddressPrefixes
        }
        wanted = {(str(port), source) for port in self._rules.ports for source in self._rules.sources}
        return found.id if lets_in == wanted else None

    async def _make_group(self, _: Ids) -> str:
        rules = [
            {
                "name": f"{NETWORK_NAME}-{port}",
                "properties": {
                    "priority": _FIRST_PRIORITY + number,
                    "direction": "Inbound",
                    "access": "Allow",
                    "protocol": "Tcp",
                    "sourceAddressPrefixes": list(self._rules.sources),
                    "sourcePortRange": "*",
                    "destinationAddressPrefix": "*",
                    "destinationPortRange": str(port),
                },
            }
            for number, port in enumerate(self._rules.ports)
        ]
        return (await self._put(self._path("networkSecurityGroups"), {"securityRules": rules})).id

    async def _find_subnet(self, ids: Ids) -> str | None:
        found = await self._read(self._path("virtualNetworks"))
        return _subnet_of(found, ids[GROUP])

    async def _make_subnet(self, ids: Ids) -> str:
        subnet = {"addressPrefix": ADDRESSES, "networkSecurityGroup": {"id": ids[GROUP]}}
        properties = {
            "addressSpace": {"addressPrefixes": [ADDRESSES]},
            "subnets": [{"name": NETWORK_NAME, "properties": subnet}],
        }
        found = _subnet_of(await self._put(self._path("virtualNetworks"), properties), ids[GROUP])
        if found is None:
            raise ProviderUnavailable(PROVIDER, f"virtual network {self._name} has no subnet {NETWORK_NAME}")
        return found

    def _path(self, kind: str) -> str:
        return f"{self._arm.network_root}{kind}/{self._name}"

    async def _read(self, path: str) -> _Resource:
        query = {"api-version": API_VERSION}
        return (await self._arm.call("GET", path, Operation.LEASES, query=query)).read(_Resource)

    async def _put(self, path: str, properties: Mapping[str, Any]) -> _Resource:
        """Makes or changes a resource, and waits until it is ready. A PUT may be repeated."""
        body = {"location": self._region, "tags": {"made-by": NETWORK_NAME}, "properties": properties}
        query = {"api-version": API_VERSION}
        await self._arm.call("PUT", path, Operation.ORDER, repeatable=True, json=body, query=query)
        for wait_s in READY_WAITS_S:
            await self._sleep(wait_s)
            found = await self._read(path)
            if found.properties.provisioningState.lower() in {"succeeded", ""}:
                return found
        state = found.properties.provisioningState
        raise ProviderUnavailable(PROVIDER, f"{path.rpartition('/')[2]} is still {state}; repeat the command")


def _subnet_of(network: _Resource, group: str) -> str | None:
    """The id of the broker's subnet, if it has the security group."""
    for subnet in network.properties.subnets:
        of_subnet = subnet.properties.networkSecurityGroup.id
        if subnet.name == NETWORK_NAME and of_subnet.lower() == group.lower():
            return subnet.id
    return None

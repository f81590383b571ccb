"""The network of instances, with automatic subnets in every region, and a firewall rule that lets people in.

Google makes a network ``default`` in each new project, which an organisation may forbid; the one here is the
broker's own, so that its rules hold for no other machines. Source: discovery document of Compute Engine v1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.domain.holding.seller_network import NetworkRules
from providers.gcp.compute import Compute, NameTaken
from providers.http import Operation, Reply
from providers.network_setup import NETWORK_NAME, Ids, NetworkStep
from providers.payload import PayloadModel

NETWORK, FIREWALL = "network", "firewall"
_NETWORKS, _FIREWALLS = "global/networks", "global/firewalls"


class _Allowed(PayloadModel):
    IPProtocol: str = ""
    ports: tuple[str, ...] = ()


class _Firewall(PayloadModel):
    sourceRanges: tuple[str, ...] = ()
    allowed: tuple[_Allowed, ...] = ()
    disabled: bool = False


class ProjectNetwork:
    """The calls that find and make the network of one project."""

    def __init__(self, compute: Compute, rules: NetworkRules) -> None:
        self._compute, self._rules = compute, rules

    def steps(self) -> Sequence[NetworkStep]:
        """Its parts in the order of making."""
        return (
            NetworkStep(NETWORK, f"network {NETWORK_NAME}", self._find_network, self._make_network),
            NetworkStep(FIREWALL, self._rules.says, self._find_firewall, self._make_firewall),
        )

    async def _find_network(self, _: Ids) -> str | None:
        await self._compute.call("GET", f"{_NETWORKS}/{NETWORK_NAME}", Operation.LEASES)
        return f"{_NETWORKS}/{NETWORK_NAME}"

    async def _make_network(self, _: Ids) -> str:
        await self._change("POST", _NETWORKS, {"name": NETWORK_NAME, "autoCreateSubnetworks": True})
        return f"{_NETWORKS}/{NETWORK_NAME}"

    async def _find_firewall(self, _: Ids) -> str | None:
        reply = await self._compute.call("GET", f"{_FIREWALLS}/{NETWORK_NAME}", Operation.LEASES)
        found = reply.read(_Firewall)
        ports = {port for one in found.allowed if one.IPProtocol == "tcp" for port in one.ports}
        wanted = {str(port) for port in self._rules.ports}
        is_wanted = (set(found.sourceRanges), ports) == (set(self._rules.sources), wanted)
        return f"{_FIREWALLS}/{NETWORK_NAME}" if is_wanted and not found.disabled else None

    async def _make_firewall(self, ids: Ids) -> str:
        """Makes the rule; one that is there with other rules is changed."""
        body = {
            "name": NETWORK_NAME,
            "network": ids[NETWORK],
            "direction": "INGRESS",
            "disabled": False,
            "sourceRanges": list(self._rules.sources),
            "allowed": [{"IPProtocol": "tcp", "ports": [str(port) for port in self._rules.ports]}],
        }
        try:
            await self._change("POST", _FIREWALLS, body)
        except NameTaken:
            await self._change("PATCH", f"{_FIREWALLS}/{NETWORK_NAME}", body)
        return f"{_FIREWALLS}/{NETWORK_NAME}"

    async def _change(self, method: str, path: str, body: Mapping[str, Any]) -> Reply:
        reply = await self._compute.call(method, path, Operation.ORDER, repeatable=False, json=body)
        await self._compute.finished(reply)
        return reply

"""The request body of a scale set: VMs of one size in one placement group, which connects their InfiniBand.

On demand, or spot (up to the order's limit, deleted when evicted). The VMs get no public address.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from broker.domain.holding.reservation import Order
from broker.domain.market.offer import Tier
from providers.azure.leases import TAG_KEY

MOST_NODES = 100
_NETWORK = "Microsoft.Network"
_COMPUTE = "Microsoft.Compute"


@dataclass(frozen=True, slots=True)
class Machine:
    """What boots: ``image`` publisher:offer:sku:version, ``subnet`` network/subnet of the resource group."""

    image: str
    subnet: str
    ssh_public_key: str
    admin: str = "azureuser"


def body(order: Order, machine: Machine, compute_root: str) -> dict[str, Any]:
    """The PUT body of a scale set with ``order.nodes`` VMs.

    ``compute_root``: the id of the resource group's Microsoft.Compute provider.
    """
    return {
        "location": order.offer.reference["location"],
        "tags": {TAG_KEY: order.tag},
        "sku": {"name": order.offer.reference["size"], "tier": "Standard", "capacity": order.nodes},
        "properties": {
            "singlePlacementGroup": True,
            "overprovision": False,
            "upgradePolicy": {"mode": "Manual"},
            "virtualMachineProfile": {
                "storageProfile": _storage(machine.image),
                "osProfile": _system(order.tag, machine),
                "networkProfile": _network(machine.subnet, compute_root),
                **_priority(order),
            },
        },
    }


def _priority(order: Order) -> dict[str, Any]:
    if order.offer.tier is not Tier.SPOT:
        return {"priority": "Regular"}
    return {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": _most(order)}}


def _most(order: Order) -> float:
    """USD per VM and hour, with the five decimal places that are kept; -1: up to the pay-as-you-go price."""
    if order.limit_usd_per_node_hour is None:
        return -1
    return float(order.limit_usd_per_node_hour.quantize(Decimal("0.00001"), ROUND_FLOOR))


def _storage(image: str) -> dict[str, Any]:
    names = dict(zip(("publisher", "offer", "sku", "version"), image.split(":"), strict=False))
    return {"imageReference": names, "osDisk": {"createOption": "FromImage", "caching": "ReadWrite"}}


def _system(tag: str, machine: Machine) -> dict[str, Any]:
    key_path = f"/home/{machine.admin}/.ssh/authorized_keys"
    keys = [{"path": key_path, "keyData": machine.ssh_public_key}] if machine.ssh_public_key else []
    return {
        # A prefix has at most 58 characters; a short digest of the tag keeps it the tag's own.
        "computerNamePrefix": f"n{hashlib.sha256(tag.encode()).hexdigest()[:12]}",
        "adminUsername": machine.admin,
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": keys}},
    }


def _network(subnet: str, compute_root: str) -> dict[str, Any]:
    network, _, name = subnet.partition("/")
    root = compute_root.replace(f"/{_COMPUTE}/", f"/{_NETWORK}/")
    subnet_id = f"{root}virtualNetworks/{network}/subnets/{name}"
    address = {"name": "primary", "properties": {"primary": True, "subnet": {"id": subnet_id}}}
    interface = {"primary": True, "ipConfigurations": [address]}
    return {"networkInterfaceConfigurations": [{"name": "primary", "properties": interface}]}

"""The request body of a scale set: VMs of one size in one placement group, which connects their InfiniBand.

On demand, or spot (up to the order's limit, deleted when evicted). With a key of the order, the VMs get
public addresses, which the network security group of their subnet opens or closes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.machines import PublicKey, with_keys
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import Tier
from providers.azure.leases import TAG_KEY
from providers.azure.windows import PROVIDER

MOST_NODES = 100
TAKEN_KINDS = ("ssh-rsa", "ssh-ed25519")
"""Kinds of keys that Azure takes; others come with the script."""
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
                "osProfile": _system(order, machine),
                "networkProfile": _network(machine.subnet, compute_root, is_public=bool(order.keys)),
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


def _system(order: Order, machine: Machine) -> dict[str, Any]:
    """Who logs in, and the script, which cloud-init runs as root at the first start."""
    home = f"/home/{machine.admin}"
    taken = [key.line for key in order.keys if key.line.startswith(TAKEN_KINDS)]
    if order.keys and not taken:
        kinds = " or ".join(TAKEN_KINDS)
        raise OrderRejected(PROVIDER, f"no key of the order is of kind {kinds}, of which Azure needs one")
    lines = taken or ([machine.ssh_public_key] if machine.ssh_public_key else [])
    script = with_keys(order.script, _others(order.keys), home)
    return {
        # A prefix has at most 58 characters; a short digest of the tag keeps it the tag's own.
        "computerNamePrefix": f"n{hashlib.sha256(order.tag.encode()).hexdigest()[:12]}",
        "adminUsername": machine.admin,
        **({"customData": base64.b64encode(script.encode()).decode()} if script else {}),
        "linuxConfiguration": {
            "disablePasswordAuthentication": True,
            "ssh": {
                "publicKeys": [{"path": f"{home}/.ssh/authorized_keys", "keyData": line} for line in lines]
            },
        },
    }


def _others(keys: Sequence[PublicKey]) -> list[PublicKey]:
    return [key for key in keys if not key.line.startswith(TAKEN_KINDS)]


def _network(subnet: str, compute_root: str, *, is_public: bool) -> dict[str, Any]:
    network, _, name = subnet.partition("/")
    root = compute_root.replace(f"/{_COMPUTE}/", f"/{_NETWORK}/")
    subnet_id = f"{root}virtualNetworks/{network}/subnets/{name}"
    public = {"publicIPAddressConfiguration": {"name": "public", "sku": {"name": "Standard"}}}
    place = {"primary": True, "subnet": {"id": subnet_id}, **(public if is_public else {})}
    address = {"name": "primary", "properties": place}
    interface = {"primary": True, "ipConfigurations": [address]}
    return {"networkInterfaceConfigurations": [{"name": "primary", "properties": interface}]}

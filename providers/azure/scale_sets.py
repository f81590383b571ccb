"""The request body of a scale set: VMs of one size in one placement group, which connects their InfiniBand.

On demand, or spot (up to the order's limit, deleted when evicted). The VMs get public addresses, by which
they fetch images too, and which the network security group of their subnet opens or closes.
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
from broker.provider_facts import load_provider_facts
from providers.azure.leases import TAG_KEY
from providers.azure.networks import SUBNET
from providers.azure.windows import PROVIDER
from providers.payload import address_usd_per_hour

MOST_NODES = 100
TAKEN_KINDS = ("ssh-rsa", "ssh-ed25519")
"""Kinds of keys that Azure takes; others come with the script."""
_NETWORK = "Microsoft.Network"
_COMPUTE = "Microsoft.Compute"


@dataclass(frozen=True, slots=True)
class Machine:
    """What boots: ``image`` publisher:offer:sku:version.

    ``subnet``: network/subnet of the resource group; empty: the one that was made in the order's region, else
    ``standing_subnet``.
    """

    image: str
    subnet: str
    ssh_public_key: str
    admin: str = "azureuser"
    standing_subnet: str = ""


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
                "networkProfile": _network(_subnet_id(order, machine, compute_root)),
                **_priority(order),
            },
        },
    }


def _priority(order: Order) -> dict[str, Any]:
    if order.offer.tier is not Tier.SPOT:
        return {"priority": "Regular"}
    return {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": _most(order)}}


def _most(order: Order) -> float:
    """USD per VM and hour without its address, with the five decimal places that are kept.

    -1: up to the pay-as-you-go price.
    """
    if order.limit_usd_per_node_hour is None:
        return -1
    most = order.limit_usd_per_node_hour - address_usd_per_hour(order.offer, load_provider_facts(PROVIDER))
    return float(most.quantize(Decimal("0.00001"), ROUND_FLOOR))


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


def _subnet_id(order: Order, machine: Machine, compute_root: str) -> str:
    """The setting's subnet, else the one that was made. Raises OrderRejected without any."""
    subnet = machine.subnet or order.network.get(SUBNET) or machine.standing_subnet
    if not subnet:
        where = order.offer.reference["location"]
        ways = f"`broker providers setup azure --region {where}` makes one, BROKER_AZURE_SUBNET names one"
        raise OrderRejected(PROVIDER, f"nothing was ordered, there is no network in {where}: {ways}")
    if subnet.startswith("/"):
        return subnet
    network, _, name = subnet.partition("/")
    root = compute_root.replace(f"/{_COMPUTE}/", f"/{_NETWORK}/")
    return f"{root}virtualNetworks/{network}/subnets/{name}"


def _network(subnet_id: str) -> dict[str, Any]:
    public = {"publicIPAddressConfiguration": {"name": "public", "sku": {"name": "Standard"}}}
    place = {"primary": True, "subnet": {"id": subnet_id}, **public}
    address = {"name": "primary", "properties": place}
    interface = {"primary": True, "ipConfigurations": [address]}
    return {"networkInterfaceConfigurations": [{"name": "primary", "properties": interface}]}

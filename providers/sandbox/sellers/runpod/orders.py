"""RunPod's stock and pods, the same for both of its surfaces."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from broker.domain.basics.machines import SSH_PORT
from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import InventoryItem
from providers.sandbox.seller import Lifecycle, SellerState
from providers.sandbox.sellers.runpod.market import GPU_TYPES

NO_MACHINE = (
    "There are no longer any instances available with the requested specifications."
    " Please refresh and try again."
)

_STATES = Lifecycle({"PROVISIONING": 0.5, "STARTING": 1}, up="RUNNING", failed="ERROR")


class CannotDeploy(Exception):
    """Why an order is refused, in RunPod's words."""


DISK_USD_PER_GB_MONTH = Decimal("0.10")
HOURS_PER_MONTH = 730


@dataclass(frozen=True, slots=True)
class PodOrder:
    """What a pod takes: GPUs of a type, in one of ``places`` (None: any)."""

    gpu_id: str
    gpus: int
    cloud: str
    tier: str
    name: str
    image: str
    places: tuple[str, ...] | None = None
    bid_usd: Decimal | None = None
    disk_gb: int = 20
    environment: Any = None
    arguments: str = ""
    ports: tuple[str, ...] = ()


class PodOrders:
    """Items, stock and held pods of one account."""

    def __init__(self, seller: SellerState) -> None:
        self._seller = seller

    def inventory(self, gpu_id: str, tier: str) -> list[InventoryItem]:
        """Places of a type and tier."""
        return self._seller.inventory(sku=gpu_id, tier=tier)

    def stock(self, count: int) -> dict[str, int]:
        """GPUs free by item, 0 where fewer than ``count``; spot and on demand share their GPUs."""
        free = self._seller.free_by_key()
        return {key: units if units >= count else 0 for key, units in free.items()}

    def price(self, item: InventoryItem | None) -> float:
        """USD per GPU and hour; 0 for a cloud that does not have the type."""
        return 0.0 if item is None else float(self._seller.price(item))

    def deploy(self, order: PodOrder, loses_capacity: bool) -> Entry:
        """Takes the GPUs from the place with the most; CannotDeploy without any."""
        if order.gpu_id not in GPU_TYPES:
            raise CannotDeploy(f"Unknown GPU type {order.gpu_id}.")
        stock = self.stock(order.gpus)
        fitting = [
            item
            for item in self.inventory(order.gpu_id, order.tier)
            if item.zone == order.cloud and (order.places is None or item.region in order.places)
        ]
        free = [item for item in fitting if stock[item.key] > 0]
        if not free:
            raise CannotDeploy(NO_MACHINE)
        item = max(free, key=lambda found: stock[found.key])
        price = self._seller.price(item)
        if order.bid_usd is not None and order.bid_usd < price:
            raise CannotDeploy("Your bid is below the minimum bid.")
        disk_usd = order.disk_gb * DISK_USD_PER_GB_MONTH / HOURS_PER_MONTH
        usd_per_hour = (order.bid_usd or price) * order.gpus + disk_usd
        return self._seller.sell(
            item,
            order.name,
            Tariff(usd_per_hour),
            {
                "image": order.image,
                "gpus": order.gpus,
                "environment": order.environment,
                "arguments": order.arguments,
                "ports": list(order.ports),
            },
            instance_id=self._seller.new_id(14),
            units=order.gpus,
            fails=loses_capacity,
        )

    def direct_ssh(self, entry: Entry) -> dict[str, Any] | None:
        """The mapping of port 22 of a pod that runs."""
        if self.status(entry) != "RUNNING":
            return None
        host, port = self._seller.address(entry), self._seller.ssh_port
        return {"host": host, "port": port, "username": "root", "command": f"ssh root@{host} -p {port}"}

    def runtime(self, entry: Entry) -> dict[str, Any] | None:
        """The mapped ports of a pod that runs: each is that of its machine."""
        if self.status(entry) != "RUNNING":
            return None
        rows = []
        for port, _, kind in (one.partition("/") for one in entry.detail["ports"]):
            public = self._seller.ssh_port if int(port) == SSH_PORT else int(port)
            rows.append(
                {"private": int(port), "public": public, "type": kind, "ip": self._seller.address(entry)}
            )
        return {"ports": rows}

    def status(self, entry: Entry) -> str:
        """PROVISIONING, STARTING, RUNNING; ERROR where capacity was lost."""
        return self._seller.state(entry, _STATES)


def level(gpus: int) -> str:
    """RunPod's levels; the limits are the sandbox's own."""
    if gpus <= 0:
        return "NONE"
    if gpus <= 8:
        return "LOW"
    return "MEDIUM" if gpus <= 24 else "HIGH"


def center(region: str) -> dict[str, str]:
    """A data center's id and name."""
    return {"id": region, "name": region.replace("-", " ")}


def places(value: Any) -> tuple[str, ...] | None:
    """A list of places from a body; None for any."""
    return tuple(str(place) for place in value) if isinstance(value, list) and value else None

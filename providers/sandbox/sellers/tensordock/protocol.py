"""TensorDock's API v2, under ``/tensordock``.

Machines are made on a host from GPUs, cores, memory and disk; what is wrong with an
order comes with HTTP 200 and ``{"error", "status"}``. Billed by the second. Sources: the requests and
answers that the public clients of API v2 know. The sandbox's own: the form of the list of machines, all
words but "Hostnode unavailable", every price, cores and memory beside a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from broker.domain.basics.machines import SSH_PORT
from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, SandboxState, json_reply, text_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.tensordock.market import tensordock_inventory

_PORTS = [22022, 22080, 22443]
_STATES = Lifecycle({"queued": 0.25, "deploying": 1}, up="running", failed="error", ending="deleting")


class TensorDock(SellerProtocol):
    """Hosts, machines."""

    name = "tensordock"
    on_sale = staticmethod(tensordock_inventory)

    def __init__(self, sandbox: SandboxState) -> None:
        super().__init__(sandbox)
        self._hosts = {item.zone: item for item in self.seller.inventory()}

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/hostnodes", "list", self._hostnodes),
            Route("POST", "/instances", "create", self._create),
            Route("GET", "/instances", "get", self._machines),
            Route("GET", "/instances/{id}", "get", self._machine),
            Route("DELETE", "/instances/{id}", "delete", self._delete),
        )

    def errors(self) -> ErrorForms:
        """Failures of the service have their HTTP status; a lack of hosts is answered with 200."""
        return ErrorForms(
            no_key=text_reply("Unauthorized", 401),
            no_path=text_reply("Not Found", 404),
            no_machine=lambda _: text_reply("Not Found", 404),
            bad_body=lambda reason: _error(f"Invalid request: {reason}"),
            rate_limited=text_reply("Too Many Requests", 429),
            no_capacity=_error("Hostnode unavailable"),
            failed=text_reply("Internal Server Error", 500),
        )

    def _hostnodes(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        rows = [self._host(item, free[item.key]) for item in self._hosts.values()]
        return json_reply({"data": {"hostnodes": [*rows, _without_gpus()]}})

    def _host(self, item: InventoryItem, free: int) -> dict[str, Any]:
        city, state, country = item.labels["place"]
        vcpus, ram = item.labels["per_gpu"]
        return {
            "id": item.zone,
            "location_id": _location_id(city),
            "engine": "kvm",
            "uptime_percentage": 99.5,
            "available_resources": {
                "gpus": [
                    {
                        "v0Name": item.sku,
                        "availableCount": free,
                        "price_per_hr": float(self.seller.price(item)),
                    }
                ],
                "vcpu_count": vcpus * free,
                "ram_gb": ram * free,
                "storage_gb": 500 * free,
                "max_vcpus_per_gpu": vcpus,
                "max_ram_per_gpu": ram,
                "available_ports": _PORTS,
                "has_public_ip_available": item.labels["address"],
            },
            "pricing": _pricing(item),
            "location": {
                "uuid": _location_id(city),
                "city": city,
                "stateprovince": state,
                "country": country,
                "has_network_storage": False,
                "network_speed_gbps": 10,
                "network_speed_upload_gbps": 10,
                "organizationName": item.labels["owner"],
                "tier": 3,
            },
        }

    def _create(self, call: Call) -> Reply:
        wish = _attributes(call.json_object())
        for name in ("name", "image", "resources"):
            if not wish.get(name):
                raise Refusal(_error(f"{name} is required"))
        if bool(wish.get("ssh_key")) == bool(wish.get("ssh_key_id")):
            raise Refusal(_error("Either ssh_key or ssh_key_id is required"))
        if not (wish.get("useDedicatedIp") or wish.get("port_forwards")):
            raise Refusal(_error("A port forward or a dedicated IP is required"))
        resources = wish["resources"]
        item, gpus = self._wanted(wish, resources)
        vcpus, ram, disk = (int(resources.get(name) or 0) for name in ("vcpu_count", "ram_gb", "storage_gb"))
        if vcpus < 2 or ram < 2 or disk < 100:
            raise Refusal(_error("At least 2 vCPUs, 2 GB of RAM and 100 GB of storage are required"))
        most_vcpus, most_ram = item.labels["per_gpu"]
        if vcpus > most_vcpus * gpus or ram > most_ram * gpus:
            raise Refusal(_error("Hostnode unavailable"))
        self.require_stock(item, gpus)
        parts = zip((vcpus, ram, disk), item.labels["parts"], strict=True)
        usd = gpus * self.seller.price(item) + sum((units * price for units, price in parts), Decimal(0))
        entry = self.seller.sell(
            item,
            wish["name"],
            Tariff(usd),
            {
                "resources": resources,
                "ssh": [wish.get("ssh_key"), wish.get("ssh_key_id")],
                "cloud_init": _files_run(wish.get("cloud_init") or {}),
                "forwards": [int(one["internal_port"]) for one in wish.get("port_forwards") or []],
            },
            sku=f"{item.sku}_{gpus}x{vcpus}v{ram}gb",
            units=gpus,
            fails=call.loses_capacity,
        )
        made = {"id": entry.instance_id, "name": entry.tag, "status": "queued"}
        return json_reply({"data": made})

    def _wanted(self, wish: Mapping[str, Any], resources: Mapping[str, Any]) -> tuple[InventoryItem, int]:
        """The host that is named, and how many GPUs of it."""
        ((word, count),) = dict(resources["gpus"]).items()
        item, gpus = self._hosts.get(str(wish.get("hostnode_id"))), int(count["count"])
        if item is None or item.sku != word or gpus < 1:
            raise Refusal(_error("Hostnode unavailable"))
        return item, gpus

    def _machines(self, _: Call) -> Reply:
        rows = [self._row(entry) for entry in self.seller.visible()]
        return json_reply({"data": {"instances": rows}})

    def _machine(self, call: Call) -> Reply:
        return json_reply({"data": self._row(self.machine(call))})

    def _row(self, entry: Entry) -> dict[str, Any]:
        status = self.seller.state(entry, _STATES)
        return {
            "id": entry.instance_id,
            "name": entry.tag,
            "status": status,
            "ipAddress": self.seller.address(entry) if status == "running" else "",
            "portForwards": [
                {"internal_port": port, "external_port": self.seller.ssh_port if port == SSH_PORT else port}
                for port in entry.detail["forwards"]
            ],
            "resources": entry.detail["resources"],
            "rateHourly": float(entry.tariff.usd_per_hour),
        }

    def _delete(self, call: Call) -> Reply:
        entry = self.machine(call)
        if entry.released_at is not None:
            raise Refusal(_error("Instance already deleted"))
        self.seller.release(entry)
        return json_reply({"success": True})


def _files_run(cloud_init: Mapping[str, Any]) -> list[str]:
    """The contents of the files that an order writes and runs."""
    run = " ".join(str(command) for command in cloud_init.get("runcmd") or [])
    files = cloud_init.get("write_files") or []
    return [str(file["content"]) for file in files if str(file["path"]) in run]


def _location_id(city: str) -> str:
    return f"loc-{city.lower().replace(' ', '-')}"


def _pricing(item: InventoryItem) -> dict[str, float]:
    vcpu, ram, disk = item.labels["parts"]
    return {"per_vcpu_hr": float(vcpu), "per_gb_ram_hr": float(ram), "per_gb_storage_hr": float(disk)}


def _without_gpus() -> dict[str, Any]:
    """A host without GPUs."""
    return {
        "id": "host-odd-cpu",
        "location_id": "loc-ashburn",
        "engine": "kvm",
        "uptime_percentage": 99.5,
        "available_resources": {"gpus": [], "vcpu_count": 64, "ram_gb": 256, "storage_gb": 4000},
        "pricing": {"per_vcpu_hr": 0.003, "per_gb_ram_hr": 0.002, "per_gb_storage_hr": 0.00005},
        "location": {"uuid": "loc-ashburn", "city": "Ashburn", "country": "USA", "tier": 3},
    }


def _attributes(document: Mapping[str, Any]) -> dict[str, Any]:
    data = document.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("attributes"), dict):
        raise ValueError("data.attributes is missing")
    return dict(data["attributes"])


def _error(text: str) -> Reply:
    return json_reply({"error": text, "status": 400})

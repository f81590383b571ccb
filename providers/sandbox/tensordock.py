"""TensorDock's API v2, under ``/tensordock``.

Machines are made on a host (or at a location) from GPUs, cores, memory and disk; what is wrong with an
order comes with HTTP 200 and ``{"error", "status"}``. Billed by the second. Sources: the requests and
answers that the public clients of API v2 know. The sandbox's own: the form of the list of machines, all
words but "Hostnode unavailable", every price, cores and memory beside a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import Cell
from providers.sandbox.tensordock_market import tensordock_cells
from providers.sandbox.wire import (
    Call,
    ProviderWire,
    Refusal,
    Reply,
    Route,
    World,
    json_reply,
    text_reply,
)

_PORTS = [22022, 22080, 22443]


class TensorDock(ProviderWire):
    """Locations, hosts, machines."""

    name = "tensordock"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        cells = world.market.add(tensordock_cells(world.seed))
        self._hosts = {cell.zone: cell for cell in cells}

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/locations", "list", self._locations, public=True),
            Route("GET", "/hostnodes", "list", self._hostnodes),
            Route("GET", "/hostnodes/{id}", "list", self._hostnode),
            Route("POST", "/instances", "create", self._create),
            Route("GET", "/instances", "get", self._machines),
            Route("GET", "/instances/{id}", "get", self._machine),
            Route("DELETE", "/instances/{id}", "delete", self._delete),
        )

    def authorise(self, call: Call) -> None:
        """A bearer token."""
        if call.key() is None:
            raise Refusal(text_reply("Unauthorized", 401))

    def unknown_path(self) -> Reply:
        """404 as text."""
        return text_reply("Not Found", 404)

    def malformed_body(self, reason: str) -> Reply:
        """An error behind HTTP 200."""
        return _error(f"Invalid request: {reason}")

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """Faults of the service have their HTTP status, a lack of hosts does not."""
        if kind is FaultKind.RATE_LIMITED:
            return text_reply("Too Many Requests", 429)
        if kind is FaultKind.OUT_OF_CAPACITY:
            return _error("Hostnode unavailable")
        return text_reply("Internal Server Error", 500)

    def _free(self) -> dict[str, int]:
        free = self.world.market.free_by_key(self.name, self.now)
        return {host: free[cell.key] for host, cell in self._hosts.items()}

    def _price(self, cell: Cell) -> Decimal:
        return self.world.market.price(cell) or Decimal(0)

    def _locations(self, _: Call) -> Reply:
        """At each location, of each type of GPU, the host that has most of it."""
        free, best = self._free(), dict[tuple[str, str], Cell]()
        for host, cell in self._hosts.items():
            before = best.get((cell.region, cell.sku))
            if free[host] > (free[before.zone] if before else 0):
                best[cell.region, cell.sku] = cell
        rows: dict[str, dict[str, Any]] = {}
        for cell in best.values():
            city, state, country = cell.labels["place"]
            place = {"id": _location_id(city), "city": city, "stateprovince": state, "country": country}
            row = rows.setdefault(city, {**place, "tier": 3, "gpus": []})
            row["gpus"].append(self._located(cell, free[cell.zone]))
        return json_reply({"data": {"locations": list(rows.values())}})

    def _located(self, cell: Cell, free: int) -> dict[str, Any]:
        vcpus, ram = cell.labels["per_gpu"]
        return {
            "v0Name": cell.sku,
            "displayName": cell.labels["name"],
            "max_count": free,
            "price_per_hr": float(self._price(cell)),
            "resources": {"max_vcpus": vcpus * free, "max_ram_gb": ram * free, "max_storage_gb": 4000},
            "pricing": _pricing(cell),
            "network_features": {
                "dedicated_ip_available": cell.labels["address"],
                "port_forwarding_available": True,
                "network_storage_available": False,
            },
        }

    def _hostnodes(self, call: Call) -> Reply:
        free, wanted = self._free(), call.query.get("gpu_model")
        rows = [
            self._host(cell, free[host]) for host, cell in self._hosts.items() if wanted in {None, cell.sku}
        ]
        return json_reply({"data": {"hostnodes": [*rows, *([] if wanted else [_without_gpus()])]}})

    def _hostnode(self, call: Call) -> Reply:
        cell = self._hosts.get(call.parts["id"])
        if cell is None:
            raise Refusal(text_reply("Not Found", 404))
        return json_reply({"data": self._host(cell, self._free()[cell.zone])})

    def _host(self, cell: Cell, free: int) -> dict[str, Any]:
        city, state, country = cell.labels["place"]
        vcpus, ram = cell.labels["per_gpu"]
        return {
            "id": cell.zone,
            "location_id": _location_id(city),
            "engine": "kvm",
            "uptime_percentage": 99.5,
            "available_resources": {
                "gpus": [
                    {"v0Name": cell.sku, "availableCount": free, "price_per_hr": float(self._price(cell))}
                ],
                "vcpu_count": vcpus * free,
                "ram_gb": ram * free,
                "storage_gb": 500 * free,
                "max_vcpus_per_gpu": vcpus,
                "max_ram_per_gpu": ram,
                "available_ports": _PORTS,
                "has_public_ip_available": cell.labels["address"],
            },
            "pricing": _pricing(cell),
            "location": {
                "uuid": _location_id(city),
                "city": city,
                "stateprovince": state,
                "country": country,
                "has_network_storage": False,
                "network_speed_gbps": 10,
                "network_speed_upload_gbps": 10,
                "organizationName": cell.labels["owner"],
                "tier": 3,
            },
        }

    def _create(self, call: Call) -> Reply:
        wish = _attributes(call.json_object())
        for name in ("name", "image", "resources"):
            if not wish.get(name):
                raise Refusal(_error(f"{name} is required"))
        if "hostnode_id" in wish and not (wish.get("useDedicatedIp") or wish.get("port_forwards")):
            raise Refusal(_error("A port forward or a dedicated IP is required"))
        resources = wish["resources"]
        cell, gpus = self._wanted(wish, resources)
        vcpus, ram, disk = (int(resources.get(name) or 0) for name in ("vcpu_count", "ram_gb", "storage_gb"))
        if vcpus < 2 or ram < 2 or disk < 100:
            raise Refusal(_error("At least 2 vCPUs, 2 GB of RAM and 100 GB of storage are required"))
        most_vcpus, most_ram = cell.labels["per_gpu"]
        too_large = vcpus > most_vcpus * gpus or ram > most_ram * gpus
        if too_large or self.world.market.free(cell, self.now) < gpus:
            raise Refusal(_error("Hostnode unavailable"))
        entry = self.world.ledger.write(self._entry(call, wish, cell, (gpus, vcpus, ram, disk)))
        made = {"id": entry.instance_id, "name": entry.tag, "status": "queued"}
        return json_reply({"data": made})

    def _wanted(self, wish: Mapping[str, Any], resources: Mapping[str, Any]) -> tuple[Cell, int]:
        """The host that is named, or one of the location that has enough; and how many GPUs of it."""
        ((word, count),) = dict(resources["gpus"]).items()
        gpus, free = int(count["count"]), self._free()
        if wish.get("hostnode_id"):
            found = [cell for host, cell in self._hosts.items() if host == wish["hostnode_id"]]
        else:
            place = wish.get("location_id")
            here = [cell for cell in self._hosts.values() if _location_id(cell.region) == place]
            found = [cell for cell in here if cell.sku == word and free[cell.zone] >= gpus]
        fitting = [cell for cell in found if cell.sku == word]
        if not fitting or gpus < 1:
            raise Refusal(_error("Hostnode unavailable"))
        return fitting[0], gpus

    def _entry(
        self, call: Call, wish: Mapping[str, Any], cell: Cell, size: tuple[int, int, int, int]
    ) -> Entry:
        now, (gpus, *others) = self.now, size
        parts = zip(others, cell.labels["parts"], strict=True)
        usd = gpus * self._price(cell) + sum((units * price for units, price in parts), Decimal(0))
        boots_at = now + timedelta(seconds=self.world.durations.boot_s)
        return Entry(
            provider=self.name,
            instance_id=str(UUID(hex=self.world.new_id(self.name, 32))),
            tag=str(wish["name"]),
            sku=f"{cell.sku}_{gpus}x{size[1]}v{size[2]}gb",
            region=cell.region,
            zone=cell.zone,
            tier=cell.tier,
            nodes=1,
            units=gpus,
            stock_key=cell.stock_key,
            created_at=now,
            starts_at=now,
            tariff=Tariff(usd),
            failed_at=boots_at if call.loses_capacity else None,
            detail={"resources": wish["resources"]},
        )

    def _machines(self, _: Call) -> Reply:
        entries = self.world.ledger.entries(self.name)
        rows = [self._row(entry) for entry in entries if not self._is_gone(entry)]
        return json_reply({"data": {"instances": rows}})

    def _is_gone(self, entry: Entry) -> bool:
        gone_s = self.world.durations.terminate_s
        return entry.released_at is not None and entry.released_at + timedelta(seconds=gone_s) <= self.now

    def _found(self, call: Call) -> Entry:
        entry = self.world.ledger.find(self.name, call.parts["id"])
        if entry is None or self._is_gone(entry):
            raise Refusal(text_reply("Not Found", 404))
        return entry

    def _machine(self, call: Call) -> Reply:
        return json_reply({"data": self._row(self._found(call))})

    def _status(self, entry: Entry) -> str:
        if entry.released_at is not None:
            return "deleting"
        if entry.failed(self.now):
            return "error"
        age_s, boot_s = (self.now - entry.created_at).total_seconds(), self.world.durations.boot_s
        if age_s < boot_s / 4:
            return "queued"
        return "deploying" if age_s < boot_s else "running"

    def _row(self, entry: Entry) -> dict[str, Any]:
        status = self._status(entry)
        return {
            "id": entry.instance_id,
            "name": entry.tag,
            "status": status,
            "ipAddress": "198.51.100.81" if status == "running" else "",
            "portForwards": [],
            "resources": entry.detail["resources"],
            "rateHourly": float(entry.tariff.usd_per_hour),
        }

    def _delete(self, call: Call) -> Reply:
        entry = self._found(call)
        if entry.released_at is not None:
            raise Refusal(_error("Instance already deleted"))
        self.world.ledger.write(replace(entry, released_at=self.now))
        return json_reply({"success": True})


def _location_id(city: str) -> str:
    return f"loc-{city.lower().replace(' ', '-')}"


def _pricing(cell: Cell) -> dict[str, float]:
    vcpu, ram, disk = cell.labels["parts"]
    return {"per_vcpu_hr": float(vcpu), "per_gb_ram_hr": float(ram), "per_gb_storage_hr": float(disk)}


def _without_gpus() -> dict[str, Any]:
    """A host that sells cores alone."""
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

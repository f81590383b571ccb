"""CUDO Compute's REST API v1, under ``/cudo``.

Machines are made in a project under an id that the caller chooses, from GPUs, cores and memory of a machine
type; decimals are ``{"value": "0.45"}``. Free counts are of GPUs; each GPU has 24 cores and 96 GiB beside
it here, and eight GPUs are the most of one host. Errors are those of a gRPC gateway. Billed by the second.
Sources: cudo-compute 0.3.6, the SkyPilot catalogue's sizes. The sandbox's own: words of errors, split of
prices, limits of machine types, billing by the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.cudo_market import IPV4_USD, STORAGE_GIB_USD, cudo_cells
from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import Cell
from providers.sandbox.wire import Call, ProviderWire, Refusal, Reply, Route, World, json_reply

VCPUS_PER_GPU, GIB_PER_GPU, GPUS_PER_HOST = 24, 96, 8
_INVALID, _NOT_FOUND, _EXISTS, _EXHAUSTED, _PRECONDITION, _INTERNAL, _UNAUTHENTICATED = 3, 5, 6, 8, 9, 13, 16
_HTTP = {3: 400, 5: 404, 6: 409, 8: 429, 9: 400, 13: 500, 16: 401}
_SHORT = {"PENDING": "init", "STARTING": "boot", "ACTIVE": "runn", "FAILED": "fail", "DELETING": "dele"}


class Cudo(ProviderWire):
    """Machine types, data centres, the machines of projects."""

    name = "cudo"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.market.add(cudo_cells(world.seed))

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        project = "/v1/projects/{project}"
        return (
            Route("GET", "/v1/vms/machine-types-2", "list", self._types, public=True),
            Route("GET", "/v1/vms/data-centers", "list", self._centres, public=True),
            Route("POST", f"{project}/vm", "create", self._create),
            Route("GET", f"{project}/vms", "get", self._machines),
            Route("GET", f"{project}/vms/{{id}}", "get", self._machine),
            Route("POST", f"{project}/vms/{{id}}/terminate", "delete", self._terminate),
        )

    def authorise(self, call: Call) -> None:
        """A bearer key."""
        if call.key() is None:
            raise Refusal(_error(_UNAUTHENTICATED, "missing or invalid api key"))

    def unknown_path(self) -> Reply:
        """404 in the gateway's form."""
        return _error(_NOT_FOUND, "Not Found")

    def malformed_body(self, reason: str) -> Reply:
        """400 in the gateway's form."""
        return _error(_INVALID, reason)

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """Limits of rate are exhausted resources, a lack of hosts is a failed precondition."""
        if kind is FaultKind.RATE_LIMITED:
            return _error(_EXHAUSTED, "rate limit exceeded")
        if kind is FaultKind.OUT_OF_CAPACITY:
            return _no_host()
        return _error(_INTERNAL, "internal error")

    def _types(self, _: Call) -> Reply:
        free = self.world.market.free_by_key(self.name, self.now)
        rows = [self._type(cell, free[cell.key]) for cell in self.world.market.cells(self.name)]
        return json_reply({"machineTypes": rows})

    def _type(self, cell: Cell, free: int) -> dict[str, Any]:
        most = min(free, GPUS_PER_HOST)
        gpus = (
            {"maxGpuFree": most, "totalGpuFree": free} if cell.gpus else {"maxGpuFree": 0, "totalGpuFree": 0}
        )
        model = cell.gpu if cell.gpus else ""
        return {
            "dataCenterId": cell.region,
            "machineType": cell.sku,
            "cpuModel": cell.labels["cpu"],
            "gpuModel": model,
            "gpuModelId": model.partition(" ")[0].lower(),
            "minVcpuPerMemoryGib": 0.25,
            "maxVcpuPerMemoryGib": 1,
            "minVcpuPerGpu": 1 if cell.gpus else 0,
            "maxVcpuPerGpu": VCPUS_PER_GPU if cell.gpus else 0,
            **{name: _money(usd) for name, usd in self._prices(cell).items()},
            "renewableEnergy": True,
            "maxVcpuFree": most * VCPUS_PER_GPU,
            "totalVcpuFree": free * VCPUS_PER_GPU,
            "maxMemoryGibFree": most * GIB_PER_GPU,
            "totalMemoryGibFree": free * GIB_PER_GPU,
            **gpus,
            "maxStorageGibFree": 8000,
            "totalStorageGibFree": 40000,
            "minVcpu": 1,
            "minMemoryGib": 1,
        }

    def _prices(self, cell: Cell) -> dict[str, Decimal]:
        return {
            "vcpuPriceHr": cell.labels["vcpu_usd"],
            "memoryGibPriceHr": cell.labels["memory_usd"],
            "gpuPriceHr": self.world.market.price(cell) or Decimal(0),
            "minStorageGibPriceHr": STORAGE_GIB_USD,
            "ipv4PriceHr": IPV4_USD,
        }

    def _centres(self, _: Call) -> Reply:
        regions = dict.fromkeys(cell.region for cell in self.world.market.cells(self.name))
        rows = [
            {
                "id": region,
                "regionId": region.rpartition("-")[0],
                "supplierName": "sandbox",
                "renewableEnergy": True,
                "ipv4PriceHr": _money(IPV4_USD),
                "ipv4Free": 500,
            }
            for region in regions
        ]
        return json_reply({"dataCenters": rows})

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        machine = str(body.get("vmId") or "")
        if not machine or not body.get("bootDiskImageId"):
            raise Refusal(_error(_INVALID, "vmId and bootDiskImageId are required"))
        if self._known(call, machine) is not None:
            raise Refusal(_error(_EXISTS, f"vm {machine} already exists"))
        cell = self._wanted(body)
        gpus, vcpus, gib = (int(body.get(name) or 0) for name in ("gpus", "vcpus", "memoryGib"))
        units = gpus if cell.gpus else 1
        if not 1 <= units <= GPUS_PER_HOST or not 0.25 * gib <= vcpus <= min(gib, VCPUS_PER_GPU * units):
            raise Refusal(_error(_INVALID, "the size is outside of the limits of the machine type"))
        if self.world.market.free(cell, self.now) < units:
            raise Refusal(_no_host())
        now, prices = self.now, self._prices(cell)
        boots_at = now + timedelta(seconds=self.world.durations.boot_s)
        entry = self.world.ledger.write(
            Entry(
                provider=self.name,
                instance_id=machine,
                tag=machine,
                sku=f"{cell.sku}_{gpus}x{vcpus}v{gib}gb",
                region=cell.region,
                zone="",
                tier=cell.tier,
                nodes=1,
                units=units,
                stock_key=cell.stock_key,
                created_at=now,
                starts_at=now,
                tariff=Tariff(sum(_parts(body, prices).values(), Decimal(0))),
                failed_at=boots_at if call.loses_capacity else None,
                detail={
                    "project": call.parts["project"],
                    "request": body,
                    "type": cell.sku,
                    "gpu": cell.gpu,
                    "usd": {name: str(price) for name, price in prices.items()},
                },
            )
        )
        return json_reply({"id": entry.instance_id, "vm": self._row(entry)})

    def _wanted(self, body: dict[str, Any]) -> Cell:
        place = (body.get("machineType"), body.get("dataCenterId"))
        for cell in self.world.market.cells(self.name):
            if (cell.sku, cell.region) == place:
                return cell
        raise Refusal(_error(_INVALID, "machine type not found in data center"))

    def _known(self, call: Call, machine: str) -> Entry | None:
        """A machine of the project; one that has ended for good is not known any more."""
        entry = self.world.ledger.find(self.name, machine)
        if (
            entry is None
            or entry.detail["project"] != call.parts["project"]
            or self._state(entry) == "DELETED"
        ):
            return None
        return entry

    def _found(self, call: Call) -> Entry:
        entry = self._known(call, call.parts["id"])
        if entry is None:
            raise Refusal(_error(_NOT_FOUND, f"vm {call.parts['id']} not found"))
        return entry

    def _machines(self, call: Call) -> Reply:
        mine = [
            entry
            for entry in self.world.ledger.entries(self.name)
            if entry.detail["project"] == call.parts["project"] and self._state(entry) != "DELETED"
        ]
        return json_reply({"VMs": [self._row(entry) for entry in mine]})

    def _machine(self, call: Call) -> Reply:
        entry = self._found(call)
        return json_reply({"VM": self._row(entry), **_bill(entry, "ipv4PriceHr")})

    def _state(self, entry: Entry) -> str:
        durations, now = self.world.durations, self.now
        if entry.released_at is not None:
            gone_at = entry.released_at + timedelta(seconds=durations.terminate_s)
            return "DELETING" if now < gone_at else "DELETED"
        if entry.failed(now):
            return "FAILED"
        age_s = (now - entry.created_at).total_seconds()
        if age_s < durations.boot_s / 4:
            return "PENDING"
        return "STARTING" if age_s < durations.boot_s else "ACTIVE"

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, state = entry.detail["request"], self._state(entry)
        return {
            "datacenterId": entry.region,
            "machineType": entry.detail["type"],
            "regionId": entry.region.rpartition("-")[0],
            "regionName": entry.region,
            "id": entry.instance_id,
            "externalIpAddress": "198.51.100.71" if state == "ACTIVE" else "",
            "memory": int(request.get("memoryGib") or 0),
            "vcpus": int(request.get("vcpus") or 0),
            "gpuModel": entry.detail["gpu"],
            "gpuQuantity": int(request.get("gpus") or 0),
            "publicImageId": request["bootDiskImageId"],
            "shortState": _SHORT[state],
            "state": state,
            "metadata": request.get("metadata") or {},
            "createTime": zulu(entry.created_at),
            "price": _bill(entry, "ipv4AddressPriceHr"),
            "commitmentTerm": request.get("commitmentTerm") or "COMMITMENT_TERM_NONE",
        }

    def _terminate(self, call: Call) -> Reply:
        entry = self._found(call)
        state = self._state(entry)
        if state in {"STARTING", "DELETING"}:
            raise Refusal(_error(_PRECONDITION, f"vm cannot be terminated in state {_SHORT[state]}"))
        self.world.ledger.write(replace(entry, released_at=self.now))
        return json_reply({})


def _parts(request: Mapping[str, Any], usd: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """USD an hour of each part of a machine, by the name that the API gives the part's total."""
    return {
        "totalVcpuPriceHr": int(request.get("vcpus") or 0) * usd["vcpuPriceHr"],
        "totalMemoryPriceHr": int(request.get("memoryGib") or 0) * usd["memoryGibPriceHr"],
        "totalGpuPriceHr": int(request.get("gpus") or 0) * usd["gpuPriceHr"],
        "totalStoragePriceHr": int((request.get("bootDisk") or {}).get("sizeGib") or 10) * STORAGE_GIB_USD,
        "ipv4": IPV4_USD,
    }


def _bill(entry: Entry, address: str) -> dict[str, dict[str, str]]:
    """What a machine costs by part; ``address`` is the name of the price of its address."""
    usd = {name: Decimal(price) for name, price in entry.detail["usd"].items()}
    totals = _parts(entry.detail["request"], usd)
    units = {name: usd[name] for name in ("vcpuPriceHr", "memoryGibPriceHr", "gpuPriceHr")}
    prices = {
        **units,
        "storageGibPriceHr": STORAGE_GIB_USD,
        address: totals.pop("ipv4"),
        **totals,
        "totalPriceHr": entry.tariff.usd_per_hour,
    }
    return {name: _money(price) for name, price in prices.items()}


def _money(usd: Decimal) -> dict[str, str]:
    return {"value": f"{usd.normalize():f}"}


def _error(code: int, message: str) -> Reply:
    return json_reply({"code": code, "message": message, "details": []}, _HTTP[code])


def _no_host() -> Reply:
    return _error(_PRECONDITION, "no suitable host found with the requested resources")

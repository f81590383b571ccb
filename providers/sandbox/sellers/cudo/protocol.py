"""CUDO Compute's REST API v1, under ``/cudo``.

Machines are made in a project under an id that the caller chooses, from GPUs, cores and memory of a machine
type; decimals are ``{"value": "0.45"}``. Free counts are of GPUs; each GPU has 24 cores and 96 GiB beside
it here, and eight GPUs are the most of one host. Errors are those of a gRPC gateway. Billed by the second.
Sources: cudo-compute 0.3.6, the SkyPilot catalogue's sizes. The sandbox's own: words of errors, split of
prices, limits of machine types, billing by the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.cudo.market import IPV4_USD, STORAGE_GIB_USD, cudo_inventory

VCPUS_PER_GPU, GIB_PER_GPU, GPUS_PER_HOST = 24, 96, 8
_INVALID, _NOT_FOUND, _EXISTS, _EXHAUSTED, _PRECONDITION, _INTERNAL, _UNAUTHENTICATED = 3, 5, 6, 8, 9, 13, 16
_HTTP = {3: 400, 5: 404, 6: 409, 8: 429, 9: 400, 13: 500, 16: 401}
_SHORT = {"PENDING": "init", "STARTING": "boot", "ACTIVE": "runn", "FAILED": "fail", "DELETING": "dele"}
_STATES = Lifecycle({"PENDING": 0.25, "STARTING": 1}, up="ACTIVE", failed="FAILED", ending="DELETING")


class Cudo(SellerProtocol):
    """Machine types, the machines of projects."""

    name = "cudo"
    on_sale = staticmethod(cudo_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        project = "/v1/projects/{project}"
        return (
            Route("GET", "/v1/vms/machine-types-2", "list", self._types, public=True),
            Route("POST", f"{project}/vm", "create", self._create),
            Route("GET", f"{project}/vms", "get", self._machines),
            Route("GET", f"{project}/vms/{{id}}", "get", self._machine),
            Route("POST", f"{project}/vms/{{id}}/terminate", "delete", self._terminate),
        )

    def errors(self) -> ErrorForms:
        """A rate limit is RESOURCE_EXHAUSTED, a lack of hosts is FAILED_PRECONDITION."""
        return ErrorForms(
            no_key=_error(_UNAUTHENTICATED, "missing or invalid api key"),
            no_path=_error(_NOT_FOUND, "Not Found"),
            no_machine=lambda call: _error(_NOT_FOUND, f"vm {call.parts['id']} not found"),
            bad_body=partial(_error, _INVALID),
            rate_limited=_error(_EXHAUSTED, "rate limit exceeded"),
            no_capacity=_error(_PRECONDITION, "no suitable host found with the requested resources"),
            failed=_error(_INTERNAL, "internal error"),
        )

    def _types(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        rows = [self._type(item, free[item.key]) for item in self.seller.inventory()]
        return json_reply({"machineTypes": rows})

    def _type(self, item: InventoryItem, free: int) -> dict[str, Any]:
        most = min(free, GPUS_PER_HOST)
        gpus = (
            {"maxGpuFree": most, "totalGpuFree": free} if item.gpus else {"maxGpuFree": 0, "totalGpuFree": 0}
        )
        model = item.gpu if item.gpus else ""
        return {
            "dataCenterId": item.region,
            "machineType": item.sku,
            "cpuModel": item.labels["cpu"],
            "gpuModel": model,
            "gpuModelId": model.partition(" ")[0].lower(),
            "minVcpuPerMemoryGib": 0.25,
            "maxVcpuPerMemoryGib": 1,
            "minVcpuPerGpu": 1 if item.gpus else 0,
            "maxVcpuPerGpu": VCPUS_PER_GPU if item.gpus else 0,
            **{name: _money(usd) for name, usd in self._prices(item).items()},
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

    def _prices(self, item: InventoryItem) -> dict[str, Decimal]:
        return {
            "vcpuPriceHr": item.labels["vcpu_usd"],
            "memoryGibPriceHr": item.labels["memory_usd"],
            "gpuPriceHr": self.seller.price(item),
            "minStorageGibPriceHr": STORAGE_GIB_USD,
            "ipv4PriceHr": IPV4_USD,
        }

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        machine = str(body.get("vmId") or "")
        if not machine or not body.get("bootDiskImageId"):
            raise Refusal(_error(_INVALID, "vmId and bootDiskImageId are required"))
        if self.seller.find(machine, project=call.parts["project"]) is not None:
            raise Refusal(_error(_EXISTS, f"vm {machine} already exists"))
        item = self._wanted(body)
        gpus, vcpus, gib = (int(body.get(name) or 0) for name in ("gpus", "vcpus", "memoryGib"))
        units = gpus if item.gpus else 1
        if not 1 <= units <= GPUS_PER_HOST or not 0.25 * gib <= vcpus <= min(gib, VCPUS_PER_GPU * units):
            raise Refusal(_error(_INVALID, "the size is outside of the limits of the machine type"))
        self.require_stock(item, units)
        prices = self._prices(item)
        entry = self.seller.sell(
            item,
            machine,
            Tariff(sum(_parts(body, prices).values(), Decimal(0))),
            {
                "project": call.parts["project"],
                "request": body,
                "type": item.sku,
                "gpu": item.gpu,
                "usd": {name: str(price) for name, price in prices.items()},
            },
            instance_id=machine,
            sku=f"{item.sku}_{gpus}x{vcpus}v{gib}gb",
            units=units,
            fails=call.loses_capacity,
        )
        return json_reply({"id": entry.instance_id, "vm": self._row(entry)})

    def _wanted(self, body: dict[str, Any]) -> InventoryItem:
        item = self.seller.item(sku=body.get("machineType"), region=body.get("dataCenterId"))
        if item is None:
            raise Refusal(_error(_INVALID, "machine type not found in data center"))
        return item

    def _found(self, call: Call) -> Entry:
        return self.machine(call, project=call.parts["project"])

    def _machines(self, call: Call) -> Reply:
        mine = self.seller.visible(project=call.parts["project"])
        return json_reply({"VMs": [self._row(entry) for entry in mine]})

    def _machine(self, call: Call) -> Reply:
        entry = self._found(call)
        return json_reply({"VM": self._row(entry), **_bill(entry, "ipv4PriceHr")})

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, state = entry.detail["request"], self.seller.state(entry, _STATES)
        address = self.seller.address(entry) if state == "ACTIVE" else ""
        return {
            "datacenterId": entry.region,
            "machineType": entry.detail["type"],
            "regionId": entry.region.rpartition("-")[0],
            "regionName": entry.region,
            "id": entry.instance_id,
            "externalIpAddress": address,
            "internalIpAddress": address,
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
        state = self.seller.state(entry, _STATES)
        if state in {"STARTING", "DELETING"}:
            raise Refusal(_error(_PRECONDITION, f"vm cannot be terminated in state {_SHORT[state]}"))
        self.seller.release(entry)
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

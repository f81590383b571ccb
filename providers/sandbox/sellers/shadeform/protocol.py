"""Shadeform's API v1, under ``/shadeform/v1``.

Prices are whole US cents per instance and hour, one for all regions of a type; each region says whether it
has some. A create is answered with an id at once; what goes wrong later shows as status ``error``. Errors
are mostly 409 with ``error_code`` and ``error``. Deleting is a POST answered with nothing. Not documented:
what an unknown instance and a rate limit answer (404 and 429 in the same form here), and how billing is
rounded (whole hours here). Sources: Shadeform OpenAPI description 1.0.0 and its production clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import InventoryItem, by_sku
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.shadeform.market import shadeform_inventory

BILLING_INCREMENT_S = 3600
_NEEDED = ("cloud", "region", "shade_instance_type", "shade_cloud", "name")

_STATES = Lifecycle(
    {"creating": 1 / 3, "pending_provider": 2 / 3, "pending": 1},
    up="active",
    failed="error",
    ending="deleting",
)


class Shadeform(SellerProtocol):
    """Types and instances."""

    name = "shadeform"
    on_sale = staticmethod(shadeform_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/v1/instances/types", "list", self._types),
            Route("POST", "/v1/instances/create", "create", self._create),
            Route("GET", "/v1/instances", "get", self._instances),
            Route("GET", "/v1/instances/{id}/info", "get", self._instance),
            Route("POST", "/v1/instances/{id}/delete", "delete", self._delete),
            Route("GET", "/v1/sshkeys", "other", self._keys),
            Route("POST", "/v1/sshkeys/add", "other", self._add_key),
            Route("POST", "/v1/sshkeys/{id}/delete", "other", self._drop_key),
        )

    def errors(self) -> ErrorForms:
        """Every error has a code and a text."""
        return ErrorForms(
            no_key=_error(401, "UNAUTHORIZED", "Missing or invalid API key"),
            no_path=_error(404, "NOT_FOUND", "path not found"),
            no_machine=lambda _: _error(404, "NOT_FOUND", "Instance not found"),
            bad_body=lambda reason: _error(400, "INVALID_REQUEST", reason),
            rate_limited=_error(429, "RATE_LIMITED", "Too many requests"),
            no_capacity=_out_of_stock(),
            failed=_error(500, "INTERNAL_ERROR", "Internal server error"),
        )

    def key(self, call: Call) -> str | None:
        """The header ``X-API-KEY``."""
        return call.headers.get("x-api-key", "").strip() or None

    def _types(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        rows = [self._type(items, free) for items in by_sku(self.seller.inventory()).values()]
        return json_reply({"instance_types": rows})

    def _type(self, items: list[InventoryItem], free: dict[str, int]) -> dict[str, Any]:
        item = items[0]
        cloud, _, shade_type = item.sku.partition("_")
        places = [
            {"region": each.region, "available": free[each.key] > 0, "display_name": _display(each.region)}
            for each in items
        ]
        return {
            "cloud": cloud,
            "shade_instance_type": shade_type,
            "cloud_instance_type": f"{cloud}-{shade_type}".lower(),
            "hourly_price": self.seller.cents(item),
            "deployment_type": "vm",
            "configuration": _configuration(item),
            "availability": places,
            "boot_time": {"min_boot_in_sec": 180, "max_boot_in_sec": 300},
        }

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        missing = [name for name in _NEEDED if body.get(name) in {None, ""}]
        if missing:
            raise Refusal(_error(400, "INVALID_REQUEST", f"{missing[0]} is required"))
        item = self._wanted(body)
        self.require_stock(item)
        tags = body.get("tags") or []
        entry = self.seller.sell(
            item,
            tags[0] if tags else body["name"],
            Tariff(Decimal(self.seller.cents(item)) / 100, BILLING_INCREMENT_S),
            {"request": body, "configuration": _configuration(item)},
            fails=call.loses_capacity,
        )
        return json_reply({"id": entry.instance_id})

    def _wanted(self, body: dict[str, Any]) -> InventoryItem:
        sku = f"{body['cloud']}_{body['shade_instance_type']}"
        if not self.seller.inventory(sku=sku):
            raise Refusal(_error(400, "INVALID_REQUEST", f"no instance type {sku}"))
        item = self.seller.item(sku=sku, region=body["region"])
        if item is None:
            raise Refusal(_error(400, "INVALID_REQUEST", f"{sku} is not sold in {body['region']}"))
        return item

    def _instances(self, _: Call) -> Reply:
        return json_reply({"instances": [self._row(entry) for entry in self.seller.visible()]})

    def _instance(self, call: Call) -> Reply:
        return json_reply(self._row(self.machine(call)))

    def _delete(self, call: Call) -> Reply:
        self.seller.release(self.machine(call))
        return Reply(200, b"")

    def _keys(self, _: Call) -> Reply:
        return json_reply({"ssh_keys": [{**row, "is_default": False} for row in self.seller.ssh_keys()]})

    def _add_key(self, call: Call) -> Reply:
        body = call.json_object()
        if not body.get("name") or not body.get("public_key"):
            raise Refusal(_error(400, "INVALID_REQUEST", "name and public_key are required"))
        return json_reply({"id": self.seller.add_key(body["name"], body["public_key"])["id"]})

    def _drop_key(self, call: Call) -> Reply:
        """A key that a machine still has is kept."""
        key_id = call.parts["id"]
        live = [entry for entry in self.seller.visible() if entry.is_live(self.now)]
        if any(entry.detail["request"].get("ssh_key_id") == key_id for entry in live):
            raise Refusal(_error(409, "INVALID_REQUEST", "ssh key is in use"))
        if not self.seller.drop_key(key_id):
            raise Refusal(_error(404, "NOT_FOUND", "ssh key not found"))
        return Reply(200, b"")

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, status = entry.detail["request"], self.seller.state(entry, _STATES)
        cloud, _, shade_type = entry.sku.partition("_")
        return {
            "id": entry.instance_id,
            "cloud": cloud,
            "region": entry.region,
            "shade_instance_type": shade_type,
            "cloud_instance_type": f"{cloud}-{shade_type}".lower(),
            "cloud_assigned_id": entry.instance_id,
            "shade_cloud": True,
            "name": request["name"],
            "configuration": _with_os(entry.detail["configuration"], request.get("os")),
            "ip": self.seller.address(entry) if status == "active" else "",
            "ssh_user": "shadeform",
            "ssh_port": self.seller.ssh_port,
            "status": status,
            "status_details": "out of capacity at the cloud" if status == "error" else None,
            "cost_estimate": str(entry.billed_usd(self.now)),
            "hourly_price": int(entry.tariff.usd_per_hour * 100),
            "tags": request.get("tags") or [],
            "created_at": zulu_ms(entry.created_at),
            "deleted_at": None if entry.released_at is None else zulu_ms(entry.released_at),
        }


def _configuration(item: InventoryItem) -> dict[str, Any]:
    interconnect = item.labels["interconnect"]
    config: dict[str, Any] = {
        "memory_in_gb": int(item.memory_gb or 0),
        "storage_in_gb": 500,
        "vcpus": int(item.vcpus or 0),
        "num_gpus": item.gpus,
        "gpu_type": item.labels["gpu_type"],
        "gpu_manufacturer": "intel" if item.labels["gpu_type"].startswith("Gaudi") else "nvidia",
        "vram_per_gpu_in_gb": item.gpu_memory_gb,
        "os_options": ["ubuntu22.04_cuda12.2_shade_os"],
    }
    if interconnect is not None:
        config |= {"interconnect": interconnect, "nvlink": interconnect.startswith("sxm")}
    return config


def _with_os(configuration: dict[str, Any], asked: str | None) -> dict[str, Any]:
    """The configuration of an instance: it has one of the type's operating systems."""
    options = configuration["os_options"]
    kept = {name: value for name, value in configuration.items() if name != "os_options"}
    return {**kept, "os": asked or options[0]}


def _display(region: str) -> str:
    city, _, rest = region.partition("-")
    return f"{rest.partition('-')[0].title()}, {city.title()}"


def _out_of_stock() -> Reply:
    return _error(409, "OUT_OF_STOCK", "The instance type is out of stock in the selected region.")


def _error(status: int, code: str, message: str) -> Reply:
    return json_reply({"error_code": code, "error": message}, status)

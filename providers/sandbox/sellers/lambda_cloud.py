"""Lambda Cloud's API v1, under ``/lambda/api/v1``.

Prices are whole US cents per instance and hour, the same in every region. A type that is sold out lists
no region. One launch makes one instance. Errors carry a ``code``; capacity, quota and a bad body are all
400. Billed per minute. Sources: Lambda OpenAPI 1.10.0 and its rate limit page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import (
    InventoryItem,
    Recorded,
    by_sku,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply, text_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol

_DESCRIPTIONS = {
    "A10": "A10 (24 GB PCIe)",
    "A100-PCIe-40GB": "A100 (40 GB PCIe)",
    "A100-SXM-40GB": "A100 (40 GB SXM4)",
    "A100-SXM-80GB": "A100 (80 GB SXM4)",
    "B200-SXM-180GB": "B200 (180 GB SXM6)",
    "GH200-96GB": "GH200 (96 GB)",
    "H100-PCIe-80GB": "H100 (80 GB PCIe)",
    "H100-SXM-80GB": "H100 (80 GB SXM5)",
    "RTX-A6000": "RTX A6000 (48 GB)",
    "V100-SXM2-16GB": "Tesla V100 (16 GB)",
}
_REGIONS = {
    "us-east-1": "Virginia, USA",
    "us-west-1": "California, USA",
    "us-west-2": "Arizona, USA",
    "us-west-3": "Utah, USA",
    "us-south-1": "Texas, USA",
    "us-south-2": "North Texas, USA",
    "us-midwest-1": "Illinois, USA",
    "asia-south-1": "India",
    "asia-northeast-1": "Osaka, Japan",
    "australia-east-1": "Australia",
    "asia-northeast-2": "Tokyo, Japan",
    "europe-central-1": "Germany",
}
_USUAL_REGIONS = ("us-east-1", "us-west-1", "us-west-2", "us-south-1", "us-south-2")

_STATES = Lifecycle({"booting": 1}, up="active", failed="terminated", ending="terminating", gone="terminated")


@drawn_once
def lambda_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item per (type, region). A type recorded as sold out stays so; other stock is drawn."""
    for rows in by_sku(recorded_prices("lambda")).values():
        newest = max(rows, key=lambda row: row.recorded_on)
        for region in sorted({row.region for row in rows if row.region} or set(_USUAL_REGIONS)):
            yield _item(seed, newest, region)


def _item(seed: int, row: Recorded, region: str) -> InventoryItem:
    stocked = row.stock != "none" and draw(seed, row.sku, region, "stocked") < 0.7
    if row.gpus == 8 and row.stock != "none":
        stocked = stocked or region == "us-south-2"
    capacity = draw_count(2, 20 if row.gpus >= 8 else 12, seed, row.sku, region) if stocked else 0
    description = _DESCRIPTIONS[row.gpu]
    labels = {"description": f"{row.gpus}x {description}", "gpu_description": description}
    return recorded_item(row, region, capacity, tier="on_demand", labels=labels)


class LambdaCloud(SellerProtocol):
    """Catalogue, launch, list, terminate."""

    name = "lambda"
    on_sale = staticmethod(lambda_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        base = "/api/v1"
        return (
            Route("GET", f"{base}/instance-types", "list", self._types),
            Route("POST", f"{base}/instance-operations/launch", "create", self._launch),
            Route("POST", f"{base}/instance-operations/terminate", "delete", self._terminate),
            Route("GET", f"{base}/instances", "get", self._instances),
            Route("GET", f"{base}/instances/{{id}}", "get", self._instance),
            Route("GET", f"{base}/ssh-keys", "other", self._keys),
            Route("POST", f"{base}/ssh-keys", "other", self._add_key),
            Route("DELETE", f"{base}/ssh-keys/{{id}}", "other", self._drop_key),
        )

    def errors(self) -> ErrorForms:
        """Rate limits come from the front proxy, with a plain text body."""
        return ErrorForms(
            no_key=_error(401, "global/invalid-api-key", "API key was invalid, expired, or deleted."),
            no_path=_error(404, "global/object-does-not-exist", "Specified endpoint does not exist."),
            no_machine=lambda _: _no_instance(),
            bad_body=lambda reason: _error(
                400, "global/invalid-parameters", f"Invalid request data: {reason}"
            ),
            rate_limited=text_reply("error code: 1015", 429),
            no_capacity=_no_capacity(),
            failed=_error(500, "global/internal-error", "An internal error occurred."),
        )

    def _types(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        data = {
            sku: {
                "instance_type": self._type(items[0]),
                "regions_with_capacity_available": [_region(c.region) for c in items if free[c.key] > 0],
            }
            for sku, items in by_sku(self.seller.inventory()).items()
        }
        return json_reply({"data": data})

    def _type(self, item: InventoryItem) -> dict[str, Any]:
        return {
            "name": item.sku,
            "description": item.labels["description"],
            "gpu_description": item.labels["gpu_description"],
            "price_cents_per_hour": self.seller.cents(item),
            "specs": {
                "vcpus": int(item.vcpus or 0),
                "memory_gib": int(item.memory_gb or 0),
                # local disk was not recorded; these sizes are the sandbox's own
                "storage_gib": 512 * max(1, item.gpus) * (5 if item.gpus >= 8 else 1),
                "gpus": item.gpus,
            },
        }

    def _launch(self, call: Call) -> Reply:
        body = call.json_object()
        item = self._wanted(body)
        self.require_stock(item)
        entry = self.seller.sell(
            item,
            body.get("name") or _first_tag(body),
            Tariff(Decimal(self.seller.cents(item)) / 100, increment_s=60),
            {"request": body},
            instance_id=self.seller.new_id(32),
            fails=call.loses_capacity,
        )
        return json_reply({"data": {"instance_ids": [entry.instance_id]}})

    def _wanted(self, body: dict[str, Any]) -> InventoryItem:
        keys = body.get("ssh_key_names")
        if not isinstance(keys, list) or len(keys) != 1:
            raise Refusal(_invalid("ssh_key_names must name exactly one SSH key."))
        if len(str(body.get("name") or "")) > 64:
            raise Refusal(_invalid("name must be at most 64 characters."))
        if body.get("quantity", 1) != 1:
            raise Refusal(_invalid("quantity is not a parameter of launch."))
        sku, region = body.get("instance_type_name"), body.get("region_name")
        items = self.seller.inventory(sku=sku)
        if not items:
            raise Refusal(_invalid(f"instance_type_name: no type {sku!r}."))
        if region not in _REGIONS:
            raise Refusal(_invalid(f"region_name: no region {region!r}."))
        for item in items:
            if item.region == region:
                return item
        raise Refusal(_no_capacity())

    def _keys(self, _: Call) -> Reply:
        return json_reply({"data": self.seller.ssh_keys()})

    def _add_key(self, call: Call) -> Reply:
        body = call.json_object()
        if any(row["name"] == body.get("name") for row in self.seller.ssh_keys()):
            raise Refusal(_invalid("name: an SSH key of this name exists."))
        return json_reply({"data": self.seller.add_key(body.get("name"), body.get("public_key"))})

    def _drop_key(self, call: Call) -> Reply:
        if not self.seller.drop_key(call.parts["id"]):
            raise Refusal(_no_instance())
        return json_reply({})

    def _terminate(self, call: Call) -> Reply:
        ids = call.json_object().get("instance_ids")
        if not isinstance(ids, list) or not ids:
            raise Refusal(_invalid("instance_ids must be a list that is not empty."))
        entries = [self._live(str(instance_id)) for instance_id in ids]
        ended = [self.seller.release(entry) for entry in entries]
        rows = [{**self._row(entry), "status": "terminating"} for entry in ended]
        return json_reply({"data": {"terminated_instances": rows}})

    def _live(self, instance_id: str) -> Entry:
        entry = self.seller.find(instance_id)
        if entry is None or entry.failed(self.now):
            raise Refusal(_no_instance())
        return entry

    def _instances(self, _: Call) -> Reply:
        rows = [self._row(entry) for entry in self.seller.visible() if not entry.failed(self.now)]
        return json_reply({"data": rows})

    def _instance(self, call: Call) -> Reply:
        entry = self.sandbox.ledger.find(self.name, call.parts["id"])
        if entry is None:
            raise Refusal(_no_instance())
        return json_reply({"data": self._row(entry)})

    def _row(self, entry: Entry) -> dict[str, Any]:
        items = self.seller.inventory(sku=entry.sku)
        request = entry.detail["request"]
        status = self.seller.state(entry, _STATES)
        row: dict[str, Any] = {
            "id": entry.instance_id,
            "name": request.get("name"),
            "hostname": request.get("hostname"),
            "status": status,
            "ssh_key_names": request["ssh_key_names"],
            "file_system_names": request.get("file_system_names", []),
            "region": _region(entry.region),
            "instance_type": self._type(items[0]),
            "tags": request.get("tags", []),
            "actions": _actions(status),
        }
        if status == "active":
            row["ip"] = row["private_ip"] = self.seller.address(entry)
        return row


def _actions(status: str) -> dict[str, Any]:
    """Which actions are possible: while a machine boots only its end, while it terminates none."""
    why = {"booting": "vm-has-not-launched", "active": None}.get(status, "vm-is-terminating")
    rows: dict[str, Any] = {}
    for name in ("migrate", "rebuild", "restart", "cold_reboot", "terminate"):
        is_open = why is None or (name == "terminate" and status == "booting")
        reason = {} if is_open else {"reason_code": why, "reason_description": f"{name} is not possible now"}
        rows[name] = {"available": is_open, **reason}
    return rows


def _region(name: str) -> dict[str, str]:
    return {"name": name, "description": _REGIONS[name]}


def _first_tag(body: dict[str, Any]) -> str:
    tags = body.get("tags") or [{}]
    return str(tags[0].get("value", ""))


def _error(status: int, code: str, message: str) -> Reply:
    return json_reply({"error": {"code": code, "message": message}}, status)


def _invalid(message: str) -> Reply:
    return _error(400, "global/invalid-parameters", message)


def _no_instance() -> Reply:
    return _error(404, "global/object-does-not-exist", "Specified instance does not exist.")


def _no_capacity() -> Reply:
    return json_reply(
        {
            "error": {
                "code": "instance-operations/launch/insufficient-capacity",
                "message": "Not enough capacity to fulfill launch request.",
                "suggestion": "Choose an instance type with more availability, or try again later.",
            }
        },
        400,
    )

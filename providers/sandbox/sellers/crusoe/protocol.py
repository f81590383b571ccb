"""Crusoe Cloud's API v1alpha5, under ``/crusoe/v1alpha5``.

Signed calls: of any signature the form is checked; of the access key ``sandbox``, whose secret is
``sandbox`` too, the signature itself. Types, capacities (counts) and InfiniBand networks are three lists
without prices. A create or delete is an operation; a lack of capacity shows in it. Errors are flat:
``code``, ``message``. Sources: Crusoe's OpenAPI document and client-go, dstack's and gpuhunt's clients.
Billed to the second, which is illustrative.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import NAMESPACE_URL, UUID, uuid5

from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.crusoe.market import BY_NAME, LOCATIONS, crusoe_inventory

KNOWN_KEY = "sandbox"
_PAGE = 20
_STATES = Lifecycle({"STATE_CREATING": 1}, up="STATE_RUNNING", failed="", ending="STATE_DELETING", gone="")
_OPERATION, _PARTITION = "crusoe_operation", "crusoe_partition"
_SIGNED = re.compile(r"1\.0:(?P<key>[^:]+):(?P<signature>[A-Za-z0-9_-]{43})")
_VMS = "/v1alpha5/projects/{project}/compute/vms"
_NET = "/v1alpha5/projects/{project}/networking"


class Crusoe(SellerProtocol):
    """Types, stock, networks, machines, operations."""

    name = "crusoe"
    on_sale = staticmethod(crusoe_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", f"{_VMS}/types", "list", self._types),
            Route("GET", "/v1alpha5/capacities", "list", self._capacities),
            Route("GET", f"{_NET}/ib-networks", "list", self._networks),
            Route("GET", f"{_NET}/ib-partitions", "other", self._partitions),
            Route("POST", f"{_NET}/ib-partitions", "other", self._make_partition),
            Route("POST", f"{_VMS}/instances", "create", self._create),
            Route("GET", f"{_VMS}/instances", "get", self._machines),
            Route("GET", f"{_VMS}/instances/operations", "get", self._operations),
            Route("GET", f"{_VMS}/instances/operations/{{id}}", "get", self._one_operation),
            Route("GET", f"{_VMS}/instances/{{id}}", "get", self._machine),
            Route("DELETE", f"{_VMS}/instances/{{id}}", "delete", self._delete),
        )

    def errors(self) -> ErrorForms:
        """A lack of capacity is answered with an operation that has already failed."""
        return ErrorForms(
            no_key=_error(401, "bad_credential", "the request is not signed"),
            no_path=_error(404, "not_found", "not_found"),
            no_machine=lambda _: _error(404, "not_found", "instance not found"),
            bad_body=lambda reason: _error(400, "bad_request", reason),
            rate_limited=_error(429, "too_many_requests", "rate limit exceeded"),
            no_capacity=json_reply({"operation": _NEVER_MADE}),
            failed=_error(500, "internal_error", "internal_error"),
        )

    def authorise(self, call: Call) -> None:
        """A timestamp and a signature."""
        found = _SIGNED.fullmatch(call.key() or "")
        timestamp = call.headers.get("x-crusoe-timestamp", "")
        if found is None or not _is_instant(timestamp):
            raise Refusal(self.errors().no_key)
        if found["key"] == KNOWN_KEY and found["signature"] != _signature(call, timestamp):
            raise Refusal(_error(401, "bad_credential", "the signature does not match"))

    # Market data

    def _types(self, _: Call) -> Reply:
        rows = []
        for name in dict.fromkeys(item.sku for item in self.seller.inventory()):
            product = BY_NAME[name]
            gpu = f"{product.gpus}x {product.maker} {product.gpu_type}" if product.gpus else "CPU only"
            rows.append(
                {
                    "product_name": name,
                    "description": gpu,
                    "cpu_cores": product.cores,
                    "cpu_type": "intel",
                    "memory_gb": product.memory_gb,
                    "memory_type": "RAM",
                    "disk_gb": product.disk_gb,
                    "disk_type": "SSD",
                    "num_gpu": product.gpus,
                    "gpu_type": product.gpu_type,
                }
            )
        return json_reply({"items": rows})

    def _capacities(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        rows: list[dict[str, Any]] = [
            {
                "type": item.sku,
                "location": item.region,
                "quantity": free[item.key],
                "num_slices": item.gpus,
                "quota_type": "",
            }
            for item in self.seller.inventory()
        ]
        doubled = [{**row, "quantity": row["quantity"] // 2} for row in rows[:1]]
        return json_reply({"items": [*rows, *doubled]})

    def _networks(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        rows = []
        for location in LOCATIONS:
            items = [c for c in self.seller.inventory(region=location) if BY_NAME[c.sku].has_infiniband]
            slices = [{"slice_type": item.sku, "quantity": free[item.key]} for item in items]
            row = {"id": _network_id(location), "name": f"{location}-ib", "location": location}
            rows.append({**row, "capacities": slices})
        return json_reply({"items": rows})

    def _partitions(self, _: Call) -> Reply:
        return json_reply({"items": list(self.sandbox.store.documents(_PARTITION).values())})

    def _make_partition(self, call: Call) -> Reply:
        body = call.json_object()
        if body.get("ib_network_id") not in {_network_id(location) for location in LOCATIONS}:
            raise Refusal(_error(404, "not_found", "ib network not found"))
        row: dict[str, Any] = {
            "id": str(UUID(hex=self.sandbox.new_id("crusoe-partition", 32))),
            "name": str(body.get("name", "")),
            "ib_network_id": body["ib_network_id"],
        }
        self.sandbox.store.put_document(_PARTITION, row["id"], row)
        return json_reply(row)

    # Machines

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        for name in ("name", "type", "location", "ssh_public_key"):
            if not body.get(name):
                raise ValueError(f"{name} is required")
        for adapter in body.get("host_channel_adapters") or []:
            if self.sandbox.store.document(_PARTITION, str(adapter.get("ib_partition_id"))) is None:
                raise Refusal(_error(404, "not_found", "ib partition not found"))
        item = self._wanted(body)
        short = call.loses_capacity or self.seller.free(item) < 1
        detail = {"project": call.parts["project"], "request": body}
        entry = self.seller.sell(item, body["name"], Tariff(self.seller.price(item)), detail, fails=short)
        return self._started(entry, "CREATE", self.sandbox.durations.boot_s, fails=short)

    def _wanted(self, body: dict[str, Any]) -> InventoryItem:
        item = self.seller.item(sku=body["type"], region=body["location"])
        if item is None:
            raise ValueError(f"type {body['type']} is not offered in {body['location']}")
        return item

    def _started(self, entry: Entry, action: str, seconds: float, *, fails: bool) -> Reply:
        row: dict[str, Any] = {
            "operation_id": str(UUID(hex=self.sandbox.new_id("crusoe-operation", 32))),
            "action": action,
            "machine": entry.instance_id,
            "started_at": self.now.isoformat(),
            "done_at": (self.now + timedelta(seconds=seconds)).isoformat(),
            "fails": fails,
        }
        self.sandbox.store.put_document(_OPERATION, row["operation_id"], row)
        return json_reply({"operation": self._operation_row(row)})

    def _operation_row(self, row: dict[str, Any]) -> dict[str, Any]:
        done_at = datetime.fromisoformat(row["done_at"])
        is_done = self.now >= done_at
        state = "IN_PROGRESS" if not is_done else "FAILED" if row["fails"] else "SUCCEEDED"
        result = None if not is_done else _OUT_OF_STOCK if row["fails"] else {"id": row["machine"]}
        return {
            "operation_id": row["operation_id"],
            "state": state,
            "metadata": {"operation_name": row["action"], "id": row["machine"], "type": "INSTANCE"},
            "result": result,
            "started_at": zulu(datetime.fromisoformat(row["started_at"])),
            "completed_at": zulu(done_at) if is_done else None,
        }

    def _operations(self, _: Call) -> Reply:
        rows = self.sandbox.store.documents(_OPERATION).values()
        return json_reply({"items": [self._operation_row(row) for row in rows]})

    def _one_operation(self, call: Call) -> Reply:
        row = self.sandbox.store.document(_OPERATION, call.parts["id"])
        if row is None:
            raise Refusal(_error(404, "not_found", "operation not found"))
        return json_reply(self._operation_row(row))

    def _row(self, entry: Entry) -> dict[str, Any]:
        state = self.seller.state(entry, _STATES)
        return {
            "id": entry.instance_id,
            "name": entry.tag,
            "type": entry.sku,
            "location": entry.region,
            "state": state,
            "network_interfaces": [_interface(self.seller.address(entry))] if state == _STATES.up else [],
            "project_id": entry.detail["project"],
            "billing_type": "On-demand",
            "created_at": zulu(entry.created_at),
            "host_channel_adapters": entry.detail["request"].get("host_channel_adapters") or [],
        }

    def _entries(self, call: Call) -> list[Entry]:
        mine = self.seller.visible(project=call.parts["project"])
        return [entry for entry in mine if not entry.failed(self.now)]

    def _machines(self, call: Call) -> Reply:
        """A page; the token of the next one is the id that the page ends with."""
        rows = [self._row(entry) for entry in self._entries(call)]
        after = base64.b64decode(call.query.get("next_token", "")).decode()
        begin = next((at for at, row in enumerate(rows, 1) if row["id"] == after), 0)
        page = rows[begin : begin + min(_PAGE, int(call.query.get("limit", _PAGE)))]
        more = bool(page) and page[-1] is not rows[-1]
        token = base64.b64encode(page[-1]["id"].encode()).decode() if more else ""
        return json_reply({"items": page, "next_page_token": token, "prev_page_token": ""})

    def _known(self, call: Call) -> Entry:
        entry = self.machine(call, project=call.parts["project"])
        if entry.failed(self.now):
            raise Refusal(self.errors().no_machine(call))
        return entry

    def _machine(self, call: Call) -> Reply:
        return json_reply(self._row(self._known(call)))

    def _delete(self, call: Call) -> Reply:
        entry = self.seller.release(self._known(call))
        return self._started(entry, "DELETE", self.sandbox.durations.terminate_s, fails=False)


_OUT_OF_STOCK = {"code": "out_of_stock", "message": "the requested instance type is out of stock"}
_NEVER_MADE = {"operation_id": "op-sandbox", "state": "FAILED", "result": _OUT_OF_STOCK, "metadata": None}


def _signature(call: Call, timestamp: str) -> str:
    """What the known key must have signed: path, sorted query, method, time."""
    query = urlencode(sorted(call.query.items()))
    text = f"{call.path}\n{query}\n{call.method}\n{timestamp}\n"
    secret = base64.urlsafe_b64decode(KNOWN_KEY + "=" * (-len(KNOWN_KEY) % 4))
    digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _is_instant(text: str) -> bool:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is not None
    except ValueError:
        return False


def _interface(address: str) -> dict[str, Any]:
    """The one network interface of a machine that runs."""
    ips = {"private_ipv4": {"address": address}, "public_ipv4": {"address": address, "type": "dynamic"}}
    return {"id": f"nic-{address}", "name": "eth0", "interface_type": "physical", "ips": [ips]}


def _network_id(location: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"crusoe-ib-{location}"))


def _error(status: int, code: str, message: str) -> Reply:
    return json_reply({"code": code, "message": message}, status)

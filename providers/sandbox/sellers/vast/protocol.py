"""Vast.ai's API v0, under ``/vast/api/v0``, and its list of own instances in v1.

An offer is one slice of one machine, and renting it takes its GPUs: slices of a machine overlap, so an
offer disappears when another took too many. Prices are USD per hour of the whole offer; ``dph_total``
adds the disk that the search asked for. ``type: bid`` lists interruptible prices. Billed per second.
A search shows 64 rows at most, whatever its limit. The list in v0 is retired and answers 410.
Sources: vast-ai/docs OpenAPI files and its page on rate limits and errors; clients' reports of 2026 on the
64 rows and the retired list.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply, text_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.vast.market import vast_inventory

_GPU_RAM_MIB = {
    16: 16384,
    24: 24564,
    32: 32607,
    40: 40960,
    48: 46068,
    80: 81559,
    94: 95830,
    96: 97887,
    141: 143771,
    180: 183359,
    288: 275040,
}
_HOURS_PER_MONTH = 720
_LONGEST_PAGE = 25
_EVERY = "0.0.0.0"  # noqa: S104  of a host, as Vast shows it
_ALONE = "args"
"""The way to run an image with its own entry point, without an SSH server."""
_USUAL_PAGE = 5
_SHOWN_ROWS = 64
_TERM = timedelta(days=90)
"""How long hosts offer their machines; then they offer them anew."""
_STORAGE_USD_PER_GB_MONTH = Decimal("0.15")
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": lambda found, wanted: found == wanted,
    "neq": lambda found, wanted: found != wanted,
    "gt": lambda found, wanted: found is not None and found > wanted,
    "gte": lambda found, wanted: found is not None and found >= wanted,
    "lt": lambda found, wanted: found is not None and found < wanted,
    "lte": lambda found, wanted: found is not None and found <= wanted,
    "in": lambda found, wanted: found in wanted,
    "notin": lambda found, wanted: found not in wanted,
}
_STATES: Lifecycle[tuple[str | None, str]] = Lifecycle(
    {(None, ""): 0.5, ("loading", "loading image"): 1},
    up=("running", "success"),
    failed=("exited", "Error: host could not start the instance, no capacity"),
)
_NOT_FILTERS = frozenset({"order", "type", "limit", "allocated_storage", "select_cols", "q", "offset"})


class Vast(SellerProtocol):
    """Search, rent, list, destroy."""

    name = "vast"
    ends_at_once = True
    on_sale = staticmethod(vast_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        base = "/api/v0"
        return (
            Route("POST", f"{base}/bundles", "list", self._search, public=True),
            Route("PUT", f"{base}/search/asks", "list", self._search_asks, public=True),
            Route("PUT", f"{base}/asks/{{id}}", "create", self._rent),
            Route("GET", f"{base}/instances", "get", self._retired_list),
            Route("GET", "/api/v1/instances", "get", self._instances_by_page),
            Route("GET", f"{base}/instances/{{id}}", "get", self._instance),
            Route("DELETE", f"{base}/instances/{{id}}", "delete", self._destroy),
        )

    def errors(self) -> ErrorForms:
        """A rate limit is plain text."""
        return ErrorForms(
            no_key=_error(401, "auth_error", "This action requires login"),
            no_path=_error(404, "not_found", "no such endpoint"),
            no_machine=lambda call: _error(404, "no_such_instance", f"Instance {call.parts['id']} not found"),
            bad_body=lambda reason: _error(400, "invalid_args", reason),
            rate_limited=text_reply("API requests too frequent: endpoint threshold=3.0", 429),
            no_capacity=_error(
                400, "invalid_args", "error 400/3603: no_such_ask the offer is not available."
            ),
            failed=_error(500, "server_error", "internal server error"),
        )

    def key(self, call: Call) -> str | None:
        """A bearer key or ``?api_key=``."""
        return call.key(query="api_key")

    def _search(self, call: Call) -> Reply:
        return self._found(call.json_object() if call.body else {})

    def _search_asks(self, call: Call) -> Reply:
        wanted = call.json_object().get("q")
        return self._found(wanted if isinstance(wanted, dict) else {})

    def _found(self, wanted: dict[str, Any]) -> Reply:
        kind = wanted.get("type", "on-demand")
        if kind not in {"on-demand", "ondemand", "bid", "interruptible", "reserved"}:
            raise Refusal(_error(400, "invalid_args", f"type: {kind}"))
        storage_gb = Decimal(str(wanted.get("allocated_storage", 8)))
        is_bid = kind in {"bid", "interruptible"}
        taken = self._taken_gpus()
        rows = [self._row(item, taken, storage_gb, is_bid) for item in self.seller.inventory()]
        filters = {name: rule for name, rule in wanted.items() if name not in _NOT_FILTERS}
        rows = [row for row in rows if all(_passes(row.get(n), rule) for n, rule in filters.items())]
        most = min(_SHOWN_ROWS, int(wanted.get("limit", _SHOWN_ROWS)))
        return json_reply({"offers": _ordered(rows, wanted.get("order"))[:most]})

    def _taken_gpus(self) -> dict[int, int]:
        """GPUs in use by machine."""
        taken: dict[int, int] = {}
        for entry in self.sandbox.ledger.live(self.name, self.now):
            machine = int(entry.detail["machine"])
            taken[machine] = taken.get(machine, 0) + int(entry.detail["gpus"])
        return taken

    def _rentable(self, item: InventoryItem, taken: Mapping[int, int]) -> bool:
        left = item.labels["machine_gpus"] - taken.get(item.labels["machine"], 0)
        free = self.seller.free(item) > 0
        return free and left >= item.gpus and not item.labels["rented"]

    def _bid(self, item: InventoryItem) -> Decimal:
        """The recorded lowest bid, or the asking price where none was recorded."""
        price = self.seller.price(item)
        recorded = item.labels["bid"]
        if recorded is None or not item.usd_per_hour:
            return price
        return Decimal(recorded) * price / item.usd_per_hour

    def _row(
        self, item: InventoryItem, taken: Mapping[int, int], storage_gb: Decimal, is_bid: bool
    ) -> dict[str, Any]:
        labels = item.labels
        price = self._bid(item) if is_bid else self.seller.price(item)
        disk_hour = storage_gb * _STORAGE_USD_PER_GB_MONTH / _HOURS_PER_MONTH
        rentable = self._rentable(item, taken)
        ram_mib = _GPU_RAM_MIB.get(item.gpu_memory_gb, item.gpu_memory_gb * 1024)
        nvlink = 478.3 if " SXM" in labels["gpu_name"] and item.gpus > 1 else 0
        share = item.gpus / max(1, labels["machine_gpus"])
        cores = None if item.vcpus is None else int(item.vcpus / (share or 1))
        offer_id = int(item.zone)
        ends_at = self.sandbox.opened_at + _TERM * (1 + (self.now - self.sandbox.opened_at) // _TERM)
        return {
            "id": offer_id,
            "ask_contract_id": offer_id,
            "bundle_id": offer_id + 900_000_000,
            "machine_id": labels["machine"],
            "host_id": labels["machine"] % 60_000,
            "cluster_id": None,
            "gpu_name": labels["gpu_name"] or None,
            "num_gpus": item.gpus,
            "gpu_frac": share,
            "gpu_ram": ram_mib,
            "gpu_total_ram": ram_mib * item.gpus,
            "gpu_arch": "nvidia",
            "bw_nvlink": nvlink,
            "pci_gen": 5,
            "pcie_bw": 52.1,
            "cpu_arch": "amd64",
            "cpu_cores": cores,
            "cpu_cores_effective": item.vcpus,
            "cpu_ram": int((item.memory_gb or 0) * 1024 / (share or 1)),
            "disk_space": 1200.0,
            "storage_cost": float(_STORAGE_USD_PER_GB_MONTH),
            "dph_base": float(price),
            "dph_total": float(price + disk_hour),
            "min_bid": float(self._bid(item)),
            "is_bid": is_bid,
            "search": {
                "gpuCostPerHour": float(price),
                "diskHour": float(disk_hour),
                "totalHour": float(price + disk_hour),
            },
            "geolocation": item.region,
            "hosting_type": 1 if labels["datacenter"] else 0,
            "datacenter": labels["datacenter"],
            "verification": "verified" if labels["verified"] else "unverified",
            "verified": labels["verified"],
            "reliability2": labels["reliability"],
            "cuda_max_good": labels["cuda"],
            "compute_cap": 900,
            "direct_port_count": labels["ports"],
            "rentable": rentable,
            "rented": not rentable,
            "external": False,
            "inet_down": 1800.0,
            "inet_up": 1700.0,
            "inet_down_cost": 0.002,
            "inet_up_cost": 0.004,
            "static_ip": True,
            "vms_enabled": False,
            "duration": (ends_at - self.now).total_seconds(),
            "end_date": int(ends_at.timestamp()),
            "resource_type": "gpu" if item.gpus else "cpu",
        }

    def _rent(self, call: Call) -> Reply:
        body = call.json_object()
        if not body.get("image") and not body.get("template_hash_id"):
            raise Refusal(_error(400, "invalid_args", "image is required"))
        item = self._ask(call.parts["id"])
        if not self._rentable(item, self._taken_gpus()):
            raise Refusal(_gone_ask(item.zone))
        bid = body.get("price")
        price = self.seller.price(item) if bid is None else Decimal(str(bid))
        contract = str(10_000_000 + int(self.sandbox.new_id(self.name, 6), 16))
        too_low = bid is not None and price < self._bid(item)
        self._sell(call, item, contract, body, price, stopped=too_low)
        if too_low:
            return json_reply(
                {
                    "success": False,
                    "error": "invalid_price",
                    "msg": "bid is below min_bid; the instance is stopped",
                    "new_contract": int(contract),
                },
                400,
            )
        key = self.sandbox.new_id("vast-key", 40)
        return json_reply({"success": True, "new_contract": int(contract), "instance_api_key": key})

    def _ask(self, offer_id: str) -> InventoryItem:
        item = self.seller.item(zone=offer_id)
        if item is None:
            words = f"error 404/3603: no_such_ask Instance type by id {offer_id} is not available."
            raise Refusal(_error(404, "invalid_args", words))
        return item

    def _sell(
        self,
        call: Call,
        item: InventoryItem,
        contract: str,
        body: dict[str, Any],
        price: Decimal,
        *,
        stopped: bool,
    ) -> None:
        storage_gb, is_bid = Decimal(str(body.get("disk", 8))), body.get("price") is not None
        disk_hour = storage_gb * _STORAGE_USD_PER_GB_MONTH / _HOURS_PER_MONTH
        self.seller.sell(
            item,
            body.get("label") or "",
            Tariff(price + disk_hour),
            {
                "machine": item.labels["machine"],
                "gpus": item.gpus,
                "gpu_name": item.labels["gpu_name"],
                "image": body.get("image"),
                "is_bid": is_bid,
                "stopped": stopped,
                "onstart": body.get("onstart"),
                "runtype": body.get("runtype") or "ssh",
                "args": shlex.split(body.get("args_str") or "") or body.get("args") or [],
                "env": body.get("env") or {},
            },
            instance_id=contract,
            tier="spot" if is_bid else "on_demand",
            fails=call.loses_capacity,
        )

    def _retired_list(self, _: Call) -> Reply:
        words = "/api/v0/instances/ is deprecated. Use /api/v1/instances/ instead."
        return _error(410, "deprecated_endpoint", words)

    def _instances_by_page(self, call: Call) -> Reply:
        """By id; 5 rows a page unless more are asked for, 25 at most. The token names the last row shown."""
        rows = sorted(
            (self._instance_row(entry) for entry in self.seller.visible()), key=lambda row: row["id"]
        )
        try:
            filters = json.loads(call.query.get("select_filters") or "{}").items()
            asked = int(call.query.get("limit") or 0)
        except (ValueError, AttributeError):
            raise Refusal(
                _error(400, "invalid_args", "limit or select_filters: no number or no object")
            ) from None
        rows = [row for row in rows if all(_passes(row.get(name), rule) for name, rule in filters)]
        size = min(_LONGEST_PAGE, asked) if asked > 0 else _USUAL_PAGE
        after = _id_of_token(call.query.get("after_token") or "")
        left = [row for row in rows if row["id"] > after]
        page = left[:size]
        return json_reply(
            {
                "success": True,
                "instances_found": len(page),
                "total_instances": len(rows),
                "next_token": _token_of_id(page[-1]["id"]) if len(left) > size else None,
                "instances": page,
            }
        )

    def _instance(self, call: Call) -> Reply:
        return json_reply({"instances": self._instance_row(self.machine(call))})

    def _destroy(self, call: Call) -> Reply:
        self.seller.release(self.machine(call))
        return json_reply({"success": True})

    def _status(self, entry: Entry) -> tuple[str | None, str]:
        """``actual_status`` and a message: null, loading, running; exited for good when it failed."""
        if entry.detail["stopped"] and not entry.failed(self.now):
            return "exited", "outbid"
        return self.seller.state(entry, _STATES)

    def _instance_row(self, entry: Entry) -> dict[str, Any]:
        actual, message = self._status(entry)
        stopped = entry.detail["stopped"]
        address = self.seller.address(entry) if actual == "running" else None
        return {
            "id": int(entry.instance_id),
            "label": entry.tag or None,
            "machine_id": entry.detail["machine"],
            "gpu_name": entry.detail["gpu_name"],
            "num_gpus": entry.detail["gpus"],
            "geolocation": entry.region,
            "image_uuid": entry.detail["image"],
            "image_runtype": entry.detail["runtype"],
            "image_args": entry.detail["args"],
            "is_bid": entry.detail["is_bid"],
            "actual_status": actual,
            "status_msg": message,
            "intended_status": "stopped" if stopped else "running",
            "cur_state": "running" if actual == "running" else "stopped",
            "next_state": "stopped" if stopped else "running",
            "dph_total": float(entry.tariff.usd_per_hour),
            "start_date": entry.created_at.timestamp(),
            "onstart": entry.detail["onstart"],
            "public_ipaddr": address,
            "ssh_host": "ssh5.vast.ai",
            "ssh_port": 12345,
            "ports": self._ports(entry) if address else None,
            "extra_env": list(entry.detail["env"].items()),
        }

    def _ports(self, entry: Entry) -> dict[str, list[dict[str, str]]] | None:
        """The mapped ports: 22, unless the image runs alone, and those of ``env``; each is its machine's."""
        asked = [
            name.removeprefix("-p ").partition(":")[2] for name in entry.detail["env"] if name[:3] == "-p "
        ]
        mapped = {port: port for port in asked}
        if entry.detail["runtype"] != _ALONE:
            mapped["22"] = str(self.seller.ssh_port)
        return {f"{port}/tcp": [{"HostIp": _EVERY, "HostPort": to}] for port, to in mapped.items()} or None


def _passes(found: Any, rule: Any) -> bool:
    if not isinstance(rule, dict):
        return bool(found == rule)
    for operator, wanted in rule.items():
        check = _OPERATORS.get(operator)
        if check is None:
            raise Refusal(_error(400, "invalid_args", f"unknown operator {operator}"))
        if not check(found, _as_found(wanted, found)):
            return False
    return True


def _as_found(wanted: Any, found: Any) -> Any:
    """Vast.ai's own client writes the numbers of a search as text."""
    if isinstance(wanted, list):
        return [_as_found(one, found) for one in wanted]
    if isinstance(wanted, str) and isinstance(found, int | float) and not isinstance(found, bool):
        try:
            return float(wanted)
        except ValueError:
            raise Refusal(_error(400, "invalid_args", f"{wanted} is not a number")) from None
    return wanted


def _ordered(rows: list[dict[str, Any]], order: Any) -> list[dict[str, Any]]:
    if not isinstance(order, list):
        return rows
    for rule in reversed(order):
        name, direction = rule if isinstance(rule, list) and len(rule) == 2 else (rule, "asc")
        rows = sorted(
            rows, key=lambda row: (row.get(name) is None, row.get(name)), reverse=direction == "desc"
        )
    return rows


def _error(status: int, code: str, message: str) -> Reply:
    return json_reply({"success": False, "error": code, "msg": message}, status)


def _gone_ask(offer: str) -> Reply:
    return _error(
        410, "no_such_ask", f"error 410/3907: no_such_ask Instance type {offer} is no longer available."
    )


def _token_of_id(contract: int) -> str:
    return base64.b64encode(json.dumps({"values": {"id": contract}}).encode()).decode()


def _id_of_token(token: str) -> int:
    """The row that a token goes on after; the first page has none."""
    try:
        return int(json.loads(base64.b64decode(token))["values"]["id"]) if token else 0
    except (ValueError, KeyError, TypeError):
        raise Refusal(_error(400, "invalid_args", "after_token: not a token of this list")) from None

"""Vultr's API v2, under ``/vultr/v2``.

Prices are dollars per plan and hour; ``location_cost`` names the regions with another one. A plan lists
the regions that have it. Lists page by an opaque cursor. Virtual machines and bare metals have paths of
their own. Errors are ``{"error", "status"}``, and capacity, limits and bad orders are all 400. A machine
that is being set up is locked against deletion. Billed by the hour begun. Sources: Vultr's API v2
reference, its Go client and its Python client of 2023, its plan rows in gpuhunt's tests, error texts in
users' reports.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, SandboxState, json_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.vultr.market import (
    METAL,
    PLANS,
    REGIONS,
    Plan,
    list_of,
    vultr_inventory,
    vultr_plans,
)

MOST_ROWS = 500
_KINDS = {"instance": ("instances", PLANS), "bare_metal": ("bare_metals", METAL)}
_SOLD_OUT = "plan is not available in the selected region"
_STATES = Lifecycle(
    {("pending", "none"): 0.25, ("pending", "locked"): 1}, up=("active", "ok"), failed=("failed", "none")
)
"""``status`` and ``server_status``."""


class Vultr(SellerProtocol):
    """Plans, instances, bare metals."""

    name = "vultr"
    on_sale = staticmethod(vultr_inventory)

    def __init__(self, sandbox: SandboxState) -> None:
        super().__init__(sandbox)
        self._plans = vultr_plans(sandbox.seed)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        machines = (("instances", "instance"), ("bare-metals", "bare_metal"))
        return (
            Route("GET", "/v2/plans", "list", lambda call: self._list_plans(call, PLANS), public=True),
            Route("GET", "/v2/plans-metal", "list", lambda call: self._list_plans(call, METAL), public=True),
            Route("GET", "/v2/ssh-keys", "other", self._keys),
            Route("POST", "/v2/ssh-keys", "other", self._add_key),
            Route("DELETE", "/v2/ssh-keys/{id}", "other", self._drop_key),
            *(route for path, kind in machines for route in self._machine_routes(f"/v2/{path}", kind)),
        )

    def _machine_routes(self, path: str, kind: str) -> tuple[Route, ...]:
        return (
            Route("POST", path, "create", lambda call: self._create(call, kind)),
            Route("GET", path, "get", lambda call: self._machines(call, kind)),
            Route("GET", f"{path}/{{id}}", "get", lambda call: self._machine(call, kind)),
            Route("DELETE", f"{path}/{{id}}", "delete", lambda call: self._delete(call, kind)),
        )

    def errors(self) -> ErrorForms:
        """Every error has a text and repeats its status."""
        return ErrorForms(
            no_key=_error(401, "Invalid API token."),
            no_path=_error(404, "Invalid resource."),
            no_machine=lambda call: _error(
                404, "Invalid bare metal." if call.path.startswith("/v2/bare-metals") else "Invalid instance."
            ),
            bad_body=lambda reason: _error(400, f"Unable to parse the request: {reason}"),
            rate_limited=_error(429, "Rate limit exceeded"),
            no_capacity=_error(400, _SOLD_OUT),
            failed=_error(500, "Internal Server Error"),
        )

    def _list_plans(self, call: Call, which: str) -> Reply:
        wanted = call.query.get("type", "all")
        free = self.seller.free_by_key()
        rows = [self._plan(plan, free) for plan in self._plans if list_of(plan.sku) == which]
        return _page(call, which, [row for row in rows if which == METAL or wanted in {"all", row["type"]}])

    def _plan(self, plan: Plan, free: dict[str, int]) -> dict[str, Any]:
        items = self.seller.inventory(sku=plan.sku)
        field = "hourly_cost" if plan.on_demand else "hourly_cost_preemptible"
        usual = self.seller.price(items[0])
        costs = {"hourly_cost": plan.prices[0], "hourly_cost_preemptible": plan.prices[1], field: usual}
        others = {
            c.region: {field: _number(self.seller.price(c))} for c in items if self.seller.price(c) != usual
        }
        row: dict[str, Any] = {
            "id": plan.sku,
            "ram": round(plan.memory_gb * 1024),
            "disk": 1400 if list_of(plan.sku) == PLANS else 3576,
            "disk_count": 1 if list_of(plan.sku) == PLANS else 8,
            "bandwidth": 10240,
            **{name: _number(cost) for name, cost in costs.items()},
            **{name.replace("hourly", "monthly"): _number(cost * 672) for name, cost in costs.items()},
            "invoice_type": "hourly",
            "locations": [item.region for item in items if free[item.key] > 0],
            "location_cost": others or [],
            "deploy_ondemand": plan.on_demand,
            "deploy_preemptible": not plan.on_demand,
            "gpu_brand": plan.word.partition("_")[0] if plan.word else "NVIDIA" if plan.gpus else "none",
        }
        return row | _size(plan) | _gpu_fields(plan)

    def _create(self, call: Call, kind: str) -> Reply:
        body = call.json_object()
        item = self._wanted(body, _KINDS[kind][1])
        known = {row["id"] for row in self.seller.ssh_keys()}
        if not set(body.get("sshkey_id") or ()) <= known:
            raise Refusal(_error(400, "Invalid SSH Key ID"))
        base64.b64decode(body.get("user_data") or "", validate=True)
        self.require_stock(item)
        entry = self.seller.sell(
            item,
            body.get("label") or "",
            Tariff(self.seller.price(item), increment_s=3600),
            {"request": body, "kind": kind},
            fails=call.loses_capacity,
        )
        return json_reply({kind: self._row(entry)}, 202)

    def _wanted(self, body: dict[str, Any], which: str) -> InventoryItem:
        sku, region = body.get("plan"), body.get("region")
        if region not in REGIONS:
            raise Refusal(_error(400, "Invalid location chosen."))
        items = self.seller.inventory(sku=sku) if isinstance(sku, str) and list_of(sku) == which else []
        if not items:
            raise Refusal(_error(400, "Invalid plan chosen."))
        if not any(body.get(name) for name in ("os_id", "app_id", "image_id", "snapshot_id", "iso_id")):
            raise Refusal(_error(400, "Must supply one of: os_id, app_id, image_id, snapshot_id."))
        for item in items:
            if item.region == region:
                return item
        raise Refusal(_error(400, _SOLD_OUT))

    def _keys(self, call: Call) -> Reply:
        return _page(call, "ssh_keys", [_key_row(row) for row in self.seller.ssh_keys()])

    def _add_key(self, call: Call) -> Reply:
        body = call.json_object()
        row = self.seller.add_key(body.get("name"), body.get("ssh_key"))
        return json_reply({"ssh_key": _key_row(row)}, 201)

    def _drop_key(self, call: Call) -> Reply:
        if not self.seller.drop_key(call.parts["id"]):
            raise Refusal(_error(404, "Invalid SSH key."))
        return Reply(204, b"")

    def _machines(self, call: Call, kind: str) -> Reply:
        wanted = call.query.get("label")
        here = self.seller.visible(kind=kind)
        rows = [self._row(entry) for entry in here if entry.released_at is None]
        return _page(call, _KINDS[kind][0], [row for row in rows if wanted in {None, row["label"]}])

    def _machine(self, call: Call, kind: str) -> Reply:
        return json_reply({kind: self._row(self.machine(call, kind=kind))})

    def _delete(self, call: Call, kind: str) -> Reply:
        entry = self.machine(call, kind=kind)
        if entry.released_at is not None:
            message = "Unable to destroy server: Server is already pending destruction."
            raise Refusal(_error(400, message))
        if self.seller.state(entry, _STATES) == ("pending", "none"):
            message = "Unable to destroy server: Unable to remove VM: Server is currently locked"
            raise Refusal(_error(500, message))
        self.seller.release(entry)
        return Reply(204, b"")

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, kind = entry.detail["request"], entry.detail["kind"]
        status, server_status = self.seller.state(entry, _STATES)
        address = self.seller.address(entry) if status == "active" else "0.0.0.0"  # noqa: S104  as the API
        row: dict[str, Any] = {
            "id": entry.instance_id,
            "os": "Ubuntu 24.04 LTS x64",
            "os_id": request.get("os_id"),
            "region": entry.region,
            "plan": entry.sku,
            "label": entry.tag,
            "tags": request["tags"] if isinstance(request.get("tags"), list) else [],
            "main_ip": address,
            "date_created": zulu(entry.created_at),
            "status": status,
        }
        if kind == "bare_metal":
            return row
        internal = {"internal_ip": address if status == "active" else ""}
        return row | internal | {"power_status": "running", "server_status": server_status}


def _key_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "name": row["name"], "ssh_key": row["public_key"]}


def _size(plan: Plan) -> dict[str, Any]:
    if list_of(plan.sku) == PLANS:
        kind = "vdm" if plan.gpus and plan.word is None else plan.sku.partition("-")[0]
        return {"vcpu_count": int(plan.vcpus), "type": kind}
    threads = int(plan.vcpus)
    return {"cpu_threads": threads, "cpu_cores": threads // 2, "cpu_count": threads // 2, "type": "NVMe"}


def _gpu_fields(plan: Plan) -> dict[str, Any]:
    if plan.word is None:
        return {}
    return {"gpu_type": plan.word, "gpu_vram_gb": plan.vram_gb, "gpu_count": plan.count}


def _number(amount: Decimal) -> float:
    return float(round(amount, 6))


def _page(call: Call, key: str, rows: list[dict[str, Any]]) -> Reply:
    """One page: ``per_page`` rows from where the cursor says."""
    size = call.whole("per_page", 100, MOST_ROWS)
    start = _offset(call.query.get("cursor") or "")
    after, before = start + size, max(0, start - size)
    links = {
        "next": _cursor(after) if after < len(rows) else "",
        "prev": _cursor(before) if start > 0 else "",
    }
    return json_reply({key: rows[start:after], "meta": {"total": len(rows), "links": links}})


def _cursor(offset: int) -> str:
    return base64.b64encode(f"next__{offset}".encode()).decode()


def _offset(cursor: str) -> int:
    if not cursor:
        return 0
    try:
        return max(0, int(base64.b64decode(cursor, validate=True).decode().partition("__")[2]))
    except ValueError:
        raise Refusal(_error(400, "Invalid cursor.")) from None


def _error(status: int, message: str) -> Reply:
    return json_reply({"error": message, "status": status}, status)

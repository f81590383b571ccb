"""Scaleway's Instance API v1, under ``/scaleway/instance/v1`` (and the deletion of block volumes).

Prices are euros per Instance and hour; memory is in bytes. Types and stock are two objects by name. A server
is created stopped, holds its place from then on here, and costs from the moment it is powered on.
``terminate`` ends a running server, ``DELETE`` a stopped one; block volumes outlive both, and are billed
until they are deleted. Public keys stand in tags. Errors carry a ``type``. Totals are in the header
``X-Total-Count``. Billed by the minute begun. Sources: Scaleway's Python and Go SDKs, its Packer plugin,
captured lists, users' reports of 412 ``out_of_stock``; what refuses an action in a wrong state is not
confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply, page_of
from providers.sandbox.seller import ErrorForms, SellerProtocol
from providers.sandbox.sellers.scaleway.market import ZONES, scaleway_inventory

MOST_ROWS = 100
VOLUME_EUR_PER_GB_HOUR = Decimal("0.000118")
"""Of block storage with 5,000 IOPS."""
ADDRESS_EUR_PER_HOUR = Decimal("0.004")
"""Of a public IPv4 address (Scaleway's documentation, understanding IP billing)."""
VOLUME_GB = 100
"""Size of a root volume that the order does not state (illustrative)."""
SCARCE_BELOW = 3
BILLING_INCREMENT_S = 60
"""GPU Instances are billed by the minute (Scaleway's FAQ on Instances)."""
BYTES_PER_GIB = 2**30
_ZONE = "/instance/v1/zones/{zone}"
_KEY_TAG = "AUTHORIZED_KEY="
_ORGANISATION = "0a0b0c0d-0000-4000-8000-000000000000"


def _kind_of_action(call: Call) -> str:
    """``terminate`` counts as a delete; powering on belongs to an order that was counted already."""
    return "delete" if b"terminate" in call.body else "other"


class Scaleway(SellerProtocol):
    """Types, stock, servers and their actions, block volumes."""

    name = "scaleway"
    on_sale = staticmethod(scaleway_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        server = f"{_ZONE}/servers/{{id}}"
        return (
            Route("GET", f"{_ZONE}/products/servers", "list", self._types),
            Route("GET", f"{_ZONE}/products/servers/availability", "list", self._availability),
            Route("POST", f"{_ZONE}/servers", "create", self._create),
            Route("GET", f"{_ZONE}/servers", "get", self._servers),
            Route("GET", server, "get", self._server),
            Route("DELETE", server, "delete", self._delete),
            Route("POST", f"{server}/action", _kind_of_action, self._act),
            Route("GET", f"{server}/action", "get", self._actions),
            Route("PATCH", f"{server}/user_data/{{key}}", "other", self._write_user_data),
            Route("DELETE", f"{_ZONE}/volumes/{{id}}", "other", self._delete_volume),
            Route("GET", "/block/v1/zones/{zone}/volumes", "other", self._volumes),
            Route("PATCH", "/block/v1/zones/{zone}/volumes/{id}", "other", self._tag_volume),
            Route("DELETE", "/block/v1/zones/{zone}/volumes/{id}", "other", self._delete_volume),
        )

    def errors(self) -> ErrorForms:
        """Every error has a type; a missing stock names its resource."""
        return ErrorForms(
            no_key=_error(
                401, "denied_authentication", "authentication is denied", method="api_key", reason=""
            ),
            no_path=_error(404, "unknown_resource", "resource is not found"),
            no_machine=lambda call: _error(404, "unknown_resource", f'"{call.parts["id"]}" not found'),
            bad_body=lambda reason: _error(
                400, "invalid_request_error", f"Validation Error: {reason}", fields={}
            ),
            rate_limited=_error(429, "too_many_requests", "too many requests"),
            no_capacity=_out_of_stock(""),
            failed=_error(500, "internal_error", "internal error"),
        )

    def key(self, call: Call) -> str | None:
        """A secret key in the header X-Auth-Token."""
        return call.headers.get("x-auth-token", "").strip() or None

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """A missing stock names the commercial type of the order."""
        if kind is FaultKind.OUT_OF_CAPACITY:
            return _out_of_stock(str(_body(call).get("commercial_type", "")))
        return super().refusal(kind, call)

    def _zone(self, call: Call) -> str:
        zone = call.parts["zone"]
        if zone not in ZONES:
            raise Refusal(_error(404, "unknown_resource", f'zone "{zone}" not found'))
        return zone

    def _types(self, call: Call) -> Reply:
        rows = {item.sku: self._type(item) for item in self.seller.inventory(zone=self._zone(call))}
        return _page(call, "servers", list(rows.items()), keyed=True)

    def _type(self, item: InventoryItem) -> dict[str, Any]:
        euros = (self.seller.price(item) / Decimal(item.labels["dollars_per_euro"])).quantize(
            Decimal("0.000001")
        )
        gpu = {
            "gpu_manufacturer": "NVIDIA",
            "gpu_name": item.labels["gpu_name"],
            "gpu_memory": item.gpu_memory_gb * BYTES_PER_GIB,
        }
        return {
            "alt_names": [],
            "arch": "x86_64",
            "ncpus": int(item.vcpus or 0),
            "ram": int((item.memory_gb or 0) * BYTES_PER_GIB),
            "gpu": item.gpus,
            "gpu_info": gpu if item.gpus else None,
            "mig_profile": None,
            "volumes_constraint": {"min_size": 0, "max_size": 0},
            "scratch_storage_max_size": None,
            "scratch_storage_max_volumes_count": 0,
            "hourly_price": float(euros),
            "monthly_price": float(euros * 730),
            "capabilities": {"block_storage": True, "boot_types": ["local", "rescue"]},
            "network": {"interfaces": [], "ipv6_support": True, "sum_internet_bandwidth": 10**10},
            "block_bandwidth": 2147483648,
            "end_of_service": False,
        }

    def _availability(self, call: Call) -> Reply:
        free = self.seller.free_by_key()
        items = self.seller.inventory(zone=self._zone(call))
        rows = [(item.sku, {"availability": _level(free[item.key])}) for item in items]
        return _page(call, "servers", rows, keyed=True)

    def _create(self, call: Call) -> Reply:
        zone, body = self._zone(call), call.json_object()
        for name in ("commercial_type", "image"):
            if not isinstance(body.get(name), str) or not body[name]:
                details = [{"argument_name": name, "reason": "required"}]
                raise Refusal(_error(400, "invalid_arguments", "invalid argument(s)", details=details))
        sku = body["commercial_type"]
        item = self.seller.item(zone=zone, sku=sku)
        if item is None:
            raise Refusal(_error(404, "unknown_resource", f'commercial type "{sku}" not found'))
        if self.seller.free(item) < 1:
            raise Refusal(_out_of_stock(sku))
        server_id, size_gb = self.seller.new_uuid(), _root_volume_gb(body)
        usd_per_euro = Decimal(item.labels["dollars_per_euro"])
        volume_usd = size_gb * VOLUME_EUR_PER_GB_HOUR * usd_per_euro
        address_usd = ADDRESS_EUR_PER_HOUR * usd_per_euro if body.get("dynamic_ip_required") else Decimal(0)
        entry = self.seller.sell(
            item,
            body.get("name") or f"srv-{server_id[:8]}",
            Tariff(),
            {
                "request": body,
                "authorized_keys": _keys_of_tags(body.get("tags")),
                "volume": self.seller.new_uuid(),
                "size_gb": size_gb,
                "volume_usd_per_hour": str(volume_usd),
                "usd_per_hour": str(self.seller.price(item) + volume_usd + address_usd),
                "currency": "EUR",
                "usd_per_unit": item.labels["dollars_per_euro"],
                "changed_at": self.now.isoformat(),
                "powered": False,
                "loses_capacity": call.loses_capacity,
            },
            instance_id=server_id,
        )
        return json_reply({"server": self._row(entry)}, 201)

    def _servers(self, call: Call) -> Reply:
        zone = self._zone(call)
        name, wanted_tags = call.query.get("name", ""), call.query.get("tags", "")
        rows = [
            self._row(entry) for entry in self.sandbox.ledger.entries(self.name) if self._is_server(entry)
        ]
        shown = [
            row
            for row in rows
            if row["zone"] == zone
            and name in row["name"]
            and set(filter(None, wanted_tags.split(","))) <= set(row["tags"])
        ]
        return _page(call, "servers", shown)

    def _is_server(self, entry: Entry) -> bool:
        """Whether it is a visible server; a terminated one is shown as stopping for a moment."""
        if entry.is_volume:
            return False
        if entry.released_at is None:
            return True
        ends = entry.released_at + timedelta(seconds=self.sandbox.durations.terminate_s)
        return bool(entry.detail["powered"]) and self.now < ends

    def _found(self, call: Call) -> Entry:
        entry = self.sandbox.ledger.find(self.name, call.parts["id"])
        if entry is None or entry.zone != self._zone(call) or not self._is_server(entry):
            raise Refusal(self.errors().no_machine(call))
        return entry

    def _server(self, call: Call) -> Reply:
        return json_reply({"server": self._row(self._found(call))})

    def _state(self, entry: Entry) -> str:
        """Stopped until powered on, then starting and running; stopping once terminated."""
        if entry.released_at is not None:
            return "stopping"
        if not entry.detail["powered"] or entry.failed(self.now):
            return "stopped"
        up_at = entry.starts_at + timedelta(seconds=self.sandbox.durations.boot_s)
        return "starting" if self.now < up_at else "running"

    def _act(self, call: Call) -> Reply:
        entry, action = self._found(call), call.json_object().get("action")
        if action not in self._allowed(entry):
            if action not in {"poweron", "terminate"}:
                raise Refusal(_error(400, "invalid_arguments", f"action {action!r} is not served here"))
            raise Refusal(_busy(entry, self._state(entry)))
        now = self.now
        if action == "terminate":
            self._end(entry)
        else:
            up_at = now + timedelta(seconds=self.sandbox.durations.boot_s)
            loses = entry.detail["loses_capacity"]
            started = replace(
                entry,
                starts_at=now,
                tariff=Tariff(Decimal(entry.detail["usd_per_hour"]), BILLING_INCREMENT_S),
                failed_at=up_at if loses else None,
            )
            changed_at = up_at if loses else now
            self.sandbox.ledger.write(started.with_detail(powered=True, changed_at=changed_at.isoformat()))
        return json_reply({"task": self._task(entry, str(action))}, 202)

    def is_up(self, entry: Entry) -> bool:
        """Whether the server runs."""
        return entry.is_live(self.now) and not entry.is_volume and self._state(entry) == "running"

    def _write_user_data(self, call: Call) -> Reply:
        """Keeps a value that the server reads when it starts."""
        entry = self._found(call)
        known = {**entry.detail.get("user_data", {}), call.parts["key"]: call.body.decode()}
        self.sandbox.ledger.write(entry.with_detail(user_data=known))
        return Reply(204, b"")

    def _allowed(self, entry: Entry) -> list[str]:
        state = self._state(entry)
        return {"stopped": ["poweron"], "running": ["terminate"]}.get(state, [])

    def _task(self, entry: Entry, action: str) -> dict[str, Any]:
        return {
            "id": self.seller.new_uuid(),
            "description": f"server_{action}",
            "progress": 0,
            "status": "pending",
            "href_from": f"/servers/{entry.instance_id}/action",
            "href_result": f"/servers/{entry.instance_id}",
            "started_at": self.now.isoformat(),
            "terminated_at": None,
            "zone": entry.zone,
        }

    def _actions(self, call: Call) -> Reply:
        return json_reply({"actions": self._allowed(self._found(call))})

    def _delete(self, call: Call) -> Reply:
        entry = self._found(call)
        if self._state(entry) != "stopped":
            raise Refusal(_busy(entry, self._state(entry)))
        self._end(entry.with_detail(powered=False))
        return Reply(204, b"")

    def _end(self, entry: Entry) -> None:
        """Ends a server; its volume stays."""
        over, detail = self.sandbox.ledger.write(replace(entry, released_at=self.now)), entry.detail
        tariff = Tariff(Decimal(detail["volume_usd_per_hour"]))
        self.sandbox.ledger.write(over.volume_left(detail["volume"], tariff, **detail))

    def _kept_volumes(self, zone: str) -> list[Entry]:
        """Servers and volumes without one that still exist: each has one volume."""
        entries = self.sandbox.ledger.entries(self.name)
        return [entry for entry in entries if entry.zone == zone and entry.released_at is None]

    def _with_volume(self, call: Call) -> Entry:
        for entry in self._kept_volumes(self._zone(call)):
            if entry.detail["volume"] == call.parts["id"]:
                return entry
        raise Refusal(_error(404, "not_found", "", resource="volume", resource_id=call.parts["id"]))

    def _volumes(self, call: Call) -> Reply:
        wanted = set(filter(None, call.query.get("tags", "").split(",")))
        rows = [self._volume(entry) for entry in self._kept_volumes(self._zone(call))]
        found = [row for row in rows if not wanted or wanted & set(row["tags"])]
        shown = page_of(found, call.whole("page", 1), call.whole("page_size", 50, MOST_ROWS))
        return json_reply({"volumes": shown, "total_count": len(found)})

    def _volume(self, entry: Entry) -> dict[str, Any]:
        created = entry.created_at.isoformat()
        return {
            "id": entry.detail["volume"],
            "name": "root",
            "type": "sbs_5k",
            "size": entry.detail["size_gb"] * 10**9,
            "project_id": _ORGANISATION,
            "created_at": created,
            "updated_at": created,
            "references": [],
            "parent_snapshot_id": None,
            "status": "in_use" if self._is_attached(entry) else "available",
            "tags": entry.detail.get("volume_tags", []),
            "zone": entry.zone,
            "specs": {"perf_iops": 5000, "class": "sbs"},
            "last_detached_at": None,
        }

    def _tag_volume(self, call: Call) -> Reply:
        entry, tags = self._with_volume(call), call.json_object().get("tags")
        if isinstance(tags, list):
            entry = self.sandbox.ledger.write(entry.with_detail(volume_tags=[str(tag) for tag in tags]))
        return json_reply(self._volume(entry))

    def _delete_volume(self, call: Call) -> Reply:
        entry = self._with_volume(call)
        if self._is_attached(entry):
            raise Refusal(_error(412, "precondition_failed", "volume is attached to a server"))
        self.seller.release(entry)
        return Reply(204, b"")

    def _is_attached(self, entry: Entry) -> bool:
        """Whether a server has the volume: also one that is about to disappear."""
        if not entry.is_volume:
            return True
        ends = entry.starts_at + timedelta(seconds=self.sandbox.durations.terminate_s)
        return bool(entry.detail["powered"]) and self.now < ends

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, state = entry.detail["request"], self._state(entry)
        created, address = entry.created_at.isoformat(), self.seller.address(entry)
        public = {"id": entry.detail["volume"], "address": address, "family": "inet", "dynamic": True}
        changed = min(datetime.fromisoformat(entry.detail["changed_at"]), self.now).isoformat()
        volume = {
            "id": entry.detail["volume"],
            "name": "root",
            "volume_type": "sbs_volume",
            "zone": entry.zone,
            "boot": True,
        }
        tags = request.get("tags")
        return {
            "id": entry.instance_id,
            "name": entry.tag,
            "organization": _ORGANISATION,
            "project": request.get("project") or _ORGANISATION,
            "allowed_actions": self._allowed(entry),
            "tags": tags if isinstance(tags, list) else [],
            "commercial_type": entry.sku,
            "creation_date": created,
            "modification_date": changed,
            "dynamic_ip_required": bool(request.get("dynamic_ip_required", False)),
            "routed_ip_enabled": True,
            "enable_ipv6": False,
            "hostname": entry.tag,
            "image": None,
            "protected": False,
            "public_ip": public if state == "running" else None,
            "public_ips": [public] if state == "running" else [],
            "private_ip": address if state == "running" else None,
            "private_nics": [],
            "mac_address": "de:00:00:00:00:01",
            "state": state,
            "state_detail": "booting kernel" if state == "starting" else "",
            "boot_type": "local",
            "volumes": {"0": volume},
            "security_group": None,
            "maintenances": [],
            "arch": "x86_64",
            "placement_group": None,
            "zone": entry.zone,
            "end_of_service": False,
        }


def _keys_of_tags(tags: object) -> list[str]:
    """The public keys in a server's tags."""
    words = tags if isinstance(tags, list) else []
    return [
        str(word).removeprefix(_KEY_TAG).replace("_", " ") for word in words if str(word).startswith(_KEY_TAG)
    ]


def _root_volume_gb(body: Mapping[str, Any]) -> int:
    """The size of an order's root volume, which is whole gigabytes here."""
    volume = (body.get("volumes") or {}).get("0")
    if volume is None:
        return VOLUME_GB
    size = int(volume.get("size") or 0)
    if volume.get("volume_type") != "sbs_volume" or not 5 * 10**9 <= size <= 10**13 or size % 512:
        details = [{"argument_name": "volumes", "reason": "constraint"}]
        raise Refusal(_error(400, "invalid_arguments", "invalid argument(s)", details=details))
    return size // 10**9


def _body(call: Call) -> dict[str, Any]:
    try:
        return call.json_object()
    except ValueError:
        return {}


def _level(free: int) -> str:
    if free < 1:
        return "shortage"
    return "scarce" if free < SCARCE_BELOW else "available"


def _page(call: Call, key: str, rows: list[Any], *, keyed: bool = False) -> Reply:
    """One page, as a list or as an object by name."""
    shown = page_of(rows, call.whole("page", 1), call.whole("per_page", 50, MOST_ROWS))
    total = str(len(rows))
    return json_reply({key: dict(shown) if keyed else shown}, headers={"X-Total-Count": total})


def _busy(entry: Entry, state: str) -> Reply:
    return _error(
        409,
        "transient_state",
        f"server is {state}",
        resource="server",
        resource_id=entry.instance_id,
        current_state=state,
    )


def _out_of_stock(sku: str) -> Reply:
    return _error(412, "out_of_stock", "", resource=sku)


def _error(status: int, kind: str, message: str, **more: Any) -> Reply:
    return json_reply({"type": kind, **({"message": message} if message else {}), **more}, status)

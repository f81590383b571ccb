"""DigitalOcean's API v2, under ``/digitalocean/v2``.

Prices are dollars per Droplet and hour, one a size; GPU memory is the size's total. A size lists the
regions that can make it. A create is answered 202 with a create action, which may still end ``errored``;
the Droplet then stays ``new``. GPU Droplets show only in ``type=gpus``. While an action is pending
nothing else may be done. Errors are ``{"id", "message", "request_id"}``. Billed by the
second, at least a minute. Sources: DigitalOcean's OpenAPI specification,
error messages in users' reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import InventoryItem, by_sku
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply, page_of
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.digitalocean.market import REGIONS, digitalocean_inventory

MOST_ROWS = 200
_HOST = "https://api.digitalocean.com"
_ACTION_STATES = Lifecycle({"in-progress": 1}, up="completed", failed="errored")
_NO_CAPACITY = "Size is not available in this region."


class DigitalOcean(SellerProtocol):
    """Sizes, Droplets and their actions."""

    name = "digitalocean"
    ends_at_once = True
    on_sale = staticmethod(digitalocean_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/v2/sizes", "list", self._sizes),
            Route("POST", "/v2/droplets", "create", self._create),
            Route("GET", "/v2/droplets", "get", self._droplets),
            Route("GET", "/v2/droplets/{id}", "get", self._droplet),
            Route("GET", "/v2/droplets/{id}/actions", "get", self._droplet_actions),
            Route("DELETE", "/v2/droplets/{id}", "delete", self._delete),
            Route("GET", "/v2/account/keys", "other", self._keys),
            Route("POST", "/v2/account/keys", "other", self._add_key),
            Route("DELETE", "/v2/account/keys/{id}", "other", self._drop_key),
        )

    def errors(self) -> ErrorForms:
        """Every error has an id, a message and a request id."""
        missing = self._error(404, "not_found", "The resource you requested could not be found.")
        limits = {
            "ratelimit-limit": "5000",
            "ratelimit-remaining": "0",
            "ratelimit-reset": str(int(self.now.timestamp())),
        }
        limited = self._error(429, "too_many_requests", "API Rate limit exceeded.")
        return ErrorForms(
            no_key=self._error(401, "unauthorized", "Unable to authenticate you"),
            no_path=missing,
            no_machine=lambda _: missing,
            bad_body=lambda reason: self._error(400, "bad_request", f"Malformed request: {reason}"),
            rate_limited=limited.with_headers(limits),
            no_capacity=self._unprocessable(_NO_CAPACITY),
            failed=self._error(500, "server_error", "Unexpected server-side error"),
        )

    def _error(self, status: int, error_id: str, message: str) -> Reply:
        request_id = str(UUID(hex=self.sandbox.new_id("digitalocean-request", 32)))
        return json_reply({"id": error_id, "message": message, "request_id": request_id}, status)

    def _unprocessable(self, message: str) -> Reply:
        return self._error(422, "unprocessable_entity", message)

    def _sizes(self, call: Call) -> Reply:
        free = self.seller.free_by_key()
        sizes = by_sku(self.seller.inventory()).values()
        return _page(call, "sizes", [self._size(items, free) for items in sizes])

    def _size(self, items: list[InventoryItem], free: dict[str, int]) -> dict[str, Any]:
        item = items[0]
        price = self.seller.price(item)
        row: dict[str, Any] = {
            "slug": item.sku,
            "memory": round((item.memory_gb or 0) * 1024),
            "vcpus": int(item.vcpus or 0),
            "disk": item.labels["disk"],
            "transfer": 15.0,
            "price_monthly": float(round(price * 744, 2)),
            "price_hourly": float(price),
            "regions": [each.region for each in items if free[each.key] > 0],
            "available": True,
            "description": f"{item.gpu} GPU - {item.gpus}X" if item.gpus else "Basic",
            "networking_throughput": 10000,
            "disk_info": [{"type": "local", "size": {"amount": item.labels["disk"], "unit": "gib"}}],
        }
        if item.gpus:
            vram = {"amount": item.gpus * item.gpu_memory_gb, "unit": "gib"}
            row["gpu_info"] = {"count": item.gpus, "vram": vram, "model": item.labels["model"]}
        return row

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        name = body.get("name")
        if not isinstance(name, str) or not name:
            raise Refusal(self._unprocessable("Name can't be blank"))
        item = self._wanted(body)
        self._require_keys(body.get("ssh_keys") or [])
        self.require_stock(item)
        droplet_id = int(self.seller.new_id(8), 16)
        action = int(self.sandbox.new_id("digitalocean-action", 8), 16)
        entry = self.seller.sell(
            item,
            name,
            Tariff(self.seller.price(item), increment_s=1, minimum_s=60),
            {
                "request": body,
                "action": action,
                "gpus": item.gpus,
                "ssh_keys": [str(key) for key in body.get("ssh_keys") or []],
            },
            instance_id=str(droplet_id),
            fails=call.loses_capacity,
        )
        link = {"id": action, "rel": "create", "href": f"{_HOST}/v2/actions/{action}"}
        return json_reply({"droplet": self._row(entry), "links": {"actions": [link]}}, 202)

    def _wanted(self, body: dict[str, Any]) -> InventoryItem:
        if not body.get("image"):
            raise Refusal(self._unprocessable("You specified an invalid image for Droplet creation."))
        items = self.seller.inventory(sku=str(body.get("size")))
        if not items:
            raise Refusal(self._unprocessable("You specified an invalid size for Droplet creation."))
        region = body.get("region") or items[0].region
        if region not in REGIONS:
            raise Refusal(self._unprocessable("You specified an invalid region for Droplet creation."))
        item = self.seller.item(sku=items[0].sku, region=region)
        if item is None:
            raise Refusal(self._unprocessable(_NO_CAPACITY))
        return item

    def _require_keys(self, named: Iterable[Any]) -> None:
        known = {row["id"] for row in self.seller.ssh_keys()}
        strange = [str(key) for key in named if str(key) not in known]
        if strange:
            raise Refusal(self._unprocessable(f"{', '.join(strange)} are invalid key identifiers."))

    def _keys(self, call: Call) -> Reply:
        return _page(call, "ssh_keys", [_key_row(row) for row in self.seller.ssh_keys()])

    def _add_key(self, call: Call) -> Reply:
        body = call.json_object()
        if any(row["public_key"] == body.get("public_key") for row in self.seller.ssh_keys()):
            raise Refusal(self._unprocessable("SSH Key is already in use on your account"))
        key_id = str(int(self.seller.new_id(7), 16))
        row = self.seller.add_key(body.get("name"), body.get("public_key"), key_id)
        return json_reply({"ssh_key": _key_row(row)}, 201)

    def _drop_key(self, call: Call) -> Reply:
        if not self.seller.drop_key(call.parts["id"]):
            raise Refusal(self.errors().no_machine(call))
        return Reply(204, b"")

    def _droplets(self, call: Call) -> Reply:
        gpus = call.query.get("type") == "gpus"
        rows = [self._row(entry) for entry in self.seller.visible() if bool(entry.detail["gpus"]) is gpus]
        return _page(call, "droplets", rows)

    def _droplet(self, call: Call) -> Reply:
        return json_reply({"droplet": self._row(self.machine(call))})

    def _droplet_actions(self, call: Call) -> Reply:
        return _page(call, "actions", [self._action_row(self.machine(call))])

    def _action_row(self, entry: Entry) -> dict[str, Any]:
        status = self.seller.state(entry, _ACTION_STATES)
        return {
            "id": entry.detail["action"],
            "status": status,
            "type": "create",
            "started_at": zulu(entry.created_at),
            "completed_at": None if status == "in-progress" else zulu(self.seller.up_at(entry)),
            "resource_id": int(entry.instance_id),
            "resource_type": "droplet",
            "region_slug": entry.region,
        }

    def _delete(self, call: Call) -> Reply:
        entry = self.machine(call)
        if self.seller.state(entry, _ACTION_STATES) == "in-progress":
            raise Refusal(self._unprocessable("Droplet already has a pending event."))
        self.seller.release(entry)
        return Reply(204, b"")

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, item = entry.detail["request"], self.seller.inventory(sku=entry.sku)[0]
        done = self.seller.state(entry, _ACTION_STATES) == "completed"
        place = {"ip_address": self.seller.address(entry), "netmask": "255.255.255.0"}
        return {
            "id": int(entry.instance_id),
            "name": entry.tag,
            "memory": round((item.memory_gb or 0) * 1024),
            "vcpus": int(item.vcpus or 0),
            "disk": item.labels["disk"],
            "locked": not done,
            "status": "active" if done else "new",
            "created_at": zulu(entry.created_at),
            "features": [],
            "backup_ids": [],
            "snapshot_ids": [],
            "volume_ids": [],
            "image": {"slug": str(request["image"])},
            "size": {},
            "size_slug": entry.sku,
            "networks": {
                "v4": [place | {"type": kind} for kind in ("private", "public")] if done else [],
                "v6": [],
            },
            "region": {"name": REGIONS[entry.region], "slug": entry.region},
            "tags": request["tags"] if isinstance(request.get("tags"), list) else [],
        }


def _key_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(row["id"]), "name": row["name"], "public_key": row["public_key"]}


def _page(call: Call, key: str, rows: list[dict[str, Any]]) -> Reply:
    """One page; links name the first, previous, next and last where there are any."""
    size, number = call.whole("per_page", 20, MOST_ROWS), call.whole("page", 1)
    last = max(1, -(-len(rows) // size))
    pages: dict[str, str] = {}
    if number < last:
        pages |= {"next": _url(call, number + 1, size), "last": _url(call, last, size)}
    if number > 1:
        pages |= {"first": _url(call, 1, size), "prev": _url(call, number - 1, size)}
    shown = page_of(rows, number, size)
    return json_reply({key: shown, "links": {"pages": pages} if pages else {}, "meta": {"total": len(rows)}})


def _url(call: Call, number: int, size: int) -> str:
    return f"{_HOST}{call.path}?page={number}&per_page={size}"

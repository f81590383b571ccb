"""Verda's API v1, under ``/verda/v1``.

Prices are strings, USD per hour of the whole instance; GPU memory is the instance's total. Availability
is a list of its own, by location. A create is answered with the bare id; when there is no capacity the
instance says so afterwards (status ``no_capacity``). Every type has a spot price (the usual one
where none was recorded, and then no spot stock). What is still provisioning cannot be deleted.
Billed in slices of ten minutes. The system
volume is a part of the instance's bill; one that a deletion does not name outlives it, and is billed by the
second until it is deleted. Sources: verda-cloud sdk-python and sdk-go, gpuhunt's recorded rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from decimal import Decimal
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from broker.domain.basics.money import MICRO
from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply, text_reply
from providers.sandbox.seller import SCRIPTS, ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.verda.market import verda_inventory

VOLUME_USD_PER_GB_MONTH = {"HDD": Decimal("0.05"), "NVMe": Decimal("0.2")}
"""USD; that of NVMe is what clients of the API recorded in 2026, that of HDD is illustrative."""
HOURS_PER_MONTH = 730
OS_VOLUME_GB = 50
"""Size of a system volume that the order does not state (illustrative)."""
TOKEN_LIFE_S = 3600
BILLING_SLICE_S = 600
_TOKEN = "sandbox-access-"  # noqa: S105  a prefix
_SCRIPT = f"{SCRIPTS}/verda"
_LOCATIONS = ("FIN-01", "FIN-02", "FIN-03")
_STATES = Lifecycle(
    {"ordered": 0.25, "provisioning": 1},
    up="running",
    failed="no_capacity",
    ending="deleting",
    gone="discontinued",
)


class Verda(SellerProtocol):
    """Tokens, catalogue, availability, instances."""

    name = "verda"
    on_sale = staticmethod(verda_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("POST", "/v1/oauth2/token", "other", self._token, public=True),
            Route("GET", "/v1/instance-types", "list", self._types),
            Route("GET", "/v1/instance-availability", "list", self._availability),
            Route("POST", "/v1/instances", "create", self._create),
            Route("GET", "/v1/instances", "get", self._instances),
            Route("GET", "/v1/instances/{id}", "get", self._instance),
            Route("PUT", "/v1/instances", "delete", self._act),
            Route("GET", "/v1/volume-types", "list", self._volume_types),
            Route("GET", "/v1/volumes", "get", self._volumes),
            Route("DELETE", "/v1/volumes/{id}", "other", self._delete_volume),
            Route("GET", "/v1/sshkeys", "other", self._keys),
            Route("POST", "/v1/sshkeys", "other", self._add_key),
            Route("DELETE", "/v1/sshkeys/{id}", "other", self._drop_key),
            Route("GET", "/v1/scripts", "other", self._scripts),
            Route("POST", "/v1/scripts", "other", self._add_script),
            Route("DELETE", "/v1/scripts/{id}", "other", self._drop_script),
        )

    def errors(self) -> ErrorForms:
        """Every error has a code and a message."""
        return ErrorForms(
            no_key=_error(401, "unauthorized_request", "Access token is missing or invalid"),
            no_path=_error(404, "not_found", "Not Found"),
            no_machine=lambda _: _error(404, "not_found", "Instance not found"),
            bad_body=lambda reason: _error(400, "invalid_request", reason),
            rate_limited=_error(429, "too_many_requests", "Too many requests"),
            no_capacity=_error(
                503, "service_unavailable", "Not enough resources to deploy the requested instance"
            ),
            failed=_error(500, "server_error", "Internal Server Error"),
        )

    def key(self, call: Call) -> str | None:
        """A bearer token; one of ours only until it expires."""
        key = call.key()
        return None if key is None or self._expired(key) else key

    def _expired(self, key: str) -> bool:
        if not key.startswith(_TOKEN):
            return False
        until = key.removeprefix(_TOKEN).partition("-")[0]
        return not until.isdecimal() or int(until) <= self.now.timestamp()

    def _token(self, call: Call) -> Reply:
        body = call.json_object()
        if body.get("grant_type") != "client_credentials" or not (
            body.get("client_id") and body.get("client_secret")
        ):
            raise Refusal(_error(401, "unauthorized_request", "Invalid client id or client secret"))
        until = int(self.now.timestamp()) + TOKEN_LIFE_S
        token = {
            "access_token": f"{_TOKEN}{until}-{self.sandbox.new_id('verda-token', 16)}",
            "refresh_token": f"sandbox-refresh-{self.sandbox.new_id('verda-token', 16)}",
            "scope": "cloud-api-v1",
            "token_type": "Bearer",
            "expires_in": TOKEN_LIFE_S,
        }
        return json_reply(token)

    def _types(self, call: Call) -> Reply:
        if call.query.get("currency", "usd") != "usd":
            raise Refusal(_error(400, "invalid_request", "the sandbox knows the currency usd only"))
        spot = {item.sku: item for item in self.seller.inventory(tier="spot")}
        on_demand = {item.sku: item for item in self.seller.inventory(tier="on_demand")}
        return json_reply([self._type(item, spot.get(sku)) for sku, item in on_demand.items()])

    def _type(self, item: InventoryItem, spot: InventoryItem | None) -> dict[str, Any]:
        count, labels = item.gpus, item.labels
        return {
            **_hardware(item),
            "id": str(uuid5(NAMESPACE_URL, item.sku)),
            "instance_type": item.sku,
            "model": labels["model"],
            "name": labels["name"],
            "display_name": None,
            "manufacturer": "NVIDIA" if count else "AMD",
            "p2p": labels["p2p"],
            "price_per_hour": self._price(item),
            "spot_price": self._price(spot or item),
            "currency": "usd",
            "description": "Dedicated Hardware Instance",
            "best_for": [],
            "deploy_warning": None,
            "supported_os": ["ubuntu-22.04", "ubuntu-24.04"],
        }

    def _price(self, item: InventoryItem) -> str:
        price = self.seller.price(item)
        cents = price.quantize(Decimal("0.01"))
        return str(cents) if cents == price else f"{price.normalize():f}"

    def _availability(self, call: Call) -> Reply:
        free = self.seller.free_by_key()
        tier = "spot" if call.query.get("is_spot") == "true" else "on_demand"
        rows = []
        for location in _LOCATIONS:
            items = self.seller.inventory(tier=tier, region=location)
            found = sorted(item.sku for item in items if free[item.key] > 0)
            rows.append({"location_code": location, "availabilities": found})
        return json_reply(rows)

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        for name in ("instance_type", "image", "hostname", "description"):
            if not body.get(name):
                raise Refusal(_error(400, "invalid_request", f"{name} should not be empty"))
        item, script = self._wanted(body), self._named_script(body)
        short = call.loses_capacity or self.seller.free(item) < 1
        volume = body.get("os_volume") or {"name": body["hostname"], "size": OS_VOLUME_GB}
        usd, size_gb = Decimal(self._price(item)), int(volume["size"])
        detail = {
            "request": body,
            "script": script,
            "usd_per_hour": str(usd),
            "volume": self.seller.new_uuid(),
            "volume_name": volume["name"],
            "size_gb": size_gb,
        }
        tariff = Tariff(usd + _volume_usd(size_gb), BILLING_SLICE_S)
        entry = self.seller.sell(item, body["hostname"], tariff, detail, fails=short)
        return text_reply(entry.instance_id, 202)

    def _wanted(self, body: dict[str, Any]) -> InventoryItem:
        location = body.get("location_code", "FIN-01")
        tier = "spot" if body.get("is_spot") else "on_demand"
        if not self.seller.inventory(sku=body["instance_type"]):
            raise Refusal(_error(400, "invalid_request", "Invalid instance type"))
        if location not in _LOCATIONS:
            raise Refusal(_error(400, "invalid_request", "Invalid location code"))
        item = self.seller.item(sku=body["instance_type"], region=location, tier=tier)
        if item is None:
            raise Refusal(self.errors().no_capacity)
        return item

    def _named_script(self, body: dict[str, Any]) -> str:
        """The stored script that an order names; empty without one."""
        script_id = body.get("startup_script_id")
        if not script_id:
            return ""
        row = self.sandbox.store.document(_SCRIPT, str(script_id))
        if row is None:
            raise Refusal(_error(400, "invalid_request", "Invalid startup script id"))
        return str(row["script"])

    def _keys(self, _: Call) -> Reply:
        rows = self.seller.ssh_keys()
        return json_reply([{"id": row["id"], "name": row["name"], "key": row["public_key"]} for row in rows])

    def _add_key(self, call: Call) -> Reply:
        body = call.json_object()
        return text_reply(self.seller.add_key(body.get("name"), body.get("key"))["id"], 201)

    def _drop_key(self, call: Call) -> Reply:
        if not self.seller.drop_key(call.parts["id"]):
            raise Refusal(_error(404, "not_found", "SSH key not found"))
        return Reply(200, b"")

    def _scripts(self, _: Call) -> Reply:
        return json_reply(list(self.sandbox.store.documents(_SCRIPT).values()))

    def _add_script(self, call: Call) -> Reply:
        body, script_id = call.json_object(), self.seller.new_uuid()
        row = {"id": script_id, "name": _text(body, "name"), "script": _text(body, "script")}
        self.sandbox.store.put_document(_SCRIPT, script_id, row)
        return text_reply(script_id, 201)

    def _drop_script(self, call: Call) -> Reply:
        if self.sandbox.store.document(_SCRIPT, call.parts["id"]) is None:
            raise Refusal(_error(404, "not_found", "Startup script not found"))
        self.sandbox.store.drop_document(_SCRIPT, call.parts["id"])
        return Reply(200, b"")

    def _instances(self, _: Call) -> Reply:
        entries = self.sandbox.ledger.entries(self.name)
        rows = [self._row(entry) for entry in entries if not entry.is_volume]
        return json_reply([row for row in rows if row["status"] != "discontinued"])

    def _instance(self, call: Call) -> Reply:
        entry = self.sandbox.ledger.find(self.name, call.parts["id"])
        if entry is None or entry.is_volume:
            raise Refusal(self.errors().no_machine(call))
        return json_reply(self._row(entry))

    def _volume_types(self, _: Call) -> Reply:
        prices = VOLUME_USD_PER_GB_MONTH.items()
        return json_reply(
            [
                {
                    "type": kind,
                    "price": {
                        "price_per_month_per_gb": float(usd),
                        "cps_per_gb": float(usd / HOURS_PER_MONTH / 3600),
                        "currency": "usd",
                    },
                    "is_shared_fs": False,
                }
                for kind, usd in prices
            ]
        )

    def _volumes(self, _: Call) -> Reply:
        """System volumes: of instances that exist, and those that outlived theirs."""
        live = [entry for entry in self.sandbox.ledger.entries(self.name) if entry.is_live(self.now)]
        return json_reply([self._volume(entry) for entry in live])

    def _volume(self, entry: Entry) -> dict[str, Any]:
        detail = entry.detail
        usd = float(_volume_usd(detail["size_gb"]))
        return {
            "id": detail["volume"],
            "instance_id": None if entry.is_volume else entry.instance_id,
            "name": detail["volume_name"],
            "created_at": zulu_ms(entry.created_at),
            "status": "detached" if entry.is_volume else "attached",
            "size": detail["size_gb"],
            "is_os_volume": True,
            "type": "NVMe",
            "location": entry.region,
            "ssh_key_ids": [],
            "base_hourly_cost": usd,
            "monthly_price": usd * HOURS_PER_MONTH,
            "currency": "usd",
        }

    def _delete_volume(self, call: Call) -> Reply:
        entry = self.sandbox.ledger.find(self.name, call.parts["id"])
        if entry is None or not entry.is_volume or not entry.is_live(self.now):
            raise Refusal(_error(404, "not_found", "Volume not found"))
        self.seller.release(entry)
        return Reply(202, b"")

    def _row(self, entry: Entry) -> dict[str, Any]:
        request = entry.detail["request"]
        status = self.seller.state(entry, _STATES)
        spot = entry.tier == "spot"
        item = self.seller.inventory(sku=entry.sku)[0]
        return {
            **_hardware(item),
            "id": entry.instance_id,
            "instance_type": entry.sku,
            "image": request["image"],
            "price_per_hour": entry.detail["usd_per_hour"],
            "location": entry.region,
            "hostname": request["hostname"],
            "description": request["description"],
            "ip": self.seller.address(entry) if status == "running" else None,
            "status": status,
            "created_at": zulu_ms(entry.created_at),
            "ssh_key_ids": request.get("ssh_key_ids", []),
            "startup_script_id": request.get("startup_script_id"),
            "os_volume_id": entry.detail["volume"],
            "is_spot": spot,
            "contract": request.get("contract") or ("SPOT" if spot else "PAY_AS_YOU_GO"),
            "pricing": request.get("pricing", "FIXED_PRICE"),
            "volume_ids": [entry.detail["volume"]],
        }

    def _act(self, call: Call) -> Reply:
        body = call.json_object()
        ids = body.get("id")
        wanted = [ids] if isinstance(ids, str) else ids
        if not isinstance(wanted, list) or len(wanted) != 1:
            raise Refusal(_error(400, "invalid_request", "the sandbox ends one instance at a time"))
        if body.get("action") not in {"delete", "discontinue"}:
            raise Refusal(
                _error(400, "invalid_request", "the sandbox knows the actions delete and discontinue")
            )
        self._discontinue(str(wanted[0]), body.get("volume_ids") or [])
        return Reply(204, b"")

    def _discontinue(self, instance_id: str, volumes: Collection[str]) -> None:
        """Ends an instance, and its system volume if that is named."""
        entry = self.sandbox.ledger.find(self.name, instance_id)
        if entry is None or entry.is_volume:
            raise Refusal(_error(400, "invalid_request", "Invalid instance id"))
        status = self.seller.state(entry, _STATES)
        if status in {"ordered", "provisioning"}:
            raise Refusal(_error(400, "invalid_request", "Can't discontinue a provisioning instance"))
        if status in {"deleting", "discontinued"}:
            raise Refusal(_error(400, "invalid_request", "Can't discontinue a discontinued instance"))
        over, detail = self.seller.release(entry), entry.detail
        if detail["volume"] not in volumes:
            tariff = Tariff(_volume_usd(detail["size_gb"]))
            self.sandbox.ledger.write(over.volume_left(detail["volume"], tariff, **detail))


def _text(body: dict[str, Any], name: str) -> str:
    """A field that must be there."""
    if not body.get(name):
        raise Refusal(_error(400, "invalid_request", f"{name} should not be empty"))
    return str(body[name])


def _volume_usd(size_gb: int) -> Decimal:
    """USD an hour of a system volume."""
    return (size_gb * VOLUME_USD_PER_GB_MONTH["NVMe"] / HOURS_PER_MONTH).quantize(MICRO)


def _hardware(item: InventoryItem) -> dict[str, Any]:
    """What types and instances say of a machine; GPU memory is the total."""
    count, total_gb = item.gpus, item.gpus * item.gpu_memory_gb
    cores, memory_gb = int(item.vcpus or 0), int(item.memory_gb or 0)
    name = item.labels["name"]
    return {
        "cpu": {"description": f"{cores} CPU", "number_of_cores": cores},
        "gpu": {"description": f"{count}x {name}" if count else "", "number_of_gpus": count},
        "gpu_memory": {
            "description": f"{total_gb}GB GPU RAM" if count else "",
            "size_in_gigabytes": total_gb,
        },
        "memory": {"description": f"{memory_gb}GB RAM", "size_in_gigabytes": memory_gb},
        "storage": {"description": "dynamic"},
    }


def _error(status: int, code: str, message: str) -> Reply:
    return json_reply({"code": code, "message": message}, status)

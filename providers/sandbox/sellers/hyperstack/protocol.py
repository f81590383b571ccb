"""Hyperstack's Infrahub API v1, under ``/hyperstack/v1``.

The price book is a bare list in US dollars per GPU and hour; stocks say how many machines of each size fit;
flavors are grouped by GPU and region. A machine is made in an environment, which has a region; every region
has one called ``default-<region>``. Answers carry ``status`` and ``message``, errors an ``error_reason`` too.
Not documented: which error means that there is no stock (400 in words here), that names are taken (409
here), how a deletion looks while it lasts (``DELETING`` here), billing (by the minute here). A machine in
status ``ERROR`` is not billed. Sources: hyperstack-sdk-python, infrahub-doc.nexgencloud.com.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply, page_of
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.hyperstack.market import REGIONS, hyperstack_inventory

BILLING_INCREMENT_S = 60
FIRST_ID = 400_000
_STATES = Lifecycle({"CREATING": 0.25, "BUILD": 1}, up="ACTIVE", failed="ERROR", ending="DELETING")
_SIZES = (1, 2, 4, 8, 10)
_FLOORS = (200, 100, 25, 10)
_NEEDED = ("name", "environment_name", "flavor_name", "image_name", "key_name")
_LONGEST_NAME = 50
_FREE_ENTRIES = ("CPU", "RAM")
_OWN_PAIR = "broker"


class Hyperstack(SellerProtocol):
    """Price book, stocks, flavors, virtual machines."""

    name = "hyperstack"
    on_sale = staticmethod(hyperstack_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/v1/pricebook", "list", self._pricebook),
            Route("GET", "/v1/core/stocks", "list", self._stocks),
            Route("GET", "/v1/core/flavors", "list", self._flavors),
            Route("POST", "/v1/core/virtual-machines", "create", self._create),
            Route("GET", "/v1/core/virtual-machines", "get", self._machines),
            Route("GET", "/v1/core/virtual-machines/{id}", "get", self._machine),
            Route("DELETE", "/v1/core/virtual-machines/{id}", "delete", self._delete),
            Route("GET", "/v1/core/keypairs", "other", self._pairs),
            Route("POST", "/v1/core/keypairs", "other", self._import_pair),
            Route("DELETE", "/v1/core/keypair/{id}", "other", self._drop_pair),
        )

    def errors(self) -> ErrorForms:
        """Every error has a reason and a message."""
        return ErrorForms(
            no_key=_error(401, "unauthorized", "API key is missing or invalid"),
            no_path=_error(404, "not_found", "The requested URL was not found"),
            no_machine=lambda _: _error(404, "not_found", "Virtual machine not found"),
            bad_body=lambda reason: _error(400, "bad_request", reason),
            rate_limited=_error(429, "too_many_requests", "Too many requests"),
            no_capacity=_no_stock("the flavor"),
            failed=_error(500, "internal_server_error", "Internal server error"),
        )

    def key(self, call: Call) -> str | None:
        """The header ``api_key``."""
        return call.headers.get("api_key", "").strip() or None

    def _pricebook(self, _: Call) -> Reply:
        prices: dict[str, Decimal] = dict.fromkeys(_FREE_ENTRIES, Decimal(0))
        for item in self.seller.inventory():
            per_gpu = self._usd_per_gpu(item)
            if item.labels["word"] and per_gpu is not None:
                prices[item.labels["word"]] = per_gpu
        rows = [_price_entry(number, *found) for number, found in enumerate(prices.items(), start=1)]
        return json_reply(rows)

    def _usd_per_gpu(self, item: InventoryItem) -> Decimal | None:
        price = self.sandbox.market.price(item)
        return price if price is None or item.unit == "gpu" else price / max(1, item.gpus)

    def _stocks(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        items = [item for item in self.seller.inventory() if item.labels["word"]]
        rows = [
            {
                "region": region,
                "stock-type": "GPU",
                "models": [_stock_row(item, free[item.key]) for item in items if item.region == region],
            }
            for region in REGIONS
        ]
        return json_reply({"stocks": rows})

    def _flavors(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        groups = [
            {
                "gpu": item.labels["word"],
                "region_name": item.region,
                "flavors": [_flavor_row(item, flavor, free[item.key]) for flavor in item.labels["flavors"]],
            }
            for item in self.seller.inventory()
        ]
        return json_reply({"status": True, "message": "Getting flavors successful", "data": groups})

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        for name in _NEEDED:
            if not body.get(name):
                raise Refusal(_error(400, "bad_request", f"{name}: Missing data for required field."))
        if len(body["name"]) > _LONGEST_NAME:
            raise Refusal(_error(400, "bad_request", f"name: Longer than maximum length {_LONGEST_NAME}."))
        if int(body.get("count", 1)) != 1:
            raise Refusal(_error(400, "bad_request", "count: the sandbox makes one machine a call."))
        item, flavor = self._wanted(body)
        self._require_pair(body)
        taken = {entry.detail["request"]["name"] for entry in self.seller.visible()}
        if body["name"] in taken:
            raise Refusal(_error(409, "conflict", "Virtual machine name already in use"))
        units = _units(item, flavor)
        if self.seller.free(item) < units:
            raise Refusal(_no_stock(flavor["name"]))
        usd = (self._usd_per_gpu(item) or Decimal(0)) * int(flavor["gpus"])
        entry = self.seller.sell(
            item,
            body["name"],
            Tariff(usd, BILLING_INCREMENT_S),
            {"request": body, "flavor": flavor, "word": item.labels["word"]},
            instance_id=str(FIRST_ID + self.sandbox.store.next_number(self.name)),
            sku=flavor["name"],
            units=units,
            fails=call.loses_capacity,
        )
        message = "Virtual machine(s) created successfully"
        return json_reply({"status": True, "message": message, "instances": [self._row(entry)]})

    def _wanted(self, body: dict[str, Any]) -> tuple[InventoryItem, dict[str, Any]]:
        region = _region_of(body["environment_name"])
        for item in self.seller.inventory():
            for flavor in item.labels["flavors"]:
                if (item.region, flavor["name"]) == (region, body["flavor_name"]):
                    return item, flavor
        raise Refusal(_error(404, "not_found", "Flavor not found in the environment's region"))

    def _require_pair(self, body: dict[str, Any]) -> None:
        """Refuses a key pair that the environment does not have; every one has a pair ``broker``."""
        wanted = (body["environment_name"], body["key_name"])
        known = {(_environment_of(row), row["name"]) for row in self.seller.ssh_keys()}
        if body["key_name"] != _OWN_PAIR and wanted not in known:
            raise Refusal(_error(404, "not_found", "Key pair not found in the environment"))

    def _pairs(self, call: Call) -> Reply:
        return _page(call, "keypairs", [_pair_row(row) for row in self.seller.ssh_keys()])

    def _import_pair(self, call: Call) -> Reply:
        body = call.json_object()
        region = _region_of(body.get("environment_name"))
        name = str(body.get("name") or "")
        if len(name) > _LONGEST_NAME:
            raise Refusal(_error(400, "bad_request", f"name: Longer than maximum length {_LONGEST_NAME}."))
        if any(row["name"] == name for row in self.seller.ssh_keys()):
            raise Refusal(_error(409, "conflict", "Key pair name already in use"))
        number = FIRST_ID + self.sandbox.store.next_number(f"{self.name}-pair")
        row = self.seller.add_key(name, body.get("public_key"), f"{number}@{region}")
        return json_reply({"status": True, "message": "Key pair imported", "keypair": _pair_row(row)})

    def _drop_pair(self, call: Call) -> Reply:
        for row in self.seller.ssh_keys():
            if str(_pair_row(row)["id"]) == call.parts["id"]:
                self.seller.drop_key(row["id"])
                return json_reply({"status": True, "message": "Key pair deleted"})
        raise Refusal(_error(404, "not_found", "Key pair not found"))

    def _machines(self, call: Call) -> Reply:
        wanted = call.query.get("search", "")
        found = [self._row(entry) for entry in self.seller.visible() if wanted in entry.tag]
        return _page(call, "instances", found)

    def _machine(self, call: Call) -> Reply:
        row = self._row(self.machine(call))
        return json_reply({"status": True, "message": "Getting VM successful", "instance": row})

    def _delete(self, call: Call) -> Reply:
        self.seller.release(self.machine(call))
        return json_reply({"status": True, "message": "Deleting VM"})

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, flavor, status = (
            entry.detail["request"],
            entry.detail["flavor"],
            self.seller.state(entry, _STATES),
        )
        is_up, address = status == "ACTIVE", self.seller.address(entry)
        return {
            "id": int(entry.instance_id),
            "name": request["name"],
            "status": status,
            "vm_state": "active" if is_up else "building",
            "power_state": "RUNNING" if is_up else "NOSTATE",
            "environment": _environment(entry.region),
            "flavor": {
                "name": flavor["name"],
                "cpu": flavor["cpu"],
                "ram": flavor["ram"],
                "gpu": entry.detail["word"],
                "gpu_count": flavor["gpus"],
            },
            "image": {"name": request["image_name"]},
            "keypair": {"name": request["key_name"]},
            "labels": request.get("labels") or [],
            "fixed_ip": address if is_up else None,
            "floating_ip": address if is_up and request.get("assign_floating_ip") else None,
            "contract_id": None,
            "created_at": _naive(entry.created_at),
        }


def _page(call: Call, key: str, found: list[dict[str, Any]]) -> Reply:
    """One page of a list."""
    page, size = int(call.query.get("page", "1")), int(call.query.get("pageSize", "10"))
    shown = page_of(found, page, size) if page >= 1 and size >= 1 else []
    answer = {"status": True, "message": f"Getting {key} successful", "count": len(found)}
    return json_reply({**answer, "page": page, "page_size": size, key: shown})


def _region_of(environment: object) -> str:
    """The region of an environment."""
    for region in REGIONS:
        if environment == f"default-{region}":
            return region
    raise Refusal(_error(404, "not_found", "Environment not found"))


def _environment_of(row: dict[str, Any]) -> str:
    """The environment of a key pair, whose region stands in its id here."""
    return f"default-{row['id'].partition('@')[2]}"


def _pair_row(row: dict[str, Any]) -> dict[str, Any]:
    number, _, region = row["id"].partition("@")
    return {
        "id": int(number),
        "name": row["name"],
        "public_key": row["public_key"],
        "environment": _environment(region),
    }


def _price_entry(number: int, name: str, value: Decimal) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "value": float(value),
        "original_value": float(value),
        "discount_applied": False,
        "start_time": None,
        "end_time": None,
    }


def _units(item: InventoryItem, flavor: dict[str, Any]) -> int:
    """What a machine of ``flavor`` takes from its item's stock."""
    return int(flavor["gpus"]) if item.unit == "gpu" else 1


def _stock_row(item: InventoryItem, free: int) -> dict[str, Any]:
    flavors = {flavor["gpus"]: flavor for flavor in item.labels["flavors"]}
    fits = {f"{size}x": free // _units(item, flavors[size]) if size in flavors else 0 for size in _SIZES}
    gpus = free if item.unit == "gpu" else free * item.gpus
    floor = next((f"{floor}+" for floor in _FLOORS if gpus >= floor), str(gpus))
    return {
        "model": item.labels["word"],
        "available": floor,
        "planned_7_days": None,
        "planned_30_days": None,
        "planned_100_days": None,
        "configurations": fits,
    }


def _flavor_row(item: InventoryItem, flavor: dict[str, Any], free: int) -> dict[str, Any]:
    return {
        "id": 1 + sum(flavor["name"].encode()) + 1000 * REGIONS.index(item.region),
        "name": flavor["name"],
        "display_name": None,
        "region_name": item.region,
        "cpu": flavor["cpu"],
        "ram": flavor["ram"],
        "disk": 100,
        "ephemeral": 750,
        "gpu": item.labels["word"],
        "gpu_count": flavor["gpus"],
        "stock_available": free >= _units(item, flavor),
        "created_at": "2024-05-01T00:00:00",
        "labels": [],
        "features": {},
    }


def _environment(region: str) -> dict[str, Any]:
    return {"id": 1 + REGIONS.index(region), "name": f"default-{region}", "region": region, "features": {}}


def _naive(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%S")


def _no_stock(flavor: str) -> Reply:
    return _error(400, "bad_request", f"Not enough stock available for {flavor}")


def _error(status: int, reason: str, message: str) -> Reply:
    return json_reply({"status": False, "message": message, "error_reason": reason}, status)

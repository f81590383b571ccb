"""Prime Intellect's API v1, under ``/prime_intellect/api/v1``.

Two lists of configurations, page by page: single machines and several nodes; a price is that of the whole
configuration. A pod repeats the words of its configuration; nothing says spot but its price (``maxPrice``).
Errors are ``{"detail"}``, or ``{"errors": [{"param", "details"}]}`` for 422. Not documented: the words of a
capacity error (400 with a sentence here), of an unknown pod (404 here), and the rounding of bills (whole
hours here). Sources: Prime Intellect's OpenAPI description and its command line client.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply, page_of
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.prime_intellect.market import USD_PER_EUR, prime_intellect_inventory

BILLING_INCREMENT_S = 3600
LARGEST_PAGE = 100
LEAST_DISK_GB, DISK_GB, MOST_DISK_GB = 80, 100, 3000
DISK_USD_PER_GB_HOUR = Decimal("0.00014")
_STATES = Lifecycle({"PROVISIONING": 0.5}, up="ACTIVE", failed="ERROR", ending="DELETING", gone="TERMINATED")
_NEEDED = ("cloudId", "gpuType", "socket", "gpuCount")
_NOTHING = dict.fromkeys(
    (
        "minCount",
        "defaultCount",
        "maxCount",
        "pricePerUnit",
        "step",
        "defaultIncludedInPrice",
        "additionalInfo",
    )
)


class PrimeIntellect(SellerProtocol):
    """Availability and pods."""

    name = "prime_intellect"
    on_sale = staticmethod(prime_intellect_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/api/v1/availability/gpus", "list", self._gpus),
            Route("GET", "/api/v1/availability/multi-node", "list", self._multi_node),
            Route("POST", "/api/v1/pods/", "create", self._create),
            Route("GET", "/api/v1/pods/", "get", self._pods),
            Route("GET", "/api/v1/pods/{id}", "get", self._pod),
            Route("DELETE", "/api/v1/pods/{id}", "delete", self._delete),
            Route("GET", "/api/v1/ssh_keys/", "other", self._keys),
            Route("POST", "/api/v1/ssh_keys/", "other", self._add_key),
            Route("DELETE", "/api/v1/ssh_keys/{id}", "other", self._drop_key),
        )

    def errors(self) -> ErrorForms:
        """A sentence, without a code."""
        return ErrorForms(
            no_key=_error(401, "Authorization failed"),
            no_path=_error(404, "Not Found"),
            no_machine=lambda _: _error(404, "Pod not found"),
            bad_body=lambda reason: _invalid("body", reason),
            rate_limited=_error(429, "Too Many Requests"),
            no_capacity=_error(400, "Not enough capacity: the requested GPU is no longer available"),
            failed=_error(500, "Internal Server Error"),
        )

    def _gpus(self, call: Call) -> Reply:
        return self._page(call, [item for item in self.seller.inventory() if item.labels["nodes"] == 1])

    def _multi_node(self, call: Call) -> Reply:
        return self._page(call, [item for item in self.seller.inventory() if item.labels["nodes"] > 1])

    def _page(self, call: Call, items: list[InventoryItem]) -> Reply:
        page, size = int(call.query.get("page", "1")), int(call.query.get("page_size", "100"))
        if page < 1 or not 1 <= size <= LARGEST_PAGE:
            raise Refusal(_invalid("page_size", f"Input should be from 1 to {LARGEST_PAGE}"))
        free = self.seller.free_by_key()
        shown = page_of(items, page, size)
        rows = [self._row(item, free[item.key] // item.labels["nodes"]) for item in shown]
        return json_reply({"items": rows, "totalCount": len(items)})

    def _row(self, item: InventoryItem, free: int) -> dict[str, Any]:
        labels = item.labels
        kind, gbit_s = labels["fabric"] or (None, None)
        return {
            "cloudId": labels["cloudId"],
            "gpuType": labels["gpuType"],
            "socket": labels["socket"],
            "provider": labels["provider"],
            "region": labels["region"],
            "dataCenter": item.zone or None,
            "country": item.region,
            "gpuCount": item.gpus * labels["nodes"],
            "gpuMemory": item.gpu_memory_gb,
            "disk": _disk(item),
            "sharedDisk": dict(_NOTHING),
            "vcpu": {**_NOTHING, "defaultCount": int(item.vcpus or 0)},
            "memory": {**_NOTHING, "defaultCount": int(item.memory_gb or 0)},
            "internetSpeed": None,
            "interconnect": gbit_s,
            "interconnectType": kind,
            "provisioningTime": None,
            "stockStatus": _level(free),
            "security": labels["security"],
            "prices": self._prices(item),
            "images": ["ubuntu_22_cuda_12"],
            "isSpot": item.tier == "spot",
            "prepaidTime": labels["prepaid"] or None,
        }

    def _prices(self, item: InventoryItem) -> dict[str, Any]:
        amount = self._usd(item)
        if item.labels["currency"] == "EUR":
            amount /= USD_PER_EUR
        community = item.labels["security"] == "community_cloud"
        return {
            "onDemand": None if community else float(round(amount, 6)),
            "communityPrice": float(round(amount, 6)) if community else None,
            "isVariable": False,
            "currency": item.labels["currency"],
        }

    def _usd(self, item: InventoryItem) -> Decimal:
        """Dollars per hour of the whole configuration."""
        return self.seller.price(item) * int(item.labels["nodes"])

    def _sized_usd(self, item: InventoryItem, pod: dict[str, Any]) -> Decimal:
        """The same with the disk that the pod asks for in place of the default."""
        more_gb = int(pod.get("diskSize") or DISK_GB) - DISK_GB
        return self._usd(item) + more_gb * DISK_USD_PER_GB_HOUR

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        pod, provider = body.get("pod"), body.get("provider")
        if not isinstance(pod, dict) or not isinstance(provider, dict):
            raise Refusal(_invalid("pod", "Field required"))
        for name in _NEEDED:
            if not pod.get(name):
                raise Refusal(_invalid(f"pod.{name}", "Field required"))
        item, disk_gb = self._wanted(pod, str(provider.get("type"))), int(pod.get("diskSize") or DISK_GB)
        if int(item.labels["nodes"]) == 1 and not LEAST_DISK_GB <= disk_gb <= MOST_DISK_GB:
            raise Refusal(_invalid("pod.diskSize", f"must be from {LEAST_DISK_GB} to {MOST_DISK_GB}"))
        entry = self.seller.sell(
            item,
            pod.get("name") or "",
            Tariff(self._sized_usd(item, pod), BILLING_INCREMENT_S, int(item.labels["prepaid"]) * 3600),
            {"request": pod, "provider": item.labels["provider"]},
            instance_id=self.seller.new_id(32),
            nodes=int(item.labels["nodes"]),
            fails=call.loses_capacity,
        )
        return json_reply(self._shown(entry))

    def _wanted(self, pod: dict[str, Any], provider: str) -> InventoryItem:
        """The most expensive configuration that matches the pod within ``maxPrice``, if it has stock."""
        known = [item for item in self.seller.inventory() if _is_meant(item, pod, provider)]
        if not known:
            raise Refusal(_invalid("pod.cloudId", "no such configuration"))
        limit = pod.get("maxPrice")
        payable = [
            item for item in known if limit is None or self._sized_usd(item, pod) <= Decimal(str(limit))
        ]
        if not payable:
            raise Refusal(_error(400, "The price exceeds maxPrice"))
        item = max(payable, key=self._usd)
        self.require_stock(item, item.labels["nodes"])
        return item

    def _pods(self, call: Call) -> Reply:
        return _listed(call, [self._shown(entry) for entry in self.seller.visible()])

    def _keys(self, call: Call) -> Reply:
        return _listed(call, [_key_row(row) for row in self.seller.ssh_keys()])

    def _add_key(self, call: Call) -> Reply:
        body = call.json_object()
        for name in ("name", "publicKey"):
            if not body.get(name):
                raise Refusal(_invalid(name, "Field required"))
        return json_reply(_key_row(self.seller.add_key(body["name"], body["publicKey"])))

    def _drop_key(self, call: Call) -> Reply:
        if not self.seller.drop_key(call.parts["id"]):
            raise Refusal(_error(404, "SSH key not found"))
        return json_reply({})

    def _pod(self, call: Call) -> Reply:
        return json_reply(self._shown(self.machine(call)))

    def _delete(self, call: Call) -> Reply:
        self.seller.release(self.machine(call))
        return json_reply({"status": "TERMINATED"})

    def _shown(self, entry: Entry) -> dict[str, Any]:
        request, status = entry.detail["request"], self.seller.state(entry, _STATES)
        booted = self.seller.booted(entry) >= 1
        up = range(entry.nodes if status == "ACTIVE" and booted else 0)
        addresses = [self.seller.address(entry, node) for node in up]
        ways = [f"root@{address} -p {self.seller.ssh_port}" for address in addresses]
        return {
            "id": entry.instance_id,
            "userId": "sandbox-user",
            "teamId": None,
            "walletId": "sandbox-wallet",
            "name": entry.tag,
            "type": "HOSTED",
            "providerType": entry.detail["provider"],
            "status": status,
            "installationStatus": _installation(status, booted),
            "installationFailure": "no capacity at the provider" if status == "ERROR" else None,
            "createdAt": zulu_ms(entry.created_at),
            "updatedAt": zulu_ms(entry.created_at),
            "terminatedAt": None if entry.released_at is None else zulu_ms(entry.released_at),
            "gpuName": request["gpuType"],
            "gpuCount": request["gpuCount"],
            "socket": request["socket"],
            "priceHr": float(entry.tariff.usd_per_hour),
            "environmentType": request.get("image", "ubuntu_22_cuda_12"),
            "clusterId": f"cluster-{entry.instance_id[:8]}" if entry.nodes > 1 else None,
            "sshConnection": _one_or_all(ways, entry.nodes),
            "ip": _one_or_all(addresses, entry.nodes),
            "isSpot": entry.tier == "spot",
            "resources": None,
        }


def _disk(item: InventoryItem) -> dict[str, Any]:
    """The disk of a single machine is chosen; of several nodes the row says the default alone."""
    if int(item.labels["nodes"]) > 1:
        return {**_NOTHING, "defaultCount": DISK_GB}
    usd = DISK_USD_PER_GB_HOUR
    return {
        **_NOTHING,
        "minCount": LEAST_DISK_GB,
        "defaultCount": DISK_GB,
        "maxCount": MOST_DISK_GB,
        "pricePerUnit": float(round(usd / USD_PER_EUR, 6) if item.labels["currency"] == "EUR" else usd),
        "step": 1,
        "defaultIncludedInPrice": False,
    }


def _is_meant(item: InventoryItem, pod: dict[str, Any], provider: str) -> bool:
    labels = item.labels
    must = {
        "cloudId": labels["cloudId"],
        "gpuType": labels["gpuType"],
        "socket": labels["socket"],
        "gpuCount": item.gpus * labels["nodes"],
    }
    may = {"dataCenterId": item.zone, "country": item.region, "security": labels["security"]}
    return (
        provider == labels["provider"]
        and all(pod[name] == value for name, value in must.items())
        and all(pod.get(name) in {None, value} for name, value in may.items())
    )


def _level(free: int) -> str:
    if free < 1:
        return "Unavailable"
    return ("Low", "Medium", "High")[min(2, (free - 1) // 2)] if free < 7 else "Available"


def _installation(status: str, booted: bool) -> str:
    if status in {"ERROR", "TERMINATED"}:
        return status
    return "FINISHED" if booted else "PENDING"


def _listed(call: Call, rows: list[dict[str, Any]]) -> Reply:
    """A page of what the account has."""
    offset, limit = int(call.query.get("offset", "0")), int(call.query.get("limit", "100"))
    page = {"total_count": len(rows), "offset": offset, "limit": limit}
    return json_reply({**page, "data": rows[offset : offset + limit], "status": "ok"})


def _key_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "userId": "sandbox-user",
        "name": row["name"],
        "publicKey": row["public_key"],
        "isPrimary": False,
        "isUserKey": True,
    }


def _one_or_all(texts: list[str], nodes: int) -> str | list[str | None] | None:
    """A text for one node (null before it is up), a list for several."""
    if nodes > 1:
        return [*texts] if texts else [None] * nodes
    return texts[0] if texts else None


def _error(status: int, detail: str) -> Reply:
    return json_reply({"detail": detail}, status)


def _invalid(param: str, details: str) -> Reply:
    return json_reply({"errors": [{"param": param, "details": details}]}, 422)

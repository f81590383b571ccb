"""Prime Intellect's API v1, under ``/prime_intellect/api/v1``.

Two lists of configurations, page by page: single machines and several nodes; a price is that of the whole
configuration. A pod repeats the words of its configuration; nothing says spot but its price (``maxPrice``).
Errors are ``{"detail"}``, or ``{"errors": [{"param", "details"}]}`` for 422. Not documented: the words of a
capacity error (400 with a sentence here), of an unknown pod (404 here), and the rounding of bills (whole
hours here). Sources: Prime Intellect's OpenAPI description and its command line client.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.sellers.prime_intellect.market import USD_PER_EUR, prime_intellect_cells
from providers.sandbox.wire import Call, ProviderWire, Refusal, Reply, Route, World, json_reply

BILLING_INCREMENT_S = 3600
LARGEST_PAGE = 100
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


class PrimeIntellect(ProviderWire):
    """Availability and pods."""

    name = "prime_intellect"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.market.add(prime_intellect_cells(world.seed))

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/api/v1/availability/gpus", "list", self._gpus),
            Route("GET", "/api/v1/availability/multi-node", "list", self._multi_node),
            Route("POST", "/api/v1/pods/", "create", self._create),
            Route("GET", "/api/v1/pods/", "get", self._pods),
            Route("GET", "/api/v1/pods/status", "get", self._statuses),
            Route("GET", "/api/v1/pods/{id}", "get", self._pod),
            Route("DELETE", "/api/v1/pods/{id}", "delete", self._delete),
        )

    def authorise(self, call: Call) -> None:
        """A bearer key."""
        if call.key() is None:
            raise Refusal(_error(401, "Authorization failed"))

    def unknown_path(self) -> Reply:
        """404 in the API's form."""
        return _error(404, "Not Found")

    def malformed_body(self, reason: str) -> Reply:
        """422 for a body that cannot be read."""
        return _invalid("body", reason)

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """A sentence, without a code."""
        if kind is FaultKind.RATE_LIMITED:
            return _error(429, "Too Many Requests")
        if kind is FaultKind.OUT_OF_CAPACITY:
            return _no_capacity()
        return _error(500, "Internal Server Error")

    def _gpus(self, call: Call) -> Reply:
        return self._page(call, [cell for cell in self._cells() if cell.labels["nodes"] == 1])

    def _multi_node(self, call: Call) -> Reply:
        return self._page(call, [cell for cell in self._cells() if cell.labels["nodes"] > 1])

    def _cells(self) -> list[InventoryItem]:
        return self.world.market.cells(self.name)

    def _page(self, call: Call, cells: list[InventoryItem]) -> Reply:
        page, size = int(call.query.get("page", "1")), int(call.query.get("page_size", "100"))
        if page < 1 or not 1 <= size <= LARGEST_PAGE:
            raise Refusal(_invalid("page_size", f"Input should be from 1 to {LARGEST_PAGE}"))
        free = self.world.market.free_by_key(self.name, self.now)
        wanted = [cell for cell in cells if _is_wanted(cell, call)]
        shown = wanted[(page - 1) * size : page * size]
        rows = [self._row(cell, free[cell.key] // cell.labels["nodes"]) for cell in shown]
        return json_reply({"items": rows, "totalCount": len(wanted)})

    def _row(self, cell: InventoryItem, free: int) -> dict[str, Any]:
        labels = cell.labels
        kind, gbit_s = labels["fabric"] or (None, None)
        return {
            "cloudId": labels["cloudId"],
            "gpuType": labels["gpuType"],
            "socket": labels["socket"],
            "provider": labels["provider"],
            "region": labels["region"],
            "dataCenter": cell.zone or None,
            "country": cell.region,
            "gpuCount": cell.gpus * labels["nodes"],
            "gpuMemory": cell.gpu_memory_gb,
            "disk": {**_NOTHING, "defaultCount": 100},
            "sharedDisk": dict(_NOTHING),
            "vcpu": {**_NOTHING, "defaultCount": int(cell.vcpus or 0)},
            "memory": {**_NOTHING, "defaultCount": int(cell.memory_gb or 0)},
            "internetSpeed": None,
            "interconnect": gbit_s,
            "interconnectType": kind,
            "provisioningTime": None,
            "stockStatus": _level(free),
            "security": labels["security"],
            "prices": self._prices(cell),
            "images": ["ubuntu_22_cuda_12"],
            "isSpot": cell.tier == "spot",
            "prepaidTime": labels["prepaid"] or None,
        }

    def _prices(self, cell: InventoryItem) -> dict[str, Any]:
        amount = self._usd(cell)
        if cell.labels["currency"] == "EUR":
            amount /= USD_PER_EUR
        community = cell.labels["security"] == "community_cloud"
        return {
            "onDemand": None if community else float(round(amount, 6)),
            "communityPrice": float(round(amount, 6)) if community else None,
            "isVariable": False,
            "currency": cell.labels["currency"],
        }

    def _usd(self, cell: InventoryItem) -> Decimal:
        """Dollars per hour of the whole configuration."""
        return (self.world.market.price(cell) or Decimal(0)) * int(cell.labels["nodes"])

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        pod, provider = body.get("pod"), body.get("provider")
        if not isinstance(pod, dict) or not isinstance(provider, dict):
            raise Refusal(_invalid("pod", "Field required"))
        for name in _NEEDED:
            if not pod.get(name):
                raise Refusal(_invalid(f"pod.{name}", "Field required"))
        cell = self._wanted(pod, str(provider.get("type")))
        now, nodes = self.now, int(cell.labels["nodes"])
        boots_at = now + timedelta(seconds=self.world.durations.boot_s)
        entry = Entry(
            provider=self.name,
            instance_id=self.world.new_id(self.name, 32),
            tag=str(pod.get("name") or ""),
            sku=cell.sku,
            region=cell.region,
            zone=cell.zone,
            tier=cell.tier,
            nodes=nodes,
            units=0 if call.loses_capacity else nodes,
            stock_key=cell.stock_key,
            created_at=now,
            starts_at=now,
            failed_at=boots_at if call.loses_capacity else None,
            tariff=Tariff(self._usd(cell), BILLING_INCREMENT_S, int(cell.labels["prepaid"]) * 3600),
            detail={"request": pod, "provider": cell.labels["provider"]},
        )
        return json_reply(self._shown(self.world.ledger.write(entry)))

    def _wanted(self, pod: dict[str, Any], provider: str) -> InventoryItem:
        """The dearest configuration that the pod's words and ``maxPrice`` allow, if it has stock."""
        known = [cell for cell in self._cells() if _is_meant(cell, pod, provider)]
        if not known:
            raise Refusal(_invalid("pod.cloudId", "no such configuration"))
        limit = pod.get("maxPrice")
        payable = [cell for cell in known if limit is None or self._usd(cell) <= Decimal(str(limit))]
        if not payable:
            raise Refusal(_error(400, "The price exceeds maxPrice"))
        cell = max(payable, key=self._usd)
        if self.world.market.free(cell, self.now) < cell.labels["nodes"]:
            raise Refusal(_no_capacity())
        return cell

    def _pods(self, call: Call) -> Reply:
        offset, limit = int(call.query.get("offset", "0")), int(call.query.get("limit", "100"))
        rows = [self._shown(entry) for entry in self.world.ledger.entries(self.name)]
        shown = [row for row in rows if row["status"] != "TERMINATED"]
        page = {"total_count": len(shown), "offset": offset, "limit": limit}
        return json_reply({**page, "data": shown[offset : offset + limit], "status": "ok"})

    def _statuses(self, call: Call) -> Reply:
        ids = parse_qs(urlsplit(call.target).query).get("pod_ids", [])
        found = [self.world.ledger.find(self.name, pod_id) for pod_id in ids]
        names = ("providerType", "status", "sshConnection", "ip", "installationStatus")
        rows = [self._shown(entry) for entry in found if entry is not None]
        data = [{"podId": row["id"], **{name: row[name] for name in names}} for row in rows]
        return json_reply({"data": data, "status": "ok"})

    def _pod(self, call: Call) -> Reply:
        return json_reply(self._shown(self._known(call)))

    def _known(self, call: Call) -> Entry:
        entry = self.world.ledger.find(self.name, call.parts["id"])
        if entry is None or self._status(entry) == "TERMINATED":
            raise Refusal(_error(404, "Pod not found"))
        return entry

    def _delete(self, call: Call) -> Reply:
        entry = self._known(call)
        if entry.released_at is None:
            entry = self.world.ledger.write(replace(entry, released_at=self.now))
        return json_reply({"status": "TERMINATED"})

    def _status(self, entry: Entry) -> str:
        durations, now = self.world.durations, self.now
        if entry.released_at is not None:
            gone_at = entry.released_at + timedelta(seconds=durations.terminate_s)
            return "DELETING" if now < gone_at else "TERMINATED"
        if entry.failed(now):
            return "ERROR"
        age_s = (now - entry.created_at).total_seconds()
        return "PROVISIONING" if age_s < durations.boot_s / 2 else "ACTIVE"

    def _shown(self, entry: Entry) -> dict[str, Any]:
        request, status = entry.detail["request"], self._status(entry)
        booted = self.now >= entry.created_at + timedelta(seconds=self.world.durations.boot_s)
        address = "198.51.100.60" if status == "ACTIVE" else None
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
            "sshConnection": f"root@{address} -p 22" if address else None,
            "ip": [address] * entry.nodes if entry.nodes > 1 else address,
            "isSpot": entry.tier == "spot",
            "resources": None,
        }


def _is_wanted(cell: InventoryItem, call: Call) -> bool:
    labels = cell.labels
    facts = {
        "regions": labels["region"],
        "gpu_count": str(cell.gpus * labels["nodes"]),
        "gpu_type": labels["gpuType"],
        "socket": labels["socket"],
        "security": labels["security"],
        "data_center_id": cell.zone,
        "cloud_id": labels["cloudId"],
    }
    return all(call.query[name] == value for name, value in facts.items() if name in call.query)


def _is_meant(cell: InventoryItem, pod: dict[str, Any], provider: str) -> bool:
    labels = cell.labels
    must = {
        "cloudId": labels["cloudId"],
        "gpuType": labels["gpuType"],
        "socket": labels["socket"],
        "gpuCount": cell.gpus * labels["nodes"],
    }
    may = {"dataCenterId": cell.zone, "country": cell.region, "security": labels["security"]}
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


def _no_capacity() -> Reply:
    return _error(400, "Not enough capacity: the requested GPU is no longer available")


def _error(status: int, detail: str) -> Reply:
    return json_reply({"detail": detail}, status)


def _invalid(param: str, details: str) -> Reply:
    return json_reply({"errors": [{"param": param, "details": details}]}, 422)

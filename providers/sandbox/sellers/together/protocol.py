"""Together's GPU clusters, under ``/together/v1/compute``.

Regions name the GPU types that they support and nothing of price or stock. A cluster counts GPUs (multiples
of eight) and walks through phases; one for scheduled capacity waits in phase SCHEDULED for its start and is
deleted at its end. Sources: models of the together SDK 2.36 and 3.1.1. The form of refusals is documented
nowhere for this part of the API: the sandbox answers as the rest of the API does, ``{"error": {"message"}}``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, instant_of, zulu
from providers.sandbox.market import WINDOW, InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply
from providers.sandbox.seller import ErrorForms, SellerProtocol
from providers.sandbox.sellers.together.market import REGIONS, UNPRICED, term_usd, together_inventory

GPUS_PER_NODE = 8
_GPU_TYPES = frozenset({"H100_SXM", "H200_SXM", "B200_SXM", "GB200_SXM", *UNPRICED})
_BILLING = ("ON_DEMAND", "RESERVED", "SCHEDULED_CAPACITY")
_DRIVER = {"cuda_version": "12.8", "nvidia_driver_version": "570", "os": "ubuntu-22.04"}
_WAITING, _INSTALLING = "WaitingForControlPlaneNodes", "InstallingDrivers"


class Together(SellerProtocol):
    """Regions and clusters."""

    name = "together"
    on_sale = staticmethod(together_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/v1/compute/regions", "list", self._regions),
            Route("POST", "/v1/compute/clusters", "create", self._create),
            Route("GET", "/v1/compute/clusters", "get", self._clusters),
            Route("GET", "/v1/compute/clusters/{id}", "get", self._cluster),
            Route("DELETE", "/v1/compute/clusters/{id}", "delete", self._delete),
        )

    def errors(self) -> ErrorForms:
        """Errors have a message and a type."""
        return ErrorForms(
            no_key=_error(401, "Missing API key", "authentication_error"),
            no_path=_error(404, "Not found", "invalid_request_error"),
            no_machine=lambda call: _error(404, f"cluster {call.parts['id']} not found", "not_found_error"),
            bad_body=lambda reason: _error(400, reason, "invalid_request_error"),
            rate_limited=_error(429, "Rate limit exceeded", "rate_limit"),
            no_capacity=_error(
                400, "Not enough capacity for this GPU type in the region", "invalid_request_error"
            ),
            failed=_error(500, "Internal server error", "server_error"),
        )

    def _regions(self, _: Call) -> Reply:
        items = self.seller.inventory()
        rows = [
            {
                "name": region,
                "supported_instance_types": list(
                    dict.fromkeys(item.sku for item in items if item.region == region)
                ),
                "driver_versions": [{"id": f"nv_{region}", **_DRIVER}],
            }
            for region in REGIONS
        ]
        return json_reply({"regions": rows})

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        for name in ("cluster_name", "region", "gpu_type", "num_gpus", "billing_type"):
            if not body.get(name):
                raise ValueError(f"{name} is required")
        if body["billing_type"] not in _BILLING or body["gpu_type"] not in _GPU_TYPES:
            raise ValueError("billing_type and gpu_type must be of their enums")
        if body.get("cluster_type") == "SLURM" and not body.get("slurm_shm_size_gib"):
            raise ValueError("slurm_shm_size_gib is required for SLURM")
        nodes, odd = divmod(_whole(body["num_gpus"]), GPUS_PER_NODE)
        if odd or nodes < 1:
            raise ValueError("num_gpus must be a multiple of 8")
        return json_reply(self._row(self._bought(call, body, nodes)))

    def _bought(self, call: Call, body: dict[str, Any], nodes: int) -> Entry:
        now = self.now
        start, end = _times(body, now)
        item = self._item(body, WINDOW if end else "on_demand")
        if not call.loses_capacity and self.seller.free(item) < nodes:
            raise Refusal(self.errors().no_capacity)
        return self.seller.sell(
            item,
            body["cluster_name"],
            self._tariff(item, nodes, start, end),
            {"request": body},
            nodes=nodes,
            starts_at=start,
            ends_at=end,
            fails=call.loses_capacity,
        )

    def _item(self, body: dict[str, Any], tier: str) -> InventoryItem:
        item = self.seller.item(region=body["region"], sku=body["gpu_type"], tier=tier)
        if item is None:
            raise ValueError(f"{body['gpu_type']} is not supported in region {body['region']}")
        return item

    def _tariff(self, item: InventoryItem, nodes: int, start: datetime, end: datetime | None) -> Tariff:
        """By the hour on demand; a window whole and upfront, at the recorded price of its length."""
        price = self.seller.price(item)
        if end is None:
            return Tariff(price * nodes)
        hours = Decimal((end - start) // timedelta(seconds=1)) / 3600
        base = item.usd_per_hour or price
        listed = term_usd(item.sku, float(hours) / 24) or base
        factor = price / base if base else Decimal(1)
        return Tariff(upfront_usd=(listed * factor * nodes * hours).quantize(Decimal("0.01")))

    def _phases(self, entry: Entry) -> list[tuple[str, datetime, str]]:
        """(phase, start, status) of the cluster's whole life, past and future."""
        boot = timedelta(seconds=self.sandbox.durations.boot_s)
        walk = [("QUEUED", entry.created_at, _WAITING)]
        if entry.starts_at > entry.created_at:
            walk.append(("SCHEDULED", entry.created_at, _WAITING))
        walk.append(("WAITING_FOR_CONTROL_PLANE_NODES", entry.starts_at, _WAITING))
        walk.append(("INSTALLING_DRIVERS", entry.starts_at + boot / 2, _INSTALLING))
        if entry.failed_at is not None:
            walk.append(("ACCEPTANCE_TESTS_FAILED", entry.failed_at, "RunningAcceptanceTests"))
        else:
            walk.append(("READY", entry.starts_at + boot, "Ready"))
        over_at = entry.released_at or entry.ends_at
        if over_at is not None:
            walk = [step for step in walk if step[1] < over_at]
            walk.append(("DELETING", over_at, "Deleting"))
        return walk

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, now = entry.detail["request"], self.now
        passed = [step for step in self._phases(entry) if step[1] <= now]
        return {
            "cluster_id": entry.instance_id,
            "cluster_name": entry.tag,
            "cluster_type": request.get("cluster_type", "KUBERNETES"),
            "status": passed[-1][2],
            "billing_type": request["billing_type"],
            "gpu_type": entry.sku,
            "num_gpus": entry.nodes * GPUS_PER_NODE,
            "region": entry.region,
            "reservation_start_time": zulu(entry.starts_at) if entry.ends_at else None,
            "reservation_end_time": None if entry.ends_at is None else zulu(entry.ends_at),
            "phase_transitions": [
                {"phase": f"CLUSTER_PHASE_{phase}", "transition_time": zulu(at)} for phase, at, _ in passed
            ],
            "created_at": zulu(entry.created_at),
            "control_plane_nodes": [],
            "gpu_worker_nodes": [_worker(entry, n) for n in range(entry.nodes)]
            if passed[-1][2] == "Ready"
            else [],
            "volumes": [],
            "add_ons": [],
            "kube_config": "",
            "project_id": "proj_sandbox",
            "cuda_version": _DRIVER["cuda_version"],
            "nvidia_driver_version": _DRIVER["nvidia_driver_version"],
            "allocated_preemptible_gpus": 0,
            "desired_preemptible_gpus": 0,
            "num_capacity_pool_gpus": 0,
            "num_cpu_workers": 0,
            "num_reserved_gpus": 0,
        }

    def _clusters(self, _: Call) -> Reply:
        return json_reply({"clusters": [self._row(entry) for entry in self.seller.visible()]})

    def _cluster(self, call: Call) -> Reply:
        return json_reply(self._row(self.machine(call)))

    def _delete(self, call: Call) -> Reply:
        entry = self.machine(call)
        if entry.is_live(self.now):
            self.seller.release(entry)
        return json_reply({"cluster_id": entry.instance_id})


def _worker(entry: Entry, number: int) -> dict[str, Any]:
    return {
        "node_id": f"{entry.instance_id}-{number}",
        "host_name": f"node-{number}",
        "status": "Ready",
        "num_gpus": GPUS_PER_NODE,
        "num_cpu_cores": 192,
        "memory_gib": 2048.0,
        "networks": [],
        "phase_transitions": [],
        "ib_hca_count": 8,
    }


def _times(body: dict[str, Any], now: datetime) -> tuple[datetime, datetime | None]:
    """When it starts, and when it ends by itself; without a start, now."""
    if body["billing_type"] == "ON_DEMAND":
        return now, None
    if body["billing_type"] == "RESERVED":
        return now, now + timedelta(days=_whole(body.get("duration_days")))
    if not body.get("reservation_end_time"):
        raise ValueError("reservation_end_time is required for SCHEDULED_CAPACITY")
    start = instant_of(body["reservation_start_time"]) if body.get("reservation_start_time") else now
    end = instant_of(body["reservation_end_time"])
    if end <= start or start < now - timedelta(hours=1):
        raise ValueError("the reservation must lie in the future and end after its start")
    return max(start, now), end


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100_000:
        raise ValueError(f"{value!r} must be a whole number above zero")
    return value


def _error(status: int, message: str, kind: str) -> Reply:
    return json_reply({"error": {"message": message, "type": kind, "param": None, "code": None}}, status)

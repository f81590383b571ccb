"""RunPod's GraphQL fields: the catalogue, pods and clusters; spot exists only here.

Errors come with status 200. One ``lowestPrice`` answers for one (count × place × cloud) item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    GraphQLError,
    OperationDefinitionNode,
    SelectionSetNode,
    parse,
    value_from_ast_untyped,
)

from providers.sandbox.ledger import Entry, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Reply, json_reply
from providers.sandbox.sellers.runpod.market import COMMUNITY, GPU_TYPES, SECURE, GpuType
from providers.sandbox.sellers.runpod.orders import CannotDeploy, PodOrder, PodOrders, center, level, places

PUBLIC_FIELDS = frozenset({"gpuTypes", "dataCenters", "countryCodes"})
"""Fields that need no key."""

_MUTATIONS = {
    "podFindAndDeployOnDemand": "create",
    "podRentInterruptable": "create",
    "createCluster": "create",
    "podTerminate": "delete",
    "deleteCluster": "delete",
}

_PLAIN_POD: Mapping[str, Any] = {
    "containerDiskInGb": 10,
    "dockerArgs": "",
    "dockerId": None,
    "env": [],
    "memoryInGb": None,
    "port": None,
    "ports": None,
    "uptimeSeconds": None,
    "vcpuCount": None,
    "volumeInGb": 0,
    "volumeMountPath": "/runpod-volume",
}
"""Fields of a pod that RunPod's own client asks for and no order here sets."""


@dataclass(frozen=True, slots=True)
class Field:
    """One asked field; ``key`` is its name in the answer."""

    key: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()


def asked_fields(document: str, variables: Mapping[str, Any]) -> tuple[str, tuple[Field, ...]]:
    """The operation's kind ("query" or "mutation") and its fields, variables filled in.

    GraphQLError for a syntax error, for several operations, and for fragments, which are not served.
    """
    operation = _operation(parse(document))
    values = {
        definition.variable.name.value: value_from_ast_untyped(definition.default_value)
        for definition in operation.variable_definitions or ()
        if definition.default_value is not None
    }
    return operation.operation.value, tuple(_fields(operation.selection_set, {**values, **variables}))


def _operation(document: DocumentNode) -> OperationDefinitionNode:
    operation, *others = document.definitions
    if others or not isinstance(operation, OperationDefinitionNode):
        raise GraphQLError("Syntax Error: one operation a document, without fragments.")
    return operation


def _fields(selection: SelectionSetNode | None, variables: dict[str, Any]) -> Iterator[Field]:
    for node in selection.selections if selection is not None else ():
        if not isinstance(node, FieldNode):
            raise GraphQLError("Syntax Error: one operation a document, without fragments.")
        name = node.name.value
        arguments = {a.name.value: value_from_ast_untyped(a.value, variables) for a in node.arguments or ()}
        inner = tuple(_fields(node.selection_set, variables))
        yield Field(node.alias.value if node.alias else name, name, arguments, inner)


def project(value: Any, fields: tuple[Field, ...]) -> Any:
    """``value`` cut to ``fields``; GraphQLError for a field that it does not have."""
    if not fields or value is None:
        return value
    if isinstance(value, list):
        return [project(item, fields) for item in value]
    found: dict[str, Any] = {}
    for asked in fields:
        if asked.name == "__typename":
            continue
        if asked.name not in value:
            raise GraphQLError(f'Cannot query field "{asked.name}".')
        inner = value[asked.name]
        found[asked.key] = project(inner(asked.arguments) if callable(inner) else inner, asked.fields)
    return found


class GraphQLFields:
    """Resolves top-level fields."""

    def __init__(self, orders: PodOrders) -> None:
        self._orders = orders

    def resolved(self, kind: str, field: Field, loses_capacity: bool) -> Any:
        """A field's answer; GraphQLError for a field that does not exist, CannotDeploy for an order."""
        table = self._mutation_fields(loses_capacity) if kind == "mutation" else self._query_fields()
        resolver = table.get(field.name)
        if resolver is None:
            raise GraphQLError(f'Cannot query field "{field.name}" on type "{kind.title()}".')
        wanted = field.arguments.get("input") or {}
        return project(resolver(wanted), field.fields)

    def _query_fields(self) -> dict[str, Any]:
        return {
            "gpuTypes": self._gpu_types,
            "dataCenters": lambda _: [
                {**center(region), "listed": True}
                for region in sorted({c.region for c in self._orders.all_items() if c.labels["center"]})
            ],
            "countryCodes": lambda _: sorted({item.labels["country"] for item in self._orders.all_items()}),
            "myself": lambda _: {
                "id": "user_sandbox",
                "pods": [self._pod_row(entry) for entry in self._orders.held("pod")],
                "clusters": [_cluster_row(entry) for entry in self._orders.held("cluster")],
            },
            "pod": self._find,
        }

    def _mutation_fields(self, loses_capacity: bool) -> dict[str, Any]:
        return {
            "podFindAndDeployOnDemand": lambda wanted: self._deploy(wanted, "on_demand", loses_capacity),
            "podRentInterruptable": lambda wanted: self._deploy(wanted, "spot", loses_capacity),
            "createCluster": lambda wanted: self._cluster(wanted, loses_capacity),
            "podTerminate": lambda wanted: self._release(wanted, "podId", "pod"),
            "deleteCluster": lambda wanted: self._release(wanted, "id", "cluster"),
        }

    def _gpu_types(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        only = wanted.get("id")
        return [self._gpu_type(gpu) for gpu in GPU_TYPES.values() if only in {None, gpu.gpu_id}]

    def _gpu_type(self, gpu: GpuType) -> dict[str, Any]:
        clouds = {item.zone: item for item in self._orders.inventory(gpu.gpu_id, "on_demand")}
        spots = {item.zone: item for item in self._orders.inventory(gpu.gpu_id, "spot")}
        centers = sorted(
            {c.region for c in self._orders.inventory(gpu.gpu_id, "on_demand") if c.labels["center"]}
        )
        secure, community = clouds.get(SECURE), clouds.get(COMMUNITY)
        return {
            "id": gpu.gpu_id,
            "displayName": gpu.name,
            "manufacturer": gpu.maker,
            "memoryInGb": gpu.memory_gb,
            "cudaCores": None,
            "secureCloud": secure is not None,
            "communityCloud": community is not None,
            "maxGpuCount": 8,
            "maxGpuCountSecureCloud": 8 if secure else 0,
            "maxGpuCountCommunityCloud": 8 if community else 0,
            "securePrice": self._optional_price(secure),
            "communityPrice": self._optional_price(community),
            "secureSpotPrice": self._optional_price(spots.get(SECURE)),
            "communitySpotPrice": self._optional_price(spots.get(COMMUNITY)),
            "oneWeekPrice": None,
            "oneMonthPrice": None,
            "threeMonthPrice": None,
            "sixMonthPrice": None,
            "clusterPrice": self._optional_price(secure),
            "nodeGroupDatacenters": [{"id": center} for center in centers],
            "lowestPrice": lambda arguments: self._lowest(gpu, arguments.get("input") or {}),
        }

    def _optional_price(self, item: InventoryItem | None) -> float | None:
        return None if item is None else self._orders.price(item)

    def _lowest(self, gpu: GpuType, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """One (count × place × cloud) item: prices, level and sizes, all null without stock."""
        count = int(wanted.get("gpuCount") or 1)
        stock = self._orders.stock(count)
        on_demand = [
            c
            for c in self._orders.inventory(gpu.gpu_id, "on_demand")
            if _in_place(c, wanted) and stock[c.key]
        ]
        spot = [
            c for c in self._orders.inventory(gpu.gpu_id, "spot") if _in_place(c, wanted) and stock[c.key]
        ]
        most = max((stock[item.key] for item in on_demand), default=0)
        found = bool(on_demand)
        total = sum(stock[item.key] for item in on_demand)
        return {
            "minimumBidPrice": min((self._orders.price(item) for item in spot), default=None),
            "uninterruptablePrice": min((self._orders.price(item) for item in on_demand), default=None),
            "minVcpu": gpu.vcpus * count if found else None,
            "minMemory": gpu.ram_gb * count if found else None,
            "minDisk": 20 if found else None,
            "stockStatus": level(total).title() if found else None,
            "compliance": [],
            "countryCode": on_demand[0].labels["country"] if found else None,
            "maxUnreservedGpuCount": min(8, most),
            "availableGpuCounts": [size for size in (1, 2, 4, 8) if size <= most],
        }

    def _deploy(self, wanted: Mapping[str, Any], tier: str, loses_capacity: bool) -> dict[str, Any]:
        if not wanted.get("imageName") and not wanted.get("templateId"):
            raise GraphQLError("imageName or templateId is required.")
        bid = wanted.get("bidPerGpu")
        place = wanted.get("dataCenterId") or wanted.get("countryCode")
        cloud = str(wanted.get("cloudType") or SECURE)
        order = PodOrder(
            gpu_id=str(wanted.get("gpuTypeId")),
            gpus=int(wanted.get("gpuCount") or 1),
            cloud=SECURE if cloud == "ALL" else cloud,
            tier=tier,
            name=str(wanted.get("name") or ""),
            image=str(wanted.get("imageName") or wanted.get("templateId")),
            places=None if place is None else (str(place),),
            bid_usd=None if bid is None else Decimal(str(bid)),
            disk_gb=int(wanted.get("containerDiskInGb") or 20) + int(wanted.get("volumeInGb") or 0),
        )
        return self._pod_row(self._orders.deploy(order, "pod", loses_capacity))

    def _cluster(self, wanted: Mapping[str, Any], loses_capacity: bool) -> dict[str, Any]:
        if wanted.get("deployCost") is None:
            raise CannotDeploy("Insufficient resources")
        order = PodOrder(
            gpu_id=str(wanted.get("gpuTypeId")),
            gpus=int(wanted.get("gpuCountPerPod") or 8),
            cloud=SECURE,
            tier="on_demand",
            name=str(wanted.get("clusterName") or ""),
            image=str(wanted.get("imageName") or ""),
            places=places([wanted["dataCenterId"]] if wanted.get("dataCenterId") else None),
            pods=int(wanted.get("podCount") or 2),
        )
        return _cluster_row(self._orders.deploy(order, "cluster", loses_capacity))

    def _find(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        for entry in self._orders.held("pod"):
            if entry.instance_id == wanted.get("podId"):
                return self._pod_row(entry)
        return None

    def _release(self, wanted: Mapping[str, Any], name: str, kind: str) -> None:
        for entry in self._orders.held(kind):
            if entry.instance_id == wanted.get(name):
                self._orders.release(entry)
                return
        miss = "pod not found to terminate" if kind == "pod" else "Cluster not found"
        raise CannotDeploy(miss)

    def _pod_row(self, entry: Entry) -> dict[str, Any]:
        status = self._orders.status(entry)
        running = status == "RUNNING"
        return {
            "id": entry.instance_id,
            "name": entry.tag,
            "imageName": entry.detail["image"],
            "desiredStatus": "EXITED" if status == "ERROR" else "RUNNING",
            "lastStatusChange": zulu_ms(entry.created_at),
            "createdAt": zulu_ms(entry.created_at),
            "podType": "INTERRUPTABLE" if entry.tier == "spot" else "RESERVED",
            "gpuCount": entry.detail["gpus"],
            "costPerHr": float(entry.tariff.usd_per_hour),
            "machineId": "mach-" + entry.instance_id[:8],
            "machine": {
                "podHostId": f"{entry.instance_id}-host",
                "gpuTypeId": entry.sku,
                "gpuDisplayName": GPU_TYPES[entry.sku].name,
                "dataCenterId": entry.region if entry.zone == SECURE else None,
                "secureCloud": entry.zone == SECURE,
            },
            "runtime": {"uptimeInSeconds": int(self._orders.age_s(entry)), "ports": []} if running else None,
            **_PLAIN_POD,
        }


def graphql_operation(call: Call) -> str:
    """What a GraphQL call is counted as: by its mutation; public fields are the market."""
    try:
        body = call.json_object()
        kind, fields = asked_fields(str(body.get("query") or ""), body.get("variables") or {})
    except (ValueError, GraphQLError):
        return "other"
    names = {field.name for field in fields}
    for name in names:
        if kind == "mutation" and name in _MUTATIONS:
            return _MUTATIONS[name]
    return "list" if names <= PUBLIC_FIELDS else "get"


def _cluster_row(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.instance_id,
        "name": entry.tag,
        "gpuTypeId": entry.sku,
        "podCount": entry.nodes,
        "gpuCountPerPod": entry.detail["gpus"],
        "dataCenterId": entry.region,
        "createdAt": zulu_ms(entry.created_at),
    }


def _in_place(item: InventoryItem, wanted: Mapping[str, Any]) -> bool:
    secure = wanted.get("secureCloud")
    center, country = wanted.get("dataCenterId"), wanted.get("countryCode")
    return (
        (secure is None or (item.zone == SECURE) == bool(secure))
        and center in {None, item.region}
        and country in {None, item.labels["country"]}
    )


def graphql_errors(message: str, status: int) -> Reply:
    """An answer of errors alone."""
    error: dict[str, Any] = {"message": message}
    if message == "Cluster not found":
        error["extensions"] = {"code": message}
    return json_reply({"errors": [error], "data": None}, status)

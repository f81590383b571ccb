"""RunPod's GraphQL fields: the catalogue, and interruptible pods, which exist only here.

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

from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call
from providers.sandbox.sellers.runpod.market import COMMUNITY, GPU_TYPES, SECURE, GpuType
from providers.sandbox.sellers.runpod.orders import PodOrder, PodOrders, level

PUBLIC_FIELD, RENT = "gpuTypes", "podRentInterruptable"
"""The field that needs no key, and the one that orders."""


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
        wanted = field.arguments.get("input") or {}
        if (kind, field.name) == ("query", PUBLIC_FIELD):
            return project(self._gpu_types(wanted), field.fields)
        if (kind, field.name) == ("mutation", RENT):
            return project(self._rent(wanted, loses_capacity), field.fields)
        raise GraphQLError(f'Cannot query field "{field.name}" on type "{kind.title()}".')

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

    def _rent(self, wanted: Mapping[str, Any], loses_capacity: bool) -> dict[str, Any]:
        if not wanted.get("imageName") and not wanted.get("templateId"):
            raise GraphQLError("imageName or templateId is required.")
        bid = wanted.get("bidPerGpu")
        place = wanted.get("dataCenterId")
        cloud = str(wanted.get("cloudType") or SECURE)
        order = PodOrder(
            gpu_id=str(wanted.get("gpuTypeId")),
            gpus=int(wanted.get("gpuCount") or 1),
            cloud=SECURE if cloud == "ALL" else cloud,
            tier="spot",
            name=str(wanted.get("name") or ""),
            image=str(wanted.get("imageName") or wanted.get("templateId")),
            places=None if place is None else (str(place),),
            bid_usd=None if bid is None else Decimal(str(bid)),
            disk_gb=int(wanted.get("containerDiskInGb") or 20) + int(wanted.get("volumeInGb") or 0),
            environment=wanted.get("env"),
            arguments=str(wanted.get("dockerArgs") or ""),
            ports=tuple(filter(None, str(wanted.get("ports") or "").split(","))),
        )
        entry = self._orders.deploy(order, loses_capacity)
        return {"id": entry.instance_id, "machineId": "mach-" + entry.instance_id[:8]}


def graphql_operation(call: Call) -> str:
    """What a GraphQL call is counted as: a mutation orders, the public field is the market."""
    try:
        body = call.json_object()
        kind, fields = asked_fields(str(body.get("query") or ""), body.get("variables") or {})
    except (ValueError, GraphQLError):
        return "other"
    if kind == "mutation":
        return "create"
    return "list" if {field.name for field in fields} <= {PUBLIC_FIELD} else "get"


def _in_place(item: InventoryItem, wanted: Mapping[str, Any]) -> bool:
    secure = wanted.get("secureCloud")
    center, country = wanted.get("dataCenterId"), wanted.get("countryCode")
    return (
        (secure is None or (item.zone == SECURE) == bool(secure))
        and center in {None, item.region}
        and country in {None, item.labels["country"]}
    )

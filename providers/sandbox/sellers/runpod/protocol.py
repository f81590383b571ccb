"""RunPod under ``/runpod``: GraphQL at ``/graphql`` and REST v2 at ``/v2``.

Prices are per GPU; a pod takes its GPUs from one place's stock. Spot only through GraphQL. Without
capacity REST answers 400 with a ``detail`` and no code, GraphQL answers 200 with ``errors``. Billed per
second. Sources: runpod/docs ``api-reference-v2/openapi.json``, ``sdks/graphql/manage-pods.mdx``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from graphql import GraphQLError

from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import Entry, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, SandboxState, json_reply
from providers.sandbox.seller import ErrorForms, SellerProtocol
from providers.sandbox.sellers.runpod.graphql import (
    PUBLIC_FIELD,
    GraphQLFields,
    asked_fields,
    graphql_operation,
)
from providers.sandbox.sellers.runpod.market import COMMUNITY, GPU_TYPES, SECURE, GpuType, runpod_inventory
from providers.sandbox.sellers.runpod.orders import (
    NO_MACHINE,
    CannotDeploy,
    PodOrder,
    PodOrders,
    center,
    level,
    places,
)

_RATE_HEADERS = {
    "RateLimit-Policy": '"minute";q=60;w=60, "hour";q=3000;w=3600, "day";q=50000;w=86400',
    "RateLimit": '"minute";r=59;t=60, "hour";r=2999;t=3600, "day";r=49999;t=86400',
}


class RunPod(SellerProtocol):
    """Catalogue and pods, over both surfaces."""

    name = "runpod"
    ends_at_once = True
    on_sale = staticmethod(runpod_inventory)

    def __init__(self, sandbox: SandboxState) -> None:
        super().__init__(sandbox)
        self._orders = PodOrders(self.seller)
        self._graphql_fields = GraphQLFields(self._orders)

    def make_routes(self) -> Iterable[Route]:
        """The paths of both surfaces that the sandbox serves."""
        return (
            Route("POST", "/graphql", graphql_operation, self._graphql, public=True),
            Route("GET", "/v2/catalog/gpus", "list", self._catalog),
            Route("POST", "/v2/pods", "create", self._create_pod),
            Route("GET", "/v2/pods", "get", self._pods),
            Route("GET", "/v2/pods/{id}", "get", self._pod),
            Route("DELETE", "/v2/pods/{id}", "delete", self._delete_pod),
        )

    def answer(self, call: Call) -> Reply:
        """Every answer of v2 carries the rate limit headers."""
        if not call.path.startswith("/v2"):
            return super().answer(call)
        try:
            return super().answer(call).with_headers(_RATE_HEADERS)
        except Refusal as refusal:
            raise Refusal(refusal.reply.with_headers(_RATE_HEADERS)) from refusal

    def errors(self) -> ErrorForms:
        """Problem documents of v2, which GraphQL's gateway uses as well."""
        limited = _problem(429, "Too Many Requests", "Rate limit exceeded.")
        return ErrorForms(
            no_key=_problem(401, "Unauthorized", "Missing or invalid API key."),
            no_path=_problem(404, "Not Found", "No such resource."),
            no_machine=lambda _: _problem(404, "Not Found", "pod not found."),
            bad_body=lambda reason: _problem(
                422, "Unprocessable Entity", f"The body cannot be used: {reason}"
            ),
            rate_limited=limited.with_headers({**_RATE_HEADERS, "Retry-After": "12"}),
            no_capacity=_problem(400, "Bad Request", NO_MACHINE),
            failed=_problem(500, "Internal Server Error", "Something went wrong."),
        )

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """GraphQL says behind HTTP 200 that there is no machine."""
        if kind is FaultKind.OUT_OF_CAPACITY and call.path.startswith("/graphql"):
            return _errors(NO_MACHINE, 200)
        return super().refusal(kind, call)

    def key(self, call: Call) -> str | None:
        """A bearer key (GraphQL also ``?api_key=``)."""
        return call.key(query="api_key")

    # REST v2: catalogue

    def _catalog(self, call: Call) -> Reply:
        include, product = call.query.get("include", ""), call.query.get("product")
        if include and product not in {"POD", "CLUSTER", "SERVERLESS"}:
            raise Refusal(_problem(400, "Bad Request", "product is required when include is given."))
        cloud = call.query.get("cloud", SECURE)
        count = int(call.query.get("count", "1"))
        stock = self._orders.stock(count)
        rows = []
        for gpu in GPU_TYPES.values():
            items = self._orders.inventory(gpu.gpu_id, "on_demand")
            wanted = [item for item in items if item.zone == cloud]
            rows.append(self._catalog_row(gpu, items, wanted, stock, "AVAILABILITY" in include))
        return json_reply({"gpus": rows})

    def _catalog_row(
        self,
        gpu: GpuType,
        items: list[InventoryItem],
        wanted: list[InventoryItem],
        stock: Mapping[str, int],
        detailed: bool,
    ) -> dict[str, Any]:
        clouds = {item.zone: item for item in items}
        row: dict[str, Any] = {
            "id": gpu.gpu_id,
            "name": gpu.name,
            "pool": gpu.pool,
            "manufacturer": gpu.maker,
            "memory": gpu.memory_gb,
            "secure": SECURE in clouds,
            "community": COMMUNITY in clouds,
            "price": {
                "secure": self._orders.price(clouds.get(SECURE)),
                "community": self._orders.price(clouds.get(COMMUNITY)),
            },
            "maxCount": {
                "secure": 8 if SECURE in clouds else 0,
                "community": 8 if COMMUNITY in clouds else 0,
            },
        }
        if detailed:
            row["availability"] = level(sum(stock[item.key] for item in wanted))
            places = [item for item in wanted if stock[item.key] and item.labels["center"]]
            if places:
                row["dataCenters"] = [
                    {**center(item.region), "availability": level(stock[item.key])} for item in places
                ]
        return row

    # REST v2: pods

    def _create_pod(self, call: Call) -> Reply:
        body = call.json_object()
        gpu = body.get("gpu") or {}
        order = PodOrder(
            gpu_id=_text(gpu, "id", "gpu.id"),
            gpus=_count(gpu, "count", 1),
            cloud=str(body.get("cloud") or SECURE),
            tier="on_demand",
            name=str(body.get("name") or ""),
            image=str(body.get("image") or body.get("templateId") or ""),
            places=places(body.get("dataCenterIds")),
            disk_gb=_count(body, "disk", 20),
            environment=body.get("env"),
            arguments=str(body.get("args") or ""),
            ports=tuple(map(str, body.get("ports") or ())),
        )
        if not order.image:
            raise Refusal(self.malformed_body("image or templateId is required"))
        try:
            entry = self._orders.deploy(order, call.loses_capacity)
        except CannotDeploy as reason:
            raise Refusal(_problem(400, "Bad Request", str(reason))) from reason
        return json_reply(self._pod_row(entry), 201)

    def _pods(self, _: Call) -> Reply:
        return json_reply({"pods": [self._pod_row(entry) for entry in self.seller.visible()]})

    def _pod(self, call: Call) -> Reply:
        return json_reply(self._pod_row(self.machine(call)))

    def _delete_pod(self, call: Call) -> Reply:
        self.seller.release(self.machine(call))
        return Reply(204, b"")

    def _pod_row(self, entry: Entry) -> dict[str, Any]:
        running = self._orders.status(entry) == "RUNNING"
        return {
            "id": entry.instance_id,
            "name": entry.tag,
            "status": self._orders.status(entry),
            "actions": ["stop", "restart"] if running else [],
            "image": entry.detail["image"],
            "args": entry.detail["arguments"],
            "runtime": self._orders.runtime(entry),
            "gpu": {"id": entry.sku, "count": entry.detail["gpus"]},
            "cloud": entry.zone,
            "dataCenterId": entry.region if entry.zone == SECURE else None,
            "ssh": {"proxy": _ssh(entry.instance_id), "direct": self._orders.direct_ssh(entry)},
            "cost": float(entry.tariff.usd_per_hour),
            "createdAt": zulu_ms(entry.created_at),
        }

    # GraphQL

    def _graphql(self, call: Call) -> Reply:
        body = call.json_object()
        try:
            kind, fields = asked_fields(str(body.get("query") or ""), body.get("variables") or {})
            if any(field.name != PUBLIC_FIELD for field in fields):
                self.authorise(call)
            answers = self._graphql_fields
            data = {field.key: answers.resolved(kind, field, call.loses_capacity) for field in fields}
        except GraphQLError as error:
            raise Refusal(_errors(error.message, 400)) from error
        except CannotDeploy as reason:
            raise Refusal(_errors(str(reason), 200)) from reason
        return json_reply({"data": data})


def _ssh(pod_id: str) -> dict[str, Any]:
    return {
        "host": "ssh.runpod.io",
        "port": 22,
        "username": pod_id,
        "command": f"ssh {pod_id}@ssh.runpod.io",
    }


def _text(body: Mapping[str, Any], name: str, path: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{path} is required")
    return value


def _count(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1")
    return value


def _errors(message: str, status: int) -> Reply:
    """A GraphQL answer of errors alone."""
    return json_reply({"errors": [{"message": message}], "data": None}, status)


def _problem(status: int, title: str, detail: str) -> Reply:
    reply = json_reply({"title": title, "status": status, "detail": detail}, status)
    return replace(reply, media_type="application/problem+json")

"""AWS under ``/aws``: EC2's query API and SageMaker's JSON at ``/aws/``, the price list at ``/aws/offers/…``.

The region of a call is that of its signature's credential scope; ``X-Amz-Target`` makes it SageMaker's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, ProtocolHandler, Reply, Route, SandboxState
from providers.sandbox.sellers.aws import sagemaker
from providers.sandbox.sellers.aws.blocks import CapacityBlocks
from providers.sandbox.sellers.aws.instances import Instances
from providers.sandbox.sellers.aws.market import (
    BLOCK_TYPES,
    ML,
    aws_inventory,
    is_local_zone,
    region_inventory,
)
from providers.sandbox.sellers.aws.plans import TrainingPlans
from providers.sandbox.sellers.aws.prices import price_list
from providers.sandbox.sellers.aws.query import (
    Ec2Call,
    ec2_call,
    ec2_error,
    ec2_error_reply,
    ec2_reply,
    passes,
    signed_region,
)
from providers.sandbox.sellers.aws.reservations import CapacityReservations

_OPERATIONS = {
    "DescribeCapacityBlockOfferings": "list",
    "DescribeSpotPriceHistory": "list",
    "DescribeInstanceTypes": "list",
    "DescribeInstanceTypeOfferings": "list",
    "DescribeAvailabilityZones": "list",
    "PurchaseCapacityBlock": "create",
    "CreateCapacityReservation": "create",
    "RunInstances": "create",
    "DescribeCapacityBlocks": "get",
    "DescribeCapacityReservations": "get",
    "DescribeInstances": "get",
    "CancelCapacityReservation": "delete",
    "TerminateInstances": "delete",
    "SearchTrainingPlanOfferings": "list",
    "CreateTrainingPlan": "create",
    "DescribeTrainingPlan": "get",
    "ListTrainingPlans": "get",
}
_FAULTS = {
    FaultKind.HTTP_500: ("InternalError", "An internal error has occurred", 500),
    FaultKind.RATE_LIMITED: ("RequestLimitExceeded", "Request limit exceeded.", 503),
    FaultKind.OUT_OF_CAPACITY: (
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient capacity in the Availability Zone you requested.",
        400,
    ),
}
_Action = Callable[[Ec2Call], dict[str, Any]]


class AwsEc2(ProtocolHandler):
    """Dispatches actions to blocks, reservations, instances and the catalogue."""

    name = "aws"

    def __init__(self, sandbox: SandboxState) -> None:
        super().__init__(sandbox)
        sandbox.market.add(aws_inventory(sandbox.seed))
        self._reservations = CapacityReservations(sandbox)
        self._plans = TrainingPlans(sandbox).actions
        self._actions: dict[str, _Action] = {
            **CapacityBlocks(sandbox).actions,
            **self._reservations.actions,
            **Instances(sandbox).actions,
            "DescribeSpotPriceHistory": self._spot_history,
            "DescribeInstanceTypes": self._instance_types,
            "DescribeInstanceTypeOfferings": self._type_offerings,
            "DescribeAvailabilityZones": self._zones,
        }

    def make_routes(self) -> Iterable[Route]:
        """The query endpoint and the price list."""
        prices = "/offers/v1.0/aws/AmazonEC2/current/{region}/index.csv"
        return (
            Route("POST", "/", _operation, self._query),
            Route("GET", "/", _operation, self._query),
            Route("GET", prices, "list", self._price_list, public=True),
        )

    def authorise(self, call: Call) -> None:
        """Only the form of the signature is checked."""
        if sagemaker.action_of(call) is not None:
            sagemaker.authorise(call)
        else:
            signed_region(call)

    def unknown_path(self) -> Reply:
        """404 as the price list's store gives it."""
        return ec2_error_reply("NoSuchKey", "The specified key does not exist.", status=404)

    def malformed_body(self, reason: str) -> Reply:
        """400 for a body that is no form."""
        return ec2_error_reply("InvalidRequest", f"The body cannot be read: {reason}")

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """EC2's error documents, or SageMaker's."""
        if sagemaker.action_of(call) is not None:
            return sagemaker.fault_reply(kind)
        code, message, status = _FAULTS[kind]
        return ec2_error_reply(code, message, status=status)

    def _query(self, call: Call) -> Reply:
        if sagemaker.action_of(call) is not None:
            return self._sagemaker(sagemaker.sagemaker_call(call))
        wanted = ec2_call(call, signed_region(call))
        action = self._actions.get(wanted.action)
        if action is None:
            raise ec2_error("InvalidAction", f"The action {wanted.action} is not valid for this web service.")
        if wanted.params.get("DryRun", "").lower() == "true":
            raise ec2_error(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412
            )
        self._reservations.settle()
        payload = action(wanted)
        digits = self.sandbox.new_id("aws-request", 32)
        request_id = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return ec2_reply(wanted.action, request_id, payload)

    def _sagemaker(self, wanted: sagemaker.SageMakerCall) -> Reply:
        action = self._plans.get(wanted.action)
        if action is None:
            raise sagemaker.failed("UnknownOperationException", f"No operation {wanted.action}.")
        try:
            return sagemaker.answered(action(wanted))
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            raise sagemaker.failed("SerializationException", f"The body cannot be read: {error}") from error

    def _price_list(self, call: Call) -> Reply:
        region = call.parts["region"]
        cheapest: dict[str, tuple[InventoryItem, Decimal]] = {}
        for item in region_inventory(self.sandbox, region, "on_demand"):
            price = self.sandbox.market.price(item)
            if price is not None:
                cheapest[item.sku] = (item, price)
        if not cheapest:
            return self.unknown_path()
        prices, published = list(cheapest.values()), self.now
        version = {"etag": _version(prices)}
        if call.headers.get("if-none-match") == version["etag"]:
            return Reply(304, b"", "text/csv", version)
        return Reply(200, b"", "text/csv", version, lambda: price_list(region, prices, published))

    def _spot_history(self, call: Ec2Call) -> dict[str, Any]:
        types, products = call.values("InstanceType"), call.values("ProductDescription")
        zone, filters = call.params.get("AvailabilityZone"), call.filters()
        rows: list[dict[str, Any]] = []
        for item in region_inventory(self.sandbox, call.region, "spot"):
            if (not types or item.sku in types) and zone in {None, item.zone}:
                rows.extend(self._spot_rows(item))
        wanted = [
            row
            for row in rows
            if (not products or row["productDescription"] in products)
            and passes(filters, _spot_facts(row), ())
        ]
        page, token = call.page(wanted)
        return {"spotPriceHistorySet": page, "nextToken": token}

    def _spot_rows(self, item: InventoryItem) -> Iterable[dict[str, Any]]:
        """The price in force since the last full hour; one zone a region also shows a $0.00 row."""
        at = zulu_ms(self.now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1))
        price = self.sandbox.market.price(item)
        for product, usd in (("Linux/UNIX", price), ("Windows", None if price is None else 2 * price)):
            if usd is not None:
                yield _spot_row(item, product, f"{usd:.6f}", at)
        if self._shows_zero_row(item):
            yield _spot_row(item, "Linux/UNIX", "0.000000", at)

    def _shows_zero_row(self, item: InventoryItem) -> bool:
        return item is region_inventory(self.sandbox, item.region, "spot")[0]

    def _instance_types(self, call: Ec2Call) -> dict[str, Any]:
        wanted = call.values("InstanceType")
        known = {item.sku: item for item in self._region_types(call.region)}
        for sku in wanted:
            if sku not in known:
                raise ec2_error(
                    "InvalidInstanceType", f"The following supplied instance types do not exist: [{sku}]"
                )
        rows = [_type_row(item) for sku, item in sorted(known.items()) if not wanted or sku in wanted]
        page, token = call.page(rows, 100)
        return {"instanceTypeSet": page, "nextToken": token}

    def _region_types(self, region: str) -> list[InventoryItem]:
        items = self.sandbox.market.inventory(self.name)
        return [item for item in items if item.region == region and not item.sku.startswith(ML)]

    def _type_offerings(self, call: Ec2Call) -> dict[str, Any]:
        by_zone = call.params.get("LocationType", "region") == "availability-zone"
        found = {
            (item.sku, item.zone if by_zone else item.region) for item in self._region_types(call.region)
        }
        kind = "availability-zone" if by_zone else "region"
        rows = [
            {"instanceType": sku, "locationType": kind, "location": place}
            for sku, place in sorted(found)
            if passes(call.filters(), {"instance-type": sku, "location": place}, ())
        ]
        page, token = call.page(rows)
        return {"instanceTypeOfferingSet": page, "nextToken": token}

    def _zones(self, call: Ec2Call) -> dict[str, Any]:
        found = {(item.zone, item.labels["zone_id"]) for item in self._region_types(call.region)}
        rows = [
            {
                "zoneName": name,
                "zoneId": zone_id,
                "zoneState": "available",
                "regionName": call.region,
                "zoneType": "local-zone" if is_local_zone(name) else "availability-zone",
            }
            for name, zone_id in sorted(found)
        ]
        return {"availabilityZoneInfo": rows}


def _version(prices: Iterable[tuple[InventoryItem, Decimal]]) -> str:
    """An entity tag that changes with any price."""
    text = "|".join(f"{item.sku}={usd}" for item, usd in prices)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def _operation(call: Call) -> str:
    action = sagemaker.action_of(call)
    if action is None:
        action = (call.form() if call.method == "POST" else call.query).get("Action", "")
    return _OPERATIONS.get(action, "other")


def _spot_row(item: InventoryItem, product: str, price: str, at: str) -> dict[str, Any]:
    return {
        "instanceType": item.sku,
        "productDescription": product,
        "spotPrice": price,
        "timestamp": at,
        "availabilityZone": item.zone,
        "availabilityZoneId": item.labels["zone_id"],
    }


def _spot_facts(row: dict[str, Any]) -> dict[str, str]:
    return {
        "instance-type": row["instanceType"],
        "product-description": row["productDescription"],
        "spot-price": row["spotPrice"],
        "availability-zone": row["availabilityZone"],
        "availability-zone-id": row["availabilityZoneId"],
        "timestamp": row["timestamp"],
    }


def _type_row(item: InventoryItem) -> dict[str, Any]:
    classes = ["on-demand", "spot", *(["capacity-block"] if item.sku in BLOCK_TYPES else [])]
    memory_mib = item.gpu_memory_gb * 1024
    name = item.gpu.split("-")[0]
    return {
        "instanceType": item.sku,
        "currentGeneration": True,
        "supportedUsageClasses": classes,
        "bareMetal": item.sku.endswith(".metal"),
        "vCpuInfo": {"defaultVCpus": int(item.vcpus or 0)},
        "memoryInfo": {"sizeInMiB": int((item.memory_gb or 0) * 1024)},
        "gpuInfo": {
            "gpus": [
                {
                    "name": name,
                    "manufacturer": "NVIDIA",
                    "count": item.gpus,
                    "memoryInfo": {"sizeInMiB": memory_mib},
                }
            ],
            "totalGpuMemoryInMiB": memory_mib * item.gpus,
        },
    }

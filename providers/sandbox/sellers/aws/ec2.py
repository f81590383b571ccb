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
    aws_inventory,
    region_inventory,
)
from providers.sandbox.sellers.aws.networks import Networks
from providers.sandbox.sellers.aws.plans import TrainingPlans
from providers.sandbox.sellers.aws.prices import price_list
from providers.sandbox.sellers.aws.query import (
    Ec2Call,
    ec2_call,
    ec2_error,
    ec2_error_reply,
    ec2_reply,
    signed_region,
)
from providers.sandbox.sellers.aws.reservations import CapacityReservations

_OPERATIONS = {
    "DescribeCapacityBlockOfferings": "list",
    "DescribeSpotPriceHistory": "list",
    "PurchaseCapacityBlock": "create",
    "CreateCapacityReservation": "create",
    "RunInstances": "create",
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
        self._plans = TrainingPlans(sandbox).actions
        networks = Networks(sandbox)
        self._actions: dict[str, _Action] = {
            **CapacityBlocks(sandbox).actions,
            **CapacityReservations(sandbox).actions,
            **networks.actions,
            **Instances(sandbox, networks).actions,
            "DescribeSpotPriceHistory": self._spot_history,
        }

    def make_routes(self) -> Iterable[Route]:
        """The query endpoint and the price list."""
        prices = "/offers/v1.0/aws/AmazonEC2/current/{region}/index.csv"
        return (
            Route("POST", "/", _operation, self._query),
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
        rows = [
            row
            for item in region_inventory(self.sandbox, call.region, "spot")
            if not types or item.sku in types
            for row in self._spot_rows(item)
            if not products or row["productDescription"] in products
        ]
        page, token = call.page(rows)
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


def _version(prices: Iterable[tuple[InventoryItem, Decimal]]) -> str:
    """An entity tag that changes with any price."""
    text = "|".join(f"{item.sku}={usd}" for item, usd in prices)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def _operation(call: Call) -> str:
    action = sagemaker.action_of(call)
    if action is None:
        action = call.form().get("Action", "")
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

"""EC2 spot instances: run, describe, terminate.

Billed per second, at least a minute, each with its public address, which a subnet of a default VPC gives.
Sources: EC2 API model 2016-11-15; aws.amazon.com/vpc/pricing (public IPv4 addresses).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import SandboxState
from providers.sandbox.seller import ADDRESSES, SellerState
from providers.sandbox.sellers.aws.market import region_inventory
from providers.sandbox.sellers.aws.networks import Networks
from providers.sandbox.sellers.aws.query import OWNER_ID, Ec2Call, ec2_error
from providers.sandbox.sellers.aws.reservations import (
    MINIMUM_BILLED_S,
    no_capacity,
    remember,
    repeated,
)

ADDRESS_USD_PER_HOUR = Decimal("0.005")
_VISIBLE_AFTER_END = timedelta(hours=1)
_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}


class Instances:
    """The instance actions of one account."""

    def __init__(self, sandbox: SandboxState, networks: Networks) -> None:
        self._sandbox, self._networks = sandbox, networks
        self._seller = SellerState(sandbox, "aws", _VISIBLE_AFTER_END.total_seconds())
        self.actions = {
            "RunInstances": self._run,
            "DescribeInstances": self._describe,
            "TerminateInstances": self._terminate,
        }

    def _run(self, call: Ec2Call) -> dict[str, Any]:
        earlier = repeated(self._sandbox, call)
        if earlier is None:
            earlier = self._launch(call)
            remember(self._sandbox, call, earlier)
        entries = [e for e in self._all(call.region) if e.detail["launch"] == earlier]
        return self._launch_row(earlier, entries)

    def _launch(self, call: Ec2Call) -> str:
        call.required("ImageId")
        self._networks.require(call)
        least, most = call.integer("MinCount", 1, 1000), call.integer("MaxCount", 1, 1000)
        if least > most:
            raise ec2_error("InvalidParameterValue", "MinCount may not exceed MaxCount.")
        item, free = self._item(call)
        if free < least:
            raise no_capacity(item)
        launch_id = "r-" + self._sandbox.new_id("aws-r", 17)
        for _ in range(min(most, free)):
            self._sandbox.ledger.write(self._new(call, item, launch_id))
        return launch_id

    def _item(self, call: Ec2Call) -> tuple[InventoryItem, int]:
        """The zone with the most spot instances of the type, and how many it has."""
        if call.params.get("InstanceMarketOptions.MarketType") != "spot":
            raise ec2_error("InvalidParameterCombination", "The sandbox starts spot instances only.")
        instance_type = call.required("InstanceType")
        zone = call.params.get("Placement.AvailabilityZone")
        items = [
            item
            for item in region_inventory(self._sandbox, call.region, "spot")
            if item.sku == instance_type and zone in {None, item.zone}
        ]
        if not items:
            raise ec2_error(
                "Unsupported", f"The requested configuration is not supported here ({instance_type})."
            )
        now = self._sandbox.clock.now()
        free = {item: self._sandbox.market.free(item, now) for item in items}
        item = max(items, key=lambda item: free[item])
        most = call.params.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        price = self._sandbox.market.price(item)
        if most is not None and price is not None and price > Decimal(most):
            raise ec2_error(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {most} is lower than the minimum required Spot request"
                f" fulfillment price of {price:f}.",
            )
        return item, free[item]

    def _new(self, call: Ec2Call, item: InventoryItem, launch_id: str) -> Entry:
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        tags = call.tags("instance")
        price = sandbox.market.price(item) or Decimal(0)
        fails_at = now + timedelta(seconds=sandbox.durations.boot_s) if call.loses_capacity else None
        return item.bought(
            now,
            "i-" + sandbox.new_id("aws-i", 17),
            tags[0]["value"] if tags else call.params.get("ClientToken", ""),
            Tariff(price + ADDRESS_USD_PER_HOUR, 1, MINIMUM_BILLED_S),
            failed_at=fails_at,
            detail={
                "kind": "instance",
                "launch": launch_id,
                "tags": tags,
                "image": call.params["ImageId"],
                "token": call.params.get("ClientToken", ""),
                "user_data": call.params.get("UserData", ""),
                ADDRESSES: self._seller.new_addresses(1),
            },
        )

    def _all(self, region: str) -> list[Entry]:
        since = self._sandbox.clock.now() - _VISIBLE_AFTER_END
        return [
            entry
            for entry in self._sandbox.ledger.live("aws", since)
            if entry.region == region and entry.detail["kind"] == "instance"
        ]

    def _describe(self, call: Ec2Call) -> dict[str, Any]:
        wanted = call.values("InstanceId")
        entries = self._named(call.region, wanted) if wanted else self._all(call.region)
        page, token = call.page(entries)
        launches: dict[str, list[Entry]] = {}
        for entry in page:
            launches.setdefault(entry.detail["launch"], []).append(entry)
        rows = [self._launch_row(launch_id, entries) for launch_id, entries in launches.items()]
        return {"reservationSet": rows, "nextToken": token}

    def _named(self, region: str, wanted: list[str]) -> list[Entry]:
        known = {entry.instance_id: entry for entry in self._all(region)}
        missing = [instance_id for instance_id in wanted if instance_id not in known]
        if missing:
            raise ec2_error(
                "InvalidInstanceID.NotFound",
                f"The instance IDs '{', '.join(missing)}' do not exist",
            )
        return [known[instance_id] for instance_id in wanted]

    def _terminate(self, call: Ec2Call) -> dict[str, Any]:
        wanted = call.values("InstanceId")
        if not wanted:
            call.required("InstanceId.1")
        rows = []
        for entry in self._named(call.region, wanted):
            before = self._state(entry)
            if before in {"pending", "running"}:
                entry = self._sandbox.ledger.write(replace(entry, released_at=self._sandbox.clock.now()))
            rows.append(
                {
                    "instanceId": entry.instance_id,
                    "currentState": _state_row(self._state(entry)),
                    "previousState": _state_row(before),
                }
            )
        return {"instancesSet": rows}

    def _state(self, entry: Entry) -> str:
        durations, now = self._sandbox.durations, self._sandbox.clock.now()
        over_at = entry.over_at
        if entry.failed(now):
            return "terminated"
        if over_at is not None and over_at <= now:
            gone_at = over_at + timedelta(seconds=durations.terminate_s)
            return "shutting-down" if now < gone_at else "terminated"
        return "pending" if now < entry.created_at + timedelta(seconds=durations.boot_s) else "running"

    def _launch_row(self, launch_id: str, entries: list[Entry]) -> dict[str, Any]:
        rows = [self._row(entry) for entry in entries]
        return {"reservationId": launch_id, "ownerId": OWNER_ID, "groupSet": [], "instancesSet": rows}

    def _row(self, entry: Entry) -> dict[str, Any]:
        reason = None
        if entry.failed(self._sandbox.clock.now()):
            reason = {
                "code": "Server.InsufficientInstanceCapacity",
                "message": "There was insufficient capacity available to satisfy the request.",
            }
        address = self._seller.address(entry) if self._seller.is_up(entry) else None
        return {
            "instanceId": entry.instance_id,
            "ipAddress": address,
            "privateIpAddress": address,
            "imageId": entry.detail["image"],
            "instanceState": _state_row(self._state(entry)),
            "stateReason": reason,
            "instanceType": entry.sku,
            "launchTime": zulu_ms(entry.created_at),
            "placement": {"availabilityZone": entry.zone, "tenancy": "default"},
            "clientToken": entry.detail["token"],
            "instanceLifecycle": "spot",
            "tagSet": entry.detail["tags"],
        }


def _state_row(state: str) -> dict[str, Any]:
    return {"code": _CODES[state], "name": state}

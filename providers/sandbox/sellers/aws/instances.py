"""EC2 instances: run (on demand, spot, or into a reservation), describe, terminate.

Billed per second, at least a minute; inside a reservation nothing, the reservation pays. Instances of a
Capacity Block end 30 minutes before it. Source: EC2 API model 2016-11-15.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import SandboxState
from providers.sandbox.sellers.aws.blocks import TEARDOWN, reservation_state
from providers.sandbox.sellers.aws.market import region_inventory
from providers.sandbox.sellers.aws.query import OWNER_ID, Ec2Call, ec2_error, passes
from providers.sandbox.sellers.aws.reservations import (
    MINIMUM_BILLED_S,
    launched_into,
    no_capacity,
    remember,
    repeated,
)

_VISIBLE_AFTER_END = timedelta(hours=1)
_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}
_TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"


@dataclass(frozen=True, slots=True)
class _Source:
    """Where instances of a launch come from: a stock of its own, or a reservation."""

    item: InventoryItem
    free: int
    reservation: Entry | None = None


class Instances:
    """The instance actions of one account."""

    def __init__(self, sandbox: SandboxState) -> None:
        self._sandbox = sandbox
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
        least, most = call.integer("MinCount", 1, 1000), call.integer("MaxCount", 1, 1000)
        if least > most:
            raise ec2_error("InvalidParameterValue", "MinCount may not exceed MaxCount.")
        source = self._source(call)
        if source.free < least:
            if source.reservation is not None:
                raise ec2_error(
                    "ReservationCapacityExceeded",
                    f"The requested reservation {source.reservation.instance_id} does not have sufficient"
                    " compatible and available capacity.",
                )
            raise no_capacity(source.item)
        launch_id = "r-" + self._sandbox.new_id("aws-r", 17)
        for _ in range(min(most, source.free)):
            self._sandbox.ledger.write(self._new(call, source, launch_id))
        return launch_id

    def _source(self, call: Ec2Call) -> _Source:
        market = call.params.get("InstanceMarketOptions.MarketType", "")
        target = call.params.get(_TARGET)
        if target:
            return self._reserved(call, target, market)
        if market == "capacity-block":
            raise ec2_error(
                "InvalidParameterCombination", "MarketType capacity-block needs a target reservation."
            )
        tier = "spot" if market == "spot" else "on_demand"
        return self._from_stock(call, tier)

    def _reserved(self, call: Ec2Call, target: str, market: str) -> _Source:
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        reservation = sandbox.ledger.find("aws", target)
        if reservation is None or reservation.region != call.region:
            raise ec2_error(
                "InvalidCapacityReservationId.NotFound",
                f"The capacity reservation '{target}' is not found.",
            )
        is_block = reservation.detail["kind"] == "block"
        if is_block != (market == "capacity-block") or reservation.sku != call.required("InstanceType"):
            raise ec2_error(
                "InvalidParameterCombination", "Type or market does not fit the target reservation."
            )
        items = {item.key: item for item in sandbox.market.inventory("aws")}
        usable = reservation_state(sandbox, reservation, now) == "active"
        if is_block and reservation.ends_at is not None:
            usable = usable and now < reservation.ends_at - TEARDOWN
        free = reservation.nodes - len(launched_into(sandbox, target)) if usable else 0
        key = reservation.detail.get("cell", reservation.stock_key)
        return _Source(items[key], free, reservation)

    def _from_stock(self, call: Ec2Call, tier: str) -> _Source:
        instance_type = call.required("InstanceType")
        zone = call.params.get("Placement.AvailabilityZone")
        items = [
            item
            for item in region_inventory(self._sandbox, call.region, tier)
            if item.sku == instance_type and zone in {None, item.zone}
        ]
        if not items:
            raise ec2_error(
                "Unsupported", f"The requested configuration is not supported here ({instance_type})."
            )
        now = self._sandbox.clock.now()
        sources = [_Source(item, self._sandbox.market.free(item, now)) for item in items]
        source = max(sources, key=lambda source: source.free)
        most = call.params.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        price = self._sandbox.market.price(source.item)
        if most is not None and price is not None and price > Decimal(most):
            raise ec2_error(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {most} is lower than the minimum required Spot request"
                f" fulfillment price of {price:f}.",
            )
        return source

    def _new(self, call: Ec2Call, source: _Source, launch_id: str) -> Entry:
        sandbox, now, item = self._sandbox, self._sandbox.clock.now(), source.item
        reservation = source.reservation
        tags = call.tags("instance")
        price = sandbox.market.price(item) or Decimal(0)
        fails_at = now + timedelta(seconds=sandbox.durations.boot_s) if call.loses_capacity else None
        return item.bought(
            now,
            "i-" + sandbox.new_id("aws-i", 17),
            tags[0]["value"] if tags else call.params.get("ClientToken", ""),
            Tariff(price, 1, MINIMUM_BILLED_S) if reservation is None else Tariff(),
            units=1 if reservation is None else 0,
            stock_key=item.stock_key if reservation is None else f"inside|{reservation.instance_id}",
            ends_at=_taken_back_at(reservation),
            failed_at=fails_at,
            detail={
                "kind": "instance",
                "launch": launch_id,
                "tags": tags,
                "image": call.params["ImageId"],
                "token": call.params.get("ClientToken", ""),
                "reservation": "" if reservation is None else reservation.instance_id,
                "lifecycle": call.params.get("InstanceMarketOptions.MarketType", ""),
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
        wanted, filters = call.values("InstanceId"), call.filters()
        entries = self._named(call.region, wanted) if wanted else self._all(call.region)
        passing = [e for e in entries if passes(filters, self._facts(e), e.detail["tags"])]
        page, token = call.page(passing)
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

    def _facts(self, entry: Entry) -> dict[str, str]:
        state = self._state(entry)
        return {
            "instance-id": entry.instance_id,
            "instance-type": entry.sku,
            "instance-state-name": state,
            "instance-state-code": str(_CODES[state]),
            "availability-zone": entry.zone,
            "client-token": entry.detail["token"],
            "capacity-reservation-id": entry.detail["reservation"],
            "instance-lifecycle": entry.detail["lifecycle"],
            "reservation-id": entry.detail["launch"],
        }

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
        return {
            "instanceId": entry.instance_id,
            "imageId": entry.detail["image"],
            "instanceState": _state_row(self._state(entry)),
            "stateReason": reason,
            "instanceType": entry.sku,
            "launchTime": zulu_ms(entry.created_at),
            "placement": {"availabilityZone": entry.zone, "tenancy": "default"},
            "clientToken": entry.detail["token"],
            "capacityReservationId": entry.detail["reservation"] or None,
            "instanceLifecycle": entry.detail["lifecycle"] or None,
            "tagSet": entry.detail["tags"],
        }


def _taken_back_at(reservation: Entry | None) -> datetime | None:
    if reservation is None or reservation.detail["kind"] != "block" or reservation.ends_at is None:
        return None
    return reservation.ends_at - TEARDOWN


def _state_row(state: str) -> dict[str, Any]:
    return {"code": _CODES[state], "name": state}

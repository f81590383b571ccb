"""EC2 Capacity Blocks: search and purchase; reservations describe them.

Blocks start at 11:30 UTC (or now) and end at 11:30 UTC; whole days up to 14, then whole weeks; at most
64 instances; searchable 8 weeks ahead; paid upfront as one sum; never cancelled. A search answers with
the six nearest offerings, whose ids are opaque and go stale. Source: EC2 API model 2016-11-15 and the
Capacity Blocks user guide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import WINDOW, InventoryItem
from providers.sandbox.protocol import SandboxState
from providers.sandbox.sellers.aws.future import commitment_row, future_state
from providers.sandbox.sellers.aws.market import block_day, free_in_block, region_inventory
from providers.sandbox.sellers.aws.query import OWNER_ID, Ec2Call, ec2_error

_AHEAD = timedelta(weeks=8)
_LATEST_BOOKING = timedelta(minutes=30)
_OFFERING_LIFE = timedelta(minutes=15)
_MOST_OFFERINGS = 6
_MOST_INSTANCES, _MOST_HELD = 64, 256
_OFFERING = "aws_block_offering"
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Block:
    item: InventoryItem
    start: datetime
    end: datetime


class CapacityBlocks:
    """The block actions of one account."""

    def __init__(self, sandbox: SandboxState) -> None:
        self._sandbox = sandbox
        self.actions = {
            "DescribeCapacityBlockOfferings": self._offerings,
            "PurchaseCapacityBlock": self._purchase,
        }

    def _offerings(self, call: Ec2Call) -> dict[str, Any]:
        days = self._days(call)
        count = call.integer("InstanceCount", 1, _MOST_INSTANCES, 1)
        instance_type = call.required("InstanceType")
        self._sandbox.store.drop_expired(_OFFERING, self._sandbox.clock.now())
        found = [
            block
            for item in region_inventory(self._sandbox, call.region, WINDOW)
            if item.sku == instance_type
            for block in self._windows(call, item, days, count)
        ]
        nearest = sorted(found, key=lambda block: (block.start, block.item.zone))[:_MOST_OFFERINGS]
        rows = [self._offer(block, count) for block in nearest]
        page, token = call.page(rows)
        return {"capacityBlockOfferingSet": page, "nextToken": token}

    def _days(self, call: Ec2Call) -> int:
        hours = call.integer("CapacityDurationHours", 1, 182 * 24)
        days, rest = divmod(hours, 24)
        if rest or (days > 14 and days % 7):
            raise ec2_error(
                "InvalidParameterValue",
                "CapacityDurationHours must be in 1-day increments up to 14 days, and in 7-day increments up"
                " to 182 days.",
            )
        return days

    def _windows(self, call: Ec2Call, item: InventoryItem, days: int, count: int) -> Iterator[_Block]:
        """Windows of ``days`` days in which ``count`` instances are free, soonest first."""
        now = self._sandbox.clock.now()
        earliest = max(call.instant("StartDateRange") or now, now)
        latest_end = call.instant("EndDateRange")
        bought = self._bought(item)
        found = 0
        for start, end in self._starts(now, earliest, days):
            if latest_end is not None and end > latest_end:
                return
            if free_in_block(self._sandbox, item, start, end, bought) >= count:
                yield _Block(item, start, end)
                found += 1
            if found == _MOST_OFFERINGS:
                return

    def _starts(self, now: datetime, earliest: datetime, days: int) -> Iterator[tuple[datetime, datetime]]:
        following = block_day(now) + _DAY
        if earliest <= now and following - now > _LATEST_BOOKING:
            yield _round_up(now, timedelta(minutes=5)), following + days * _DAY
        start = following if following - now > _LATEST_BOOKING else following + _DAY
        while start <= now + _AHEAD:
            if start >= earliest:
                yield start, start + days * _DAY
            start += _DAY

    def _bought(self, item: InventoryItem) -> list[Entry]:
        live = self._sandbox.ledger.live("aws", self._sandbox.clock.now())
        return [entry for entry in live if entry.stock_key == item.stock_key]

    def _fee(self, block: _Block, count: int) -> Decimal:
        rate = self._sandbox.market.price(block.item) or Decimal(0)
        minutes = (block.end - block.start) // timedelta(minutes=1)
        return (rate * count * minutes / 60).quantize(Decimal("0.000001"))

    def _offer(self, block: _Block, count: int) -> dict[str, Any]:
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        fee = self._fee(block, count)
        bucket = now.timestamp() // _OFFERING_LIFE.total_seconds()
        text = f"{sandbox.nonce}|{block.item.key}|{count}|{block.start}|{block.end}|{fee}|{bucket}"
        offering_id = "cb-" + hashlib.sha256(text.encode()).hexdigest()[:17]
        sandbox.store.put_document(
            _OFFERING,
            offering_id,
            {
                "cell": block.item.key,
                "count": count,
                "start": block.start.isoformat(),
                "end": block.end.isoformat(),
                "fee": str(fee),
                "expires": (now + _OFFERING_LIFE).isoformat(),
            },
        )
        minutes = (block.end - block.start) // timedelta(minutes=1)
        return {
            "capacityBlockOfferingId": offering_id,
            "instanceType": block.item.sku,
            "availabilityZone": block.item.zone,
            "instanceCount": count,
            "startDate": zulu_ms(block.start),
            "endDate": zulu_ms(block.end),
            "capacityBlockDurationHours": minutes // 60,
            "capacityBlockDurationMinutes": minutes % 60,
            "upfrontFee": str(fee),
            "currencyCode": "USD",
            "tenancy": "default",
        }

    def _purchase(self, call: Ec2Call) -> dict[str, Any]:
        offering_id = call.required("CapacityBlockOfferingId")
        platform = call.required("InstancePlatform")
        offering = self._sandbox.store.document(_OFFERING, offering_id)
        now = self._sandbox.clock.now()
        if offering is None or datetime.fromisoformat(offering["expires"]) <= now:
            raise ec2_error(
                "InvalidCapacityBlockOfferingId.NotFound",
                f"The Capacity Block offering ID '{offering_id}' does not exist or has expired.",
            )
        items = {item.key: item for item in region_inventory(self._sandbox, call.region, WINDOW)}
        item = items.get(offering["cell"])
        if item is None:
            raise ec2_error(
                "InvalidCapacityBlockOfferingId.NotFound",
                f"The Capacity Block offering ID '{offering_id}' does not exist in {call.region}.",
            )
        start, end = (datetime.fromisoformat(offering[name]) for name in ("start", "end"))
        block, count = _Block(item, start, end), int(offering["count"])
        self._require_room(block, count)
        entry = self._buy(call, block, count, Decimal(offering["fee"]), platform)
        return {
            "capacityReservation": reservation_row(self._sandbox, entry),
            "capacityBlockSet": [self._row(entry)],
        }

    def _require_room(self, block: _Block, count: int) -> None:
        now = self._sandbox.clock.now()
        live = self._sandbox.ledger.live("aws", now)
        held = sum(entry.nodes for entry in live if entry.detail["kind"] == "block")
        if held + count > _MOST_HELD:
            raise ec2_error("InstanceLimitExceeded", f"At most {_MOST_HELD} instances across blocks.")
        if free_in_block(self._sandbox, block.item, block.start, block.end, self._bought(block.item)) < count:
            raise ec2_error(
                "InsufficientInstanceCapacity", "The Capacity Block offering is no longer available."
            )

    def _buy(self, call: Ec2Call, block: _Block, count: int, fee: Decimal, platform: str) -> Entry:
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        tags = call.tags("capacity-reservation")
        block_id = "cb-" + sandbox.new_id("aws-cb", 17)
        paid_at = now + timedelta(seconds=sandbox.durations.payment_s)
        return sandbox.ledger.write(
            block.item.bought(
                now,
                "cr-" + sandbox.new_id("aws-cr", 17),
                tags[0]["value"] if tags else "",
                Tariff(upfront_usd=fee),
                tier=WINDOW,
                nodes=count,
                starts_at=block.start,
                ends_at=block.end,
                failed_at=paid_at if call.loses_capacity else None,
                detail={
                    "kind": "block",
                    "also_known_as": [block_id],
                    "tags": tags,
                    "platform": platform,
                    "zone_id": block.item.labels["zone_id"],
                    "match": "targeted",
                    "paid_at": paid_at.isoformat(),
                },
            )
        )

    def _row(self, entry: Entry) -> dict[str, Any]:
        return {
            "capacityBlockId": entry.detail["also_known_as"][0],
            "availabilityZone": entry.zone,
            "availabilityZoneId": entry.detail["zone_id"],
            "capacityReservationIdSet": [entry.instance_id],
            "startDate": zulu_ms(entry.starts_at),
            "endDate": zulu_ms(_end(entry)),
            "createDate": zulu_ms(entry.created_at),
            "state": block_state(entry, self._sandbox.clock.now()),
            "tagSet": entry.detail["tags"],
        }


def _end(entry: Entry) -> datetime:
    assert entry.ends_at is not None
    return entry.ends_at


def _round_up(instant: datetime, step: timedelta) -> datetime:
    midnight = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + -((midnight - instant) // step) * step


def block_state(entry: Entry, now: datetime) -> str:
    """payment-pending → scheduled → active → expired; payment-failed without capacity."""
    if entry.failed(now):
        return "payment-failed"
    if now >= _end(entry):
        return "expired"
    if now < datetime.fromisoformat(entry.detail["paid_at"]):
        return "payment-pending"
    return "scheduled" if now < entry.starts_at else "active"


def reservation_state(sandbox: SandboxState, entry: Entry, now: datetime) -> str:
    """State of a capacity reservation, block or on demand."""
    if entry.detail["kind"] == "block":
        return block_state(entry, now)
    if "committed_until" in entry.detail:
        return future_state(entry, now)
    if entry.failed(now):
        return "failed"
    if entry.released_at is not None:
        return "cancelled"
    if entry.ends_at is not None and now >= entry.ends_at:
        return "expired"
    ready_at = entry.created_at + timedelta(seconds=sandbox.durations.boot_s)
    return "pending" if now < ready_at else "active"


def reservation_row(sandbox: SandboxState, entry: Entry) -> dict[str, Any]:
    """A capacity reservation as EC2 shows it; nothing is launched into one here."""
    now = sandbox.clock.now()
    state = reservation_state(sandbox, entry, now)
    is_block = entry.detail["kind"] == "block"
    arn = f"arn:aws:ec2:{entry.region}:{OWNER_ID}:capacity-reservation/{entry.instance_id}"
    live = state in {"active", "scheduled", "payment-pending", "pending"}
    return {
        "capacityReservationId": entry.instance_id,
        "ownerId": OWNER_ID,
        "capacityReservationArn": arn,
        "availabilityZoneId": entry.detail["zone_id"],
        "instanceType": entry.sku,
        "instancePlatform": entry.detail["platform"],
        "availabilityZone": entry.zone,
        "tenancy": "default",
        "totalInstanceCount": entry.nodes,
        "availableInstanceCount": entry.nodes if live else 0,
        "ebsOptimized": True,
        "ephemeralStorage": False,
        "state": state,
        "startDate": zulu_ms(entry.starts_at),
        "endDate": None if entry.ends_at is None else zulu_ms(entry.ends_at),
        "endDateType": "unlimited" if entry.ends_at is None else "limited",
        "instanceMatchCriteria": entry.detail["match"],
        "createDate": zulu_ms(entry.created_at),
        "tagSet": entry.detail["tags"],
        "reservationType": "capacity-block" if is_block else "default",
        "capacityBlockId": entry.detail["also_known_as"][0] if is_block else None,
        **commitment_row(entry),
    }

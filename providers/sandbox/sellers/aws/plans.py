"""SageMaker training plans: search, create (once a name), describe, list.

A plan is one or more reserved capacities of one type and count; it is paid up front as one sum and never
cancelled. A search answers with whole windows, and with one plan of two halves and two days between them.
Source: SageMaker API model 2017-07-24 and its developer guide (durations of whole days up to 182, counts of
1 to 64 in powers of two). That plans start at 11:30 UTC and can be found eight weeks ahead, as blocks do, and
how long an offering lives, is this sandbox's assumption; so is the price, the Capacity Block rate.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff
from providers.sandbox.market import WINDOW, InventoryItem
from providers.sandbox.protocol import SandboxState
from providers.sandbox.sellers.aws.market import block_day, free_in_block, region_inventory
from providers.sandbox.sellers.aws.query import OWNER_ID
from providers.sandbox.sellers.aws.sagemaker import SageMakerCall, epoch, failed, refused

COUNTS = (1, 2, 4, 8, 16, 32, 64)
TARGETS = frozenset({"training-job", "hyperpod-cluster", "endpoint", "studio-apps"})
_DAY = timedelta(days=1)
_MOST_DAYS = 182
_AHEAD = timedelta(weeks=8)
_GAP_DAYS = 2
_LEAST_DAYS_TO_SPLIT = 4
_OFFERING_LIFE = timedelta(minutes=15)
_OFFERING = "aws_plan_offering"
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}")

_Span = tuple[datetime, datetime]


class TrainingPlans:
    """The training plan operations of one account."""

    def __init__(self, sandbox: SandboxState) -> None:
        self._sandbox = sandbox
        self.actions = {
            "SearchTrainingPlanOfferings": self._search,
            "CreateTrainingPlan": self._create,
            "DescribeTrainingPlan": self._describe,
            "ListTrainingPlans": self._list,
        }

    def _search(self, call: SageMakerCall) -> dict[str, Any]:
        instance_type, targets = call.text("InstanceType"), call.body.get("TargetResources")
        if not isinstance(targets, list) or not targets or not TARGETS.issuperset(map(str, targets)):
            raise refused("Value at 'TargetResources' failed to satisfy enum value set")
        count = call.integer("InstanceCount", 1, 256)
        days = -(-call.integer("DurationHours", 1, 87600) // 24)
        if days > _MOST_DAYS or count not in COUNTS:
            return {"TrainingPlanOfferings": []}
        self._sandbox.store.drop_expired(_OFFERING, self._sandbox.clock.now())
        items = [c for c in region_inventory(self._sandbox, call.region, WINDOW) if c.sku == instance_type]
        rows = [
            self._offer(call, item, spans, count)
            for number, item in enumerate(items)
            for spans in self._windows(call, item, days, count, split=number == 0)
        ]
        return {"TrainingPlanOfferings": rows}

    def _windows(
        self, call: SageMakerCall, item: InventoryItem, days: int, count: int, *, split: bool
    ) -> Iterator[tuple[_Span, ...]]:
        """The soonest whole window, and the soonest in two halves."""
        layouts: list[tuple[tuple[int, int], ...]] = [((0, days),)]
        if split and days >= _LEAST_DAYS_TO_SPLIT:
            half = days // 2
            layouts.append(((0, half), (half + _GAP_DAYS, days + _GAP_DAYS)))
        for layout in layouts:
            for start in self._starts(call):
                spans = tuple((start + first * _DAY, start + last * _DAY) for first, last in layout)
                if self._is_sold(call, item, spans, count):
                    yield spans
                    break

    def _starts(self, call: SageMakerCall) -> Iterator[datetime]:
        now = self._sandbox.clock.now()
        earliest = call.instant("StartTimeAfter") or now
        start = block_day(now) + _DAY
        while start <= now + _AHEAD:
            if start > earliest:
                yield start
            start += _DAY

    def _is_sold(
        self, call: SageMakerCall, item: InventoryItem, spans: tuple[_Span, ...], count: int
    ) -> bool:
        latest = call.instant("EndTimeBefore")
        if latest is not None and spans[-1][1] >= latest:
            return False
        return self._free(item, spans) >= count

    def _free(self, item: InventoryItem, spans: tuple[_Span, ...]) -> int:
        live = self._sandbox.ledger.live("aws", self._sandbox.clock.now())
        bought = [entry for entry in live if entry.stock_key == item.stock_key]
        return min(free_in_block(self._sandbox, item, start, end, bought) for start, end in spans)

    def _offer(
        self, call: SageMakerCall, item: InventoryItem, spans: tuple[_Span, ...], count: int
    ) -> dict[str, Any]:
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        hours = sum((end - start) // timedelta(hours=1) for start, end in spans)
        fee = ((sandbox.market.price(item) or Decimal(0)) * count * hours).quantize(Decimal("0.000001"))
        bucket = now.timestamp() // _OFFERING_LIFE.total_seconds()
        text = f"{sandbox.nonce}|{item.key}|{count}|{spans}|{fee}|{bucket}"
        offering_id = "tpo-" + hashlib.sha256(text.encode()).hexdigest()[:26]
        sandbox.store.put_document(
            _OFFERING,
            offering_id,
            {
                "cell": item.key,
                "count": count,
                "spans": [[start.isoformat(), end.isoformat()] for start, end in spans],
                "fee": str(fee),
                "expires": (now + _OFFERING_LIFE).isoformat(),
                "targets": call.body["TargetResources"],
            },
        )
        return {
            "TrainingPlanOfferingId": offering_id,
            "TargetResources": call.body["TargetResources"],
            "RequestedStartTimeAfter": call.body.get("StartTimeAfter", epoch(now)),
            "DurationHours": hours,
            "DurationMinutes": 0,
            "UpfrontFee": str(fee),
            "CurrencyCode": "USD",
            "ReservedCapacityOfferings": [_capacity(item, span, count) for span in spans],
        }

    def _create(self, call: SageMakerCall) -> dict[str, Any]:
        name, offering_id = call.text("TrainingPlanName"), call.text("TrainingPlanOfferingId")
        if not _NAME.fullmatch(name) or len(name) > 64:
            raise refused(f"Value '{name}' at 'trainingPlanName' failed to satisfy constraint")
        if any(_name(entry) == name for entry in self._plans(call.region)):
            raise failed("ResourceInUse", f"Training plan with name {name} already exists.")
        offering = self._sandbox.store.document(_OFFERING, offering_id)
        items = {item.key: item for item in region_inventory(self._sandbox, call.region, WINDOW)}
        item = items.get(offering["cell"]) if offering is not None else None
        now = self._sandbox.clock.now()
        if offering is None or item is None or datetime.fromisoformat(offering["expires"]) <= now:
            raise failed("ResourceNotFound", f"Training plan offering {offering_id} does not exist.")
        spans = _spans(offering["spans"])
        if self._free(item, spans) < int(offering["count"]):
            raise failed("ResourceNotFound", f"Training plan offering {offering_id} is no longer available.")
        entry = self._buy(call, name, item, offering)
        return {"TrainingPlanArn": entry.instance_id}

    def _buy(self, call: SageMakerCall, name: str, item: InventoryItem, offering: dict[str, Any]) -> Entry:
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        spans, count = _spans(offering["spans"]), int(offering["count"])
        tags = call.body.get("Tags") or []
        paid_at = now + timedelta(seconds=sandbox.durations.payment_s)
        return sandbox.ledger.write(
            item.bought(
                now,
                f"arn:aws:sagemaker:{call.region}:{OWNER_ID}:training-plan/{name}",
                str(tags[0]["Value"]) if tags else name,
                Tariff(upfront_usd=Decimal(offering["fee"])),
                tier=WINDOW,
                nodes=count,
                starts_at=spans[0][0],
                ends_at=spans[-1][1],
                failed_at=paid_at if call.loses_capacity else None,
                detail={
                    "kind": "plan",
                    "tags": tags,
                    "zone_id": item.labels["zone_id"],
                    "spans": offering["spans"],
                    "targets": offering["targets"],
                    "fee": offering["fee"],
                    "paid_at": paid_at.isoformat(),
                },
            )
        )

    def _plans(self, region: str) -> list[Entry]:
        entries = self._sandbox.ledger.entries("aws")
        return [e for e in entries if e.detail["kind"] == "plan" and e.region == region]

    def _describe(self, call: SageMakerCall) -> dict[str, Any]:
        wanted = call.text("TrainingPlanName")
        for entry in self._plans(call.region):
            if wanted in {entry.instance_id, _name(entry)}:
                return self._row(entry)
        raise failed("ResourceNotFound", f"Training plan {wanted} does not exist.")

    def _list(self, call: SageMakerCall) -> dict[str, Any]:
        size = call.integer("MaxResults", 1, 100, 100)
        token = str(call.body.get("NextToken") or "0")
        if not token.isdecimal():
            raise refused("Invalid NextToken")
        rows = [self._row(entry) for entry in self._plans(call.region)]
        start, end = int(token), int(token) + size
        return {
            "TrainingPlanSummaries": rows[start:end],
            "NextToken": str(end) if end < len(rows) else None,
        }

    def _row(self, entry: Entry) -> dict[str, Any]:
        now, spans = self._sandbox.clock.now(), _spans(entry.detail["spans"])
        status = self._status(entry, spans[0][0], spans[-1][1])
        hours = sum((end - start) // timedelta(hours=1) for start, end in spans)
        is_active = any(start <= now < end for start, end in spans) and status == "Active"
        return {
            "TrainingPlanArn": entry.instance_id,
            "TrainingPlanName": _name(entry),
            "Status": status,
            "DurationHours": hours,
            "DurationMinutes": 0,
            "StartTime": epoch(spans[0][0]),
            "EndTime": epoch(spans[-1][1]),
            "UpfrontFee": entry.detail["fee"],
            "CurrencyCode": "USD",
            "TotalInstanceCount": entry.nodes,
            "AvailableInstanceCount": entry.nodes if is_active else 0,
            "InUseInstanceCount": 0,
            "TargetResources": entry.detail["targets"],
            "ReservedCapacitySummaries": [
                self._capacity_row(entry, number, span) for number, span in enumerate(spans)
            ],
        }

    def _capacity_row(self, entry: Entry, number: int, span: _Span) -> dict[str, Any]:
        digits = hashlib.sha256(f"{entry.instance_id}|{number}".encode()).hexdigest()[:12]
        return {
            "ReservedCapacityArn": f"arn:aws:sagemaker:{entry.region}:{OWNER_ID}:reserved-capacity/{digits}",
            "InstanceType": entry.sku,
            "TotalInstanceCount": entry.nodes,
            "Status": self._status(entry, *span),
            "AvailabilityZone": entry.zone,
            "AvailabilityZoneId": entry.detail["zone_id"],
            "DurationHours": (span[1] - span[0]) // timedelta(hours=1),
            "DurationMinutes": 0,
            "StartTime": epoch(span[0]),
            "EndTime": epoch(span[1]),
        }

    def _status(self, entry: Entry, start: datetime, end: datetime) -> str:
        """Pending → Scheduled → Active → Expired; Failed without capacity."""
        now = self._sandbox.clock.now()
        if entry.failed(now):
            return "Failed"
        if now >= end:
            return "Expired"
        if now < datetime.fromisoformat(entry.detail["paid_at"]):
            return "Pending"
        return "Scheduled" if now < start else "Active"


def _name(entry: Entry) -> str:
    return entry.instance_id.rpartition("/")[2]


def _spans(kept: list[list[str]]) -> tuple[_Span, ...]:
    return tuple((datetime.fromisoformat(start), datetime.fromisoformat(end)) for start, end in kept)


def _capacity(item: InventoryItem, span: _Span, count: int) -> dict[str, Any]:
    start, end = span
    return {
        "ReservedCapacityType": "Instance",
        "InstanceType": item.sku,
        "InstanceCount": count,
        "AvailabilityZone": item.zone,
        "DurationHours": (end - start) // timedelta(hours=1),
        "DurationMinutes": 0,
        "StartTime": epoch(start),
        "EndTime": epoch(end),
    }

"""EC2 On-Demand Capacity Reservations, from now or from a later date: create, describe, cancel.

Idempotent by client token. Billed per second at the on-demand price, used or not. One with a commitment is
cancelled while it is assessed and when the commitment is over; quotes for leaving earlier are not given here.
Source: EC2 API model 2016-11-15.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import WINDOW, InventoryItem
from providers.sandbox.protocol import SandboxState
from providers.sandbox.sellers.aws.blocks import reservation_row, reservation_state
from providers.sandbox.sellers.aws.future import (
    Commitment,
    commitment,
    is_committed,
    is_short,
    require_kind,
    stock_key,
)
from providers.sandbox.sellers.aws.market import find_item
from providers.sandbox.sellers.aws.query import Ec2Call, ec2_error

MINIMUM_BILLED_S = 60
_TOKEN = "aws_client_token"  # noqa: S105  a kind of document
_VISIBLE_AFTER_END = timedelta(hours=24)


class CapacityReservations:
    """The reservation actions of one account; blocks are shown here too."""

    def __init__(self, sandbox: SandboxState) -> None:
        self._sandbox = sandbox
        self.actions = {
            "CreateCapacityReservation": self._create,
            "DescribeCapacityReservations": self._describe,
            "CancelCapacityReservation": self._cancel,
        }

    def _create(self, call: Ec2Call) -> dict[str, Any]:
        earlier = repeated(self._sandbox, call)
        if earlier is not None:
            entry = self._find(earlier)
            return {"capacityReservation": reservation_row(self._sandbox, entry)}
        count = call.integer("InstanceCount", 1, 1000)
        platform = call.required("InstancePlatform")
        item = self._item(call)
        if call.params.get("StartDate"):
            require_kind(item, count)
        wish = commitment(self._sandbox, call)
        if wish is None and self._sandbox.market.free(item, self._sandbox.clock.now()) < count:
            raise no_capacity(item)
        entry = self._sandbox.ledger.write(self._new(call, item, count, platform, wish))
        remember(self._sandbox, call, entry.instance_id)
        return {"capacityReservation": reservation_row(self._sandbox, entry)}

    def _item(self, call: Ec2Call) -> InventoryItem:
        instance_type = call.required("InstanceType")
        zone = call.params.get("AvailabilityZone") or call.params.get("AvailabilityZoneId")
        if not zone:
            raise ec2_error(
                "MissingParameter", "The request must contain availabilityZone or availabilityZoneId"
            )
        item = find_item(self._sandbox, instance_type, zone, "on_demand")
        if item is None or item.region != call.region:
            raise ec2_error(
                "Unsupported",
                f"Your requested instance type ({instance_type}) is not supported in your requested"
                f" Availability Zone ({zone}).",
            )
        return item

    def _new(
        self, call: Ec2Call, item: InventoryItem, count: int, platform: str, wish: Commitment | None
    ) -> Entry:
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        tags = call.tags("capacity-reservation")
        fails_at = now + timedelta(seconds=sandbox.durations.boot_s) if call.loses_capacity else None
        entry = item.bought(
            now,
            "cr-" + sandbox.new_id("aws-cr", 17),
            tags[0]["value"] if tags else call.params.get("ClientToken", ""),
            Tariff((sandbox.market.price(item) or Decimal(0)) * count, 1, MINIMUM_BILLED_S),
            tier="on_demand",
            nodes=count,
            ends_at=self._end(call),
            failed_at=fails_at,
            detail={
                "kind": "reservation",
                "tags": tags,
                "platform": platform,
                "zone_id": item.labels["zone_id"],
                "match": call.params.get("InstanceMatchCriteria", "open"),
            },
        )
        return entry if wish is None else self._later(entry, item, wish, call.loses_capacity)

    def _later(self, entry: Entry, item: InventoryItem, wish: Commitment, loses_capacity: bool) -> Entry:
        """The reservation with its later start; it fails once it is assessed when there is no room."""
        assessed_at = entry.created_at + timedelta(seconds=self._sandbox.durations.fill_s)
        short = loses_capacity or is_short(self._sandbox, item, wish, entry.ends_at, entry.nodes)
        later = replace(
            entry,
            tier=WINDOW,
            stock_key=stock_key(item),
            starts_at=wish.start,
            failed_at=assessed_at if short else None,
        )
        return later.with_detail(
            item=item.key, assessed_at=assessed_at.isoformat(), committed_until=wish.end.isoformat()
        )

    def _end(self, call: Ec2Call) -> datetime | None:
        end = call.instant("EndDate")
        kind = call.params.get("EndDateType", "unlimited" if end is None else "limited")
        if (kind == "limited") != (end is not None):
            raise ec2_error(
                "InvalidParameterCombination", "EndDate goes with EndDateType 'limited', and only with it."
            )
        if end is not None and end <= self._sandbox.clock.now():
            raise ec2_error("InvalidParameterValue", "EndDate must be in the future.")
        return end

    def _describe(self, call: Ec2Call) -> dict[str, Any]:
        wanted = call.values("CapacityReservationId")
        entries = {entry.instance_id: entry for entry in self._visible(call.region)}
        for reservation_id in wanted:
            if reservation_id not in entries:
                raise _not_found(reservation_id)
        rows = [
            reservation_row(self._sandbox, entry)
            for entry in entries.values()
            if not wanted or entry.instance_id in wanted
        ]
        page, token = call.page(rows)
        return {"capacityReservationSet": page, "nextToken": token}

    def _visible(self, region: str) -> list[Entry]:
        now = self._sandbox.clock.now()
        return [
            entry
            for entry in self._sandbox.ledger.live("aws", now - _VISIBLE_AFTER_END)
            if entry.region == region and entry.detail["kind"] in {"block", "reservation"}
        ]

    def _cancel(self, call: Ec2Call) -> dict[str, Any]:
        entry = self._find(call.required("CapacityReservationId"), call.region)
        now = self._sandbox.clock.now()
        state = reservation_state(self._sandbox, entry, now)
        if entry.detail["kind"] == "block":
            raise ec2_error(
                "Unsupported", f"The Capacity Reservation '{entry.instance_id}' is a Capacity Block and"
                " cannot be cancelled.",
            )  # fmt: skip
        if "committed_until" in entry.detail and is_committed(entry, now):
            raise ec2_error(
                "InvalidCapacityReservationState",
                f"The Capacity Reservation '{entry.instance_id}' is {state} and within its commitment: a"
                " cancellation quote is required.",
            )
        if state not in {"active", "pending", "assessing"}:
            raise ec2_error(
                "InvalidCapacityReservationState",
                f"The Capacity Reservation '{entry.instance_id}' is in the {state} state.",
            )
        self._sandbox.ledger.write(replace(entry, released_at=now))
        return {"return": True}

    def _find(self, reservation_id: str, region: str | None = None) -> Entry:
        entry = self._sandbox.ledger.find("aws", reservation_id)
        if entry is None or (region is not None and entry.region != region):
            raise _not_found(reservation_id)
        return entry


def _not_found(reservation_id: str) -> Exception:
    return ec2_error(
        "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{reservation_id}' is not found."
    )


def no_capacity(item: InventoryItem) -> Exception:
    """EC2's words for no capacity in a zone."""
    return ec2_error(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {item.sku} capacity in the Availability Zone you requested"
        f" ({item.zone}). Our system will be working on provisioning additional capacity.",
    )


def repeated(sandbox: SandboxState, call: Ec2Call) -> str | None:
    """The id that this client token created; IdempotentParameterMismatch for another request."""
    token = call.params.get("ClientToken")
    kept = sandbox.store.document(_TOKEN, f"{call.region}|{call.action}|{token}") if token else None
    if kept is None:
        return None
    if kept["wish"] != _wish(call):
        raise ec2_error(
            "IdempotentParameterMismatch", "The client token was used with different parameters before."
        )
    return str(kept["id"])


def remember(sandbox: SandboxState, call: Ec2Call, made_id: str) -> None:
    """Ties what was made to the call's client token, if it has one."""
    token = call.params.get("ClientToken")
    if token:
        name = f"{call.region}|{call.action}|{token}"
        sandbox.store.put_document(
            _TOKEN, name, {"wish": _wish(call), "id": made_id, "at": zulu_ms(sandbox.clock.now())}
        )


def _wish(call: Ec2Call) -> str:
    return hashlib.sha256(json.dumps(dict(call.params), sort_keys=True).encode()).hexdigest()

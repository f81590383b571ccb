"""On-demand capacity reservations with a start date: what may be asked for, and what becomes of the request.

Asked for 5 to 120 days ahead, for C, I, M, R, T and G types, with at least 32 vCPUs in all, targeted, with a
commitment. The request is assessed, then scheduled or found unsupported; it becomes active on its date and is
billed from then. Source: EC2 API model 2016-11-15. What is free on a later date, and the code of a refusal,
are this sandbox's own; ``delayed`` does not happen here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from providers.sandbox.ledger import Entry, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import SandboxState
from providers.sandbox.sellers.aws.query import Ec2Call, ec2_error

_FAMILIES = re.compile(r"[cimrtg]\d")
_LEAST_VCPUS = 32
_LEAD, _MOST_AHEAD = timedelta(days=5), timedelta(days=120)
_LONGEST_COMMITMENT_S = 200_000_000


@dataclass(frozen=True, slots=True)
class Commitment:
    """When a reservation is to start, and for how long it is committed to."""

    start: datetime
    duration_s: int

    @property
    def end(self) -> datetime:
        """When the commitment is over."""
        return self.start + timedelta(seconds=self.duration_s)


def commitment(sandbox: SandboxState, call: Ec2Call) -> Commitment | None:
    """The wished later start; None for a reservation from now on. Refuses what cannot be asked for."""
    start = call.instant("StartDate")
    if start is None:
        if call.params.get("CommitmentDuration"):
            raise _combination("CommitmentDuration goes with StartDate.")
        return None
    ahead = start - sandbox.clock.now()
    if not _LEAD <= ahead <= _MOST_AHEAD:
        raise ec2_error("InvalidParameterValue", "StartDate must be between 5 and 120 days from now.")
    duration_s = call.integer("CommitmentDuration", 1, _LONGEST_COMMITMENT_S)
    if call.required("DeliveryPreference") != "incremental":
        raise ec2_error("InvalidParameterValue", "The only supported DeliveryPreference is 'incremental'.")
    if call.params.get("InstanceMatchCriteria") != "targeted":
        raise _combination("A future-dated Capacity Reservation must be targeted.")
    if call.params.get("PlacementGroupArn") or call.params.get("OutpostArn"):
        raise _combination("Placement groups and Outposts are not supported for future-dated reservations.")
    found = Commitment(start, duration_s)
    end = call.instant("EndDate")
    if end is not None and end < found.end:
        raise _combination("EndDate may not be within the commitment duration.")
    return found


def require_kind(item: InventoryItem, count: int) -> None:
    """Refuses types and sizes that are not sold ahead."""
    if not _FAMILIES.match(item.sku):
        raise ec2_error("Unsupported", f"Future-dated reservations are not supported for {item.sku}.")
    if (item.vcpus or 0) * count < _LEAST_VCPUS:
        raise ec2_error("InvalidParameterValue", f"At least {_LEAST_VCPUS} vCPUs must be requested.")


def stock_key(item: InventoryItem) -> str:
    """The stock of later starts, which is separate from today's."""
    return f"{item.stock_key}|future"


def is_short(
    sandbox: SandboxState, item: InventoryItem, wish: Commitment, end: datetime | None, count: int
) -> bool:
    """Whether other requests leave less than ``count`` of the zone's units in that window."""
    held = sum(
        entry.units
        for entry in sandbox.ledger.live("aws", sandbox.clock.now())
        if entry.stock_key == stock_key(item)
        and (end is None or entry.starts_at < end)
        and (entry.ends_at is None or entry.ends_at > wish.start)
    )
    return sandbox.market.capacity(item) - held < count


def future_state(entry: Entry, now: datetime) -> str:
    """From assessing over scheduled and active to expired; else unsupported or cancelled."""
    if entry.failed(now):
        return "unsupported"
    if entry.released_at is not None:
        return "cancelled"
    if entry.ends_at is not None and now >= entry.ends_at:
        return "expired"
    if now < datetime.fromisoformat(entry.detail["assessed_at"]):
        return "assessing"
    return "scheduled" if now < entry.starts_at else "active"


def is_committed(entry: Entry, now: datetime) -> bool:
    """Whether the commitment runs, so that it cannot be cancelled without a quote."""
    is_due = future_state(entry, now) in {"scheduled", "active"}
    return is_due and now < datetime.fromisoformat(entry.detail["committed_until"])


def commitment_row(entry: Entry) -> dict[str, Any]:
    """What a description says of a commitment; nothing where there is none."""
    if "committed_until" not in entry.detail:
        return {}
    until = datetime.fromisoformat(entry.detail["committed_until"])
    return {
        "deliveryPreference": "incremental",
        "commitmentInfo": {
            "committedInstanceCount": entry.nodes,
            "commitmentEndDate": zulu_ms(until),
            "commitmentDuration": (until - entry.starts_at) // timedelta(seconds=1),
        },
    }


def _combination(message: str) -> Exception:
    return ec2_error("InvalidParameterCombination", message)

"""Azure's capacity reservations and scale sets, read as leases.

``provisioningState`` tells whether the last change succeeded. Whether a window has begun follows from its
schedule and the time of the answer; the status of a Future reservation stands in its instance view. After a
failed change, an order counts as lost only if nothing is held: with all nodes present the lease is active,
with some of them it is UNKNOWN, and the broker leaves it alone. Unknown words become UNKNOWN, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState
from providers.azure.windows import PROVIDER, scheduled_window
from providers.payload import Instant, Name, PayloadModel, as_payload

GROUPS = "capacityReservationGroups"
RESERVATIONS = "capacityReservations"
SCALE_SETS = "virtualMachineScaleSets"
TAG_KEY = "broker-tag"
_MADE = "provisioningstate/succeeded"

_PROVISIONING: Mapping[str, LeaseState] = {
    "creating": LeaseState.PROVISIONING,
    "updating": LeaseState.PROVISIONING,
    "succeeded": LeaseState.ACTIVE,
    "deleting": LeaseState.ENDING,
    "failed": LeaseState.FAILED,
    "canceled": LeaseState.FAILED,
}
_FUTURE: Mapping[str, LeaseState] = {
    "pending": LeaseState.PROVISIONING,
    "approved": LeaseState.SCHEDULED,
    "committed": LeaseState.SCHEDULED,
    "live": LeaseState.ACTIVE,
    "partiallyfulfilled": LeaseState.ACTIVE,
    "declined": LeaseState.FAILED,
    "fulfillmentfailed": LeaseState.FAILED,
}


class _Sku(PayloadModel):
    name: str | None = None
    capacity: int | None = Field(default=None, ge=0, le=100_000)


class _Schedule(PayloadModel):
    start: str | None = None
    end: str | None = None


class _Status(PayloadModel):
    code: str | None = None
    message: str | None = None
    count: int = Field(default=0, ge=0, le=100_000)


class _StateInfo(PayloadModel):
    reservationState: str | None = None


class _Utilization(PayloadModel):
    currentCapacity: int | None = Field(default=None, ge=0, le=100_000)


class _Summary(PayloadModel):
    statusesSummary: tuple[_Status, ...] = ()


class InstanceView(PayloadModel):
    """Which VMs exist: part of a reservation's answer, and a separate answer for a scale set."""

    statuses: tuple[_Status, ...] = ()
    reservationStateInfo: _StateInfo | None = None
    utilizationInfo: _Utilization | None = None
    virtualMachine: _Summary | None = None

    @property
    def held(self) -> int:
        """VMs that are reserved or created."""
        if self.utilizationInfo is not None and self.utilizationInfo.currentCapacity is not None:
            return self.utilizationInfo.currentCapacity
        counts = self.virtualMachine.statusesSummary if self.virtualMachine is not None else ()
        return sum(each.count for each in counts if (each.code or "").lower() == _MADE)

    @property
    def word(self) -> str:
        """Status of a Future reservation; empty for everything else."""
        info = self.reservationStateInfo
        return (info.reservationState or "") if info is not None else ""


class _Properties(PayloadModel):
    provisioningState: str | None = None
    timeCreated: Instant = None
    scheduleProfile: _Schedule | None = None
    instanceView: InstanceView | None = None


class Resource(PayloadModel):
    """A capacity reservation, a group of them, or a scale set: the fields that are read."""

    name: Name
    location: str = ""
    tags: Mapping[str, str | None] | None = None
    sku: _Sku | None = None
    properties: _Properties = _Properties()

    @property
    def is_block(self) -> bool:
        """Whether it is a Block: only that has an end."""
        schedule = self.properties.scheduleProfile
        return schedule is not None and schedule.end is not None

    @property
    def is_future(self) -> bool:
        """Whether it is a Future reservation: it has a start date and no end."""
        schedule = self.properties.scheduleProfile
        return schedule is not None and schedule.start is not None and schedule.end is None

    @property
    def state(self) -> str:
        """The provisioning state in lower case."""
        return (self.properties.provisioningState or "").lower()

    @property
    def nodes(self) -> int:
        """How many VMs were asked for."""
        return self.sku.capacity if self.sku is not None and self.sku.capacity is not None else 1

    @property
    def tag(self) -> str:
        """The tag of the order that created it; empty for resources of others."""
        return (self.tags or {}).get(TAG_KEY) or ""

    def with_view(self, view: InstanceView) -> Resource:
        """The resource with its instance view."""
        properties = self.properties.model_copy(update={"instanceView": view})
        return self.model_copy(update={"properties": properties})


def read_resource(row: Any) -> Resource:
    """A resource; PayloadUnreadable for anything else."""
    return as_payload(PROVIDER, row, Resource)


def reservation_path(group: str, name: str) -> str:
    """The resource path of a reservation, which is also the lease's reference."""
    return f"{GROUPS}/{group}/{RESERVATIONS}/{name}"


def lease_of(resource: Resource, reference: str, at: datetime) -> Lease:
    """``resource`` as a lease, seen at ``at``."""
    start, end = _schedule(resource)
    return Lease(
        provider=PROVIDER,
        reference=reference,
        state=_state(resource, start, end, at),
        tag=resource.tag or resource.name,
        nodes=_nodes(resource),
        sku=(resource.sku.name or "") if resource.sku is not None else "",
        region=resource.location.lower().replace(" ", ""),
        window=Window(start, end) if start is not None and end is not None and start < end else None,
        detail=_detail(resource),
        began_at=resource.properties.timeCreated,
    )


def _schedule(resource: Resource) -> tuple[datetime | None, datetime | None]:
    schedule = resource.properties.scheduleProfile
    if schedule is None or schedule.start is None:
        return None, None
    try:
        return scheduled_window(schedule.start, schedule.end)
    except (ValueError, OverflowError):
        raise PayloadUnreadable(PROVIDER, f"{resource.name}: the schedule has no dates") from None


def _state(resource: Resource, start: datetime | None, end: datetime | None, at: datetime) -> LeaseState:
    state = _PROVISIONING.get(resource.state, LeaseState.UNKNOWN)
    view = resource.properties.instanceView or InstanceView()
    if view.word and state is not LeaseState.ENDING:
        return _FUTURE.get(view.word.lower(), LeaseState.UNKNOWN)
    if state is LeaseState.FAILED and 0 < view.held < resource.nodes:
        return LeaseState.UNKNOWN
    if state is LeaseState.FAILED and view.held:
        state = LeaseState.ACTIVE
    if state is not LeaseState.ACTIVE:
        return state
    if end is not None and at >= end:
        return LeaseState.ENDED
    return LeaseState.SCHEDULED if start is not None and at < start else LeaseState.ACTIVE


def _nodes(resource: Resource) -> int:
    """Nodes granted; a Future reservation may be granted in part."""
    view = resource.properties.instanceView or InstanceView()
    is_part = view.word.lower() == "partiallyfulfilled" and view.held
    return view.held if is_part else resource.nodes


def _detail(resource: Resource) -> str:
    """The state in Azure's words, with the failure reason from the instance view."""
    view = resource.properties.instanceView or InstanceView()
    words = [resource.properties.provisioningState or "", view.word]
    failures = [status for status in view.statuses if "/failed" in (status.code or "").lower()]
    words += [f"{status.code}: {status.message or ''}".rstrip(": ") for status in failures[:1]]
    if resource.state == "failed" and view.held:
        words.append(f"with {view.held} of {resource.nodes} VMs")
    return " ".join(word for word in words if word)[:300]

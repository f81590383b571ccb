"""Compute Engine's resources read as leases, and the request bodies that create them.

Future reservations (calendar windows), reservations (on demand) and instances (spot). The tag is the name,
and ``description`` keeps it in full. References are partial URLs:
``zones/us-central1-a/reservations/NAME``. ``totalCount``, ``count``, ``fulfilledCount``: numbers as
strings.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.machines import Access
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer
from providers.gcp.compute import ListPage
from providers.gcp.machines import region_of, zone_of
from providers.gcp.prices import PROVIDER
from providers.http import Reply
from providers.payload import Instant, Name, PayloadModel, RowRejected, ordered_units
from providers.rows import time_text
from providers.schema import Words

LONGEST_NAME = 63
USER = "broker"
CONSOLE = "https://console.cloud.google.com/compute"
FUTURE, HELD, INSTANCE = "futureReservations", "reservations", "instances"
KINDS = (FUTURE, HELD, INSTANCE)

_FUTURE_STATES: Mapping[str, LeaseState] = {
    "DRAFTING": LeaseState.PROVISIONING,
    "PENDING_APPROVAL": LeaseState.PROVISIONING,
    "PENDING_AMENDMENT_APPROVAL": LeaseState.PROVISIONING,
    "APPROVED": LeaseState.SCHEDULED,
    "COMMITTED": LeaseState.SCHEDULED,
    "PROCURING": LeaseState.SCHEDULED,
    "PROVISIONING": LeaseState.PROVISIONING,
    "FULFILLED": LeaseState.ACTIVE,
    "FAILED_PARTIALLY_FULFILLED": LeaseState.ACTIVE,
    "FAILED": LeaseState.FAILED,
    "DECLINED": LeaseState.FAILED,
    "CANCELLED": LeaseState.ENDED,
}
_HELD_STATES: Mapping[str, LeaseState] = {
    "CREATING": LeaseState.PROVISIONING,
    "READY": LeaseState.ACTIVE,
    "UPDATING": LeaseState.ACTIVE,
    "DELETING": LeaseState.ENDING,
    "INVALID": LeaseState.FAILED,
}
_INSTANCE_STATES: Mapping[str, LeaseState] = {
    "PENDING": LeaseState.PROVISIONING,
    "PROVISIONING": LeaseState.PROVISIONING,
    "STAGING": LeaseState.PROVISIONING,
    "RUNNING": LeaseState.ACTIVE,
    "REPAIRING": LeaseState.ACTIVE,
    "PENDING_STOP": LeaseState.ENDING,
    "STOPPING": LeaseState.ENDING,
    "SUSPENDING": LeaseState.ENDING,
    "DEPROVISIONING": LeaseState.ENDING,
    "STOPPED": LeaseState.ENDED,
    "SUSPENDED": LeaseState.ENDED,
    "TERMINATED": LeaseState.ENDED,
}
LOCKED = frozenset({"PROCURING", "PROVISIONING", "FULFILLED", "FAILED_PARTIALLY_FULFILLED"})
"""States in which a future reservation can no longer be cancelled."""


class _Properties(PayloadModel):
    machineType: str = ""


class _Skus(PayloadModel):
    totalCount: int = Field(default=1, ge=0)
    instanceProperties: _Properties = _Properties()


class _TimeWindow(PayloadModel):
    startTime: datetime
    endTime: datetime


class _FutureStatus(PayloadModel):
    procurementStatus: Annotated[str, Words(lambda: _FUTURE_STATES)] = ""
    fulfilledCount: int = Field(default=0, ge=0)
    autoCreatedReservations: tuple[str, ...] = ()


class FutureReservation(PayloadModel):
    """A requested window."""

    name: Name
    zone: str = ""
    description: str | None = None
    reservationName: str | None = None
    specificSkuProperties: _Skus = _Skus()
    timeWindow: _TimeWindow | None = None
    status: _FutureStatus = _FutureStatus()


class _Specific(PayloadModel):
    count: int = Field(default=1, ge=0)
    instanceProperties: _Properties = _Properties()


class Reservation(PayloadModel):
    """Capacity held from now on."""

    name: Name
    zone: str = ""
    description: str | None = None
    status: Annotated[str, Words(lambda: _HELD_STATES)] = ""
    specificReservation: _Specific = _Specific()
    creationTimestamp: Instant = None


class _Duration(PayloadModel):
    seconds: int = Field(default=0, ge=0, le=10**9)


class _Scheduling(PayloadModel):
    provisioningModel: str = ""
    maxRunDuration: _Duration | None = None


class _Address(PayloadModel):
    natIP: str | None = None


class _Interface(PayloadModel):
    networkIP: str | None = None
    accessConfigs: tuple[_Address, ...] = ()


class Instance(PayloadModel):
    """A virtual machine."""

    name: Name
    zone: str = ""
    description: str | None = None
    status: Annotated[str, Words(lambda: _INSTANCE_STATES)] = ""
    machineType: str = ""
    creationTimestamp: Instant = None
    lastStartTimestamp: datetime | None = None
    scheduling: _Scheduling = _Scheduling()
    networkInterfaces: tuple[_Interface, ...] = ()


class Scope(PayloadModel):
    """One zone's part of an aggregated list."""

    futureReservations: tuple[FutureReservation, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    instances: tuple[Instance, ...] = ()


class AggregatedPage(ListPage):
    """A page of an aggregated list: rows by zone."""

    kind: str = ""
    items: Mapping[str, Scope] | None = None


def scopes_of(page: Reply) -> tuple[Scope, ...]:
    """The zones of a page; PayloadUnreadable when it is no aggregated list."""
    read = page.read(AggregatedPage)
    if read.items is None and "AggregatedList" not in read.kind:
        raise page.unreadable("an answer that is no aggregated list")
    return tuple((read.items or {}).values())


def reference(zone: str, kind: str, name: str) -> str:
    """The partial URL of a resource."""
    return f"zones/{zone_of(zone)}/{kind}/{name}"


def parted(text: str) -> tuple[str, str, str] | None:
    """(zone, kind, name) of a reference; None for other text."""
    found = re.fullmatch(r"zones/([a-z0-9-]+)/([A-Za-z]+)/([a-z0-9-]+)", text)
    return (found[1], found[2], found[3]) if found and found[2] in KINDS else None


def resource_name(tag: str) -> str:
    """A valid resource name (RFC 1035); a tag that is not valid is replaced by its digest."""
    plain = re.sub(r"[^a-z0-9-]", "-", tag.lower())
    if plain == tag and re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", plain):
        return plain
    digest = hashlib.sha256(tag.encode()).hexdigest()[:10]
    stem = re.sub(r"^[^a-z]+", "", plain)[: LONGEST_NAME - 11].rstrip("-")
    return f"{stem or 'broker'}-{digest}"


def _note(zone: str, name: str, project: str) -> str:
    """What its owner does next: a reservation holds capacity and has no machine."""
    return (
        f"it holds capacity in your project {project}: create instances in {zone_of(zone)} with {name} as"
        f" their specific reservation ({CONSOLE}/reservations?project={project})"
    )


def future_lease(row: FutureReservation, now: datetime, project: str) -> Lease:
    """A future reservation; after it is fulfilled, it ends with its window."""
    word = row.status.procurementStatus
    state = _FUTURE_STATES.get(word, LeaseState.UNKNOWN)
    window = _window(row.timeWindow)
    if state is LeaseState.ACTIVE and window is not None and window.end <= now:
        state = LeaseState.ENDED
    partial = word == "FAILED_PARTIALLY_FULFILLED"
    return Lease(
        provider=PROVIDER,
        reference=reference(row.zone, FUTURE, row.name),
        state=state,
        tag=row.description or row.name,
        nodes=row.status.fulfilledCount if partial else row.specificSkuProperties.totalCount,
        sku=row.specificSkuProperties.instanceProperties.machineType,
        region=_region(row.zone),
        window=window,
        detail=word,
        access_note=_note(row.zone, row.reservationName or row.name, project),
    )


def held_lease(row: Reservation, project: str) -> Lease:
    """A reservation."""
    return Lease(
        provider=PROVIDER,
        reference=reference(row.zone, HELD, row.name),
        state=_HELD_STATES.get(row.status, LeaseState.UNKNOWN),
        tag=row.description or row.name,
        nodes=row.specificReservation.count,
        sku=row.specificReservation.instanceProperties.machineType,
        region=_region(row.zone),
        detail=row.status,
        began_at=row.creationTimestamp,
        access_note=_note(row.zone, row.name, project),
    )


def instance_lease(row: Instance, project: str) -> Lease:
    """An instance; one with a maximum run time has its window from its start on."""
    return Lease(
        provider=PROVIDER,
        reference=reference(row.zone, INSTANCE, row.name),
        state=_INSTANCE_STATES.get(row.status, LeaseState.UNKNOWN),
        tag=row.description or row.name,
        sku=zone_of(row.machineType),
        region=_region(row.zone),
        window=_run_window(row),
        detail=f"{row.scheduling.provisioningModel} {row.status}".strip(),
        began_at=row.creationTimestamp,
        machines=_machines(row, project),
    )


def _machines(row: Instance, project: str) -> tuple[Access, ...]:
    """The instance at its external address; at its internal one where it has no other."""
    interface = next(iter(row.networkInterfaces), _Interface())
    external = next((one.natIP for one in interface.accessConfigs if one.natIP), None)
    host = external or interface.networkIP
    if host is None:
        return ()
    page = f"{CONSOLE}/instancesDetail/zones/{zone_of(row.zone)}/instances/{row.name}?project={project}"
    return (Access(host, USER, private_host=interface.networkIP, console_url=page),)


def _run_window(row: Instance) -> Window | None:
    start, run = row.lastStartTimestamp, row.scheduling.maxRunDuration
    if start is None or start.tzinfo is None or run is None or not run.seconds:
        return None
    return Window(start, start.astimezone(UTC) + timedelta(seconds=run.seconds))


def _window(read: _TimeWindow | None) -> Window | None:
    if read is None or read.startTime.tzinfo is None or read.endTime.tzinfo is None:
        return None
    return Window(read.startTime, read.endTime) if read.startTime < read.endTime else None


def _region(zone: str) -> str:
    try:
        return region_of(zone_of(zone))
    except RowRejected:
        return ""


def future_body(order: Order) -> dict[str, Any]:
    """A request for a window in calendar mode, submitted at once."""
    if order.window is None:
        raise OrderRejected(PROVIDER, f"offer {order.offer.offer_id} needs a window, and the order has none")
    name = resource_name(order.tag)
    return {
        "name": name,
        "description": order.tag,
        "planningStatus": "SUBMITTED",
        "reservationMode": "CALENDAR",
        "deploymentType": "DENSE",
        "schedulingType": "INDEPENDENT",
        "autoDeleteAutoCreatedReservations": True,
        "specificReservationRequired": True,
        "reservationName": name,
        "shareSettings": {"shareType": "LOCAL"},
        "specificSkuProperties": {
            "totalCount": str(order.nodes),
            "instanceProperties": {"machineType": order.offer.sku.name},
        },
        "timeWindow": {
            "startTime": time_text(order.window.start),
            "endTime": time_text(order.window.end),
        },
    }


def held_body(order: Order) -> dict[str, Any]:
    """The body of a reservation from now until the order's end, if any; billed used or not."""
    body: dict[str, Any] = {
        "name": resource_name(order.tag),
        "description": order.tag,
        "specificReservationRequired": True,
        "specificReservation": {
            "count": str(order.nodes),
            "instanceProperties": {"machineType": order.offer.sku.name},
        },
    }
    return {**body, "deleteAtTime": time_text(order.window.end)} if order.window is not None else body


SPOT_PARTS: Mapping[str, Any] = {
    "scheduling": {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    }
}
"""The fields that make an instance a spot instance, deleted when it is preempted."""


def instance_body(
    order: Order, zone: str, image: str, network: str, parts: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of one instance; ``parts`` are the fields of its provisioning model.

    It gets an external address, by which it fetches images too; the network's firewall opens or closes it.
    """
    external = {"accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]}
    return {
        "name": resource_name(order.tag),
        "description": order.tag,
        "machineType": f"zones/{zone}/machineTypes/{order.offer.sku.name}",
        **parts,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {"sourceImage": image, **_disk_params(order.offer, zone)},
            }
        ],
        "networkInterfaces": [{"network": network, **external}],
        **_metadata(order),
    }


def _metadata(order: Order) -> dict[str, Any]:
    """Keys and start script as the image's guest agent reads them; keys count without OS Login alone."""
    keys = "\n".join(f"{USER}:{key.line} {USER}" for key in order.keys)
    wished = {
        "ssh-keys": keys,
        "enable-oslogin": "FALSE" if keys else "",
        "startup-script": order.script,
    }
    items = [{"key": key, "value": value} for key, value in wished.items() if value]
    return {"metadata": {"items": items}} if items else {}


def _disk_params(offer: Offer, zone: str) -> Mapping[str, str]:
    """Size and type of a boot disk of choice; none: the image's size on the default type of the series."""
    size_gib = ordered_units(offer.disk, offer.sku.disk_gb)
    if size_gib is None:
        return {}
    return {
        "diskSizeGb": str(size_gib),
        "diskType": f"zones/{zone}/diskTypes/{offer.reference['disk_type']}",
    }

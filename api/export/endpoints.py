"""Where a plan's services answer now, in the forms of load balancers and of Prometheus. Pure.

A machine is ``starting`` until the health path of its server answers, then ``ready``. It is ``draining`` for
the last minutes before it is given back, once the machines that the plan has from then on are ready: a
balancer then sends it no new request. Where nothing follows, it is ``ready`` until its end. What will be held
later is ``coming``, without an address.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from api.schemas.base.forms import write
from api.schemas.base.times import Instant
from broker.domain.basics.machines import Access, Machine
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState

EDS_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class EndpointState(StrEnum):
    """The state of an endpoint, in the order of a machine's life."""

    COMING = "coming"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class EndpointsFormat(StrEnum):
    """The forms of a list of endpoints."""

    JSON = "json"
    PROMETHEUS = "prometheus"
    ENVOY = "envoy"
    NGINX = "nginx"


class EndpointForm(BaseModel):
    """One server of a service, or one that will be held."""

    workload: str
    state: EndpointState
    host: str | None
    port: int
    reservation_id: str
    provider: str
    region: str
    since: Instant | None
    drains_at: Instant | None
    leaves_at: Instant | None


class EndpointsForm(BaseModel):
    """Where the services of a plan answer now."""

    plan_id: str
    as_of: Instant
    version: str
    endpoints: list[EndpointForm]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server of a service. ``leaves_at`` None: until released; ``drains_at``: from when it is draining.

    ``host`` None: it is not held yet. ``since`` is when it became ready, or will be ordered.
    """

    workload: str
    state: EndpointState
    host: str | None
    port: int
    reservation_id: str
    provider: str
    region: str
    since: datetime | None
    drains_at: datetime | None
    leaves_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Told:
    """What the document of endpoints says."""

    plan_id: str
    as_of: datetime
    version: str
    endpoints: Sequence[Endpoint]


def endpoints_of(rows: Iterable[Reservation], now: datetime) -> tuple[Endpoint, ...]:
    """The endpoints of reservations whose machines serve, by workload and time."""
    serving = [
        row
        for row in rows
        if row.setup.served is not None and row.is_open and row.state is not ReservationState.RELEASING
    ]
    found = [one for row in serving for one in _of_row(row, serving, now)]
    far = datetime.max.replace(tzinfo=now.tzinfo)
    return tuple(sorted(found, key=lambda one: (one.workload, one.since or far, one.host or "")))


def _of_row(row: Reservation, serving: Sequence[Reservation], now: datetime) -> Iterator[Endpoint]:
    """The endpoints of one reservation among all that serve."""
    served = row.setup.served
    assert served is not None
    leaves_at = row.ends_at
    drains_at = None if leaves_at is None else leaves_at - timedelta(minutes=served.drain_minutes)

    def endpoint(state: EndpointState, access: Access | None, since: datetime | None) -> Endpoint:
        return Endpoint(
            workload=row.workload or row.reservation_id,
            state=state,
            host=None if access is None else access.host,
            port=served.port if access is None else access.server_port or served.port,
            reservation_id=row.reservation_id,
            provider=row.offer.provider,
            region=row.offer.region,
            since=since,
            drains_at=drains_at,
            leaves_at=leaves_at,
        )

    if row.state is ReservationState.SCHEDULED:
        yield endpoint(EndpointState.COMING, None, row.start)
        return
    is_late = drains_at is not None and now >= drains_at
    up = EndpointState.DRAINING if is_late and _is_replaced(row, serving) else EndpointState.READY
    for machine in _heads(row):
        is_up = machine.ready_at is not None
        yield endpoint(up if is_up else EndpointState.STARTING, machine.access, machine.ready_at)


def _heads(row: Reservation) -> Iterator[Machine]:
    """The machine of each server that answers: the first of its nodes."""
    nodes = 1 if row.setup.served is None else row.setup.served.nodes
    machines = [one for unit in row.units if unit.state is UnitState.HELD for one in unit.machines]
    yield from machines[::nodes]


def _is_replaced(leaving: Reservation, serving: Iterable[Reservation]) -> bool:
    """Whether the plan has servers right after the end of ``leaving``, and all of them are ready."""
    end = leaving.ends_at
    assert end is not None
    after = [
        row
        for row in serving
        if row.workload == leaving.workload
        and row.start <= end
        and (row.ends_at is None or row.ends_at > end)
    ]
    nodes = 1 if leaving.setup.served is None else leaving.setup.served.nodes
    planned = sum(-(-row.nodes // nodes) for row in after)
    ready = sum(one.ready_at is not None for row in after for one in _heads(row))
    return 0 < planned <= ready


def fingerprint_of(endpoints: Sequence[Endpoint]) -> str:
    """A short text that changes with what a balancer would do."""
    said = [(one.workload, one.state, one.host, one.port) for one in endpoints]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


def endpoints_text(plan_id: str, endpoints: Sequence[Endpoint], form: EndpointsFormat, now: datetime) -> str:
    """``endpoints`` as text in one of the forms."""
    if form is EndpointsFormat.JSON:
        return json.dumps(endpoints_document(plan_id, endpoints, now), indent=2) + "\n"
    return _WRITERS[form](endpoints)


def endpoints_document(plan_id: str, endpoints: Sequence[Endpoint], now: datetime) -> dict[str, Any]:
    """The JSON form."""
    return write(EndpointsForm, _Told(plan_id, now, fingerprint_of(endpoints), endpoints))


def _prometheus(endpoints: Sequence[Endpoint]) -> str:
    """Targets of HTTP service discovery: every server that answers, draining ones too."""
    rows = [
        {
            "targets": [f"{one.host}:{one.port}"],
            "labels": {
                "workload": one.workload,
                "state": one.state.value,
                "provider": one.provider,
                "region": one.region,
                "reservation": one.reservation_id,
            },
        }
        for one in endpoints
        if one.host is not None and one.state is not EndpointState.STARTING
    ]
    return json.dumps(rows, indent=2) + "\n"


_ENVOY_HEALTH = {
    EndpointState.STARTING: "UNHEALTHY",
    EndpointState.READY: "HEALTHY",
    EndpointState.DRAINING: "DRAINING",
}


def _envoy(endpoints: Sequence[Endpoint]) -> str:
    """A discovery response with a cluster for each service, as Envoy reads it from a file or by REST."""
    clusters: dict[str, list[dict[str, Any]]] = {}
    for one in endpoints:
        rows = clusters.setdefault(one.workload, [])
        if one.host is not None:
            address = {"socket_address": {"address": one.host, "port_value": one.port}}
            rows.append({"endpoint": {"address": address}, "health_status": _ENVOY_HEALTH[one.state]})
    resources = [
        {"@type": EDS_TYPE, "cluster_name": name, "endpoints": [{"lb_endpoints": rows}]}
        for name, rows in clusters.items()
    ]
    return json.dumps({"version_info": fingerprint_of(endpoints), "resources": resources}, indent=2) + "\n"


def _nginx(endpoints: Sequence[Endpoint]) -> str:
    """An ``upstream`` for each service. What is draining or starting is ``down``: it gets no new request."""
    blocks: dict[str, list[str]] = {}
    for one in endpoints:
        lines = blocks.setdefault(one.workload, [])
        if one.host is not None:
            down = "" if one.state is EndpointState.READY else " down"
            lines.append(f"  server {one.host}:{one.port}{down};  # {one.state}")
    texts = []
    for name, lines in blocks.items():
        # nginx refuses an upstream without a server.
        if all(" down;" in line for line in lines):
            lines.append("  server 127.0.0.1:9 down;")
        texts.append("\n".join([f"upstream {name} {{", *lines, "}"]))
    return "\n".join(texts) + "\n"


_WRITERS: Mapping[EndpointsFormat, Callable[[Sequence[Endpoint]], str]] = {
    EndpointsFormat.PROMETHEUS: _prometheus,
    EndpointsFormat.ENVOY: _envoy,
    EndpointsFormat.NGINX: _nginx,
}

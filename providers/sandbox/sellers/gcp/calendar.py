"""Calendar mode in the sandbox: advice, and future reservations with their states over time.

Free machines are drawn by seed per zone and UTC day, over sixty days. A request is approved (or declined)
a moment after it was submitted, locked a day before its start, and fulfilled a moment after it; the
reservation that it makes of itself is shown until its end. It is owed for the whole window. Until the lock
it can be cancelled (assumed: the documents do not say until when), and deleted once cancelled or over.
Source: compute v1 discovery document (20261106); Compute Engine's pages on calendar mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from broker.domain.basics.money import ZERO
from providers.sandbox.ledger import Entry, Tariff, zulu, zulu_ms
from providers.sandbox.market import WINDOW, InventoryItem, draw
from providers.sandbox.protocol import Call, Refusal, Reply, SandboxState, json_reply
from providers.sandbox.sellers.gcp.leases import require_zone
from providers.sandbox.sellers.gcp.market import region_of
from providers.sandbox.sellers.gcp.operations import (
    Operations,
    aggregated,
    free_name,
    gcp_error,
    not_found,
    required,
    resource_name,
    stockout,
    zone_url,
)

KIND = "futureReservations"
_DAY = timedelta(days=1)
_AHEAD_DAYS = 60
_MOST_DAYS = 90
_MOST_NODES = 80
_LOCKED_BEFORE = _DAY
_SOLD_OUT_DAYS = 0.05
_CANCELLABLE = frozenset({"PENDING_APPROVAL", "APPROVED"})
_OVER = frozenset({"CANCELLED", "DECLINED"})


@dataclass(frozen=True, slots=True)
class _Wish:
    machine_type: str
    nodes: int
    earliest: datetime
    latest: datetime
    shortest: timedelta
    longest: timedelta


class Calendar:
    """Advice and future reservations of one project."""

    def __init__(self, sandbox: SandboxState, operations: Operations) -> None:
        self._sandbox, self._operations = sandbox, operations

    # Advice

    def advise(self, call: Call) -> Reply:
        """``advice.calendarMode``: the earliest window of one request, and why other zones have none."""
        specs = required(call.json_object(), "futureResourcesSpecs")
        if not isinstance(specs, dict) or len(specs) != 1:
            raise Refusal(gcp_error(400, "invalid", "Exactly one future resources spec is expected."))
        ((key, spec),) = specs.items()
        wish = self._wish(spec)
        items = [item for item in self._inventory(wish.machine_type) if item.region == call.parts["region"]]
        if not items:
            message = f"Machine type {wish.machine_type} is not supported in {call.parts['region']}"
            raise Refusal(gcp_error(400, "badRequest", message, "INVALID_ARGUMENT"))
        denied = _denied(spec)
        found = {item.zone: self._earliest(item, wish) for item in items if item.zone not in denied}
        best = min((window for window in found.values() if window), default=None)
        answer: dict[str, Any] = {
            "recommendationId": self._sandbox.new_id("gcp-advice", 32),
            "recommendationType": "FUTURE_RESERVATION",
            "otherLocations": {},
        }
        for zone, window in sorted(found.items()):
            if window is not None and window == best and "location" not in answer:
                answer |= {
                    "location": f"zones/{zone}",
                    "startTime": zulu(window[0]),
                    "endTime": zulu(window[1]),
                }
            else:
                status = {"status": "NO_CAPACITY", "details": "No capacity in the requested time range."}
                answer["otherLocations"][f"zones/{zone}"] = {"status": "RECOMMENDED"} if window else status
        return json_reply({"recommendations": [{"recommendationsPerSpec": {key: answer}}]})

    def _wish(self, spec: dict[str, Any]) -> _Wish:
        skus = ("targetResources", "specificSkuResources")
        times = required(spec, "timeRangeSpec")
        now = self._sandbox.clock.now()
        wish = _Wish(
            str(required(spec, *skus, "machineType")),
            int(required(spec, *skus, "instanceCount")),
            max(datetime.fromisoformat(str(times["startTimeNotEarlierThan"])), now),
            datetime.fromisoformat(str(times["startTimeNotLaterThan"])),
            _seconds(times["minDuration"]),
            _seconds(times["maxDuration"]),
        )
        if not 1 <= wish.nodes <= _MOST_NODES or not _DAY <= wish.shortest <= wish.longest:
            message = "instanceCount or duration is out of range for calendar mode."
            raise Refusal(gcp_error(400, "badRequest", message, "INVALID_ARGUMENT"))
        return wish

    def _earliest(self, item: InventoryItem, wish: _Wish) -> tuple[datetime, datetime] | None:
        """The first window with enough free machines, as long as possible within the requested lengths."""
        start = wish.earliest
        last = min(wish.latest, self._sandbox.clock.now() + _AHEAD_DAYS * _DAY)
        while start <= last:
            end = start
            while end - start < wish.longest and self._free(item, end, end + _DAY) >= wish.nodes:
                end += _DAY
            if end - start >= wish.shortest:
                return start, min(end, start + wish.longest)
            start += _DAY
        return None

    def _inventory(self, machine_type: str) -> list[InventoryItem]:
        items = self._sandbox.market.inventory("gcp")
        return [item for item in items if (item.sku, item.tier) == (machine_type, WINDOW)]

    def _free(self, item: InventoryItem, start: datetime, end: datetime) -> int:
        """Machines free on every UTC day that ``[start, end)`` touches."""
        sandbox = self._sandbox
        pool, fixed = sandbox.market.capacity(item) // item.gpus, sandbox.market.capacity_was_set(item)
        held = [e for e in sandbox.ledger.live("gcp", sandbox.clock.now()) if e.stock_key == item.stock_key]
        day = start.replace(hour=0, minute=0, second=0, microsecond=0)
        least = pool
        while day < end:
            taken = sum(e.nodes for e in held if e.starts_at < day + _DAY and (e.ends_at or end) > day)
            lot = (sandbox.seed, item.key, day.date())
            drawn = 0 if draw(*lot, "sold out") < _SOLD_OUT_DAYS else int(pool * (0.4 + 0.6 * draw(*lot)))
            least = min(least, (pool if fixed else drawn) - taken)
            day += _DAY
        return max(0, least)

    # Future reservations

    def submit(self, call: Call) -> Reply:
        """``futureReservations.insert``."""
        return self._operations.once(call, lambda: self._submit(call))

    def _submit(self, call: Call) -> Reply:
        body, zone = call.json_object(), call.parts["zone"]
        require_zone(self._sandbox, zone)
        name, target = resource_name(body), f"zones/{zone}/{KIND}/{body.get('name')}"
        entry_id = free_name(self._sandbox, zone, KIND, name, _is_visible)
        if body.get("reservationMode") != "CALENDAR":
            raise Refusal(gcp_error(400, "invalid", "The sandbox knows reservationMode CALENDAR only."))
        if body.get("reservationName") and body.get("namePrefix"):
            raise Refusal(gcp_error(400, "invalid", "Give reservationName or namePrefix, not both."))
        nodes = int(required(body, "specificSkuProperties", "totalCount"))
        machine_type = str(required(body, "specificSkuProperties", "instanceProperties", "machineType"))
        start, end = self._times(body)
        items = [item for item in self._inventory(machine_type) if item.zone == zone]
        if not items or not 1 <= nodes <= _MOST_NODES:
            message = f"{nodes} x {machine_type} is not supported in calendar mode in zone {zone}."
            raise Refusal(gcp_error(400, "invalid", message))
        item = items[0]
        if self._free(item, start, end) < nodes:
            error = stockout(call.parts["project"], zone)
            return self._operations.start(call, "insert", target, error=error)
        self._sandbox.ledger.write(self._entry(call, item, entry_id, body, nodes, (start, end)))
        return self._operations.start(call, "insert", target)

    def _times(self, body: dict[str, Any]) -> tuple[datetime, datetime]:
        start = datetime.fromisoformat(str(required(body, "timeWindow", "startTime")))
        end = datetime.fromisoformat(str(required(body, "timeWindow", "endTime")))
        if start <= self._sandbox.clock.now() or not _DAY <= end - start <= _MOST_DAYS * _DAY:
            message = f"The time window must start in the future and last 1 to {_MOST_DAYS} days."
            raise Refusal(gcp_error(400, "invalid", message))
        return start, end

    def _entry(
        self,
        call: Call,
        item: InventoryItem,
        entry_id: str,
        body: dict[str, Any],
        nodes: int,
        times: tuple[datetime, datetime],
    ) -> Entry:
        sandbox, now = self._sandbox, self._sandbox.clock.now()
        decided_at = now + timedelta(seconds=sandbox.durations.payment_s)
        usd = sandbox.market.price(item) or ZERO
        return item.bought(
            now,
            entry_id,
            str(body.get("description") or body["name"]),
            Tariff(usd * item.gpus * nodes),
            region=region_of(item.zone),
            tier=WINDOW,
            nodes=nodes,
            units=0,
            starts_at=times[0],
            ends_at=times[1],
            failed_at=decided_at if call.loses_capacity else None,
            detail={
                "kind": KIND,
                "project": call.parts["project"],
                "name": body["name"],
                "number": str(int(sandbox.new_id("gcp-resource", 15), 16)),
                "body": body,
                "decided_at": decided_at.isoformat(),
            },
        )

    def get(self, call: Call) -> Reply:
        """One future reservation."""
        return json_reply(self._row(self._known(call)))

    def find_everywhere(self, call: Call) -> Reply:
        """Future reservations of every zone."""
        rows = [(entry.zone, self._row(entry)) for entry in self._visible()]
        return aggregated(call, "compute#futureReservationsAggregatedListResponse", KIND, rows)

    def made_reservations(self) -> list[tuple[str, dict[str, Any]]]:
        """Reservations that fulfilled requests made of themselves, while their window lasts."""
        now = self._sandbox.clock.now()
        return [
            (entry.zone, self._made_row(entry))
            for entry in self._visible()
            if self._status(entry) == "FULFILLED" and entry.ends_at is not None and now < entry.ends_at
        ]

    def cancel(self, call: Call) -> Reply:
        """Withdraws a request until it is locked; a second time is no error."""
        return self._operations.once(call, lambda: self._cancel(call))

    def _cancel(self, call: Call) -> Reply:
        entry = self._known(call)
        status = self._status(entry)
        if status in _CANCELLABLE:
            self._sandbox.ledger.write(replace(entry, released_at=self._sandbox.clock.now()))
        elif status != "CANCELLED":
            message = f"Future reservation '{entry.detail['name']}' in state {status} cannot be cancelled."
            raise Refusal(gcp_error(400, "conditionNotMet", message))
        return self._operations.start(call, "cancel", self._target(entry))

    def delete(self, call: Call) -> Reply:
        """Removes the record of a request that was cancelled, declined, or is over."""
        return self._operations.once(call, lambda: self._delete(call))

    def _delete(self, call: Call) -> Reply:
        entry, now = self._known(call), self._sandbox.clock.now()
        status = self._status(entry)
        if status not in _OVER and (entry.ends_at is None or now < entry.ends_at):
            message = f"Future reservation '{entry.detail['name']}' in state {status} cannot be deleted."
            raise Refusal(gcp_error(400, "conditionNotMet", message))
        self._sandbox.ledger.write(entry.with_detail(deleted=True))
        return self._operations.start(call, "delete", self._target(entry))

    def _target(self, entry: Entry) -> str:
        return f"zones/{entry.zone}/{KIND}/{entry.detail['name']}"

    def _visible(self) -> list[Entry]:
        entries = self._sandbox.ledger.entries("gcp")
        return [entry for entry in entries if entry.detail["kind"] == KIND and _is_visible(entry)]

    def _known(self, call: Call) -> Entry:
        zone, name = call.parts["zone"], call.parts["name"]
        for entry in self._visible():
            if (entry.zone, entry.detail["name"]) == (zone, name):
                return entry
        raise not_found(f"projects/{call.parts['project']}/zones/{zone}/{KIND}/{name}")

    def _status(self, entry: Entry) -> str:
        now = self._sandbox.clock.now()
        if entry.released_at is not None:
            return "CANCELLED"
        if entry.failed(now):
            return "DECLINED"
        if now < datetime.fromisoformat(entry.detail["decided_at"]):
            return "PENDING_APPROVAL"
        if now < entry.starts_at - _LOCKED_BEFORE:
            return "APPROVED"
        if now < entry.starts_at:
            return "PROCURING"
        ready_at = entry.starts_at + timedelta(seconds=self._sandbox.durations.boot_s)
        return "PROVISIONING" if now < ready_at else "FULFILLED"

    def _row(self, entry: Entry) -> dict[str, Any]:
        place, status = zone_url(entry.detail["project"], entry.zone), self._status(entry)
        made = f"{place}/reservations/{_made_name(entry)}"
        is_made = status == "FULFILLED"
        return {
            **entry.detail["body"],
            "kind": "compute#futureReservation",
            "id": entry.detail["number"],
            "creationTimestamp": zulu_ms(entry.created_at),
            "zone": place,
            "selfLink": f"{place}/{KIND}/{entry.detail['name']}",
            "status": {
                "procurementStatus": status,
                "lockTime": zulu(entry.starts_at - _LOCKED_BEFORE),
                "fulfilledCount": str(entry.nodes if is_made else 0),
                "autoCreatedReservations": [made] if is_made else [],
            },
        }

    def _made_row(self, entry: Entry) -> dict[str, Any]:
        place = zone_url(entry.detail["project"], entry.zone)
        properties = {"machineType": entry.sku}
        return {
            "kind": "compute#reservation",
            "id": f"9{entry.detail['number']}",
            "name": _made_name(entry),
            "creationTimestamp": zulu_ms(entry.starts_at),
            "zone": place,
            "selfLink": f"{place}/reservations/{_made_name(entry)}",
            "status": "READY",
            "specificReservation": {"count": str(entry.nodes), "instanceProperties": properties},
            "specificReservationRequired": True,
        }


def _made_name(entry: Entry) -> str:
    body = entry.detail["body"]
    return str(body.get("reservationName") or f"{body.get('namePrefix', 'fr')}-0001")


def _is_visible(entry: Entry) -> bool:
    return not entry.detail.get("deleted", False)


def _denied(spec: dict[str, Any]) -> set[str]:
    locations = (spec.get("locationPolicy") or {}).get("locations") or {}
    return {
        scope.rpartition("/")[2]
        for scope, wish in locations.items()
        if (wish or {}).get("preference") == "DENY"
    }


def _seconds(text: object) -> timedelta:
    value = str(text)
    if not value.endswith("s"):
        raise ValueError(f"Invalid duration '{value}'")
    return timedelta(seconds=float(value[:-1]))

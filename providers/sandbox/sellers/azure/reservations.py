"""Capacity reservation groups and reservations of the sandbox: Targeted, Block and Future.

A group has a type, and one reservation of a size (and zone). Block: whole dates, 12:00 UTC to 11:30 UTC, at
most 56 days ahead, today's only before 11:30 UTC; never deleted once allocated, until its end; billed as one
sum, which Azure does not document. Future: seven days to six months ahead; locked from ``modifiableUntil``
(56 days before its start, or when it was made) until its commitment is over. A reservation is not resized
here. Sources: Microsoft.Compute 2026-04-01, Azure's pages on capacity reservations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import WINDOW, InventoryItem
from providers.sandbox.protocol import Call, Reply, json_reply
from providers.sandbox.sellers.azure.arm import (
    Resources,
    Scope,
    arm_error,
    instance_statuses,
    invalid,
    next_page,
    not_found,
)
from providers.sandbox.sellers.azure.market import BLOCK_SIZES, NAME, find_item, free_in_block, takes_targeted

GROUPS = "capacityReservationGroups"
RESERVATIONS = "capacityReservations"
BILLING_S = 60
_DOCUMENT = "azure_group"
_PAGE = 20
_STARTS, _BLOCK_ENDS = time(12, 0), time(11, 30)
_BLOCK_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_AHEAD_DAYS = 56
_FUTURE_DAYS = (7, 183)
_USUAL_COMMITMENT_DAYS = 30


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a PUT of a reservation asks for; ``start`` None: now."""

    size: str
    location: str
    nodes: int
    zones: list[str]
    kind: str
    start: datetime | None = None
    end: datetime | None = None
    commitment_days: int | None = None


class Reservations(Resources):
    """Groups and what is in them."""

    def list_groups(self, call: Call) -> Reply:
        """Groups of a resource group."""
        prefix = f"{Scope.of(call).key}|"
        known = self.sandbox.store.documents(_DOCUMENT)
        rows = [self._group_row(call, body) for name, body in known.items() if name.startswith(prefix)]
        page, link = next_page(call, rows, _PAGE)
        return json_reply({"value": page, **({"nextLink": link} if link else {})})

    def group(self, call: Call) -> Reply:
        """One group."""
        return json_reply(self._group_row(call, self._known_group(call)))

    def put_group(self, call: Call) -> Reply:
        """Makes a group, or answers the one that is there; its type stays what it was."""
        body = call.json_object()
        location, kind = _location(body), body.get("properties", {}).get("reservationType", "Targeted")
        if kind not in {"Targeted", "Block", "Open"}:
            raise invalid(f"The value '{kind}' of parameter 'reservationType' is invalid.")
        wanted = {
            "name": call.parts["group"],
            "location": location,
            "kind": kind,
            "zones": list(body.get("zones", [])),
            "tags": dict(body.get("tags", {})),
        }
        known = self.sandbox.store.document(_DOCUMENT, self._group_key(call))
        if known is not None and (known["kind"], known["location"]) != (kind, location):
            raise arm_error(
                409, "PropertyChangeNotAllowed", "Changing property 'reservationType' is not allowed."
            )
        self.sandbox.store.put_document(_DOCUMENT, self._group_key(call), wanted)
        return json_reply(self._group_row(call, wanted), 201 if known is None else 200)

    def delete_group(self, call: Call) -> Reply:
        """Deletes an empty group."""
        if self.sandbox.store.document(_DOCUMENT, self._group_key(call)) is None:
            return Reply(204, b"")
        if self._within(call):
            raise arm_error(
                409, "CannotDeleteResource", "Can not delete resource before nested resources are deleted."
            )
        self.sandbox.store.drop_document(_DOCUMENT, self._group_key(call))
        return Reply(200, b"")

    def _group_key(self, call: Call) -> str:
        return f"{Scope.of(call).key}|{call.parts['group'].lower()}"

    def _known_group(self, call: Call) -> dict[str, Any]:
        known = self.sandbox.store.document(_DOCUMENT, self._group_key(call))
        if known is None:
            raise not_found(GROUPS, call.parts["group"])
        return known

    def _group_row(self, call: Call, body: Mapping[str, Any]) -> dict[str, Any]:
        path = f"{GROUPS}/{body['name']}"
        scope = Scope.of(call)
        members = [{"id": scope.id_of(e.instance_id)} for e in self.existing(call, f"{path}/")]
        return {
            "name": body["name"],
            "id": scope.id_of(path),
            "type": f"Microsoft.Compute/{GROUPS}",
            "location": body["location"],
            "tags": body["tags"],
            "zones": body["zones"],
            "properties": {"capacityReservations": members, "reservationType": body["kind"]},
        }

    def list_reservations(self, call: Call) -> Reply:
        """Reservations of a group."""
        self._known_group(call)
        page, link = next_page(call, [self._row(call, entry) for entry in self._within(call)], _PAGE)
        return json_reply({"value": page, **({"nextLink": link} if link else {})})

    def _within(self, call: Call) -> list[Entry]:
        return self.existing(call, f"{GROUPS}/{call.parts['group']}/")

    def reservation(self, call: Call) -> Reply:
        """One reservation, with its instance view on demand."""
        entry = self._found(call)
        row = self._row(call, entry)
        if call.query.get("$expand") == "instanceView":
            row["properties"]["instanceView"] = self._instance_view(entry)
        return json_reply(row)

    def _found(self, call: Call) -> Entry:
        entry = self.find(call, _path(call))
        if entry is None:
            raise not_found(f"{GROUPS}/{call.parts['group']}/{RESERVATIONS}", call.parts["name"])
        return entry

    def put_reservation(self, call: Call) -> Reply:
        """Makes a reservation; the same one again is answered, a changed one refused."""
        body, group = call.json_object(), self._known_group(call)
        wish = self._wish(body, group, call.query.get("api-version", ""))
        known = self.find(call, _path(call))
        if known is not None:
            if known.detail["asked"] != _asked(body):
                raise arm_error(
                    409, "PropertyChangeNotAllowed", "Changing the reservation's properties is not allowed."
                )
            return json_reply(self._row(call, known))
        for other in self._within(call):
            if other.sku == wish.size and other.detail["zones"] == wish.zones:
                raise arm_error(409, "Conflict", f"The group already has a reservation of '{wish.size}'.")
        self.make_room(_path(call))
        entry = self.sandbox.ledger.write(self._entry(call, body, wish))
        return self.created(call, entry, self._row(call, entry))

    def delete_reservation(self, call: Call) -> Reply:
        """Deletes the reservation, if its type allows that now."""
        entry = self.find(call, _path(call))
        if entry is None:
            return Reply(204, b"")
        problem = self._locked(entry)
        if problem:
            raise arm_error(409, "OperationNotAllowed", problem)
        return self.delete(call, entry)

    def _locked(self, entry: Entry) -> str:
        """Why a reservation cannot be deleted now; empty when it can."""
        if self.state(entry) != "Succeeded" or entry.detail["kind"] == "Targeted":
            return ""
        if entry.detail["kind"] == "Block":
            is_over = entry.ends_at is None or self.now >= entry.ends_at
            return "" if is_over else "An allocated Block reservation is kept until its schedule's end time."
        until = entry.starts_at + timedelta(days=entry.detail["commitment_days"])
        if _modifiable_until(entry) <= self.now < until:
            return "A committed Future reservation is kept until its commitment is over."
        return ""

    def priced(self, body: dict[str, Any], group: Mapping[str, Any]) -> InventoryItem:
        """The order in a reservation's template; Refusal if it is invalid.

        ``group``: the resource of its group.
        """
        kind = (group.get("properties") or {}).get("reservationType", "Targeted")
        home = {"location": _location(dict(group)), "kind": kind, "zones": group.get("zones") or []}
        return self._item(self._wish(body, home, str(body.get("apiVersion", ""))))

    def _wish(self, body: dict[str, Any], group: Mapping[str, Any], version: str) -> _Wish:
        sku, zones = body.get("sku") or {}, list(body.get("zones", []))
        size, nodes, location = sku.get("name"), sku.get("capacity"), _location(body)
        if not isinstance(size, str) or not isinstance(nodes, int) or nodes < 1:
            raise invalid("Required parameter 'sku' is missing or its name or capacity is not valid.")
        if location != group["location"]:
            raise invalid("The location must be that of the capacity reservation group.")
        if len(zones) > 1 or not set(zones) <= set(group["zones"]):
            raise invalid("The zone must be one of those of the capacity reservation group.")
        schedule = (body.get("properties") or {}).get("scheduleProfile")
        wish = _Wish(size, location, nodes, zones, group["kind"])
        if group["kind"] == "Block":
            return self._block(wish, schedule or {}, version)
        if not takes_targeted(size):
            raise invalid(f"The VM size '{size}' is not supported for capacity reservation.")
        return wish if schedule is None else self._future(wish, schedule, version)

    def _block(self, wish: _Wish, schedule: Mapping[str, Any], version: str) -> _Wish:
        _require_version(version, "2025-04-01")
        if wish.size not in BLOCK_SIZES:
            raise invalid(f"The VM size '{wish.size}' is not supported for Block capacity reservation.")
        if wish.nodes not in _BLOCK_COUNTS:
            raise invalid("sku.capacity of a Block reservation must be 1, 2, 4, 8, 16, 32 or 64.")
        start, end = _date(schedule, "start"), _date(schedule, "end")
        days, today = (end - start).days, self.now.date()
        if not (1 <= days <= 14 or (21 <= days <= 182 and days % 7 == 0)):
            raise invalid("scheduleProfile must last 1 to 14 whole days or 3 to 26 whole weeks.")
        if not today <= start <= today + timedelta(days=_AHEAD_DAYS):
            raise invalid("scheduleProfile.start must be today or within 56 days.")
        if start == today and self.now.time() >= _BLOCK_ENDS:
            raise invalid("Same-day requests must be submitted before 11:30 UTC.")
        return _Wish(
            wish.size,
            wish.location,
            wish.nodes,
            wish.zones,
            "Block",
            datetime.combine(start, _STARTS, UTC),
            datetime.combine(end, _BLOCK_ENDS, UTC),
        )

    def _future(self, wish: _Wish, schedule: Mapping[str, Any], version: str) -> _Wish:
        _require_version(version, "2026-04-01")
        if schedule.get("end"):
            raise invalid("scheduleProfile.end is only for Block capacity reservations.")
        start = _date(schedule, "start")
        least, most = (self.now.date() + timedelta(days=days) for days in _FUTURE_DAYS)
        if not least <= start <= most:
            raise invalid("scheduleProfile.start must be 7 days to 6 months in the future.")
        days = schedule.get("minimumCommitmentDays", _USUAL_COMMITMENT_DAYS)
        if not isinstance(days, int) or days < 1:
            raise invalid("scheduleProfile.minimumCommitmentDays must be a number of days.")
        begin = datetime.combine(start, _STARTS, UTC)
        return _Wish(wish.size, wish.location, wish.nodes, wish.zones, "Future", begin, None, days)

    def _item(self, wish: _Wish) -> InventoryItem:
        item = find_item(
            self.sandbox, wish.size, wish.location, WINDOW if wish.kind == "Block" else "on_demand"
        )
        if item is None:
            raise arm_error(
                409, "SkuNotAvailable", f"The size '{wish.size}' is not available in '{wish.location}'."
            )
        return item

    def _entry(self, call: Call, body: dict[str, Any], wish: _Wish) -> Entry:
        item = self._item(wish)
        now = self.now
        is_short = call.loses_capacity or self._free(item, wish) < wish.nodes
        price = (self.sandbox.market.price(item) or Decimal(0)) * wish.nodes
        ready_at = now + timedelta(seconds=self.sandbox.durations.boot_s)
        return item.bought(
            now,
            _path(call),
            call.parts["name"],
            _tariff(price, wish),
            zone=wish.zones[0] if wish.zones else "",
            tier=WINDOW if wish.start is not None else "on_demand",
            nodes=wish.nodes,
            units=0 if is_short or wish.kind == "Future" else wish.nodes,
            starts_at=wish.start or now,
            ends_at=wish.end,
            failed_at=ready_at if is_short else None,
            detail={
                "scope": Scope.of(call).key,
                "kind": wish.kind,
                "zones": wish.zones,
                "tags": dict(body.get("tags", {})),
                "asked": _asked(body),
                "reservation_id": str(UUID(hex=self.sandbox.new_id(NAME, 32))),
                "commitment_days": wish.commitment_days,
            },
        )

    def _free(self, item: InventoryItem, wish: _Wish) -> int:
        if wish.start is not None and wish.end is not None:
            return free_in_block(self.sandbox, item, wish.start, wish.end)
        if wish.kind == "Future":
            return self.sandbox.market.capacity(item)
        return self.sandbox.market.free(item, self.now)

    def _row(self, call: Call, entry: Entry) -> dict[str, Any]:
        path = entry.instance_id
        properties: dict[str, Any] = {
            "platformFaultDomainCount": 1,
            "reservationId": entry.detail["reservation_id"],
            "provisioningState": self.state(entry),
            "provisioningTime": zulu(entry.created_at),
            "timeCreated": zulu(entry.created_at),
            "virtualMachinesAssociated": [],
        }
        if entry.detail["kind"] != "Targeted":
            properties["scheduleProfile"] = _schedule_row(entry)
        return {
            "name": path.rsplit("/", 1)[1],
            "id": Scope.of(call).id_of(path),
            "type": f"Microsoft.Compute/{GROUPS}/{RESERVATIONS}",
            "location": entry.region,
            "tags": entry.detail["tags"],
            "sku": {"name": entry.sku, "capacity": entry.nodes},
            "zones": entry.detail["zones"],
            "properties": properties,
        }

    def _instance_view(self, entry: Entry) -> dict[str, Any]:
        state = self.state(entry)
        is_held = state == "Succeeded" and entry.starts_at <= self.now
        view: dict[str, Any] = {
            "utilizationInfo": {
                "currentCapacity": entry.nodes if is_held else 0,
                "virtualMachinesAllocated": [],
            },
            "statuses": instance_statuses(state, entry.sku, entry.region),
        }
        if entry.detail["kind"] == "Future":
            view["reservationStateInfo"] = {"reservationState": self._future_state(entry, state)}
        return view

    def _future_state(self, entry: Entry, state: str) -> str:
        if state in {"Creating", "Failed"}:
            return "Pending" if state == "Creating" else "Declined"
        if self.now >= entry.starts_at:
            return "Live"
        return "Committed" if self.now >= _modifiable_until(entry) else "Approved"


def _path(call: Call) -> str:
    return f"{GROUPS}/{call.parts['group']}/{RESERVATIONS}/{call.parts['name']}"


def _asked(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that cannot change."""
    sku, properties = body.get("sku") or {}, body.get("properties") or {}
    return {
        "size": sku.get("name"),
        "capacity": sku.get("capacity"),
        "zones": list(body.get("zones", [])),
        "schedule": properties.get("scheduleProfile"),
    }


def _location(body: Mapping[str, Any]) -> str:
    location = body.get("location")
    if not isinstance(location, str) or not location:
        raise arm_error(400, "LocationRequired", "The location property is required for this definition.")
    return location.lower().replace(" ", "")


def _date(schedule: Mapping[str, Any], name: str) -> date:
    try:
        return date.fromisoformat(str(schedule.get(name))[:10])
    except ValueError:
        raise invalid(f"Required parameter 'scheduleProfile.{name}' is missing or no date.") from None


def _require_version(found: str, least: str) -> None:
    if found < least:
        raise arm_error(
            400, "BadRequest", f"Property 'scheduleProfile' needs api-version {least}, found {found}."
        )


def _tariff(usd_per_hour: Decimal, wish: _Wish) -> Tariff:
    if wish.start is None or wish.end is None:
        return Tariff(usd_per_hour, BILLING_S)
    days = (wish.end.date() - wish.start.date()).days
    return Tariff(upfront_usd=usd_per_hour * 24 * days)


def _modifiable_until(entry: Entry) -> datetime:
    return max(entry.created_at, entry.starts_at - timedelta(days=_AHEAD_DAYS))


def _schedule_row(entry: Entry) -> dict[str, Any]:
    if entry.ends_at is not None:
        return {"start": zulu(entry.starts_at), "end": zulu(entry.ends_at)}
    return {
        "start": zulu(entry.starts_at),
        "minimumCommitmentDays": entry.detail["commitment_days"],
        "modifiableUntil": zulu(_modifiable_until(entry)),
    }

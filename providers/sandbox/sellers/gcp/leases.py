"""Reservations (on demand), spot and flex-start instances of Compute Engine in the sandbox.

A reservation is billed by the second from its creation, used or not, at the on-demand price; a spot instance
likewise at its own with its boot disk, if its order states a size (an image's own 10 GiB, 0.0005 USD an hour,
are left out), a flex-start instance from when capacity appeared. All are visible while they go away,
then 404. Source: compute v1 discovery document (20261106).

A flex-start request waits as PENDING until capacity appears, at most its ``params.requestValidForDuration``;
otherwise it lapses and costs nothing. It then runs for ``scheduling.maxRunDuration`` and is deleted. The wait
is drawn by seed and name, and invented; the bounds of both durations are unverified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from broker.domain.basics.money import ZERO
from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import InventoryItem, draw
from providers.sandbox.protocol import Call, Refusal, Reply, SandboxState, json_reply
from providers.sandbox.seller import ADDRESSES, SellerState
from providers.sandbox.sellers.gcp.market import (
    DISK_USD_PER_GIB_MONTH,
    FLEX,
    IMAGE_DISK,
    disk_usd_per_hour,
    region_of,
)
from providers.sandbox.sellers.gcp.networks import NETWORKS, Networks, name_of
from providers.sandbox.sellers.gcp.operations import (
    API,
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

MINIMUM_BILLED_S = 60
ADDRESS_USD_PER_HOUR = {"standard": Decimal("0.005"), "spot": Decimal("0.0025")}
"""An external address in use, by model (cloud.google.com/vpc/network-pricing)."""
_KIND = {"reservations": "compute#reservation", "instances": "compute#instance"}
_MOST_NODES = 1000
RUN_BOUNDS_S = (600, 7 * 86_400)
WAIT_BOUNDS_S = (90, 7_200)
MOST_WAIT_S = 8_000
"""The longest wait drawn: a tenth of the requests that ask for the longest time lapse."""


def find_item(sandbox: SandboxState, machine_type: str, zone: str, tier: str) -> InventoryItem | None:
    """The item of a machine type in a zone."""
    for item in sandbox.market.inventory("gcp"):
        if (item.sku, item.zone, item.tier) == (machine_type, zone, tier):
            return item
    return None


def require_zone(sandbox: SandboxState, zone: str) -> None:
    """400 for a zone that does not exist here."""
    if all(item.zone != zone for item in sandbox.market.inventory("gcp")):
        message = f"Invalid value for field 'zone': '{zone}'. Unknown zone."
        raise Refusal(gcp_error(400, "invalid", message))


def usd_per_hour(sandbox: SandboxState, item: InventoryItem, nodes: int) -> Tariff:
    """The tariff of nodes of an item, whose price is per GPU."""
    usd = sandbox.market.price(item) or ZERO
    return Tariff(usd * item.gpus * nodes, 1, MINIMUM_BILLED_S)


@dataclass(frozen=True, slots=True)
class BootDisk:
    """The boot disk of an instance."""

    usd_per_hour: Decimal
    auto_delete: bool


def boot_disk(body: Mapping[str, Any]) -> BootDisk:
    """The boot disk that an order asks for; 400 without one, and for a type that is not sold here."""
    disk = next((one for one in required(body, "disks") if one.get("boot")), None)
    if disk is None:
        raise Refusal(gcp_error(400, "invalid", "Invalid value for field 'resource.disks': no boot disk"))
    params = disk.get("initializeParams") or {}
    kind = str(params.get("diskType") or IMAGE_DISK).rpartition("/")[2]
    if kind not in DISK_USD_PER_GIB_MONTH:
        message = f"Invalid value for field 'resource.disks[0].initializeParams.diskType': '{kind}'"
        raise Refusal(gcp_error(400, "invalid", message))
    usd = disk_usd_per_hour(kind, int(params.get("diskSizeGb") or 0))
    return BootDisk(usd, bool(disk.get("autoDelete")))


def _whole(tariff: Tariff, body: Mapping[str, Any], kind: str) -> Tariff:
    """The tariff of an instance with its boot disk and external addresses; a reservation has none."""
    if kind != "instances":
        return tariff
    is_spot = (body.get("scheduling") or {}).get("provisioningModel") == "SPOT"
    configs = [one for interface in body["networkInterfaces"] for one in interface.get("accessConfigs", ())]
    addresses_usd = len(configs) * ADDRESS_USD_PER_HOUR["spot" if is_spot else "standard"]
    return replace(tariff, usd_per_hour=tariff.usd_per_hour + boot_disk(body).usd_per_hour + addresses_usd)


@dataclass(frozen=True, slots=True)
class FlexTerms:
    """``lapses_at``: capacity does not appear in time, else None."""

    begins_at: datetime
    ends_at: datetime | None
    lapses_at: datetime | None


def flex_terms(sandbox: SandboxState, body: Mapping[str, Any], name: str, loses_capacity: bool) -> FlexTerms:
    """When a request begins and ends; 400 for durations that are missing or out of bounds."""
    run = _duration(body, ("scheduling", "maxRunDuration"), RUN_BOUNDS_S)
    valid = _duration(body, ("params", "requestValidForDuration"), WAIT_BOUNDS_S)
    now = sandbox.clock.now()
    wait = timedelta(seconds=int(MOST_WAIT_S * draw(sandbox.seed, "flex-start", name)))
    if loses_capacity or wait > valid:
        return FlexTerms(now + valid, None, now + valid)
    return FlexTerms(now + wait, now + wait + run, None)


def _duration(body: Mapping[str, Any], path: tuple[str, ...], bounds: tuple[int, int]) -> timedelta:
    seconds = int(required(body, *path, "seconds"))
    if not bounds[0] <= seconds <= bounds[1]:
        field, (least, most) = ".".join(path), bounds
        message = f"Invalid value for field 'resource.{field}': '{seconds}s'. Must be {least}s to {most}s."
        raise Refusal(gcp_error(400, "invalid", message))
    return timedelta(seconds=seconds)


class Leases:
    """Reservations and instances of one project."""

    def __init__(self, sandbox: SandboxState, operations: Operations, networks: Networks) -> None:
        self._sandbox, self._operations, self._networks = sandbox, operations, networks
        self._seller = SellerState(sandbox, "gcp", sandbox.durations.terminate_s)

    def reserve(self, call: Call) -> Reply:
        """``reservations.insert``."""
        return self._operations.once(call, lambda: self._reserve(call))

    def launch(self, call: Call) -> Reply:
        """``instances.insert``."""
        return self._operations.once(call, lambda: self._launch(call))

    def _reserve(self, call: Call) -> Reply:
        body = call.json_object()
        machine_type = str(required(body, "specificReservation", "instanceProperties", "machineType"))
        count = int(required(body, "specificReservation", "count"))
        ends_at = datetime.fromisoformat(body["deleteAtTime"]) if body.get("deleteAtTime") else None
        return self._create(call, "reservations", body, machine_type, count, "on_demand", ends_at)

    def _launch(self, call: Call) -> Reply:
        body = call.json_object()
        machine_type = str(required(body, "machineType")).rpartition("/")[2]
        self._networks.require(required(body, "networkInterfaces"))
        boot_disk(body)
        model = (body.get("scheduling") or {}).get("provisioningModel", "STANDARD")
        if model == "FLEX_START":
            return self._create(call, "instances", body, machine_type, 1, FLEX, None)
        tier = "spot" if model == "SPOT" else "on_demand"
        return self._create(call, "instances", body, machine_type, 1, tier, None)

    def _create(
        self,
        call: Call,
        kind: str,
        body: dict[str, Any],
        machine_type: str,
        count: int,
        tier: str,
        ends_at: datetime | None,
    ) -> Reply:
        sandbox, zone, now = self._sandbox, call.parts["zone"], self._sandbox.clock.now()
        require_zone(sandbox, zone)
        name, target = resource_name(body), f"zones/{zone}/{kind}/{body.get('name')}"
        entry_id = free_name(sandbox, zone, kind, name, self.is_visible)
        if not 1 <= count <= _MOST_NODES:
            raise Refusal(gcp_error(400, "invalid", f"Invalid value for the count of machines: {count}"))
        item = find_item(sandbox, machine_type, zone, tier)
        if item is None and not any(c.sku == machine_type for c in sandbox.market.inventory("gcp")):
            message = f"Invalid value for field 'machineType': '{machine_type}' does not exist in {zone}"
            raise Refusal(gcp_error(400, "invalid", message))
        units = count * item.gpus if item is not None else 0
        short = item is None or sandbox.market.free(item, now) < units
        if item is None or (short and tier != FLEX):
            return self._operations.start(
                call, "insert", target, error=stockout(call.parts["project"], zone), done_at=now
            )
        fails_at = now + timedelta(seconds=sandbox.durations.boot_s) if call.loses_capacity else None
        terms = flex_terms(sandbox, body, entry_id, short or call.loses_capacity) if tier == FLEX else None
        if terms is not None:
            ends_at, fails_at = terms.ends_at, terms.lapses_at
        sandbox.ledger.write(
            item.bought(
                now,
                entry_id,
                str(body.get("description") or name),
                _whole(usd_per_hour(sandbox, item, count), body, kind),
                sku=machine_type,
                region=region_of(zone),
                zone=zone,
                tier=tier,
                nodes=count,
                units=0 if fails_at else units,
                starts_at=now if terms is None else terms.begins_at,
                ends_at=ends_at,
                failed_at=fails_at,
                detail={
                    "kind": kind,
                    "project": call.parts["project"],
                    "name": name,
                    "number": str(int(sandbox.new_id("gcp-resource", 15), 16)),
                    "body": body,
                    **({ADDRESSES: self._seller.new_addresses(1)} if kind == "instances" else {}),
                },
            )
        )
        if fails_at is None:
            done_at = terms.begins_at if terms is not None else None
            return self._operations.start(call, "insert", target, done_at=done_at)
        error = stockout(call.parts["project"], zone)
        return self._operations.start(call, "insert", target, error=error, done_at=fails_at)

    def get(self, call: Call) -> Reply:
        """One resource."""
        return json_reply(self._row(self._known(call)))

    def find_everywhere(self, call: Call, more: list[tuple[str, dict[str, Any]]]) -> Reply:
        """The resources of every zone, with ``more`` of them."""
        kind = _kind(call)
        rows = [(entry.zone, self._row(entry)) for entry in self._visible(kind)]
        return aggregated(call, f"{_KIND[kind]}AggregatedList", kind, [*rows, *more])

    def delete(self, call: Call) -> Reply:
        """Ends a resource; one that is already ending is no error."""
        return self._operations.once(call, lambda: self._delete(call))

    def _delete(self, call: Call) -> Reply:
        entry = self._known(call)
        if entry.released_at is None:
            now = self._sandbox.clock.now()
            never_came = now if entry.starts_at > now else entry.failed_at
            over = replace(entry, released_at=now, failed_at=never_came)
            self._sandbox.ledger.write(over)
            self._leave_disk(over)
        return self._operations.start(call, "delete", f"zones/{call.path.partition('/zones/')[2]}")

    def _leave_disk(self, over: Entry) -> None:
        """A boot disk without ``autoDelete`` outlives its instance, and is billed on."""
        body = over.detail["body"]
        if over.detail["kind"] != "instances" or over.failed_at is not None:
            return
        disk = boot_disk(body)
        if disk.auto_delete or not disk.usd_per_hour:
            return
        detail = {"kind": "disks", "project": over.detail["project"], "name": over.detail["name"], "body": {}}
        disk_id = f"{over.instance_id}/disk"
        self._sandbox.ledger.write(over.volume_left(disk_id, Tariff(disk.usd_per_hour), **detail))

    def is_visible(self, entry: Entry) -> bool:
        """Whether the resource is still shown."""
        over_at, now = entry.over_at, self._sandbox.clock.now()
        if entry.detail["kind"] == "futureReservations":
            return not entry.detail.get("deleted", False)
        if over_at is None or over_at > now:
            return True
        if entry.released_at is None:
            return False
        return now < entry.released_at + timedelta(seconds=self._sandbox.durations.terminate_s)

    def _visible(self, kind: str) -> list[Entry]:
        entries = self._sandbox.ledger.entries("gcp")
        return [entry for entry in entries if entry.detail["kind"] == kind and self.is_visible(entry)]

    def _known(self, call: Call) -> Entry:
        kind, zone, name = _kind(call), call.parts["zone"], call.parts["name"]
        for entry in self._visible(kind):
            if (entry.zone, entry.detail["name"]) == (zone, name):
                return entry
        raise not_found(f"projects/{call.parts['project']}/zones/{zone}/{kind}/{name}")

    def _row(self, entry: Entry) -> dict[str, Any]:
        detail = entry.detail
        place = zone_url(detail["project"], entry.zone)
        row = {
            "kind": _KIND[detail["kind"]],
            "id": detail["number"],
            "name": detail["name"],
            "description": detail["body"].get("description", ""),
            "creationTimestamp": zulu_ms(entry.created_at),
            "zone": place,
            "selfLink": f"{place}/{detail['kind']}/{detail['name']}",
            "status": self._status(entry),
        }
        if detail["kind"] == "reservations":
            specific = {**detail["body"]["specificReservation"], "count": str(entry.nodes), "inUseCount": "0"}
            return {
                **row,
                "specificReservation": {**specific, "assuredCount": str(entry.nodes)},
                "specificReservationRequired": detail["body"].get("specificReservationRequired", False),
            }
        begun = (
            {"lastStartTimestamp": zulu_ms(entry.starts_at)}
            if entry.starts_at <= self._sandbox.clock.now()
            else {}
        )
        return {
            **row,
            **begun,
            "machineType": f"{place}/machineTypes/{entry.sku}",
            "scheduling": detail["body"].get("scheduling", {}),
            "networkInterfaces": [self._interface(entry)],
        }

    def _interface(self, entry: Entry) -> dict[str, Any]:
        """Its network, and its addresses once it runs; an external one where it asked for it."""
        asked = entry.detail["body"]["networkInterfaces"][0]
        network = name_of(asked.get("network") or "default")
        row = {"network": f"{API}/projects/{entry.detail['project']}/{NETWORKS}/{network}"}
        if self._status(entry) != "RUNNING":
            return row
        address = self._seller.address(entry)
        nats = [{**one, "natIP": address} for one in asked.get("accessConfigs", ())]
        return {**row, "networkIP": address, **({"accessConfigs": nats} if nats else {})}

    def _status(self, entry: Entry) -> str:
        now = self._sandbox.clock.now()
        is_reservation = entry.detail["kind"] == "reservations"
        if entry.released_at is not None:
            return "DELETING" if is_reservation else "STOPPING"
        if now < entry.starts_at:
            return "PENDING"
        if now < entry.starts_at + timedelta(seconds=self._sandbox.durations.boot_s):
            return "CREATING" if is_reservation else "STAGING"
        return "READY" if is_reservation else "RUNNING"


def _kind(call: Call) -> str:
    return "instances" if "/instances" in call.path else "reservations"

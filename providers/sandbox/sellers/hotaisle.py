"""Hot Aisle's API v1, under ``/hotaisle/teams/{team}/``.

Machines are ordered by their specs; the seller gives the name. Prices are US cents of the whole machine and
hour, with a minimum in minutes that is owed whatever happens. Bare metal takes a description in the order,
a virtual machine only afterwards. Errors are JSON strings: 404 of an order means sold out, 401 of an order
of a virtual machine that the team has its most. Billed by the minute. Sources: the API's description
(swagger.json of hotaisle-cli), specs of a public capture of 2026-06-13. The sandbox's own: words of the 401
and of rate limits, and that a team has at most 64 virtual machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from broker.domain.basics.machines import fingerprint_of, read_public_key
from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import ILLUSTRATIVE, InventoryItem, draw_count, drawn_once, recorded_prices
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol

METAL, VIRTUAL = "bare_metal", "virtual_machines"
MOST_VIRTUAL_MACHINES = 64
MONTH_MINUTES = 30 * 24 * 60
_INSTALLING = Lifecycle(
    {"shutting_down": 0.25, "booting_installer": 0.5, "installing_os": 0.75, "first_boot": 1},
    up="installed",
    failed="first_boot",
)
"""States of the operating system of bare metal; a server that failed is not shown."""


def _cpus(cores: int, hertz: int, count: int = 1) -> dict[str, Any]:
    model = "Xeon Platinum 8470" if hertz == 2_000_000_000 else "Xeon Platinum 8462Y+"
    return {"count": count, "manufacturer": "Intel", "model": model, "cores": cores, "frequency": hertz}


def _specs(cores: int, ram: int, disk: int, cpus: Any, gpus: int, model: str = "MI300X") -> dict[str, Any]:
    cards = [{"count": gpus, "manufacturer": "AMD", "model": model}] if gpus else []
    return {"cpu_cores": cores, "ram_capacity": ram, "disk_capacity": disk, "cpus": cpus, "gpus": cards}


_GIB, _TIB = 2**30, 2**40
_ONE = _specs(8, 224 * _GIB, 12 * _TIB, _cpus(8, 2_800_000_000), 1)
_METAL_8X = _specs(104, 2 * _TIB, 123839994396672, [_cpus(52, 2_000_000_000, 2)], 8)
_RECORDED = {
    "Small MI300X VM 1x": (VIRTUAL, _ONE, 1),
    "Medium MI300X VM 2x": (VIRTUAL, _specs(26, 448 * _GIB, 12 * _TIB, _cpus(26, 2_000_000_000), 2), 60),
    "Medium MI300X VM 4x": (VIRTUAL, _specs(52, 896 * _GIB, 24 * _TIB, _cpus(52, 2_000_000_000), 4), 60),
    "Large MI300X bare metal 8x (one-month minimum)": (METAL, _METAL_8X, MONTH_MINUTES),
}
"""Path, specs and minimum minutes of what a price was recorded for."""

_ODD = (
    ("MI300X bare metal 8x", METAL, _METAL_8X | {"cpu_cores": 112}, 480, "28.00", 3),
    ("CPU only VM", VIRTUAL, _specs(8, 32 * _GIB, _TIB, _cpus(8, 2_000_000_000), 0), 1, "0.50", 3),
    ("MI999X VM 1x", VIRTUAL, _specs(13, 224 * _GIB, _TIB, _cpus(13, 2_000_000_000), 1, "MI999X"), 1, "3", 2),
    ("Unpriced VM 1x", VIRTUAL, _specs(13, 224 * _GIB, _TIB, _cpus(13, 2_000_000_000), 1), 1, "0", 2),
    (
        "Sold out VM 8x",
        VIRTUAL,
        _specs(104, 1792 * _GIB, 96 * _TIB, _cpus(52, 2_000_000_000, 2), 8),
        60,
        "24",
        0,
    ),
)
"""Name, path, specs, minimum minutes, USD, stock: an hourly server, no GPU, unknown, no price, none left."""


@drawn_once
def hotaisle_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item for each kind of machine; the one site is not named in the API."""
    for row in recorded_prices("hotaisle"):
        path, specs, minutes = _RECORDED[row.sku]
        stock = draw_count(1, 6, seed, row.sku)
        yield _item(
            (row.sku, path, specs, minutes), row.usd_per_node_hour, stock, row.recorded_on, row.source
        )
    for name, path, specs, minutes, usd, stock in _ODD:
        yield _item((name, path, specs, minutes), Decimal(usd), stock, "", ILLUSTRATIVE)


def _item(
    kind: tuple[str, str, Mapping[str, Any], int], usd: Decimal, stock: int, recorded_on: str, source: str
) -> InventoryItem:
    name, path, specs, minutes = kind
    gpus: Mapping[str, Any] = specs["gpus"][0] if specs["gpus"] else {"count": 0, "model": "no GPU"}
    return InventoryItem(
        provider="hotaisle",
        sku=name,
        region="michigan",
        gpu=gpus["model"],
        gpus=gpus["count"],
        usd_per_hour=usd,
        capacity=stock,
        recorded_on=recorded_on,
        source=source,
        vcpus=specs["cpu_cores"],
        memory_gb=specs["ram_capacity"] / 1e9,
        labels={"path": path, "specs": dict(specs), "minutes": minutes},
    )


class HotAisle(SellerProtocol):
    """Machines that are available, and those of a team."""

    name = "hotaisle"
    ends_at_once = True
    on_sale = staticmethod(hotaisle_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        team = "/teams/{team}"
        for path in (METAL, VIRTUAL):
            yield Route("GET", f"{team}/{path}/available/", "list", self._available)
            yield Route("POST", f"{team}/{path}/", "create", self._create)
            yield Route("GET", f"{team}/{path}/", "get", self._machines)
            yield Route("GET", f"{team}/{path}/{{id}}/", "get", self._machine)
            yield Route("PATCH", f"{team}/{path}/{{id}}/", "other", self._describe)
            yield Route("DELETE", f"{team}/{path}/{{id}}/", "delete", self._delete)
        yield Route("GET", "/user/ssh_keys/", "other", self._keys)
        yield Route("POST", "/user/ssh_keys/", "other", self._add_key)
        yield Route("DELETE", "/user/ssh_keys/{digest*}/", "other", self._drop_key)

    def errors(self) -> ErrorForms:
        """Errors are JSON strings; without capacity nothing that matches is found."""
        return ErrorForms(
            no_key=json_reply("Unauthorized", 401),
            no_path=_not_found(),
            no_machine=lambda _: _not_found(),
            bad_body=lambda reason: json_reply(f"Bad Request: {reason}", 400),
            rate_limited=json_reply("Too Many Requests", 429),
            no_capacity=_not_found("No available machine matching requested specifications"),
            failed=json_reply("Internal Server Error", 500),
        )

    def key(self, call: Call) -> str | None:
        """The word Token and a token."""
        scheme, _, token = call.headers.get("authorization", "").partition(" ")
        return token.strip() or None if scheme == "Token" else None

    def _inventory(self, path: str) -> list[InventoryItem]:
        return [item for item in self.seller.inventory() if item.labels["path"] == path]

    def _available(self, call: Call) -> Reply:
        free = self.seller.free_by_key()
        return json_reply(
            [
                {
                    "Quantity": free[item.key],
                    "MinimumReservationMinutes": item.labels["minutes"],
                    "OnDemandPrice": self.seller.cents(item),
                    "Specs": item.labels["specs"],
                }
                for item in self._inventory(_path(call))
            ]
        )

    def _create(self, call: Call) -> Reply:
        path, body = _path(call), call.json_object()
        wanted = body.get("specs") if path == METAL else _without(body, "user_data_url")
        item = self._matching(path, wanted)
        if path == VIRTUAL and len(self._live(call, VIRTUAL)) >= MOST_VIRTUAL_MACHINES:
            raise Refusal(json_reply("Maximum VMs already provisioned for this team", 401))
        digits = self.seller.new_id(32)
        entry = self.seller.sell(
            item,
            body.get("description") or "" if path == METAL else "",
            Tariff(Decimal(self.seller.cents(item)) / 100, 60, item.labels["minutes"] * 60),
            {
                "path": path,
                "team": call.parts["team"],
                "keys": [row["public_key"] for row in self.seller.ssh_keys()],
            },
            instance_id=f"server-{digits[:8]}" if path == METAL else str(UUID(hex=digits)),
            fails=call.loses_capacity,
        )
        return json_reply(self._row(entry), 201 if path == METAL else 200)

    def _matching(self, path: str, specs: Any) -> InventoryItem:
        """A kind on sale with the specs that were sent."""
        if not isinstance(specs, dict) or not specs.get("cpu_cores"):
            raise Refusal(json_reply("Unprocessable Entity: Invalid data format", 422))
        for item in self._inventory(path):
            if _sorted(item.labels["specs"]) == _sorted(specs) and self.seller.free(item) > 0:
                return item
        raise Refusal(self.errors().no_capacity)

    def _live(self, call: Call, path: str) -> list[Entry]:
        mine = self.seller.visible(path=path, team=call.parts["team"])
        return [entry for entry in mine if not entry.failed(self.now)]

    def _machines(self, call: Call) -> Reply:
        return json_reply([self._row(entry) for entry in self._live(call, _path(call))])

    def _found(self, call: Call) -> Entry:
        entry = self.machine(call, path=_path(call), team=call.parts["team"])
        if entry.failed(self.now):
            raise Refusal(self.errors().no_machine(call))
        return entry

    def _machine(self, call: Call) -> Reply:
        return json_reply(self._row(self._found(call)))

    def _row(self, entry: Entry) -> dict[str, Any]:
        (item,) = self.seller.inventory(sku=entry.sku)
        address = self.seller.address(entry)
        row = {
            "name": entry.instance_id,
            "ip_address": address,
            "ssh_access": {"ip_address": address, "port": self.seller.ssh_port},
            **item.labels["specs"],
        }
        if entry.tag:
            row["description"] = entry.tag
        if entry.detail["path"] == METAL:
            row |= {"manufacturer": "Dell", "model": "PowerEdge XE9680", "os_status": self._os_status(entry)}
        return row

    def _os_status(self, entry: Entry) -> dict[str, str]:
        return {
            "os_selection": "ubuntu-2404.4",
            "os_install_status": self.seller.state(entry, _INSTALLING),
            "last_imaging_update": zulu_ms(entry.created_at),
        }

    def _keys(self, _: Call) -> Reply:
        return json_reply([_key_row(row) for row in self.seller.ssh_keys()])

    def _add_key(self, call: Call) -> Reply:
        line, comment = read_public_key(str(call.json_object().get("authorized_key")))
        if any(row["public_key"] == line for row in self.seller.ssh_keys()):
            raise Refusal(json_reply("Conflict: key already registered", 409))
        return json_reply(_key_row(self.seller.add_key(comment or "unnamed", line, fingerprint_of(line))))

    def _drop_key(self, call: Call) -> Reply:
        if not self.seller.drop_key(f"SHA256:{call.parts['digest'].rstrip('/')}"):
            raise Refusal(_not_found("SSH key not found"))
        return Reply(204, b"")

    def _describe(self, call: Call) -> Reply:
        entry = self._found(call)
        self.sandbox.ledger.write(replace(entry, tag=str(call.json_object().get("description") or "")))
        return Reply(204, b"")

    def _delete(self, call: Call) -> Reply:
        """Releases a machine; before its minimum time only with ``force``."""
        entry = self._found(call)
        owed_until = entry.created_at + timedelta(seconds=entry.tariff.minimum_s)
        if self.now < owed_until and call.query.get("force") != "true":
            reason = "server cannot be released due to minimum usage requirement"
            raise Refusal(json_reply(f"Bad Request: {reason}", 400))
        self.seller.release(entry)
        return Reply(204, b"")


def _key_row(row: Mapping[str, Any]) -> dict[str, Any]:
    kind, body = row["public_key"].split()
    return {"type": kind, "public_key": body, "fingerprint": row["id"], "comment": row["name"]}


def _path(call: Call) -> str:
    return call.path.strip("/").split("/")[2]


def _without(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


def _sorted(specs: Mapping[str, Any]) -> str:
    return json.dumps(specs, sort_keys=True)


def _not_found(words: str = "Resource not found") -> Reply:
    return json_reply(f"Not Found: {words}", 404)

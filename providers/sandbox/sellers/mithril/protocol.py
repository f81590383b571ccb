"""Mithril's API v2, under ``/mithril/v2``.

Auctions and bids: prices are strings with a dollar sign, per instance and hour. A bid that is below the
auction's price, or that finds no instances, stays open and costs nothing. Reservations are windows of 3 to
336 whole hours, paid upfront; one whose price is above its ``max_unit_price`` fails. Instances of a running
reservation can be returned for a credit. Errors are FastAPI's. Lists of what is held have cursors.
Sources: Mithril's OpenAPI 1.0.0 (api-evangelist/mithril, 2026-08-22), models of mithril-client 0.1.0rc3. What
refusals for capacity and price look like is documented nowhere: the sandbox answers 400 with a sentence. The
share of the price that a return gives back is illustrative.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, instant_of, zulu
from providers.sandbox.market import WINDOW, InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply
from providers.sandbox.seller import ErrorForms, SellerProtocol
from providers.sandbox.sellers.mithril.market import (
    BY_NAME,
    HOUR,
    Kind,
    free_steps,
    is_free,
    mithril_inventory,
    type_fid,
)

_SHORTEST_H, _LONGEST_H = 3, 336
_PAGE = 20
_BUYBACK = Decimal("0.5")
_CENT = Decimal("0.01")
_IN_BODY = ("project", "region", "instance_type", "instance_quantity", "name", "launch_specification")


class Mithril(SellerProtocol):
    """Market data, bids, reservations."""

    name = "mithril"
    on_sale = staticmethod(mithril_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/v2/instance-types", "list", self._types),
            Route("GET", "/v2/spot/availability", "list", self._auctions),
            Route("GET", "/v2/pricing/current", "list", self._prices),
            Route("GET", "/v2/reservation/availability", "list", self._availability),
            Route("POST", "/v2/spot/bids", "create", self._bid),
            Route("GET", "/v2/spot/bids", "get", self._bids),
            Route("GET", "/v2/spot/bids/{id}", "get", self._one_bid),
            Route("DELETE", "/v2/spot/bids/{id}", "delete", self._cancel),
            Route("GET", "/v2/instances", "other", self._all_instances),
            Route("GET", "/v2/ssh-keys", "other", self._keys),
            Route("POST", "/v2/ssh-keys", "other", self._add_key),
            Route("DELETE", "/v2/ssh-keys/{id}", "other", self._drop_key),
            Route("GET", "/v2/reservation/quote", "list", self._quote),
            Route("POST", "/v2/reservation", "create", self._reserve),
            Route("GET", "/v2/reservation", "get", self._reservations),
            Route("GET", "/v2/reservation/{id}/history", "get", self._history),
            Route("POST", "/v2/reservation/{id}/terminate-instances", "delete", self._terminate),
        )

    def errors(self) -> ErrorForms:
        """Errors have a ``detail``."""
        return ErrorForms(
            no_key=_error(401, "Not authenticated"),
            no_path=_error(404, "Not Found"),
            no_machine=lambda call: _error(404, f"Bid {call.parts['id']} not found"),
            bad_body=lambda reason: _invalid("__root__", reason),
            rate_limited=_error(429, "Rate limit exceeded"),
            no_capacity=_error(400, "Insufficient capacity for the requested window or instances"),
            failed=_error(500, "Internal Server Error"),
        )

    # Market data

    def _types(self, _: Call) -> Reply:
        rows = [_type_row(BY_NAME[item.sku], item.region) for item in self.seller.inventory(tier="spot")]
        return json_reply(rows)

    def _auctions(self, _: Call) -> Reply:
        free = self.seller.free_by_key()
        rows = [
            {
                "fid": f"auct_{type_fid(item.sku, item.region)[3:]}",
                "instance_type": type_fid(item.sku, item.region),
                "region": item.region,
                "capacity": free[item.key],
                "last_instance_price": f"${self.seller.price(item):.2f}",
                "lowest_allocated_price": None,
                "adjustable_memory": False,
                "default_image_version": None,
            }
            for item in self.seller.inventory(tier="spot")
        ]
        return json_reply(rows)

    def _prices(self, call: Call) -> Reply:
        if not 1 <= int(call.query.get("instance_quantity", "1")) <= 256:
            raise Refusal(_invalid("instance_quantity", "Input should be 1 to 256", place="query"))
        spot = self._item(call.query, "spot")
        reserved = self._window_item(spot)
        free = self.seller.free(spot)
        cents = int(self.seller.price(spot) * 100)
        body = {
            "spot_price_cents": cents,
            "reserved_price_cents": None if reserved is None else int(self.seller.price(reserved) * 100),
            "minimum_price_cents": 100 * BY_NAME[spot.sku].gpus,
            "lowest_allocated_bid_cents": cents,
            "dynamic_win_price_cents": cents,
            "available_capacity": free,
            "total_capacity": self.sandbox.market.capacity(spot),
        }
        return json_reply(body)

    def _window_item(self, spot: InventoryItem) -> InventoryItem | None:
        items = self.seller.inventory(tier=WINDOW)
        return next((c for c in items if (c.sku, c.region) == (spot.sku, spot.region)), None)

    def _item(self, asked: Any, tier: str) -> InventoryItem:
        """The item of an instance type's FID; 404 for an unknown one, also in another region."""
        fid, region = asked.get("instance_type"), asked.get("region")
        for item in self.seller.inventory(tier=tier):
            if type_fid(item.sku, item.region) == fid and region in {None, item.region}:
                return item
        raise Refusal(_error(404, f"Instance type {fid} not found in region {region}"))

    def _availability(self, call: Call) -> Reply:
        query = call.query
        for name in ("project", "instance_type", "region"):
            if not query.get(name):
                raise Refusal(_invalid(name, "Field required", place="query"))
        item = self._item(query, WINDOW)
        if query.get("mode") != "slots":
            raise Refusal(_invalid("mode", "the sandbox knows the mode slots only", place="query"))
        earliest = _instant(query, "earliest_start_time")
        until = _instant(query, "latest_end_time").replace(minute=0, second=0)
        if until <= earliest:
            raise Refusal(_invalid("latest_end_time", "must be after earliest_start_time", place="query"))
        rows = [
            {"start_time": zulu(start), "end_time": zulu(end), "quantity": nodes}
            for start, end, nodes in free_steps(self.sandbox, item, until)
            if end > earliest
        ]
        return json_reply(rows)

    # Bids

    def _bid(self, call: Call) -> Reply:
        body = _required(call.json_object(), (*_IN_BODY, "limit_price"))
        item, quantity = self._item(body, "spot"), _quantity(body)
        limit, price = _dollars(body["limit_price"]), self.seller.price(item)
        wins = not call.loses_capacity and limit >= price
        wins = wins and self.seller.free(item) >= quantity
        entry = self.seller.sell(
            item,
            body["name"],
            Tariff(price * quantity) if wins else Tariff(),
            {"request": body, "wins": wins},
            instance_id=f"bid_{self.sandbox.new_id('mithril-bid', 16)}",
            nodes=quantity,
            units=quantity if wins else 0,
        )
        return json_reply(self._bid_row(entry), 201)

    def _bid_status(self, entry: Entry) -> str:
        if entry.released_at is not None:
            return "Terminated"
        return "Allocated" if entry.detail["wins"] and self.seller.booted(entry) >= 1 else "Open"

    def _bid_row(self, entry: Entry) -> dict[str, Any]:
        status = self._bid_status(entry)
        shown = _instances(entry) if status == "Allocated" else []
        return {
            **_held_row(entry),
            "limit_price": entry.detail["request"]["limit_price"],
            "instances": shown,
            "status": status,
            "deactivated_at": None if entry.released_at is None else zulu(entry.released_at),
        }

    def _entries(self, *, bids: bool) -> list[Entry]:
        entries = self.sandbox.ledger.entries(self.name)
        return [entry for entry in entries if entry.instance_id.startswith("bid_") == bids]

    def _bids(self, call: Call) -> Reply:
        return _page(call, [self._bid_row(entry) for entry in self._entries(bids=True)])

    def _one_bid(self, call: Call) -> Reply:
        return json_reply(self._bid_row(self._known(call)))

    def _known(self, call: Call) -> Entry:
        """A bid, also one that ended."""
        entry = self.sandbox.ledger.find(self.name, call.parts["id"])
        if entry is None or not entry.instance_id.startswith("bid_"):
            raise Refusal(self.errors().no_machine(call))
        return entry

    def _cancel(self, call: Call) -> Reply:
        entry = self._known(call)
        if entry.released_at is not None:
            raise Refusal(_error(404, f"Bid {entry.instance_id} is not active"))
        self.seller.release(entry)
        return Reply(204, b"")

    # Machines and their keys

    def _all_instances(self, call: Call) -> Reply:
        """The machines that run; other states are not kept here."""
        if not call.query.get("project"):
            raise Refusal(_invalid("project", "Field required", place="query"))
        if call.query.get("status_in", "STATUS_RUNNING") != "STATUS_RUNNING":
            raise Refusal(_invalid("status_in", "the sandbox knows STATUS_RUNNING only", place="query"))
        running = [
            *((entry, self._bid_row(entry), "bid") for entry in self._entries(bids=True)),
            *((entry, self._reservation_row(entry), "reservation") for entry in self._entries(bids=False)),
        ]
        rows = [
            {
                "fid": fid,
                "name": fid,
                "project": entry.detail["request"]["project"],
                "created_at": zulu(entry.created_at),
                "created_by": "user_sandbox",
                "instance_type": entry.detail["request"]["instance_type"],
                "region": entry.region,
                kind: entry.instance_id,
                "ssh_destination": self.seller.address(entry, _number(fid)),
                "private_ip": self.seller.address(entry, _number(fid)),
                "status": "STATUS_RUNNING",
            }
            for entry, row, kind in running
            if self.seller.is_up(entry)
            for fid in row["instances"]
        ]
        return _page(call, rows)

    def _keys(self, call: Call) -> Reply:
        if not call.query.get("project"):
            raise Refusal(_invalid("project", "Field required", place="query"))
        return json_reply([self._key_row(row) for row in self.seller.ssh_keys()])

    def _key_row(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "fid": row["id"],
            "name": row["name"],
            "project": "proj_sandbox",
            "public_key": row["public_key"],
            "created_at": zulu(self.now),
            "required": False,
        }

    def _add_key(self, call: Call) -> Reply:
        body = _required(call.json_object(), ("project", "name", "public_key"))
        return json_reply(self._key_row(self.seller.add_key(body["name"], body["public_key"])), 201)

    def _drop_key(self, call: Call) -> Reply:
        """A key that an active bid or reservation names is kept."""
        fid = call.parts["id"]
        live = [entry for entry in self.sandbox.ledger.entries(self.name) if entry.is_live(self.now)]
        if any(fid in entry.detail["request"]["launch_specification"]["ssh_keys"] for entry in live):
            raise Refusal(_error(400, f"SSH key {fid} is in use"))
        if not self.seller.drop_key(fid):
            raise Refusal(_error(404, f"SSH key {fid} not found"))
        return Reply(204, b"")

    # Reservations

    def _quote(self, call: Call) -> Reply:
        query = call.query
        for name in ("project", "instance_type", "region", "start_time", "end_time", "quantity"):
            if not query.get(name):
                raise Refusal(_invalid(name, "Field required", place="query"))
        unit = self.seller.price(self._item(query, WINDOW))
        hours = Decimal((_instant(query, "end_time") - _instant(query, "start_time")) // HOUR)
        total = unit * hours * int(query["quantity"])
        offer = {
            "key": "standard",
            "display_name": "Standard",
            "unit_price": f"${unit:.2f}",
            "return_buyback_price": f"${unit * _BUYBACK:.2f}",
            "pause_buyback_price": "$0.00",
            "total_price": f"${total:.2f}",
            "total_etbp_value": f"${total * _BUYBACK:.2f}",
            "total_fubp_value": "$0.00",
            "option_premium": "$0.00",
        }
        return json_reply({"offers": [offer]})

    def _reserve(self, call: Call) -> Reply:
        body = _required(call.json_object(), (*_IN_BODY, "start_time", "end_time"))
        item, quantity, now = self._item(body, WINDOW), _quantity(body), self.now
        start, end = _instant(body, "start_time"), _instant(body, "end_time")
        hours = (end - start) / HOUR
        if hours != int(hours) or not _SHORTEST_H <= hours <= _LONGEST_H:
            raise Refusal(_invalid("end_time", "Reservations last 3 hours to 2 weeks in steps of one hour"))
        if start < now.replace(minute=0, second=0, microsecond=0):
            raise Refusal(_invalid("start_time", "start_time must not be in the past"))
        if not is_free(self.sandbox, item, start, end, quantity):
            raise Refusal(self.errors().no_capacity)
        unit = self.seller.price(item)
        most = (body.get("price_specification") or {}).get("max_unit_price")
        if most is not None and unit * 100 > most:
            raise Refusal(_error(400, f"The current unit price ${unit:.2f} is above max_unit_price"))
        entry = self.seller.sell(
            item,
            body["name"],
            Tariff(upfront_usd=unit * quantity * int(hours)),
            {"request": body, "unit_usd": str(unit)},
            instance_id=f"res_{self.sandbox.new_id('mithril-res', 16)}",
            nodes=quantity,
            starts_at=start,
            ends_at=end,
            fails=call.loses_capacity,
            fails_at=self.now + timedelta(seconds=self.sandbox.durations.boot_s),
        )
        return json_reply(self._reservation_row(entry), 201)

    def _reservation_status(self, entry: Entry) -> str:
        now = self.now
        if entry.failed(now):
            return "Canceled"
        if entry.released_at is not None or (entry.ends_at is not None and now >= entry.ends_at):
            return "Ended"
        return "Active" if now >= entry.starts_at else "Pending"

    def _reservation_row(self, entry: Entry) -> dict[str, Any]:
        status = self._reservation_status(entry)
        over = entry.over_at if status in {"Canceled", "Ended"} else None
        return {
            **_held_row(entry),
            "instances": _instances(entry) if status == "Active" else [],
            "status": status,
            "start_time": zulu(entry.starts_at),
            "end_time": zulu(entry.ends_at or entry.starts_at),
            "total_price": f"${entry.tariff.upfront_usd:.2f}",
            "unit_price": f"${Decimal(entry.detail['unit_usd']):.2f}",
            "deactivated_at": None if over is None else zulu(over),
        }

    def _reservation(self, call: Call) -> Entry:
        entry = self.sandbox.ledger.find(self.name, call.parts["id"])
        if entry is None or entry.instance_id.startswith("bid_"):
            raise Refusal(_error(404, f"Reservation {call.parts['id']} not found"))
        return entry

    def _terminate(self, call: Call) -> Reply:
        """Returns instances, for half of the price of the hours that are left, by the second."""
        entry, body = self._reservation(call), call.json_object()
        named, status = body.get("instances"), self._reservation_status(entry)
        if body.get("reduce_capacity") is not True or not isinstance(named, list) or not named:
            raise Refusal(_invalid("instances", "Field required"))
        if status in {"Ended", "Canceled"}:
            raise Refusal(_error(400, "The reservation was already ended."))
        if status != "Active" or not set(named) <= set(_instances(entry)):
            raise Refusal(_error(404, "One of the instances could not be found."))
        left = Decimal(((entry.ends_at or self.now) - self.now) // timedelta(seconds=1)) / 3600
        credit = Decimal(entry.detail["unit_usd"]) * _BUYBACK * left * len(named)
        returned = [*entry.detail.get("returned", ()), *named]
        entry = replace(
            entry.with_detail(returned=returned),
            refund_usd=entry.refund_usd + credit.quantize(_CENT),
            units=entry.nodes - len(returned),
            released_at=self.now if len(returned) == entry.nodes else None,
        )
        self.sandbox.ledger.write(entry)
        return json_reply(None)

    def _history(self, call: Call) -> Reply:
        entry = self._reservation(call)
        cents = int(Decimal(entry.detail["unit_usd"]) * 100)
        placed = {"timestamp": zulu(entry.created_at), "event_type": "Placed", "unit_price_cents": cents}
        events: list[dict[str, Any]] = [placed]
        if entry.released_at is not None:
            credit = int(entry.refund_usd * 100)
            ended = {"event_type": "Ended", "return_credit_cents": credit}
            events.append({"timestamp": zulu(entry.released_at), **ended})
        return json_reply({"reservation_fid": entry.instance_id, "events": events})

    def _reservations(self, call: Call) -> Reply:
        if not call.query.get("project"):
            raise Refusal(_invalid("project", "Field required", place="query"))
        return _page(call, [self._reservation_row(entry) for entry in self._entries(bids=False)])


def _type_row(kind: Kind, region: str) -> dict[str, Any]:
    return {
        "fid": type_fid(kind.name, region),
        "name": kind.name,
        "num_cpus": kind.cpus,
        "cpu_type": "Intel Xeon",
        "ram_gb": kind.ram_gb,
        "num_gpus": kind.gpus,
        "gpu_type": kind.gpu_type,
        "gpu_memory_gb": kind.gpu_gb,
        "gpu_socket": kind.socket,
        "local_storage_gb": 850 * max(kind.gpus, 1),
        "ib_count": kind.ib_count,
        "bridge_count": 0,
        "network_type": "InfiniBand" if kind.ib_count else None,
    }


def _instances(entry: Entry) -> list[str]:
    """The instances of a bid or a reservation that were not returned."""
    every = [f"inst_{entry.instance_id[4:]}_{number}" for number in range(entry.nodes)]
    return [name for name in every if name not in entry.detail.get("returned", ())]


def _number(fid: str) -> int:
    """Which node of its bid or reservation an instance is."""
    return int(fid.rpartition("_")[2])


def _held_row(entry: Entry) -> dict[str, Any]:
    request = entry.detail["request"]
    return {
        "fid": entry.instance_id,
        "name": entry.tag,
        "project": request["project"],
        "created_by": "user_sandbox",
        "created_at": zulu(entry.created_at),
        "instance_quantity": entry.nodes,
        "instance_type": request["instance_type"],
        "region": entry.region,
        "launch_specification": request["launch_specification"],
    }


def _page(call: Call, rows: list[dict[str, Any]]) -> Reply:
    """One page; the cursor is the number of the first row of the next."""
    first = int(call.query.get("next_cursor", "0"))
    size = call.whole("limit", _PAGE, _PAGE)
    more = first + size < len(rows)
    return json_reply(
        {"data": rows[first : first + size], "next_cursor": str(first + size) if more else None}
    )


def _required(body: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    for name in names:
        if body.get(name) in (None, ""):
            raise Refusal(_invalid(name, "Field required"))
    return body


def _quantity(body: dict[str, Any]) -> int:
    value = body["instance_quantity"]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refusal(_invalid("instance_quantity", "Input should be greater than or equal to 1"))
    return value


def _dollars(text: object) -> Decimal:
    if not isinstance(text, str) or not text.startswith("$"):
        raise Refusal(_invalid("limit_price", "Price must be a string like $8.00"))
    return Decimal(text[1:])


def _instant(values: Any, name: str) -> datetime:
    try:
        return instant_of(values.get(name))
    except ValueError:
        raise Refusal(_invalid(name, "Input should be a valid datetime")) from None


def _invalid(name: str, message: str, *, place: str = "body") -> Reply:
    return json_reply({"detail": [{"loc": [place, name], "msg": message, "type": "value_error"}]}, 422)


def _error(status: int, detail: str) -> Reply:
    return json_reply({"detail": detail}, status)

"""SF Compute's orders and contracts.

An order is settled a moment after it was sent: filled (then it is a contract), open, cancelled
(immediate-or-cancel) or rejected. The ledger's id of a purchase is the order's id. A contract is left by
selling it back, whole, at the best bid of the order book or better.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, instant_of, zulu, zulu_ms
from providers.sandbox.protocol import Call, Refusal, Reply, SandboxState, json_reply
from providers.sandbox.sellers.sfcompute.book import Book, Quote, Wish

_ORDER, _KEY = "sfc_order", "sfc_key"
INSTANCE_TYPES = ("h100i", "h100v", "h200ki")


class Orders:
    """Order and contract calls of one account."""

    def __init__(self, sandbox: SandboxState, book: Book) -> None:
        self._sandbox = sandbox
        self._book = book

    def place(self, call: Call) -> Reply:
        """Buys or sells; the same idempotency token and body return the same order."""
        body = call.json_object()
        key = call.headers.get("idempotency-key", "")
        text = json.dumps(body, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        kept = self._sandbox.store.document(_KEY, key) if key else None
        if kept is not None:
            if kept["digest"] != digest:
                raise Refusal(sfc_error(409, "idempotency_error", "The key was used with another body."))
            order = self._known(kept["id"])
        else:
            order = self._sell(body, key) if body.get("side") == "sell" else self._buy(body, key, call)
            self._sandbox.store.put_document(_KEY, key or order["id"], {"digest": digest, "id": order["id"]})
        answer = {"object": "order", "status": "pending", "id": order["id"], "idempotency_key": key}
        return json_reply(answer, 201)

    def _buy(self, body: dict[str, Any], key: str, call: Call) -> dict[str, Any]:
        now = self._sandbox.clock.now()
        start, end = self._order_window(body)
        quantity, price_cents = _whole(body, "quantity", 1), _whole(body, "price", 0)
        order: dict[str, Any] = {
            "id": f"ordr_{self._sandbox.new_id('sfc-order', 20)}",
            "side": "buy",
            "instance_type": instance_type(body),
            "quantity": quantity,
            "start_at": start.isoformat(),
            "end_at": end.isoformat(),
            "price": price_cents,
            "flags": _flags(body),
            "cluster": body.get("cluster"),
            "key": key,
            "created_at": now.isoformat(),
            "settles_at": (now + timedelta(seconds=self._sandbox.durations.fill_s)).isoformat(),
            "outcome": "open",
            "execution_price": None,
            "rejected_reason": None,
        }
        if call.loses_capacity:
            order |= {"outcome": "rejected", "rejected_reason": "no_availability"}
        else:
            order = self._matched(order)
        self._sandbox.store.put_document(_ORDER, order["id"], order)
        return order

    def _order_window(self, body: Mapping[str, Any]) -> tuple[datetime, datetime]:
        now = self._sandbox.clock.now()
        start = start_instant(str(body.get("start_at", "NOW")), now)
        end = instant(str(body.get("end_at", "")), "end_at")
        on_hour = start == start.replace(minute=0, second=0, microsecond=0)
        near_now = abs(start - now) <= timedelta(minutes=1)
        if not near_now and (not on_hour or start < now):
            raise ValueError("Start time must be within +/- 1 minute of now, on a future hour, or 'NOW'")
        if near_now:
            start = max(start, now.replace(second=0, microsecond=0))
        if end != end.replace(minute=0, second=0, microsecond=0) or end <= start:
            raise ValueError("end_at must be on the hour and after start_at")
        return start, end

    def _matched(self, order: dict[str, Any]) -> dict[str, Any]:
        """The order after matching: filled, left open, or cancelled (immediate-or-cancel)."""
        start, end = (datetime.fromisoformat(order[name]) for name in ("start_at", "end_at"))
        length = int((end - start).total_seconds())
        wish = Wish(order["instance_type"], order["quantity"], start, start, length, length, order["cluster"])
        quote = self._book.cheapest(wish)
        affordable = quote is not None and (order["flags"]["market"] or quote.cents <= order["price"])
        if quote is None or not affordable:
            return order | ({"outcome": "cancelled"} if order["flags"]["ioc"] else {})
        contract_id = f"cont_{self._sandbox.new_id('sfc-contract', 20)}"
        self._open_contract(order, quote, contract_id)
        return order | {
            "outcome": "filled",
            "execution_price": quote.cents,
            "contract_id": contract_id,
            "zone": quote.item.zone,
        }

    def _open_contract(self, order: Mapping[str, Any], quote: Quote, contract_id: str) -> None:
        self._sandbox.ledger.write(
            quote.item.bought(
                self._sandbox.clock.now(),
                order["id"],
                order["key"],
                Tariff(upfront_usd=Decimal(quote.cents) / 100),
                sku=order["instance_type"],
                tier="window",
                nodes=order["quantity"],
                starts_at=quote.start,
                ends_at=quote.end,
                detail={"also_known_as": [contract_id]},
            )
        )

    def _sell(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        """Sells a whole contract back from now (or its start) on, at the best bid or better."""
        wanted = body.get("contract_id") or (body.get("colocate_with") or [None])[0]
        entry = self._by_contract(str(wanted))
        now = self._sandbox.clock.now()
        if not entry.is_live(now):
            raise Refusal(sfc_error(400, "invalid_request_error", "The contract has ended."))
        if int(body.get("quantity", entry.nodes)) != entry.nodes:
            raise ValueError("the sandbox buys back whole contracts only")
        flags = _flags(body)
        offered = self._book.buy_back_cents(entry, now)
        order: dict[str, Any] = {
            "id": f"ordr_{self._sandbox.new_id('sfc-order', 20)}",
            "side": "sell",
            "instance_type": entry.sku,
            "quantity": entry.nodes,
            "start_at": max(now, entry.starts_at).isoformat(),
            "end_at": (entry.ends_at or now).isoformat(),
            "price": _whole(body, "price", 0),
            "flags": flags,
            "cluster": None,
            "key": key,
            "created_at": now.isoformat(),
            "settles_at": (now + timedelta(seconds=self._sandbox.durations.fill_s)).isoformat(),
            "outcome": "open",
            "execution_price": None,
            "rejected_reason": None,
            "contract_id": wanted,
        }
        if flags["market"] or order["price"] <= offered:
            order |= {"outcome": "filled", "execution_price": offered}
            refund = Decimal(offered) / 100
            self._sandbox.ledger.write(replace(entry, released_at=now, refund_usd=entry.refund_usd + refund))
        elif flags["ioc"]:
            order["outcome"] = "cancelled"
        self._sandbox.store.put_document(_ORDER, order["id"], order)
        return order

    def _by_contract(self, contract_id: str) -> Entry:
        for entry in self._sandbox.ledger.entries("sfcompute"):
            if contract_id in entry.detail["also_known_as"]:
                return entry
        raise Refusal(sfc_error(404, "not_found", f"No contract {contract_id}"))

    def _known(self, order_id: str) -> dict[str, Any]:
        """An order; an open one is first matched against the market of this moment."""
        order = self._sandbox.store.document(_ORDER, order_id)
        if order is None:
            raise Refusal(sfc_error(404, "not_found", f"No order {order_id}"))
        if order["outcome"] == "open" and order["side"] == "buy":
            order = self._matched(order)
            self._sandbox.store.put_document(_ORDER, order_id, order)
        return order

    def find_all(self, call: Call) -> Reply:
        """Orders, by side and status."""
        rows = [self._order_row(self._known(order_id)) for order_id in self._sandbox.store.documents(_ORDER)]
        side, status = call.query.get("side"), call.query.get("status")
        data = [row for row in rows if side in {None, row["side"]} and status in {None, row["status"]}]
        return json_reply({"object": "list", "data": data})

    def find(self, call: Call) -> Reply:
        """One order."""
        return json_reply(self._order_row(self._known(call.parts["id"])))

    def _order_row(self, order: Mapping[str, Any]) -> dict[str, Any]:
        settled = self._sandbox.clock.now() >= datetime.fromisoformat(order["settles_at"])
        status = order["outcome"] if settled or order["outcome"] == "cancelled" else "open"
        filled = status == "filled"
        row = {
            name: order[name]
            for name in ("id", "side", "instance_type", "quantity", "price", "flags", "cluster")
        }
        return row | {
            "object": "order",
            "idempotency_key": order["key"],
            "status": status,
            "start_at": _ms(order["start_at"]),
            "end_at": _ms(order["end_at"]),
            "executed": filled,
            "executed_at": _ms(order["settles_at"]) if filled else None,
            "execution_price": order["execution_price"] if filled else None,
            "cancelled": status == "cancelled",
            "created_at": _ms(order["created_at"]),
            "rejected": status == "rejected",
            "rejected_reason": order["rejected_reason"] if status == "rejected" else None,
        }

    def cancel(self, call: Call) -> Reply:
        """Cancels an order that stands."""
        order = self._known(call.parts["id"])
        if order["outcome"] == "cancelled":
            raise Refusal(sfc_error(400, "invalid_request_error", "Order already cancelled"))
        if order["outcome"] != "open":
            raise Refusal(sfc_error(400, "invalid_request_error", f"Order already {order['outcome']}"))
        self._sandbox.store.put_document(_ORDER, order["id"], order | {"outcome": "cancelled"})
        return json_reply({"object": "pending"})

    def contracts(self, call: Call) -> Reply:
        """Contracts, by state."""
        state = call.query.get("state")
        rows = [self._contract_row(entry) for entry in self._sandbox.ledger.entries("sfcompute")]
        wanted = [row for row in rows if state in {None, "All", row["state"]}]
        return json_reply({"object": "list", "data": wanted})

    def contract(self, call: Call) -> Reply:
        """One contract."""
        return json_reply(self._contract_row(self._by_contract(call.parts["id"])))

    def _contract_row(self, entry: Entry) -> dict[str, Any]:
        now, end = self._sandbox.clock.now(), entry.over_at or entry.starts_at
        state = "Upcoming" if now < entry.starts_at else "Active"
        state = "Expired" if now >= end else state
        return {
            "object": "contract",
            "id": entry.detail["also_known_as"][0],
            "status": "active",
            "state": state,
            "instance_type": entry.sku,
            "shape": {
                "intervals": [zulu(entry.starts_at), zulu(max(end, entry.starts_at))],
                "quantities": [entry.nodes],
            },
            "zone": entry.zone,
            "is_node": False,
            "created_at": zulu_ms(entry.created_at),
        }


def instance_type(body: Mapping[str, Any]) -> str:
    """The wanted type; ValueError for an unknown one."""
    found = body.get("instance_type")
    if found not in INSTANCE_TYPES:
        raise ValueError(f"instance_type must be one of {', '.join(INSTANCE_TYPES)}")
    return str(found)


def start_instant(text: str, now: datetime) -> datetime:
    """A start; ``NOW`` is the next whole minute."""
    if text.upper() == "NOW":
        return now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return instant(text, "start")


def instant(text: str, name: str) -> datetime:
    """An ISO 8601 time in UTC; ValueError that names the parameter."""
    try:
        return instant_of(text)
    except ValueError as error:
        raise ValueError(f"{name} must be an ISO 8601 time, found {text!r}") from error


def _whole(body: Mapping[str, Any], name: str, least: int) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}")
    return value


def _flags(body: Mapping[str, Any]) -> dict[str, bool]:
    given = body.get("flags") or {}
    return {name: bool(given.get(name)) for name in ("ioc", "market", "post_only", "prorate")}


def _ms(text: str) -> str:
    return zulu_ms(datetime.fromisoformat(text))


def sfc_error(status: int, kind: str, message: str) -> Reply:
    """SF Compute's error body."""
    return json_reply({"error": {"type": kind, "message": message, "details": []}}, status)

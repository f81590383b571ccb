"""SF Compute under ``/sfcompute``: zones, quotes, orders and contracts of v0.

A market in windows of nodes of eight GPUs: prices are whole US cents for the whole order. Orders are
idempotent by header; a filled order is a contract, which is left by selling it back. No price was recorded
for this market: figures are illustrative.
Sources: sfcompute/cli ``schema.ts``, sfcompute/nodes-go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from providers.sandbox.ledger import zulu_ms
from providers.sandbox.protocol import Call, Refusal, Reply, Route, SandboxState, json_reply
from providers.sandbox.seller import ErrorForms, SellerProtocol
from providers.sandbox.sellers.sfcompute.book import HOUR, Book, Quote, Wish, sfc_inventory
from providers.sandbox.sellers.sfcompute.orders import Orders, instance_type, sfc_error, start_instant

_MOST_NODES = 1024
_LONGEST_S = 3 * 365 * 86400


class SFCompute(SellerProtocol):
    """Market data, orders, contracts."""

    name = "sfcompute"
    on_sale = staticmethod(sfc_inventory)

    def __init__(self, sandbox: SandboxState) -> None:
        self._book = Book(sandbox)
        self._orders = Orders(sandbox, self._book)
        super().__init__(sandbox)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/v0/zones", "list", self._zones),
            Route("GET", "/v0/quote", "list", self._quote),
            Route("POST", "/v0/orders", "create", self._orders.place),
            Route("GET", "/v0/orders", "get", self._orders.find_all),
            Route("GET", "/v0/orders/{id}", "get", self._orders.find),
            Route("DELETE", "/v0/orders/{id}", "delete", self._orders.cancel),
            Route("GET", "/v0/contracts", "get", self._orders.contracts),
            Route("GET", "/v0/contracts/{id}", "get", self._orders.contract),
        )

    def operation(self, call: Call) -> str:
        """A sell order ends a contract, so it counts as a delete."""
        found = super().operation(call)
        if found == "create" and _side(call) == "sell":
            return "delete"
        return found

    def errors(self) -> ErrorForms:
        """Errors carry a type and a message."""
        return ErrorForms(
            no_key=sfc_error(401, "authentication_error", "Missing or invalid authorization token"),
            no_path=sfc_error(404, "not_found", "Not found"),
            no_machine=lambda _: sfc_error(404, "not_found", "Not found"),
            bad_body=lambda reason: sfc_error(400, "invalid_request_error", reason),
            rate_limited=sfc_error(429, "rate_limited", "Too many requests"),
            no_capacity=sfc_error(422, "unprocessable_entity", "no_availability"),
            failed=sfc_error(500, "api_error", "Internal server error"),
        )

    # Market data

    def _zones(self, _: Call) -> Reply:
        data = [
            {
                "object": "zone",
                "name": item.zone,
                "display_name": item.labels["display_name"],
                "region": item.region,
                "hardware_type": item.labels["hardware"],
                "interconnect_type": item.labels["interconnect"],
                "delivery_type": item.labels["delivery"],
                "available_capacity": [
                    {
                        "start_timestamp": int(start.timestamp()),
                        "end_timestamp": int(end.timestamp()),
                        "quantity": nodes,
                    }
                    for start, end, nodes in self._book.rectangles(item)
                ],
            }
            for item in self._book.zones()
        ]
        return json_reply({"object": "list", "data": data})

    def _quote(self, call: Call) -> Reply:
        query = call.query
        if query.get("side", "buy") != "buy":
            raise Refusal(sfc_error(400, "invalid_request_error", "the sandbox quotes side=buy only"))
        wish = self._wish(query)
        matching = self._book.zones_for(wish)
        quote = self._book.cheapest(wish)
        body: dict[str, Any] = {"object": "quote", "side": "buy", "quote": None, "no_quote_reason": None}
        if not matching:
            body["no_quote_reason"] = "no_matching_clusters"
        elif quote is None:
            body["no_quote_reason"] = "no_availability"
        else:
            body["quote"] = _quote_row(quote, wish)
        return json_reply(body)

    def _wish(self, query: Mapping[str, str]) -> Wish:
        quantity = int(query.get("quantity", "1"))
        shortest, longest = _durations(query)
        now = self.now
        earliest = start_instant(query.get("min_start_date", "NOW"), now)
        latest = start_instant(query.get("max_start_date", query.get("min_start_date", "NOW")), now)
        earliest = max(earliest, start_instant("NOW", now)) if earliest < now else earliest
        latest = max(latest, earliest)
        if not 1 <= quantity <= _MOST_NODES:
            raise ValueError(f"quantity must be 1 to {_MOST_NODES}")
        return Wish(instance_type(query), quantity, earliest, latest, shortest, longest, query.get("cluster"))


def _side(call: Call) -> str:
    try:
        return str(call.json_object().get("side"))
    except ValueError:
        return ""


def _quote_row(quote: Quote, wish: Wish) -> dict[str, Any]:
    return {
        "price": quote.cents,
        "quantity": wish.quantity,
        "start_at": zulu_ms(quote.start),
        "end_at": zulu_ms(quote.end),
        "instance_type": wish.instance_type,
        "zone": quote.item.zone,
    }


def _durations(query: Mapping[str, str]) -> tuple[int, int]:
    if "duration" in query:
        shortest = int(query["duration"])
        longest = shortest + 59 * 60
    else:
        shortest = int(query.get("min_duration", "3600"))
        longest = max(int(query.get("max_duration", str(shortest))), shortest) + 59 * 60
    if not HOUR.total_seconds() <= shortest <= _LONGEST_S:
        raise ValueError("duration must be 1 hour to 3 years")
    return shortest, longest

"""OCI's price list, identity lists and compute capacity, under ``/oci/{host}`` with the real hosts' names.

Prices are USD per GPU-hour and part; calls of compute and identity are signed (``oci_signing``). A capacity
reservation is CREATING, ACTIVE, then DELETING and DELETED. No capacity is a 500 ``InternalError``. A retry
token repeats a create for 24 hours; once what it made is deleted, it is a 409. There is no documented state
for capacity that is lost after a create: here the reservation then goes from CREATING to DELETED.
Sources: models and paths of the oci SDK 2.189, OCI documentation ("API Errors", "Request Signatures").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu_ms
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.oci import signing as oci_signing
from providers.sandbox.sellers.oci.market import DOMAINS, OTHER_PARTS, PARTS, PREFIX, Part, oci_inventory

RETRY_TOKEN_LIFE = timedelta(hours=24)
BILLING_SLICE_S = 3600
LONGEST_PAGE = 1000
_STATES = Lifecycle({"CREATING": 1}, up="ACTIVE", failed="DELETED", ending="DELETING", gone="DELETED")
_TOKENS = "oci_token"
_HOST = re.compile(r"(?:iaas|identity)\.([a-z0-9-]+)\.(?:oci\.)?oraclecloud\.com")
_UNSIGNED = "The required information to complete authentication was not provided"
_MISSING = "Authorization failed or requested resource not found."


class Oci(SellerProtocol):
    """Prices for everybody; reports and reservations for signed calls."""

    name = "oci"
    on_sale = staticmethod(oci_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the three hosts that the sandbox serves."""
        api = "/{host}/20160918"
        held = f"{api}/computeCapacityReservations"
        return (
            Route("GET", "/{host}/pls/apex/cetools/api/v1/products", "list", self._products, public=True),
            Route("GET", f"{api}/tenancies/{{id}}/regionSubscriptions", "other", self._subscriptions),
            Route("GET", f"{api}/availabilityDomains", "other", self._domains),
            Route("POST", f"{api}/computeCapacityReports", "list", self._report),
            Route("POST", held, "create", self._create),
            Route("GET", held, "get", self._reservations),
            Route("GET", f"{held}/{{id}}", "get", self._reservation),
            Route("DELETE", f"{held}/{{id}}", "delete", self._delete),
        )

    def authorise(self, call: Call) -> None:
        """A signature of the right form."""
        try:
            oci_signing.check(call)
        except oci_signing.BadSignature as error:
            raise Refusal(_error(401, "NotAuthenticated", f"{_UNSIGNED}: {error}")) from error

    def errors(self) -> ErrorForms:
        """Every error has a code and a message."""
        return ErrorForms(
            no_key=_error(401, "NotAuthenticated", _UNSIGNED),
            no_path=_error(404, "NotFound", "The requested path does not exist"),
            no_machine=lambda _: _error(404, "NotAuthorizedOrNotFound", _MISSING),
            bad_body=lambda reason: _error(
                400, "CannotParseRequest", f"Incorrectly formatted request: {reason}"
            ),
            rate_limited=_error(429, "TooManyRequests", "Too many requests for the user"),
            no_capacity=_error(500, "InternalError", "Out of host capacity."),
            failed=_error(500, "InternalServerError", "An internal server error occurred."),
        )

    def _products(self, call: Call) -> Reply:
        if call.query.get("currencyCode", "USD") != "USD":
            raise Refusal(_error(400, "InvalidParameter", "the sandbox knows the currency USD only"))
        items = [_item(*other) for other in OTHER_PARTS]
        for part in PARTS:
            price = float(self._usd_per_gpu_hour(part))
            items.append(_item(part.number, part.display_name, "GPU Per Hour", "Compute - GPU", price))
        return json_reply({"lastUpdated": zulu_ms(self.now), "items": items})

    def _usd_per_gpu_hour(self, part: Part) -> Decimal:
        """The price of the part's shapes; if a tester changed the price of one, that one."""
        items = [item for item in self.seller.inventory() if item.sku in part.shapes]
        prices = [(self.seller.price(item), item) for item in items]
        changed = [(usd, item) for usd, item in prices if usd != item.usd_per_hour]
        usd, item = (changed or prices)[0]
        return usd / item.gpus

    def _subscriptions(self, _: Call) -> Reply:
        rows = [
            {"regionKey": _key(name), "regionName": name, "status": "READY", "isHomeRegion": not i}
            for i, name in enumerate(DOMAINS)
        ]
        return json_reply([*rows, {**rows[0], "regionName": "mx-queretaro-1", "status": "IN_PROGRESS"}])

    def _domains(self, call: Call) -> Reply:
        compartment = _needed(call.query, "compartmentId")
        names = [f"{PREFIX}:{domain}" for domain in DOMAINS[_region(call)]]
        return json_reply(
            [
                {"name": n, "id": f"ocid1.availabilitydomain.oc1..{n}", "compartmentId": compartment}
                for n in names
            ]
        )

    def _inventory(self, call: Call, domain: str | None) -> list[InventoryItem]:
        region = _region(call)
        items = self.seller.inventory(region=region)
        return [item for item in items if domain in {None, item.zone}]

    def _report(self, call: Call) -> Reply:
        body = call.json_object()
        _needed(body, "compartmentId")
        domain = str(_needed(body, "availabilityDomain"))
        self._require_domain(call, domain)
        items = {item.sku: item for item in self._inventory(call, domain)}
        free = self.seller.free_by_key()
        rows = []
        for wanted in _needed(body, "shapeAvailabilities"):
            item = items.get(wanted["instanceShape"])
            there = 0 if item is None else free[item.key]
            supported = item is not None and (item.labels["supported"] or there > 0)
            status = "AVAILABLE" if there else "OUT_OF_HOST_CAPACITY"
            rows.append(
                {
                    "faultDomain": wanted.get("faultDomain"),
                    "instanceShape": wanted["instanceShape"],
                    "instanceShapeConfig": None,
                    "availableCount": there if supported else None,
                    "availabilityStatus": status if supported else "HARDWARE_NOT_SUPPORTED",
                }
            )
        return json_reply(
            {
                "compartmentId": body["compartmentId"],
                "availabilityDomain": domain,
                "shapeAvailabilities": rows,
                "timeCreated": zulu_ms(self.now),
            }
        )

    def _require_domain(self, call: Call, domain: str) -> None:
        if domain not in {f"{PREFIX}:{name}" for name in DOMAINS[_region(call)]}:
            raise Refusal(
                _error(400, "InvalidParameter", f"availabilityDomain {domain} is not in this region")
            )

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        token = call.headers.get("opc-retry-token", "")
        repeated = self._repeated(token)
        if repeated is not None:
            return self._shown(repeated)
        _needed(body, "compartmentId")
        domain = str(_needed(body, "availabilityDomain"))
        self._require_domain(call, domain)
        configs: Sequence[dict[str, Any]] = _needed(body, "instanceReservationConfigs")
        if len(configs) != 1:
            raise Refusal(_error(400, "InvalidParameter", "the sandbox reserves one shape at a time"))
        shape, count = configs[0].get("instanceShape"), int(configs[0].get("reservedCount", 0))
        if count < 1:
            raise Refusal(_error(400, "InvalidParameter", "reservedCount must be at least 1"))
        items = [item for item in self._inventory(call, domain) if item.sku == shape]
        if not items:
            raise Refusal(_error(400, "InvalidParameter", f"instanceShape {shape} is not valid here"))
        entry = self._reserve(call, body, items[0], count)
        if token:
            kept = {"id": entry.instance_id, "at": self.now.isoformat()}
            self.sandbox.store.put_document(_TOKENS, token, kept)
        return self._shown(entry)

    def _repeated(self, token: str) -> Entry | None:
        known = self.sandbox.store.document(_TOKENS, token) if token else None
        if known is None or self.now - datetime.fromisoformat(known["at"]) > RETRY_TOKEN_LIFE:
            return None
        entry = self.sandbox.ledger.find(self.name, known["id"])
        if entry is None or self.seller.state(entry, _STATES) in {"DELETING", "DELETED"}:
            message = "The provided retry token was used in an earlier request whose resource has changed."
            raise Refusal(_error(409, "InvalidatedRetryToken", message))
        return entry

    def _reserve(self, call: Call, body: dict[str, Any], item: InventoryItem, count: int) -> Entry:
        self.require_stock(item, count)
        part = next(part for part in PARTS if item.sku in part.shapes)
        return self.seller.sell(
            item,
            body.get("displayName", ""),
            Tariff(self._usd_per_gpu_hour(part) * item.gpus * count, BILLING_SLICE_S),
            {"request": body},
            instance_id=f"ocid1.capacityreservation.oc1..{self.seller.new_id(60)}",
            nodes=count,
            fails=call.loses_capacity,
        )

    def _shown(self, entry: Entry) -> Reply:
        request = entry.detail["request"]
        config = request["instanceReservationConfigs"][0]
        body = {
            **self._summary(entry),
            "instanceReservationConfigs": [
                {**config, "reservedCount": entry.nodes, "usedCount": 0},
            ],
            "timeUpdated": zulu_ms(entry.created_at),
        }
        return json_reply(
            body, headers={"etag": entry.instance_id[-8:], "opc-request-id": self._request_id()}
        )

    def _summary(self, entry: Entry) -> dict[str, Any]:
        request = entry.detail["request"]
        return {
            "id": entry.instance_id,
            "compartmentId": request["compartmentId"],
            "displayName": request.get("displayName", ""),
            "definedTags": request.get("definedTags") or {},
            "freeformTags": request.get("freeformTags") or {},
            "lifecycleState": self.seller.state(entry, _STATES),
            "availabilityDomain": entry.zone,
            "reservedInstanceCount": entry.nodes,
            "usedInstanceCount": 0,
            "isDefaultReservation": bool(request.get("isDefaultReservation")),
            "timeCreated": zulu_ms(entry.created_at),
        }

    def _request_id(self) -> str:
        return self.sandbox.new_id("oci-request", 32).upper()

    def _reservations(self, call: Call) -> Reply:
        compartment, region = _needed(call.query, "compartmentId"), _region(call)
        rows = [
            self._summary(entry)
            for entry in self.sandbox.ledger.entries(self.name)
            if entry.region == region and entry.detail["request"]["compartmentId"] == compartment
        ]
        return self._page(call, rows)

    def _page(self, call: Call, rows: list[dict[str, Any]]) -> Reply:
        """``limit`` rows from where ``page`` says; the next page's token is in a header."""
        start = int(call.query.get("page", "0"))
        end = start + call.whole("limit", 100, LONGEST_PAGE)
        headers = {"opc-next-page": str(end)} if end < len(rows) else {}
        return json_reply(rows[start:end], headers={**headers, "opc-request-id": self._request_id()})

    def _find(self, call: Call) -> Entry:
        entry = self.sandbox.ledger.find(self.name, call.parts["id"])
        if entry is None or entry.region != _region(call):
            raise Refusal(self.errors().no_machine(call))
        return entry

    def _reservation(self, call: Call) -> Reply:
        return self._shown(self._find(call))

    def _delete(self, call: Call) -> Reply:
        entry = self._find(call)
        state = self.seller.state(entry, _STATES)
        if state == "DELETED":
            raise Refusal(self.errors().no_machine(call))
        if state != "ACTIVE":
            raise Refusal(_error(409, "IncorrectState", f"The capacity reservation is {state}."))
        self.seller.release(entry)
        work = f"ocid1.coreservicesworkrequest.oc1..{self.sandbox.new_id('oci-work', 60)}"
        return Reply(204, b"", headers={"opc-work-request-id": work, "opc-request-id": self._request_id()})


def _item(number: str, name: str, metric: str, category: str, usd: float) -> dict[str, Any]:
    prices = [{"model": "PAY_AS_YOU_GO", "value": usd}]
    return {
        "partNumber": number,
        "displayName": name,
        "metricName": metric,
        "serviceCategory": category,
        "currencyCodeLocalizations": [{"currencyCode": "USD", "prices": prices}],
    }


def _region(call: Call) -> str:
    found = _HOST.fullmatch(call.parts["host"])
    if found is None or found[1] not in DOMAINS:
        raise Refusal(_error(404, "NotFound", f"no service of OCI answers at {call.parts['host']}"))
    return found[1]


def _key(region: str) -> str:
    return "".join(part[0] for part in region.split("-")).upper() + region[-1]


def _needed(values: Any, name: str) -> Any:
    if not values.get(name):
        raise Refusal(_error(400, "MissingParameter", f"{name} is missing"))
    return values[name]


def _error(status: int, code: str, message: str) -> Reply:
    return json_reply({"code": code, "message": message}, status)

"""Latitude.sh's API of 2023-06-01, under ``/latitude``.

JSON:API: ``data``, ``attributes``, ``meta``; errors are a list. Prices are dollars of the whole server by
region (hour, month, year by currency), stock is said by site. One create makes one server, whose host name
the caller chooses; a deleted server is gone at once. What is paid by the month is scheduled for deletion.
Billed by the hour begun, or by the month (730 hours) begun. Sources: latitudesh SDK for Python 3.4.6,
recordings of its Terraform provider. The sandbox's own: bodies of 401 and 429, and that a plain delete of a
monthly server is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply, page_of
from providers.sandbox.seller import SCRIPTS, ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.latitude.market import PLANS, SITES, latitude_inventory

MEDIA_TYPE = "application/vnd.api+json"
_SCRIPT = f"{SCRIPTS}/latitude"
MONTH = timedelta(hours=730)
_CENT = Decimal("0.01")
_LONGEST_HOSTNAME = 32
_STATES = Lifecycle({"starting_deploy": 0.25, "deploying": 1}, up="on", failed="failed_deployment")
_TERMS = {"hourly": "on_demand", "monthly": "committed"}
_SYSTEMS = ("ubuntu_22_04_x64_lts", "ubuntu_24_04_x64_lts", "ubuntu24_ml_in_a_box", "debian_12", "debian_13")


class Latitude(SellerProtocol):
    """Plans, servers, scheduled deletions."""

    name = "latitude"
    ends_at_once = True
    on_sale = staticmethod(latitude_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves."""
        return (
            Route("GET", "/plans", "list", self._plans),
            Route("POST", "/servers", "create", self._create),
            Route("GET", "/servers", "get", self._servers),
            Route("GET", "/servers/{id}", "get", self._server),
            Route("DELETE", "/servers/{id}", "delete", self._delete),
            Route("POST", "/servers/{id}/schedule_deletion", "delete", self._schedule),
            Route("GET", "/ssh_keys", "other", self._keys),
            Route("POST", "/ssh_keys", "other", self._add_key),
            Route("DELETE", "/ssh_keys/{id}", "other", self._drop_key),
            Route("GET", "/user_data", "other", self._scripts),
            Route("POST", "/user_data", "other", self._add_script),
            Route("DELETE", "/user_data/{id}", "other", self._drop_script),
        )

    def errors(self) -> ErrorForms:
        """Errors are lists of objects with code, status, title and detail."""
        return ErrorForms(
            no_key=_error(401, "unauthorized", "Unauthorized"),
            no_path=_error(404, "not_found", "Not Found"),
            no_machine=lambda _: _not_found(),
            bad_body=lambda reason: _error(400, "bad_request", "Bad Request", reason),
            rate_limited=_error(429, "too_many_requests", "Too Many Requests"),
            no_capacity=_out_of_stock(),
            failed=_error(500, "internal_server_error", "Internal Server Error"),
        )

    def key(self, call: Call) -> str | None:
        """A key, with or without the word Bearer."""
        key = call.headers.get("authorization", "").strip()
        return None if key in {"", "Bearer"} else key

    def _plans(self, call: Call) -> Reply:
        with_gpu = call.query.get("filter[gpu]") == "true"
        return _document([self._plan_row(slug) for slug, plan in PLANS.items() if plan.gpu or not with_gpu])

    def _plan_row(self, slug: str) -> dict[str, Any]:
        items = self.seller.inventory(sku=slug)
        names = [name for name in SITES if any(item.labels["region"] == name for item in items)]
        regions = [
            self._region(name, [item for item in items if item.labels["region"] == name]) for name in names
        ]
        attributes = {
            "slug": slug,
            "name": PLANS[slug].name,
            "features": ["ssh", "raid", "user_data"],
            "specs": PLANS[slug].specs(),
            "regions": regions,
            "available_operating_systems": list(_SYSTEMS),
        }
        return {"id": _plan_id(slug), "type": "plans", "attributes": attributes}

    def _region(self, name: str, items: list[InventoryItem]) -> dict[str, Any]:
        sites = list(dict.fromkeys(item.region for item in items))
        free = {item.region: self.seller.free(item) for item in items}
        stocked = [site for site in sites if free[site] > 0]
        prices = {item.tier: self.seller.price(item) for item in items}
        return {
            "name": name,
            "deploys_instantly": ["ubuntu_24_04_x64_lts"] if stocked else [],
            "locations": {
                "available": sites,
                "in_stock": stocked,
                "in_stock_count": {site: free[site] for site in stocked},
            },
            "stock_level": _level(sum(free[site] for site in stocked)),
            "pricing": {
                "USD": {
                    "hour": _dollars(prices.get("on_demand")),
                    "month": _dollars(prices.get("committed"), 730),
                    "year": None,
                }
            },
        }

    def _create(self, call: Call) -> Reply:
        wish = _attributes(call.json_object(), "servers")
        for name in ("project", "plan", "site", "operating_system", "hostname"):
            if not wish.get(name):
                raise Refusal(_invalid(f"{name} can't be blank"))
        if len(wish["hostname"]) > _LONGEST_HOSTNAME:
            raise Refusal(_invalid(f"hostname is too long (maximum is {_LONGEST_HOSTNAME} characters)"))
        item = self._wanted(wish)
        self.require_stock(item)
        monthly = item.tier == "committed"
        month = (self.seller.price(item) * 730).quantize(_CENT)
        tariff = Tariff(month / 730, 730 * 3600) if monthly else Tariff(self.seller.price(item), 3600)
        entry = self.seller.sell(
            item,
            wish["hostname"],
            tariff,
            {
                "request": wish,
                "script": self._named_script(wish),
                "billing": "monthly" if monthly else "hourly",
            },
            instance_id=f"sv_{self.sandbox.new_id(self.name, 13)}",
            fails=call.loses_capacity,
        )
        return _document(self._row(entry), 201)

    def _wanted(self, wish: Mapping[str, Any]) -> InventoryItem:
        tier = _TERMS.get(wish.get("billing") or "hourly")
        if tier is None:
            raise Refusal(_invalid("billing is not available for on demand projects"))
        if wish["operating_system"] not in _SYSTEMS:
            raise Refusal(_invalid("operating_system is invalid"))
        slugs = [slug for slug, plan in PLANS.items() if wish["plan"] in {slug, plan.name, _plan_id(slug)}]
        if not slugs:
            raise Refusal(_invalid("plan is invalid"))
        if not any(wish["site"] in sites for sites in SITES.values()):
            raise Refusal(_invalid("site is invalid"))
        for item in self.seller.inventory(sku=slugs[0]):
            if (item.region, item.tier) == (wish["site"], tier) and self.seller.price(item):
                return item
        raise Refusal(_out_of_stock())

    def _servers(self, call: Call) -> Reply:
        return self._page(call, [self._row(entry) for entry in self.seller.visible()])

    def _page(self, call: Call, rows: Sequence[Any]) -> Reply:
        """One page of ``rows``, with their number where the call asks for it."""
        size = int(call.query.get("page[size]") or 20)
        number = int(call.query.get("page[number]") or 1)
        if size < 1 or number < 1:
            raise Refusal(_error(400, "bad_request", "Bad Request", "page is invalid"))
        meta = {"stats": {"total": {"count": len(rows)}}} if "stats[total]" in call.query else {}
        return _document(page_of(rows, number, size), meta=meta)

    def _server(self, call: Call) -> Reply:
        return _document(self._row(self.machine(call)))

    def _row(self, entry: Entry) -> dict[str, Any]:
        request, status = entry.detail["request"], self.seller.state(entry, _STATES)
        region = next(name for name, sites in SITES.items() if entry.region in sites)
        attributes = {
            "tags": [],
            "hostname": request["hostname"],
            "label": "",
            "price": float(entry.tariff.usd_per_hour),
            "status": status,
            "ipmi_status": "Normal" if status == "on" else "Unavailable",
            "role": "Bare Metal",
            "site": entry.region,
            "locked": False,
            "primary_ipv4": self.seller.address(entry) if status == "on" else None,
            "created_at": zulu(entry.created_at),
            "scheduled_deletion_at": None if entry.ends_at is None else zulu(entry.ends_at),
            "plan": {
                "id": _plan_id(entry.sku),
                "name": PLANS[entry.sku].name,
                "slug": entry.sku,
                "billing": entry.detail["billing"],
            },
            "region": {
                "city": region,
                "country": region,
                "site": {"name": entry.region, "slug": entry.region},
            },
            "project": {"id": "proj_sandbox", "name": request["project"], "slug": request["project"]},
        }
        return {"id": entry.instance_id, "type": "servers", "attributes": attributes}

    def _keys(self, call: Call) -> Reply:
        return self._page(call, [_key_row(row) for row in self.seller.ssh_keys()])

    def _add_key(self, call: Call) -> Reply:
        wish = _attributes(call.json_object(), "ssh_keys")
        key_id = f"ssh_{self.sandbox.new_id(self.name, 13)}"
        row = self.seller.add_key(wish.get("name"), wish.get("public_key"), key_id)
        return _document(_key_row(row), 201)

    def _drop_key(self, call: Call) -> Reply:
        if not self.seller.drop_key(call.parts["id"]):
            raise Refusal(_not_found())
        return Reply(200, b"")

    def _scripts(self, call: Call) -> Reply:
        return self._page(call, list(self.sandbox.store.documents(_SCRIPT).values()))

    def _add_script(self, call: Call) -> Reply:
        wish = _attributes(call.json_object(), "user_data")
        if not wish.get("description") or not wish.get("content"):
            raise Refusal(_invalid("description and content can't be blank"))
        base64.b64decode(wish["content"], validate=True)
        row: dict[str, Any] = {"id": f"ud_{self.sandbox.new_id(self.name, 13)}", "type": "user_data"}
        row |= {"attributes": {"description": wish["description"], "content": wish["content"]}}
        self.sandbox.store.put_document(_SCRIPT, row["id"], row)
        return _document(row, 201)

    def _named_script(self, wish: Mapping[str, Any]) -> str:
        """The content of the stored user data that an order names; empty without any."""
        if not wish.get("user_data"):
            return ""
        row = self.sandbox.store.document(_SCRIPT, str(wish["user_data"]))
        if row is None:
            raise Refusal(_invalid("user_data is invalid"))
        return str(row["attributes"]["content"])

    def _drop_script(self, call: Call) -> Reply:
        if self.sandbox.store.document(_SCRIPT, call.parts["id"]) is None:
            raise Refusal(_not_found())
        self.sandbox.store.drop_document(_SCRIPT, call.parts["id"])
        return Reply(204, b"")

    def _delete(self, call: Call) -> Reply:
        entry = self.machine(call)
        if entry.detail["billing"] == "monthly" and not entry.failed(self.now):
            raise Refusal(_error(422, "unprocessable_entity", "Schedule the deletion of a monthly server"))
        self.seller.release(entry)
        return Reply(204, b"")

    def _schedule(self, call: Call) -> Reply:
        entry = self.machine(call)
        if entry.detail["billing"] != "monthly":
            raise Refusal(_error(422, "unprocessable_entity", "Only monthly servers are scheduled"))
        paid_until = entry.ends_at or _paid_until(entry, self.now)
        self.sandbox.ledger.write(replace(entry, ends_at=paid_until))
        schedule = {"server_id": entry.instance_id, "scheduled_deletion_at": zulu(paid_until)}
        return _document({"id": entry.instance_id, "type": "schedule_deletion", "attributes": schedule}, 201)


def _paid_until(entry: Entry, now: datetime) -> datetime:
    """The end of the month that has begun."""
    return entry.created_at + MONTH * ((now - entry.created_at) // MONTH + 1)


def _plan_id(slug: str) -> str:
    return f"plan_{slug.replace('-', '')[:13]}"


def _dollars(usd_per_hour: Decimal | None, hours: int = 1) -> float | None:
    """A price in the format of the list; None where the term is not sold."""
    return float((usd_per_hour * hours).quantize(_CENT)) if usd_per_hour else None


def _level(free: int) -> str:
    if free == 0:
        return "unavailable"
    return "low" if free < 3 else "medium" if free < 8 else "high"


def _key_row(row: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {"name": row["name"], "public_key": row["public_key"]}
    return {"id": row["id"], "type": "ssh_keys", "attributes": attributes}


def _attributes(document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    data = document.get("data")
    if not isinstance(data, dict) or data.get("type") != kind or not isinstance(data.get("attributes"), dict):
        raise ValueError(f"data must be of type {kind} and have attributes")
    return dict(data["attributes"])


def _document(data: Any, status: int = 200, meta: Mapping[str, Any] | None = None) -> Reply:
    return replace(json_reply({"data": data, "meta": dict(meta or {})}, status), media_type=MEDIA_TYPE)


def _error(status: int, code: str, title: str, detail: str | None = None) -> Reply:
    row = {"code": code, "status": str(status), "title": title, "detail": detail or title, "meta": {}}
    return replace(json_reply({"errors": [row]}, status), media_type=MEDIA_TYPE)


def _not_found() -> Reply:
    return _error(404, "not_found", "Specified Record Not Found")


def _invalid(detail: str) -> Reply:
    return _error(422, "VALIDATION_ERROR", "Validation failed", detail)


def _out_of_stock() -> Reply:
    return _error(
        422, "SERVERS_OUT_OF_STOCK", "Servers out of stock", "The plan is out of stock at this site"
    )

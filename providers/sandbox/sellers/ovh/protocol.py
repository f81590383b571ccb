"""OVHcloud's API, under ``/ovh/v1`` and ``/ovh/1.0``: the public catalogue and Public Cloud instances.

Catalogue prices are integers of 1e-8 EUR per instance and hour; the plan by the month stands beside the
one by the hour. Signed calls: of any signature the form is checked; of the application key ``sandbox``,
whose secret and consumer key are ``sandbox`` too, the signature itself. An instance without capacity is
taken and turns to ERROR. Sources: OVH's API description as its typed clients carry it, the ovh Python
client, sc-crawler. The words of refusals are composed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import Call, Refusal, Reply, Route, json_reply
from providers.sandbox.seller import ErrorForms, Lifecycle, SellerProtocol
from providers.sandbox.sellers.ovh.market import BY_NAME, REGIONS, USD_PER_EUR, Flavor, ovh_inventory

KNOWN_KEY = "sandbox"
HOURS_A_MONTH = 360
"""A month costs so many hours' price (illustrative)."""
_UNIT = Decimal(10) ** 8
_IMAGES = ("Ubuntu 22.04", "Ubuntu 24.04", "Debian 12")
_STATES = Lifecycle({"BUILD": 1}, up="ACTIVE", failed="ERROR", ending="DELETING")
_SIGNATURE = re.compile(r"\$1\$[0-9a-f]{40}")


class Ovh(SellerProtocol):
    """Catalogue, flavors, images, instances."""

    name = "ovh"
    on_sale = staticmethod(ovh_inventory)

    def make_routes(self) -> Iterable[Route]:
        """The paths of the API that the sandbox serves, under both of its prefixes."""
        for prefix in ("/v1", "/1.0"):
            mine = f"{prefix}/cloud/project/{{project}}"
            yield Route("GET", f"{prefix}/auth/time", "other", self._time, public=True)
            catalogue = f"{prefix}/order/catalog/public/cloud"
            yield Route("GET", catalogue, "list", self._catalogue, public=True)
            yield Route("GET", f"{mine}/flavor", "list", self._flavors)
            yield Route("GET", f"{mine}/image", "other", self._images)
            yield Route("POST", f"{mine}/instance", "create", self._create)
            yield Route("GET", f"{mine}/instance", "get", self._instances)
            yield Route("GET", f"{mine}/instance/{{id}}", "get", self._instance)
            yield Route("DELETE", f"{mine}/instance/{{id}}", "delete", self._delete)
            yield Route("GET", f"{mine}/sshkey", "other", self._keys)
            yield Route("POST", f"{mine}/sshkey", "other", self._add_key)
            yield Route("DELETE", f"{mine}/sshkey/{{id}}", "other", self._drop_key)

    def errors(self) -> ErrorForms:
        """Errors have a class and a message."""
        return ErrorForms(
            no_key=_error(403, "Client::Forbidden", "You must login first", "NOT_CREDENTIAL"),
            no_path=_error(404, "Client::NotFound", "Got an invalid (or empty) URL"),
            no_machine=lambda _: _error(404, "Client::NotFound", "Instance does not exist"),
            bad_body=lambda reason: _error(400, "Client::BadRequest", reason),
            rate_limited=_error(429, "Client::TooManyRequests", "Too many requests"),
            no_capacity=_error(400, "Client::BadRequest", "No more capacity for this flavor in the region"),
            failed=_error(500, "Server::InternalServerError", "Internal server error"),
        )

    def authorise(self, call: Call) -> None:
        """Application, consumer, time and signature."""
        headers = call.headers
        application, sent = headers.get("x-ovh-application", ""), headers.get("x-ovh-signature", "")
        if not application or not headers.get("x-ovh-consumer"):
            raise Refusal(self.errors().no_key)
        formed = headers.get("x-ovh-timestamp", "").isdecimal() and _SIGNATURE.fullmatch(sent) is not None
        if not formed or (application == KNOWN_KEY and sent != _signature(call)):
            raise Refusal(_error(400, "Client::BadRequest", "Invalid signature", "INVALID_SIGNATURE"))

    def _time(self, _: Call) -> Reply:
        return json_reply(int(self.now.timestamp()))

    # Market data

    def _catalogue(self, call: Call) -> Reply:
        if not call.query.get("ovhSubsidiary"):
            raise ValueError("[ovhSubsidiary] Missing argument")
        first = {item.sku: item for item in reversed(self.seller.inventory())}
        addons = [row for flavor in BY_NAME.values() for row in self._plans(flavor, first[flavor.name])]
        addons.append({"planCode": "volume.classic.consumption", "product": "publiccloud-volume"})
        locale = {"currencyCode": "EUR", "subsidiary": call.query["ovhSubsidiary"], "taxRate": 20}
        return json_reply({"catalogId": 42, "locale": locale, "plans": [], "addons": addons})

    def _plans(self, flavor: Flavor, item: InventoryItem) -> Iterable[dict[str, Any]]:
        hourly = int((self.seller.price(item) / USD_PER_EUR * _UNIT).to_integral_value())
        for code, unit, price, kind in (
            ("consumption", "hour", hourly, "consumption"),
            ("monthly.postpaid", "month", hourly * HOURS_A_MONTH, "rental"),
        ):
            yield {
                "planCode": f"{flavor.name}.{code}",
                "invoiceName": flavor.name,
                "product": "publiccloud-instance",
                "pricingType": kind,
                "pricings": [{"interval": 1, "intervalUnit": unit, "price": price, "tax": 0, "type": kind}],
                "blobs": {"technical": _technical(flavor), "tags": ["active"]},
            }

    def _flavors(self, call: Call) -> Reply:
        free, wanted = self.seller.free_by_key(), call.query.get("region")
        rows = [
            {
                "id": _flavor_id(item.sku, item.region),
                "name": item.sku,
                "region": item.region,
                "available": free[item.key] > 0,
                "vcpus": BY_NAME[item.sku].cores,
                "ram": BY_NAME[item.sku].ram_gb,
                "disk": BY_NAME[item.sku].disk_gb,
                "osType": BY_NAME[item.sku].family,
                "type": "ovh.gpu",
                "quota": free[item.key],
                "planCodes": {
                    "hourly": f"{item.sku}.consumption",
                    "monthly": f"{item.sku}.monthly.postpaid",
                },
            }
            for item in self.seller.inventory()
            if wanted in {None, item.region}
        ]
        return json_reply(rows)

    def _images(self, call: Call) -> Reply:
        wanted = call.query.get("region")
        rows = [
            {"id": _image_id(name, region), "name": name, "region": region, "status": "active"}
            for region in REGIONS
            for name in _IMAGES
            if wanted in {None, region}
        ]
        return json_reply(rows)

    # Keys

    def _keys(self, _: Call) -> Reply:
        return json_reply([_key_row(row) for row in self.seller.ssh_keys()])

    def _add_key(self, call: Call) -> Reply:
        body = call.json_object()
        row = self.seller.add_key(body.get("name"), body.get("publicKey"))
        return json_reply(_key_row(row))

    def _drop_key(self, call: Call) -> Reply:
        if not self.seller.drop_key(call.parts["id"]):
            raise Refusal(_error(404, "Client::NotFound", "SSH key does not exist"))
        return json_reply(None)

    # Instances

    def _create(self, call: Call) -> Reply:
        body = call.json_object()
        for name in ("flavorId", "name", "region"):
            if not body.get(name):
                raise ValueError(f"[{name}] Missing argument")
        item = self._wanted(body)
        if body.get("imageId") not in {_image_id(name, item.region) for name in _IMAGES}:
            raise Refusal(_error(404, "Client::NotFound", "Image does not exist"))
        key = body.get("sshKeyId")
        if key and not any(row["id"] == key for row in self.seller.ssh_keys()):
            raise Refusal(_error(404, "Client::NotFound", "SSH key does not exist"))
        short = call.loses_capacity or self.seller.free(item) < 1
        detail = {"request": body, "project": call.parts["project"]}
        detail |= {"currency": "EUR", "usd_per_unit": str(USD_PER_EUR)}
        tariff = Tariff(self.seller.price(item), 3600)
        entry = self.seller.sell(item, body["name"], tariff, detail, fails=short)
        return json_reply(self._single(entry))

    def _wanted(self, body: dict[str, Any]) -> InventoryItem:
        for item in self.seller.inventory():
            if _flavor_id(item.sku, item.region) == body["flavorId"] and item.region == body["region"]:
                return item
        raise Refusal(_error(404, "Client::NotFound", "Flavor does not exist in this region"))

    def _listed(self, entry: Entry) -> dict[str, Any]:
        """An instance in the list: its flavor and image by their ids alone."""
        request = entry.detail["request"]
        return self._row(entry) | {"flavorId": request["flavorId"], "imageId": request["imageId"]}

    def _single(self, entry: Entry) -> dict[str, Any]:
        """An instance that was asked for alone or was just made: its flavor in full."""
        flavor = BY_NAME[entry.sku]
        told = {"id": entry.detail["request"]["flavorId"], "name": flavor.name, "vcpus": flavor.cores}
        return self._row(entry) | {"flavor": told}

    def _row(self, entry: Entry) -> dict[str, Any]:
        status = self.seller.state(entry, _STATES)
        address = self.seller.address(entry)
        addresses = [{"ip": address, "type": kind, "version": 4} for kind in ("public", "private")]
        return {
            "id": entry.instance_id,
            "name": entry.tag,
            "region": entry.region,
            "status": status,
            "created": zulu(entry.created_at),
            "planCode": f"{entry.sku}.consumption",
            "ipAddresses": addresses if status == "ACTIVE" else [],
            "monthlyBilling": None,
        }

    def _instances(self, call: Call) -> Reply:
        wanted = call.query.get("region")
        rows = [self._listed(entry) for entry in self.seller.visible(project=call.parts["project"])]
        return json_reply([row for row in rows if wanted in {None, row["region"]}])

    def _known(self, call: Call) -> Entry:
        return self.machine(call, project=call.parts["project"])

    def _instance(self, call: Call) -> Reply:
        return json_reply(self._single(self._known(call)))

    def _delete(self, call: Call) -> Reply:
        self.seller.release(self._known(call))
        return json_reply(None)


def _technical(flavor: Flavor) -> dict[str, Any]:
    gpu = {
        "model": flavor.model,
        "number": flavor.gpus,
        "memory": {"size": flavor.gpu_gb, "interface": "HBM"},
    }
    return {
        "cpu": {"cores": flavor.cores, "frequency": 3.0, "type": "vCore"},
        "memory": {"size": flavor.ram_gb},
        "storage": {"disks": [{"number": 1, "capacity": flavor.disk_gb, "technology": "NVMe"}]},
        "os": {"family": flavor.family},
        **({"gpu": gpu} if flavor.gpus else {}),
    }


def _key_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "name": row["name"], "publicKey": row["public_key"], "regions": list(REGIONS)}


def _flavor_id(name: str, region: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"ovh-flavor-{name}-{region}"))


def _image_id(name: str, region: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"ovh-image-{name}-{region}"))


def _signature(call: Call) -> str:
    """What the known key must have sent: secrets, method, whole URL, body, time."""
    url = f"http://{call.headers.get('host', '')}{call.target}"
    timestamp = call.headers["x-ovh-timestamp"]
    text = "+".join((KNOWN_KEY, KNOWN_KEY, call.method, url, call.body.decode("utf-8", "replace"), timestamp))
    return f"$1${hashlib.sha1(text.encode()).hexdigest()}"  # noqa: S324  the scheme is OVH's


def _error(status: int, kind: str, message: str, code: str | None = None) -> Reply:
    body = {"class": kind, "message": message, "httpCode": str(status)}
    return json_reply(body | ({"errorCode": code} if code else {}), status)

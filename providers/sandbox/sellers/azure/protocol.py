"""Azure under ``/azure``: price list, login, SKUs, scale sets; reservations are a file of their own.

Three hosts of Azure share one path here: ``/api/retail/prices`` (no token), ``/{tenant}/oauth2/v2.0/token``,
and the Resource Manager's ``/subscriptions/…``. Any tenant, subscription and resource group exists. What is
made is answered at once and comes up (or fails for lack of capacity) later: ``Azure-AsyncOperation`` tells.
Pages of the price list are shorter than Azure's thousand rows, so that clients have to turn them. Sources:
Azure Retail Prices overview, Microsoft.Compute 2026-04-01, Azure's pages on scale sets and throttling.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from providers.sandbox.faults import FaultKind
from providers.sandbox.ledger import Entry, Tariff, zulu
from providers.sandbox.market import InventoryItem
from providers.sandbox.protocol import (
    Call,
    ProtocolHandler,
    Refusal,
    Reply,
    Route,
    SandboxState,
    json_reply,
    text_reply,
)
from providers.sandbox.seller import ADDRESSES, SellerState
from providers.sandbox.sellers.azure.arm import (
    COMPUTE,
    OPERATIONS,
    Resources,
    Scope,
    arm_error,
    instance_statuses,
    invalid,
    next_page,
    not_found,
    root_of,
    short_of_capacity,
)
from providers.sandbox.sellers.azure.filter import parse_filter
from providers.sandbox.sellers.azure.market import (
    BLOCK_SIZES,
    NAME,
    azure_inventory,
    find_item,
    meters,
    takes_targeted,
)
from providers.sandbox.sellers.azure.networks import GROUPS as NETWORK_GROUPS
from providers.sandbox.sellers.azure.networks import NETWORK, NETWORKS, Networks
from providers.sandbox.sellers.azure.reservations import BILLING_S, GROUPS, RESERVATIONS, Reservations

SCALE_SETS = "virtualMachineScaleSets"
VALIDATE = (
    "/subscriptions/{sub}/resourceGroups/{rg}/providers/Microsoft.Resources/deployments/{deployment}/validate"
)
PRICES = "/api/retail/prices"
TOKEN_LIFE_S = 3599
_TOKEN = "sandbox-azure-"  # noqa: S105  a prefix
_PRICE_PAGE = 100
_PAGE = 20
_MOST_VMS = 100
_LONGEST_PREFIX = 58
ADDRESS_USD_PER_HOUR = Decimal("0.005")
"""A Standard public IPv4 address of a VM (azure.microsoft.com/pricing/details/ip-addresses)."""


class Azure(ProtocolHandler):
    """The paths, the price list and the login."""

    name = "azure"

    def __init__(self, sandbox: SandboxState) -> None:
        sandbox.market.add(azure_inventory(sandbox.seed))
        self._reservations = Reservations(sandbox)
        self._networks = Networks(sandbox)
        self._scale_sets = ScaleSets(sandbox, self._networks)
        super().__init__(sandbox)

    def make_routes(self) -> Iterable[Route]:
        """The paths that the sandbox serves; making or removing an empty group holds nothing."""
        held, sets = self._reservations, self._scale_sets
        group = f"{COMPUTE}/{GROUPS}/{{group}}"
        reservation = f"{group}/{RESERVATIONS}/{{name}}"
        scale_set = f"{COMPUTE}/{SCALE_SETS}/{{name}}"
        return (
            Route("GET", PRICES, "list", self._prices, public=True),
            Route("POST", "/{tenant}/oauth2/v2.0/token", "other", self._login, public=True),
            Route("GET", "/subscriptions/{sub}/providers/Microsoft.Compute/skus", "list", self._skus),
            Route("GET", OPERATIONS, "other", held.operation),
            Route("GET", f"{COMPUTE}/{GROUPS}", "get", held.list_groups),
            Route("PUT", group, "other", held.put_group),
            Route("GET", group, "get", held.group),
            Route("DELETE", group, "other", held.delete_group),
            Route("GET", f"{group}/{RESERVATIONS}", "get", held.list_reservations),
            Route("PUT", reservation, "create", held.put_reservation),
            Route("GET", reservation, "get", held.reservation),
            Route("DELETE", reservation, "delete", held.delete_reservation),
            Route("GET", f"{COMPUTE}/{SCALE_SETS}", "get", sets.every),
            Route("PUT", scale_set, "create", sets.put),
            Route("GET", scale_set, "get", sets.one),
            Route("DELETE", scale_set, "delete", sets.remove),
            Route("GET", f"{scale_set}/instanceView", "get", sets.instance_view),
            Route("GET", f"{scale_set}/networkInterfaces", "other", sets.interfaces),
            Route("GET", f"{scale_set}/publicipaddresses", "other", sets.public_addresses),
            *(
                Route(verb, f"{NETWORK}/{kind}/{{name}}", "other", handler)
                for kind in (NETWORK_GROUPS, NETWORKS)
                for verb, handler in (("GET", self._networks.get), ("PUT", self._networks.put))
            ),
            Route("POST", VALIDATE, "other", self._validate),
        )

    def authorise(self, call: Call) -> None:
        """A bearer token (one of ours only until it expires), and the version that every call names."""
        key = call.key()
        if key is None:
            raise arm_error(
                401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing."
            )
        if key.startswith(_TOKEN):
            until = key.removeprefix(_TOKEN).partition("-")[0]
            if not until.isdecimal() or int(until) <= self.now.timestamp():
                raise arm_error(
                    401, "ExpiredAuthenticationToken", "The access token expiry UTC time is past."
                )
        if not call.query.get("api-version"):
            raise arm_error(
                400,
                "MissingApiVersionParameter",
                "The api-version query parameter (?api-version=) is required.",
            )

    def unknown_path(self) -> Reply:
        """404 of the Resource Manager."""
        return arm_error(404, "InvalidResourceType", "The resource type could not be found.").reply

    def refusal(self, kind: FaultKind, call: Call) -> Reply:
        """Errors of the Resource Manager; the price list throttles in plain text."""
        if kind is FaultKind.RATE_LIMITED:
            if call.path == PRICES:
                return text_reply("Too Many Requests", 429)
            message = "The request is being throttled as the limit has been reached for operation type."
            return arm_error(429, "TooManyRequests", message).reply.with_headers({"Retry-After": "1"})
        if kind is FaultKind.OUT_OF_CAPACITY:
            return json_reply({"error": short_of_capacity("that was asked for", "that was asked for")}, 409)
        return arm_error(500, "InternalServerError", "Encountered internal server error.").reply

    def malformed_body(self, reason: str) -> Reply:
        """400 of a body that cannot be read."""
        return arm_error(400, "InvalidRequestContent", f"The request content was invalid: {reason}").reply

    def _prices(self, call: Call) -> Reply:
        if call.query.get("currencyCode", "USD").strip("'") != "USD":
            return _bad_prices("the sandbox knows the currency USD only")
        rows, wanted = meters(self.sandbox), call.query.get("$filter", "")
        try:
            test = parse_filter(wanted) if wanted.strip() else lambda _: True
            rows = [row for row in rows if test(row)]
        except ValueError as error:
            return _bad_prices(f"Invalid OData parameters supplied: {error}")
        skip = call.query.get("$skip", "0")
        start = int(skip) if skip.isdecimal() else 0
        page = rows[start : start + _PRICE_PAGE]
        link = None
        if start + _PRICE_PAGE < len(rows):
            link = f"{root_of(call)}{PRICES}?$filter={quote(wanted)}&$skip={start + _PRICE_PAGE}"
        return json_reply(
            {
                "BillingCurrency": "USD",
                "CustomerEntityId": "Default",
                "CustomerEntityType": "Retail",
                "Items": page,
                "NextPageLink": link,
                "Count": len(page),
            }
        )

    def _login(self, call: Call) -> Reply:
        form = call.form()
        if form.get("grant_type") != "client_credentials" or not form.get("scope"):
            return _login_error(400, "invalid_request", "AADSTS900144: The request body lacks a parameter.")
        if not form.get("client_id") or not form.get("client_secret"):
            return _login_error(401, "invalid_client", "AADSTS7000215: Invalid client secret provided.")
        until = int(self.now.timestamp()) + TOKEN_LIFE_S
        token = f"{_TOKEN}{until}-{self.sandbox.new_id('azure-token', 16)}"
        return json_reply({"token_type": "Bearer", "expires_in": TOKEN_LIFE_S, "access_token": token})

    def _validate(self, call: Call) -> Reply:
        """Validates a template's resources without creating them."""
        properties = call.json_object().get("properties") or {}
        template = properties.get("template") or {}
        resources = template.get("resources")
        if properties.get("mode") not in {"Incremental", "Complete"} or not isinstance(resources, list):
            raise arm_error(400, "InvalidDeployment", "A deployment needs a mode and a template.")
        groups: dict[str, Any] = {}
        for resource in resources:
            kind = str(resource.get("type", "")).removeprefix("Microsoft.Compute/")
            if kind == GROUPS:
                groups[resource["name"]] = resource
            try:
                if kind == SCALE_SETS:
                    self._scale_sets.priced(resource)
                elif kind == f"{GROUPS}/{RESERVATIONS}":
                    self._reservations.priced(resource, groups[resource["name"].partition("/")[0]])
            except Refusal as refusal:
                inner = json.loads(refusal.reply.body)["error"]
                wrapped = {
                    "code": "InvalidTemplateDeployment",
                    "message": "The template deployment is not valid according to the validation procedure.",
                    "details": [inner],
                }
                return json_reply({"error": wrapped}, 400)
        name = call.parts["deployment"]
        states = {"provisioningState": "Succeeded", "mode": properties["mode"]}
        return json_reply({"name": name, "type": "Microsoft.Resources/deployments", "properties": states})

    def _skus(self, call: Call) -> Reply:
        items = {(item.sku, item.region): item for item in self.sandbox.market.inventory(self.name)}.values()
        wanted = call.query.get("$filter", "")
        test = parse_filter(wanted) if wanted.strip() else lambda _: True
        rows = [
            _sku_row(item.sku, item.region, item.gpus, item.vcpus, item.memory_gb)
            for item in items
            if test({"location": item.region})
        ]
        page, link = next_page(call, rows, _PRICE_PAGE)
        return json_reply({"value": page, **({"nextLink": link} if link else {})})


class ScaleSets(Resources):
    """Scale sets in one placement group, on demand or spot."""

    def __init__(self, sandbox: SandboxState, networks: Networks) -> None:
        super().__init__(sandbox)
        self._networks = networks
        self._seller = SellerState(sandbox, NAME, sandbox.durations.terminate_s)

    def every(self, call: Call) -> Reply:
        """Scale sets of a resource group."""
        rows = [self._row(call, entry) for entry in self.existing(call, f"{SCALE_SETS}/")]
        page, link = next_page(call, rows, _PAGE)
        return json_reply({"value": page, **({"nextLink": link} if link else {})})

    def one(self, call: Call) -> Reply:
        """One scale set."""
        return json_reply(self._row(call, self._known(call)))

    def instance_view(self, call: Call) -> Reply:
        """How many of its VMs exist: all or none."""
        entry = self._known(call)
        state = self.state(entry)
        count = 0 if state == "Failed" else entry.nodes
        summary = [{"code": f"ProvisioningState/{state.lower()}", "count": count}] if count else []
        statuses = instance_statuses(state, entry.sku, entry.region)
        return json_reply({"virtualMachine": {"statusesSummary": summary}, "statuses": statuses})

    def interfaces(self, call: Call) -> Reply:
        """The network interfaces of the VMs that are up, in Microsoft.Network's form."""
        entry, rows = self._known(call), []
        for node in self._nodes_up(entry):
            place: dict[str, Any] = {"privateIPAddress": self._seller.address(entry, node)}
            if self._is_public(entry):
                place["publicIPAddress"] = {"id": self._public_id(call, entry, node)}
            config = {"name": "primary", "properties": place}
            path = f"{self._vm_id(call, entry, node)}/networkInterfaces/primary"
            rows.append({"name": "primary", "id": path, "properties": {"ipConfigurations": [config]}})
        return json_reply({"value": rows})

    def public_addresses(self, call: Call) -> Reply:
        """The public addresses of the VMs that are up."""
        entry = self._known(call)
        rows = [
            {
                "name": "public",
                "id": self._public_id(call, entry, node),
                "properties": {"ipAddress": self._seller.address(entry, node)},
            }
            for node in self._nodes_up(entry)
            if self._is_public(entry)
        ]
        return json_reply({"value": rows})

    def _known(self, call: Call) -> Entry:
        entry = self.find(call, _path(call))
        if entry is None:
            raise not_found(SCALE_SETS, call.parts["name"])
        return entry

    def _nodes_up(self, entry: Entry) -> range:
        return range(entry.nodes if self._seller.is_up(entry) else 0)

    def _vm_id(self, call: Call, entry: Entry, node: int) -> str:
        return Scope.of(call).id_of(f"{entry.instance_id}/virtualMachines/{node}")

    def _public_id(self, call: Call, entry: Entry, node: int) -> str:
        place = "networkInterfaces/primary/ipConfigurations/primary/publicIPAddresses/public"
        return f"{self._vm_id(call, entry, node)}/{place}"

    def _is_public(self, entry: Entry) -> bool:
        return _has_addresses(entry.detail["request"])

    def remove(self, call: Call) -> Reply:
        """Deletes a scale set with its VMs."""
        entry = self.find(call, _path(call))
        return Reply(204, b"") if entry is None else self.delete(call, entry)

    def put(self, call: Call) -> Reply:
        """Makes a scale set; an equal one that is there is answered, it is not resized here."""
        body = call.json_object()
        size, count, _, _ = _wanted(body)
        known = self.find(call, _path(call))
        if known is not None:
            if (known.sku, known.nodes) != (size, count):
                raise arm_error(
                    409, "PropertyChangeNotAllowed", "The sandbox does not change what a scale set is."
                )
            return json_reply(self._row(call, known))
        item = self.priced(body)
        self.make_room(_path(call))
        is_short = call.loses_capacity or self.sandbox.market.free(item, self.now) < count
        addresses_usd = ADDRESS_USD_PER_HOUR if _has_addresses(body) else Decimal(0)
        price = ((self.sandbox.market.price(item) or Decimal(0)) + addresses_usd) * count
        ready_at = self.now + timedelta(seconds=self.sandbox.durations.boot_s)
        entry = item.bought(
            self.now,
            _path(call),
            call.parts["name"],
            Tariff(price, BILLING_S),
            nodes=count,
            units=0 if is_short else count,
            failed_at=ready_at if is_short else None,
            detail={
                "scope": Scope.of(call).key,
                "kind": "ScaleSet",
                "request": body,
                ADDRESSES: self._seller.new_addresses(count),
            },
        )
        self.sandbox.ledger.write(entry)
        return self.created(call, entry, self._row(call, entry))

    def priced(self, body: dict[str, Any]) -> InventoryItem:
        """The order in a scale set's body; Refusal where a field is missing or the size is not sold."""
        size, _, location, is_spot = _wanted(body)
        subnet = _place(body).get("subnet") or {}
        self._networks.require_subnet(str(subnet.get("id", "")), location)
        item = find_item(self.sandbox, size, location, "spot" if is_spot else "on_demand")
        if item is None:
            raise arm_error(
                409, "SkuNotAvailable", f"The requested VM size '{size}' is not available in '{location}'."
            )
        profile = body["properties"]["virtualMachineProfile"].get("billingProfile") or {}
        most, price = Decimal(str(profile.get("maxPrice", -1))), self.sandbox.market.price(item)
        if is_spot and price is not None and -1 != most < price:
            raise arm_error(
                409,
                "OperationNotAllowed",
                f"The provided max price '{most}' is below the spot price '{price}'.",
            )
        return item

    def _row(self, call: Call, entry: Entry) -> dict[str, Any]:
        request = entry.detail["request"]
        properties = {
            **request["properties"],
            "orchestrationMode": "Uniform",
            "provisioningState": self.state(entry),
            "timeCreated": zulu(entry.created_at),
        }
        return {
            "name": call.parts.get("name") or entry.instance_id.rsplit("/", 1)[1],
            "id": Scope.of(call).id_of(entry.instance_id),
            "type": f"Microsoft.Compute/{SCALE_SETS}",
            "location": entry.region,
            "tags": request.get("tags", {}),
            "sku": {"name": entry.sku, "tier": "Standard", "capacity": entry.nodes},
            "properties": properties,
        }


def _place(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first address configuration of a scale set's VMs."""
    profile = body["properties"]["virtualMachineProfile"]["networkProfile"]
    (config,) = profile["networkInterfaceConfigurations"][0]["properties"]["ipConfigurations"][:1]
    place: Mapping[str, Any] = config["properties"]
    return place


def _has_addresses(body: Mapping[str, Any]) -> bool:
    return "publicIPAddressConfiguration" in _place(body)


def _path(call: Call) -> str:
    return f"{SCALE_SETS}/{call.parts['name']}"


def _wanted(body: dict[str, Any]) -> tuple[str, int, str, bool]:
    """Size, count, location and whether it is spot; Refusal for what a scale set lacks."""
    sku, location = body.get("sku") or {}, str(body.get("location") or "").lower().replace(" ", "")
    size, count = sku.get("name"), sku.get("capacity")
    profile = (body.get("properties") or {}).get("virtualMachineProfile") or {}
    if not isinstance(size, str) or not isinstance(count, int) or not 1 <= count <= _MOST_VMS or not location:
        raise invalid("Required parameter 'location', 'sku.name' or 'sku.capacity' is missing or not valid.")
    for part, name in (
        ("storageProfile", "imageReference"),
        ("networkProfile", "networkInterfaceConfigurations"),
        ("osProfile", "computerNamePrefix"),
    ):
        if not (profile.get(part) or {}).get(name):
            raise invalid(f"Required parameter 'virtualMachineProfile.{part}.{name}' is missing (null).")
    if len(profile["osProfile"]["computerNamePrefix"]) > _LONGEST_PREFIX:
        raise invalid("The computer name prefix cannot be more than 58 characters long.")
    linux = profile["osProfile"].get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys")
    if linux.get("disablePasswordAuthentication") and not keys:
        raise invalid(
            "Authentication using either SSH or by user name and password must be enabled in Linux profile."
        )
    priority = profile.get("priority", "Regular")
    if priority not in {"Regular", "Spot"}:
        raise invalid(f"The value '{priority}' of parameter 'priority' is invalid.")
    return size, count, location, priority == "Spot"


def _sku_row(
    size: str, region: str, gpus: int, vcpus: float | None, memory_gb: float | None
) -> dict[str, Any]:
    kinds = [
        kind for kind, sold in (("Targeted", takes_targeted(size)), ("Block", size in BLOCK_SIZES)) if sold
    ]
    facts = {
        "vCPUs": f"{vcpus or 0:g}",
        "MemoryGB": f"{memory_gb or 0:g}",
        "GPUs": str(gpus),
        "CapacityReservationSupported": str(bool(kinds)),
        **({"SupportedCapacityReservationTypes": ",".join(kinds)} if kinds else {}),
    }
    return {
        "resourceType": "virtualMachines",
        "name": size,
        "tier": "Standard",
        "size": size.removeprefix("Standard_"),
        "family": size.removeprefix("Standard_").rstrip("0123456789_v") + "Family",
        "locations": [region],
        "locationInfo": [{"location": region, "zones": []}],
        "capabilities": [{"name": name, "value": value} for name, value in facts.items()],
        "restrictions": [],
    }


def _bad_prices(message: str) -> Reply:
    return json_reply({"Error": {"Code": "BadRequest", "Message": message}}, 400)


def _login_error(status: int, code: str, text: str) -> Reply:
    return json_reply({"error": code, "error_description": text}, status)

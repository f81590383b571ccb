"""The Azure adapter: prices without a key; reservations and scale sets that it creates, lists and deletes.

``reserve`` creates what the offer's ``hold`` names, and the tag is always the resource's name. It is either
a capacity reservation in a group of its own (a group takes one reservation per size), or a scale set whose
VMs share one placement group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from broker.domain.basics.errors import (
    CredentialsRejected,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.holding.seller_network import NetworkRules
from broker.domain.market.offer import Offer, OfferBatch, RejectedRow
from broker.together import all_or_none
from providers.azure import addresses, leases, networks, scale_sets, sizes, windows
from providers.azure.arm import API_VERSION, DEPLOYMENTS_VERSION, MOST_PAGES, Arm, classify, query_of
from providers.azure.leases import GROUPS, SCALE_SETS, TAG_KEY
from providers.azure.prices import Hold, parse_rows, read_page
from providers.azure.windows import PROVIDER
from providers.client import Entry, Seller, found_again, ordered, tells_all_or_fails
from providers.http import Operation, ProviderHttp
from providers.network_setup import NetworkSetup, NetworkStep
from providers.spec import refuse_long_tag

PRICES_PATH = "/api/retail/prices"
PRICES_FILTER = (
    "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and contains(armSkuName, 'Standard_N')"
)
"""All sizes with accelerators begin with N.

The API refuses a Boolean ``not``, so other N sizes are read and filtered out here.
"""
TEMPLATE_SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
_GROUP_TYPES = {Hold.TARGETED: "Targeted", Hold.BLOCK: "Block", Hold.FUTURE: "Targeted"}


@dataclass(frozen=True, slots=True)
class AzureOptions:
    """Settings of the adapter.

    ``regions``: where prices are read; empty means everywhere. ``machine``: what a scale set boots.
    ``sizes_max_age``: how long the list of a subscription's sizes in a region is valid.
    """

    prices_url: str
    currency: str
    regions: tuple[str, ...]
    machine: scale_sets.Machine
    sizes_max_age: timedelta
    keyless: bool = False


GROUP_GONE = "ParentResourceNotFound"
"""Detail of reservations whose group was deleted after the groups were listed."""


class Azure(Seller, NetworkSetup):
    """One subscription's resource group."""

    provider = PROVIDER
    longest_tag = 60
    idempotency = Idempotency.TOKEN
    network_setting = "BROKER_AZURE_SUBNET"

    def __init__(self, http: ProviderHttp, arm: Arm, options: AzureOptions) -> None:
        self._http, self._arm, self._options = http, arm, options
        self.names_network = bool(options.machine.subnet)
        self._known_sizes: dict[str, tuple[datetime, sizes.Sizes]] = {}

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Prices of every size with accelerators, and the windows on sale."""
        regions = self._options.regions or (None,)
        rows = [row for region in regions for row in await self._prices(region)]
        prices = parse_rows(rows, observed_at)
        return prices if self._options.keyless else await self._checked(prices, observed_at)

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """The price list of the offer's own region."""
        return found_again(offer, parse_rows(await self._prices(offer.region), asked_at))

    async def _checked(self, prices: OfferBatch, observed_at: datetime) -> OfferBatch:
        """``prices`` without the sizes that the subscription cannot order.

        Unchanged when that may not be read.
        """
        await self._arm.sign_in()
        regions = sorted({offer.region for offer in prices.offers})
        try:
            found = await all_or_none(self._sizes(region, observed_at) for region in regions)
        except CredentialsRejected as error:
            unseen = RejectedRow("sizes of the subscription", f"not checked: {error}")
            return OfferBatch(prices.offers, (*prices.rejected, unseen))
        return sizes.checked(prices, dict(zip(regions, found, strict=True)), observed_at)

    async def _sizes(self, region: str, observed_at: datetime) -> sizes.Sizes:
        known = self._known_sizes.get(region)
        if known is not None and observed_at - known[0] < self._options.sizes_max_age:
            return known[1]
        query = sizes.query_of_region(region)
        listed = self._arm.rows(self._arm.sizes_path, query, Operation.OFFERS)
        found = sizes.read_sizes([row async for row, _ in listed], region)
        self._known_sizes[region] = (observed_at, found)
        return found

    async def _prices(self, region: str | None) -> list[Any]:
        wanted = f"{PRICES_FILTER} and armRegionName eq '{region}'" if region else PRICES_FILTER
        currency = self._options.currency.upper()
        asked = {"currencyCode": f"'{currency}'"} if currency != "USD" else {}
        params = {**asked, "$filter": wanted}
        links: set[str] = set()
        rows: list[Any] = []
        while len(links) < MOST_PAGES:
            url = f"{self._options.prices_url}{PRICES_PATH}"
            reply = await self._http.request("GET", url, operation=Operation.OFFERS, params=params)
            page = read_page(reply.body)
            rows += page.rows
            if page.next_link is None:
                return rows
            if page.next_link in links:
                raise PayloadUnreadable(PROVIDER, "the price list repeats a page")
            links.add(page.next_link)
            params = {**asked, **query_of(page.next_link)}
        raise PayloadUnreadable(PROVIDER, f"the price list has more than {MOST_PAGES} pages")

    def entry_of(self, offer: Offer) -> Entry:
        """VMs of a scale set are machines; a reservation is capacity for VMs of the subscription's own."""
        return Entry.KEYS if self.runs_script(offer) else Entry.OWN

    def runs_script(self, offer: Offer) -> bool:
        """Scale sets do."""
        return offer.reference.get("hold") == Hold.SCALE_SET

    def network_regions(self) -> tuple[str, ...]:
        """Every configured region: a scale set joins a network of its own region."""
        return self._options.regions

    def network_steps(self, region: str, rules: NetworkRules) -> Sequence[NetworkStep]:
        """A security group, and a virtual network whose subnet has it."""
        return networks.RegionNetwork(self._arm, region, rules).steps()

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Any number: reservations and scale sets are created for all nodes or none."""
        return None

    async def reserve(self, order: Order) -> Lease:
        """Creates a scale set or a reservation with the tag as name.

        Repeating the order finds the existing one.
        """
        refuse_long_tag(order, PROVIDER, self.longest_tag)
        hold = Hold(order.offer.reference["hold"])
        if hold is Hold.SCALE_SET:
            return await self._put_scale_set(order)
        return await self._put_reservation(order, hold)

    async def _put_scale_set(self, order: Order) -> Lease:
        if not 1 <= order.nodes <= scale_sets.MOST_NODES:
            raise OrderRejected(PROVIDER, f"a placement group holds at most {scale_sets.MOST_NODES} VMs")
        body = scale_sets.body(order, self._options.machine, self._arm.id_of(""))
        path = f"{SCALE_SETS}/{order.tag}"
        await self._arm.call("PUT", path, Operation.ORDER, json=body)
        return _ordered(order, path)

    async def _put_reservation(self, order: Order, hold: Hold) -> Lease:
        body = _reservation_body(order, _schedule(order, hold))
        await self._make_group(order.tag, _group_body(order, hold))
        path = leases.reservation_path(order.tag, order.tag)
        try:
            await self._arm.call("PUT", path, Operation.ORDER, json=body)
        except OutcomeUnknown:
            raise
        except ProviderError:
            await self._drop_group(order.tag)
            raise
        return _ordered(order, path)

    async def dry_run(self, order: Order) -> None:
        """Has the Resource Manager validate the order as a template that is never deployed.

        A validation that ends later (202) is not waited for.
        """
        template = {
            "$schema": TEMPLATE_SCHEMA,
            "contentVersion": "1.0.0.0",
            "resources": self._resources(order),
        }
        reply = await self._arm.call(
            "POST",
            self._arm.validation_path(order.tag),
            Operation.ORDER,
            repeatable=True,
            json={"properties": {"mode": "Incremental", "template": template}},
            query={"api-version": DEPLOYMENTS_VERSION},
        )
        answer = reply.json_or_none()
        if isinstance(answer, dict) and answer.get("error"):
            raise reply.named(classify(reply))

    def _resources(self, order: Order) -> list[dict[str, Any]]:
        """The resources that an order creates, in template form."""
        compute = "Microsoft.Compute"
        hold = Hold(order.offer.reference["hold"])
        if hold is Hold.SCALE_SET:
            body = scale_sets.body(order, self._options.machine, self._arm.id_of(""))
            kinds = [(SCALE_SETS, order.tag, body)]
        else:
            path, name = f"{GROUPS}/{leases.RESERVATIONS}", f"{order.tag}/{order.tag}"
            needs = {"dependsOn": [f"[resourceId('{compute}/{GROUPS}', '{order.tag}')]"]}
            body = _reservation_body(order, _schedule(order, hold))
            kinds = [(GROUPS, order.tag, _group_body(order, hold)), (path, name, {**needs, **body})]
        return [
            {"type": f"{compute}/{kind}", "apiVersion": API_VERSION, "name": name, **body}
            for kind, name, body in kinds
        ]

    async def _make_group(self, name: str, body: Mapping[str, Any]) -> None:
        """Creates the group.

        An empty group costs nothing, so it is safe to create it twice.
        """
        try:
            await self._arm.call("PUT", f"{GROUPS}/{name}", Operation.LEASES, repeatable=True, json=body)
        except (LeaseNotFound, PayloadUnreadable) as error:
            raise OrderRejected(
                PROVIDER, f"the capacity reservation group could not be created: {error}"
            ) from error

    async def _drop_group(self, name: str) -> None:
        """Deletes the group if it is empty; otherwise the next release tries again."""
        with contextlib.suppress(ProviderError):
            await self._arm.call("DELETE", f"{GROUPS}/{name}", Operation.RELEASE, repeatable=True)

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One reservation or scale set, with its instance view if that says more."""
        return await self._seen(reference, *await self._find(reference))

    async def _find(self, reference: str) -> tuple[leases.Resource, datetime]:
        is_scale_set = reference.startswith(f"{SCALE_SETS}/")
        query = {} if is_scale_set else {"$expand": "instanceView"}
        reply = await self._arm.call("GET", reference, Operation.LEASES, query=query)
        with reply.being_read():
            resource = leases.read_resource(reply.json())
        if is_scale_set and resource.state == "failed":
            view = await self._arm.call("GET", f"{reference}/instanceView", Operation.LEASES)
            resource = resource.with_view(view.read(leases.InstanceView))
        return resource, reply.answered_at

    async def _seen(self, reference: str, resource: leases.Resource, at: datetime) -> Lease:
        """The lease, and how it is entered; a failed order of ours holds nothing, so its remains are deleted.

        A scale set whose network cannot be read stands without machines.
        """
        lease = leases.lease_of(resource, reference, at)
        if not reference.startswith(f"{SCALE_SETS}/"):
            return await self._removed_if_failed(replace(lease, access_note=self._note(reference)), resource)
        if lease.state is LeaseState.ACTIVE:
            with contextlib.suppress(ProviderError):
                lease = replace(lease, machines=await self._machines(reference))
        return await self._removed_if_failed(lease, resource)

    def _note(self, reference: str) -> str:
        """What the owner of a reservation does next: it holds capacity and has no machine."""
        group = "/".join(reference.split("/")[:2])
        page = f"{addresses.PORTAL}{self._arm.id_of(group)}"
        return (
            "it holds capacity in your Azure subscription: create VMs of its size that name its capacity"
            f" reservation group ({page})"
        )

    async def _machines(self, reference: str) -> tuple[Access, ...]:
        """The VMs of a scale set."""
        interfaces = addresses.read_interfaces(await self._network_rows(reference, addresses.INTERFACES))
        is_public = any(each.is_public for each in interfaces)
        public = await self._network_rows(reference, addresses.PUBLIC_ADDRESSES) if is_public else []
        return addresses.machines_of(interfaces, public, self._options.machine.admin)

    async def _network_rows(self, reference: str, kind: str) -> list[Any]:
        query = {"api-version": addresses.NETWORK_VERSION}
        return [row async for row, _ in self._arm.rows(f"{reference}/{kind}", query)]

    async def _removed_if_failed(self, lease: Lease, resource: leases.Resource) -> Lease:
        if lease.state is LeaseState.FAILED and resource.tag:
            with contextlib.suppress(ProviderError):
                await self.release(lease)
        return lease

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every reservation and scale set of the resource group, whoever created it."""
        return (*await self._list(SCALE_SETS), *await self._list_reservations())

    async def _list_reservations(self) -> list[Lease]:
        groups = [leases.read_resource(row).name async for row, _ in self._arm.rows(GROUPS)]
        found: list[Lease] = []
        for group in groups:
            try:
                found += await self._list(f"{GROUPS}/{group}/{leases.RESERVATIONS}")
            except LeaseNotFound as error:
                if GROUP_GONE not in str(error):
                    raise
        return found

    async def _list(self, path: str) -> list[Lease]:
        found = []
        async for row, reply in self._arm.rows(path):
            resource, at = leases.read_resource(row), reply.answered_at
            reference = f"{path}/{resource.name}"
            if resource.is_future or resource.state == "failed":
                resource, at = await self._find(reference)
            found.append(await self._seen(reference, resource, at))
        return found

    async def release(self, lease: Lease) -> None:
        """Deletes the resource and its empty group; a resource that is already gone counts as success."""
        try:
            await self._arm.call("DELETE", lease.reference, Operation.RELEASE, repeatable=True)
        except LeaseNotFound:
            pass
        except OrderRejected as error:
            raise await self._refusal(lease, error) from error
        if lease.reference.startswith(f"{GROUPS}/"):
            await self._drop_group(lease.reference.split("/")[1])

    async def _refusal(self, lease: Lease, error: OrderRejected) -> ReleaseRefused:
        """The refusal of a release: an allocated Block ends by itself.

        Everything else can be deleted later.
        """
        forever = False
        with contextlib.suppress(ProviderError):
            resource, _ = await self._find(lease.reference)
            forever = resource.is_block and resource.state == "succeeded"
        return ReleaseRefused(PROVIDER, str(error).removeprefix(f"{PROVIDER}: "), forever=forever)


def _group_body(order: Order, hold: Hold) -> dict[str, Any]:
    return {**_of_an_order(order), "properties": {"reservationType": _GROUP_TYPES[hold]}}


def _reservation_body(order: Order, schedule: Mapping[str, str | int]) -> dict[str, Any]:
    return {
        **_of_an_order(order),
        "sku": {"name": order.offer.reference["size"], "capacity": order.nodes},
        "properties": {"scheduleProfile": schedule} if schedule else {},
    }


def _of_an_order(order: Order) -> dict[str, Any]:
    return {"location": order.offer.reference["location"], "tags": {TAG_KEY: order.tag}}


def _schedule(order: Order, hold: Hold) -> dict[str, str | int]:
    if hold is Hold.BLOCK:
        return windows.block_schedule(order)
    return windows.future_schedule(order) if hold is Hold.FUTURE else {}


def _ordered(order: Order, path: str) -> Lease:
    """The order as a lease.

    The create answer's state is always ``Creating``, so the next poll tells more.
    """
    return ordered(order, path, window=order.window if order.offer.window is not None else None)

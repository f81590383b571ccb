"""The AWS adapter: on-demand prices, spot and windows as offers, and the calls that buy and end them.

``reserve`` means: for a ``window`` offer a Capacity Block, a training plan, or a capacity reservation that
starts later; a capacity reservation for ``on_demand`` (billed used or not, its instances are launched into
it); one spot instance for ``spot``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    PriceAboveLimit,
    ReleaseRefused,
)
from broker.domain.basics.money import price_words
from broker.domain.basics.window import Segment
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.holding.seller_network import NetworkRules
from broker.domain.market.offer import Offer, OfferBatch, RejectedRow, Tier, WindowKind
from broker.provider_facts import load_provider_facts
from broker.together import all_or_none
from providers.aws import blocks, future, networks, reservations
from providers.aws.ec2 import CallBudget, Ec2
from providers.aws.errors import CallRefused, DryRunPassed
from providers.aws.nodes import ML, PROVIDER, known_types
from providers.aws.plan_client import TrainingPlanClient, is_plan
from providers.aws.price_lists import PriceLists
from providers.aws.query import Node, Params, listed
from providers.aws.spot import ACTION as SPOT_ACTION
from providers.aws.spot import parse_spot, spot_query
from providers.client import Entry, Seller, found_again, tells_all_or_fails
from providers.http import Operation, ProviderHttp
from providers.network_setup import NetworkSetup, NetworkStep
from providers.payload import join_batches

MOST_FEE_RISE = Decimal("1.02")
START_SLIP = timedelta(minutes=15)
"""How far a block's start may have moved since it was offered, if it starts at once."""
ZonedParams = Callable[[Order, str], Params]
ENDED = frozenset({LeaseState.ENDED, LeaseState.FAILED})


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """``machine``: what a spot instance boots. ``keyless``: price lists alone."""

    regions: tuple[str, ...]
    machine: reservations.SpotMachine
    keyless: bool = False


@dataclass(frozen=True, slots=True)
class AwsClients:
    """The services of one account: EC2, SageMaker's training plans, and the open price lists."""

    ec2: Ec2
    plans: TrainingPlanClient
    price_lists: PriceLists


class AwsAdapter(Seller, NetworkSetup):
    """One account, all configured regions."""

    provider = PROVIDER
    idempotency = Idempotency.TAG
    network_setting = "BROKER_AWS_SECURITY_GROUPS"

    def __init__(self, http: ProviderHttp, clients: AwsClients, options: AwsOptions) -> None:
        self._http, self._options = http, options
        self.ec2, self._plans, self._price_lists = clients.ec2, clients.plans, clients.price_lists
        self._search = load_provider_facts(PROVIDER).search
        self.names_network = bool(options.machine.security_groups)

    async def aclose(self) -> None:
        """Ends the background downloads and closes the connections."""
        await self._price_lists.aclose()
        await self._http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """On-demand prices and later starts of every region.

        With keys also spot prices, blocks and training plans.
        """
        regions = self._options.regions
        if self._options.keyless:
            return join_batches(await self._price_lists.batches(regions, observed_at))
        lists, signed = await all_or_none(
            (self._price_lists.batches(regions, observed_at), self._with_keys(observed_at))
        )
        return join_batches((*lists, *signed))

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """The offer as it is sold now, from the spot prices or the price list of its own region."""
        if offer.tier is Tier.SPOT:
            return found_again(offer, await self._spot(offer.region, asked_at))
        return found_again(offer, join_batches(await self._price_lists.batches((offer.region,), asked_at)))

    async def _with_keys(self, observed_at: datetime) -> list[OfferBatch]:
        regions = self._options.regions
        found = await all_or_none(self._spot(region, observed_at) for region in regions)
        found.append(await self._blocks(observed_at))
        found.append(await self._plans.list_offers(regions, observed_at))
        return found

    async def _spot(self, region: str, observed_at: datetime) -> OfferBatch:
        query = spot_query(known_types(), observed_at)
        pages = await self.ec2.every_page(region, SPOT_ACTION, query, Operation.OFFERS)
        return parse_spot(pages, observed_at)

    async def _blocks(self, observed_at: datetime) -> OfferBatch:
        budget = CallBudget(blocks.most_calls(self._search))
        searches = blocks.menu(self._search, self._options.regions)
        answers = await all_or_none(self._find(search, observed_at, budget) for search in searches)
        found = blocks.parse_blocks([page for pages, _ in answers for page in pages], observed_at)
        unasked = tuple(rejected for _, rejected in answers if rejected is not None)
        return OfferBatch(found.offers, (*found.rejected, *unasked))

    async def _find(
        self, search: blocks.BlockSearch, at: datetime, budget: CallBudget
    ) -> tuple[tuple[Node, ...], RejectedRow | None]:
        try:
            pages, complete = await self.ec2.pages(
                search.region, blocks.ACTION, search.whole_query(at), Operation.OFFERS, budget
            )
        except CallRefused as error:
            return (), RejectedRow(str(search), str(error))
        return pages, None if complete else RejectedRow(
            str(search), "incomplete: the call limit of a poll was reached"
        )

    def entry_of(self, offer: Offer) -> Entry:
        """A spot instance is a machine; everything else is capacity for instances of the account's own."""
        return Entry.KEYS if offer.tier is Tier.SPOT else Entry.OWN

    def runs_script(self, offer: Offer) -> bool:
        """A spot instance does."""
        return offer.tier is Tier.SPOT

    def network_regions(self) -> tuple[str, ...]:
        """Every configured region: security groups and VPCs are a region's."""
        return self._options.regions

    def network_steps(self, region: str, rules: NetworkRules) -> Sequence[NetworkStep]:
        """A default VPC, a security group, and what it lets in."""
        return networks.RegionNetwork(self.ec2, region, rules).steps()

    def holds_limit(self, offer: Offer) -> bool:
        """Blocks and training plans are searched again by the order, and bought at the fee of that answer."""
        return offer.is_sold_whole

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One spot instance a call; reservations and blocks take any number."""
        return 1 if offer.tier is Tier.SPOT else None

    async def reserve(self, order: Order) -> Lease:
        """Buys one window, makes one capacity reservation, or starts one spot instance."""
        if order.offer.tier is Tier.WINDOW:
            return await self._buy_window(order)
        if order.offer.tier is Tier.ON_DEMAND:
            return await self._reserve_in_a_zone(order, reservations.on_demand_params)
        if order.offer.tier is Tier.SPOT and order.nodes == 1:
            return await self._run_spot(order)
        raise OrderRejected(PROVIDER, f"cannot order {order.nodes} nodes of tier {order.offer.tier}")

    async def _buy_window(self, order: Order) -> Lease:
        terms = order.offer.window
        if terms is not None and terms.kind is WindowKind.REQUEST:
            return await self._reserve_in_a_zone(order, future.future_params)
        if order.offer.sku.name.startswith(ML):
            plan = await self._plans.offering_to_buy(order, _segment(order))
            _refuse_dearer(order, plan.usd_per_node, "training plan")
            return await self._plans.buy(order, plan)
        offering = await self._block_to_buy(order)
        _refuse_dearer(order, offering.usd_per_node, "block")
        answer = await self._order(
            order, "PurchaseCapacityBlock", reservations.block_params(offering.offering_id, order.tag)
        )
        return self._bought_reservation(answer, order)

    async def _block_to_buy(self, order: Order) -> blocks.BlockOffering:
        """Searches again for the cheapest offering of exactly this window and node count."""
        segment = _segment(order)
        whole_days = max(1, int(segment.hours // blocks.STEP_HOURS))
        search = blocks.BlockSearch(
            order.offer.region, order.offer.sku.name, order.nodes, whole_days * int(blocks.STEP_HOURS)
        )
        starts_after = segment.start if blocks.starts_on_anchor(segment) else None
        pages = await self.ec2.every_page(
            search.region, blocks.ACTION, search.query(starts_after, segment.end), Operation.LEASES
        )
        fitting = [
            found
            for page in pages
            for found in blocks.parse_offerings(page)
            if isinstance(found, blocks.BlockOffering) and _fits(found, order, segment)
        ]
        if not fitting:
            raise InsufficientCapacity(PROVIDER, f"no block of {search} from {segment.start:%Y-%m-%d %H:%M}Z")
        return min(fitting, key=lambda found: (found.upfront_usd, found.offering_id))

    async def _reserve_in_a_zone(self, order: Order, params: ZonedParams) -> Lease:
        """Tries the offer's zone, or the region's zones one by one, because a call buys in one zone."""
        refusal = self._no_zones(order.offer.region)
        for zone in self._zones(order.offer):
            try:
                answer = await self._order(order, "CreateCapacityReservation", params(order, zone))
            except InsufficientCapacity as error:
                refusal = error
                continue
            return self._bought_reservation(answer, order)
        raise refusal

    def _zones(self, offer: Offer) -> Sequence[str]:
        return [offer.zone] if offer.zone else self._search.get("zones", {}).get(offer.region, [])

    def _no_zones(self, region: str) -> InsufficientCapacity:
        return InsufficientCapacity(PROVIDER, f"no zones of region {region} are configured")

    async def dry_run(self, order: Order) -> None:
        """Sends a capacity reservation or a spot instance with ``DryRun``.

        EC2 answers whether it would accept the order.
        """
        action, params = "RunInstances", reservations.spot_params(order, self._options.machine)
        if order.offer.tier is not Tier.SPOT:
            zones = self._zones(order.offer)
            if not zones:
                raise self._no_zones(order.offer.region)
            action, params = "CreateCapacityReservation", reservations.on_demand_params(order, zones[0])
        try:
            await self._order(order, action, {**params, "DryRun": "true"})
        except DryRunPassed:
            return
        raise _lost(f"{action} with DryRun was answered like an order")

    async def _run_spot(self, order: Order) -> Lease:
        answer = await self._order(
            order, "RunInstances", reservations.spot_params(order, self._options.machine)
        )
        for item in answer.items("instancesSet"):
            return reservations.parse_instance(item, order.offer.region, self._options.machine.user)
        raise _lost("RunInstances answered without an instance")

    async def _order(self, order: Order, action: str, params: Params) -> Node:
        return await self.ec2.call(order.offer.region, action, params, Operation.ORDER, repeatable=False)

    def _bought_reservation(self, answer: Node, order: Order) -> Lease:
        item = answer.child("capacityReservation")
        if item is None:
            raise _lost(f"{answer.name} without a capacity reservation")
        try:
            return reservations.parse_reservation(item, order.offer.region).lease
        except PayloadUnreadable as error:
            raise _lost(str(error)) from error

    async def find_lease(self, reference: str, region: str) -> Lease:
        """A capacity reservation (``cr-…``), an instance (``i-…``) or a training plan (its ARN)."""
        if is_plan(reference):
            return await self._plans.find(reference, region)
        if reference.startswith("cr-"):
            return (await self._find_reservation(reference, region)).lease
        params = listed("InstanceId", [reference])
        pages = await self.ec2.every_page(region, "DescribeInstances", params, Operation.LEASES)
        for lease in reservations.parse_instances(pages, region, self._options.machine.user):
            return lease
        raise LeaseNotFound(PROVIDER, f"no instance {reference} in {region}")

    async def _find_reservation(self, reference: str, region: str) -> reservations.CapacityReservation:
        params = reservations.reservation_filter(reference)
        pages = await self.ec2.every_page(region, "DescribeCapacityReservations", params, Operation.LEASES)
        for reservation in reservations.parse_reservations(pages, region):
            return reservation
        raise LeaseNotFound(PROVIDER, f"no capacity reservation {reference} in {region}")

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """All capacity reservations, instances and training plans of all configured regions."""
        regions = self._options.regions
        found = await all_or_none(
            (
                *(self.list_reservations(region) for region in regions),
                *(self.list_instances(region) for region in regions),
                *(self._plans.list_leases(region) for region in regions),
            )
        )
        return tuple(lease for leases in found for lease in leases)

    async def list_reservations(self, region: str) -> tuple[Lease, ...]:
        """Capacity reservations, blocks among them, of one region."""
        pages = await self.ec2.every_page(region, "DescribeCapacityReservations", {}, Operation.LEASES)
        return tuple(found.lease for found in reservations.parse_reservations(pages, region))

    async def list_instances(self, region: str) -> tuple[Lease, ...]:
        """Instances of one region."""
        pages = await self.ec2.every_page(region, "DescribeInstances", {}, Operation.LEASES)
        return reservations.parse_instances(pages, region, self._options.machine.user)

    async def release(self, lease: Lease) -> None:
        """Cancels a reservation or terminates an instance.

        A block and a training plan end by themselves. ReleaseRefused for a reservation within its
        commitment.
        """
        try:
            if is_plan(lease.reference):
                await self._end_plan(lease)
            elif lease.reference.startswith("cr-"):
                await self._cancel(lease)
            else:
                params = listed("InstanceId", [lease.reference])
                await self.ec2.call(lease.region, "TerminateInstances", params, Operation.RELEASE)
        except LeaseNotFound:
            return

    async def _end_plan(self, lease: Lease) -> None:
        held = await self._plans.find(lease.reference, lease.region)
        if held.state not in ENDED:
            words = "a training plan cannot be cancelled, it ends by itself"
            raise ReleaseRefused(PROVIDER, words, forever=True)

    async def _cancel(self, lease: Lease) -> None:
        held = await self._find_reservation(lease.reference, lease.region)
        if held.lease.state in ENDED:
            return
        if held.is_block:
            raise ReleaseRefused(
                PROVIDER, "a Capacity Block cannot be cancelled, it ends by itself", forever=True
            )
        params = {"CapacityReservationId": lease.reference}
        try:
            await self.ec2.call(lease.region, "CancelCapacityReservation", params, Operation.RELEASE)
        except OrderRejected as error:
            held = await self._find_reservation(lease.reference, lease.region)
            if held.lease.state not in ENDED:
                raise ReleaseRefused(PROVIDER, str(error), forever=False) from error


def _refuse_dearer(order: Order, usd_per_node: Decimal, what: str) -> None:
    """Raises PriceAboveLimit when a node's fee now exceeds the order's limit, which is per hour."""
    offered, price = order.offer.upfront_usd, order.offer.price_usd_per_node_hour
    if offered is None or not order.offer.stock.nodes:
        raise OrderRejected(PROVIDER, f"offer {order.offer.offer_id} has no fee")
    hours = offered / order.offer.stock.nodes / price
    limit = price * MOST_FEE_RISE if order.limit_usd_per_node_hour is None else order.limit_usd_per_node_hour
    rate = usd_per_node / hours
    if rate > limit:
        words = (
            f"asks ${usd_per_node:,.2f} a node for the {what}, {price_words(rate)} per node-hour; "
            f"the limit was {price_words(limit)}"
        )
        raise PriceAboveLimit(PROVIDER, words, asks_usd_per_node_hour=rate)


def _segment(order: Order) -> Segment:
    window = order.offer.window
    if window is None or len(window.segments) != 1:
        raise OrderRejected(PROVIDER, f"offer {order.offer.offer_id} is not one window")
    segment = window.segments[0]
    if order.window is not None and not segment.window.overlaps(order.window):
        raise OrderRejected(PROVIDER, "the order lies outside the window, which is sold whole")
    return segment


def _fits(found: blocks.BlockOffering, order: Order, segment: Segment) -> bool:
    slip = timedelta(0) if blocks.starts_on_anchor(segment) else START_SLIP
    return (
        found.zone == order.offer.zone
        and found.instance_type == order.offer.sku.name
        and found.count == order.nodes
        and found.segment.end == segment.end
        and segment.start <= found.segment.start <= segment.start + slip
    )


def _lost(message: str) -> OutcomeUnknown:
    return OutcomeUnknown(PROVIDER, message)

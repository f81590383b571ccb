"""The AWS adapter: on-demand prices, spot and Capacity Blocks as offers; four calls to buy and end them.

``reserve`` means: a block for a ``window`` offer, a capacity reservation for ``on_demand`` (billed used or
not, its instances are launched into it), one spot instance for ``spot``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from broker.catalogue import load_provider_facts
from broker.domain.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ReleaseRefused,
)
from broker.domain.offer import Offer, OfferBatch, RejectedRow, Tier
from broker.domain.reservation import Lease, LeaseState, Order
from broker.domain.window import Segment
from broker.ports import Idempotency
from providers.aws import blocks, reservations
from providers.aws.ec2 import REAL_ROOT, CallBudget, CallRefused, Ec2
from providers.aws.nodes import PROVIDER, known_types
from providers.aws.prices import PriceListReader
from providers.aws.query import Params, listed
from providers.aws.spot import ACTION as SPOT_ACTION
from providers.aws.spot import parse_spot, spot_query
from providers.aws.xml import Node
from providers.http import Operation, ProviderHttp
from providers.payload import join_batches

PRICES_ROOT = "https://pricing.us-east-1.amazonaws.com"
PRICES_PATH = "/offers/v1.0/aws/AmazonEC2/current/{region}/index.csv"
MOST_PRICE_LIST_BYTES = 4 * 1024**3
PRICE_LIST_SECONDS = 900.0
MOST_FEE_RISE = Decimal("1.02")
START_SLIP = timedelta(minutes=15)
"""How far the start of a block that starts at once may have moved on since it was offered."""
ENDED = frozenset({LeaseState.ENDED, LeaseState.FAILED})


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """``price_list_max_age_s``: how long a region's price list (hundreds of MB) is taken as current."""

    base_url: str
    regions: tuple[str, ...]
    image_id: str
    price_list_max_age_s: float
    keyless: bool = False


class AwsAdapter:
    """One account, all configured regions."""

    provider = PROVIDER
    idempotency = Idempotency.TAG

    def __init__(self, http: ProviderHttp, ec2: Ec2, options: AwsOptions) -> None:
        self._http, self.ec2, self._options = http, ec2, options
        self._search = load_provider_facts(PROVIDER).search
        self._price_lists: dict[str, tuple[datetime, OfferBatch]] = {}

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """On-demand prices of every region; with keys also spot prices and blocks."""
        regions = self._options.regions
        parts = list(await asyncio.gather(*(self._on_demand(region, observed_at) for region in regions)))
        if not self._options.keyless:
            parts += await asyncio.gather(*(self._spot(region, observed_at) for region in regions))
            parts.append(await self._blocks(observed_at))
        return join_batches(parts)

    async def _on_demand(self, region: str, observed_at: datetime) -> OfferBatch:
        known = self._price_lists.get(region)
        if known is not None:
            age_s = (observed_at - known[0]).total_seconds()
            if 0 <= age_s < self._options.price_list_max_age_s:
                return known[1]
        reader = PriceListReader(region)
        root = PRICES_ROOT if self._options.base_url == REAL_ROOT else self._options.base_url
        lines = self._http.read_lines(
            root + PRICES_PATH.format(region=region),
            max_bytes=MOST_PRICE_LIST_BYTES,
            total_s=PRICE_LIST_SECONDS,
        )
        async with contextlib.aclosing(lines):
            async for line in lines:
                reader.feed(line)
        batch = reader.batch(observed_at)
        self._price_lists[region] = (observed_at, batch)
        return batch

    async def _spot(self, region: str, observed_at: datetime) -> OfferBatch:
        query = spot_query(known_types(), observed_at)
        pages = await self.ec2.every_page(region, SPOT_ACTION, query, Operation.OFFERS)
        return parse_spot(pages, observed_at)

    async def _blocks(self, observed_at: datetime) -> OfferBatch:
        budget = CallBudget(blocks.most_calls(self._search))
        searches = blocks.menu(self._search, self._options.regions)
        answers = await asyncio.gather(*(self._find(search, observed_at, budget) for search in searches))
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
        return pages, None if complete else RejectedRow(str(search), "not asked to the end: too many calls")

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One spot instance a call; reservations and blocks take any number."""
        return 1 if offer.tier is Tier.SPOT else None

    async def reserve(self, order: Order) -> Lease:
        """Buys one block, makes one capacity reservation, or starts one spot instance."""
        if order.offer.tier is Tier.WINDOW:
            return await self._buy_block(order)
        if order.offer.tier is Tier.ON_DEMAND:
            return await self._reserve_on_demand(order)
        if order.offer.tier is Tier.SPOT and order.nodes == 1:
            return await self._run_spot(order)
        raise OrderRejected(PROVIDER, f"cannot order {order.nodes} nodes of tier {order.offer.tier}")

    async def _buy_block(self, order: Order) -> Lease:
        offering = await self._block_to_buy(order)
        offered = order.offer.upfront_usd
        if offered is None or not order.offer.stock.nodes:
            raise OrderRejected(PROVIDER, f"offer {order.offer.offer_id} names no fee")
        most = offered / order.offer.stock.nodes * MOST_FEE_RISE
        if offering.usd_per_node > most:
            raise OrderRejected(
                PROVIDER, f"the block now costs ${offering.usd_per_node:.2f} a node, over ${most:.2f}"
            )
        answer = await self._order(
            order, "PurchaseCapacityBlock", reservations.block_params(offering.offering_id, order.tag)
        )
        return self._bought_reservation(answer, order)

    async def _block_to_buy(self, order: Order) -> blocks.BlockOffering:
        """The cheapest offering of just this window for just so many nodes, searched anew."""
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

    async def _reserve_on_demand(self, order: Order) -> Lease:
        """Tries the offer's zone, or the region's zones one by one; one call buys in one zone."""
        region = order.offer.region
        zones = [order.offer.zone] if order.offer.zone else self._search.get("zones", {}).get(region, [])
        refusal = InsufficientCapacity(PROVIDER, f"no zones of region {region} are configured")
        for zone in zones:
            try:
                answer = await self._order(
                    order, "CreateCapacityReservation", reservations.on_demand_params(order, zone)
                )
            except InsufficientCapacity as error:
                refusal = error
                continue
            return self._bought_reservation(answer, order)
        raise refusal

    async def _run_spot(self, order: Order) -> Lease:
        answer = await self._order(
            order, "RunInstances", reservations.spot_params(order, self._options.image_id)
        )
        for item in answer.items("instancesSet"):
            return reservations.parse_instance(item, order.offer.region)
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
        """A capacity reservation (``cr-…``) or an instance (``i-…``)."""
        if reference.startswith("cr-"):
            return (await self._find_reservation(reference, region)).lease
        params = listed("InstanceId", [reference])
        pages = await self.ec2.every_page(region, "DescribeInstances", params, Operation.LEASES)
        for lease in reservations.parse_instances(pages, region):
            return lease
        raise LeaseNotFound(PROVIDER, f"no instance {reference} in {region}")

    async def _find_reservation(self, reference: str, region: str) -> reservations.CapacityReservation:
        params = reservations.reservation_filter(reference)
        pages = await self.ec2.every_page(region, "DescribeCapacityReservations", params, Operation.LEASES)
        for reservation in reservations.parse_reservations(pages, region):
            return reservation
        raise LeaseNotFound(PROVIDER, f"no capacity reservation {reference} in {region}")

    async def list_leases(self) -> Sequence[Lease]:
        """All capacity reservations and instances of all configured regions."""
        regions = self._options.regions
        found = await asyncio.gather(
            *(self.list_reservations(region) for region in regions),
            *(self.list_instances(region) for region in regions),
        )
        return tuple(lease for leases in found for lease in leases)

    async def list_reservations(self, region: str) -> tuple[Lease, ...]:
        """Capacity reservations, blocks among them, of one region."""
        pages = await self.ec2.every_page(region, "DescribeCapacityReservations", {}, Operation.LEASES)
        return tuple(found.lease for found in reservations.parse_reservations(pages, region))

    async def list_instances(self, region: str) -> tuple[Lease, ...]:
        """Instances of one region."""
        pages = await self.ec2.every_page(region, "DescribeInstances", {}, Operation.LEASES)
        return reservations.parse_instances(pages, region)

    async def release(self, lease: Lease) -> None:
        """Cancels or terminates; a block only ends by itself."""
        try:
            if lease.reference.startswith("cr-"):
                await self._cancel(lease)
            else:
                params = listed("InstanceId", [lease.reference])
                await self.ec2.call(lease.region, "TerminateInstances", params, Operation.RELEASE)
        except LeaseNotFound:
            return

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


def _segment(order: Order) -> Segment:
    window = order.offer.window
    if window is None or len(window.segments) != 1:
        raise OrderRejected(PROVIDER, f"offer {order.offer.offer_id} is not one block")
    segment = window.segments[0]
    if order.window is not None and not segment.window.overlaps(order.window):
        raise OrderRejected(PROVIDER, "the order lies outside the block, which is sold whole")
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

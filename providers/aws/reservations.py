"""EC2's capacity reservations (blocks among them) and instances, read as leases.

EC2 is eventually consistent: a new reservation may be missing from lists, or ``pending``, for minutes. An
unknown state becomes UNKNOWN, never FAILED.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.basics.machines import Access, with_keys
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.provider_facts import load_provider_facts
from providers.aws.networks import GROUP
from providers.aws.query import PROVIDER, TAG_KEY, Node, Params, listed, tagged
from providers.payload import RowRejected, address_usd_per_hour
from providers.rows import time_text

PLATFORM = "Linux/UNIX"
_LONGEST_CLIENT_TOKEN = 64
CAPACITY_BLOCK = "capacity-block"

RESERVATION_STATES = {
    "pending": LeaseState.PROVISIONING,
    "assessing": LeaseState.PROVISIONING,
    "payment-pending": LeaseState.PROVISIONING,
    "scheduled": LeaseState.SCHEDULED,
    "delayed": LeaseState.SCHEDULED,
    "active": LeaseState.ACTIVE,
    "cancelling": LeaseState.ENDING,
    "expired": LeaseState.ENDED,
    "cancelled": LeaseState.ENDED,
    "failed": LeaseState.FAILED,
    "payment-failed": LeaseState.FAILED,
    "unsupported": LeaseState.FAILED,
    # In the model's enumeration, and explained nowhere: it may be held and billed.
    "unavailable": LeaseState.UNKNOWN,
}
INSTANCE_STATES = {
    "pending": LeaseState.PROVISIONING,
    "running": LeaseState.ACTIVE,
    "shutting-down": LeaseState.ENDING,
    "stopping": LeaseState.ENDING,
    "terminated": LeaseState.ENDED,
}


@dataclass(frozen=True, slots=True)
class SpotMachine:
    """What a spot instance boots and joins.

    ``user``: who logs in to ``image_id``. ``security_groups``: their ids; none: the group that was made for
    the broker, else the VPC's default one, which lets in nobody from outside.
    """

    image_id: str
    user: str
    security_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """A capacity reservation as a lease; a block cannot be cancelled."""

    lease: Lease
    is_block: bool


def parse_reservations(pages: Iterable[Node], region: str) -> tuple[CapacityReservation, ...]:
    """Every item of DescribeCapacityReservations' pages; PayloadUnreadable for one without an id."""
    return tuple(
        parse_reservation(item, region) for page in pages for item in page.items("capacityReservationSet")
    )


def parse_reservation(item: Node, region: str) -> CapacityReservation:
    """One capacity reservation; PayloadUnreadable when its id or size cannot be read."""
    try:
        reference, state = item.need("capacityReservationId"), item.need("state")
        nodes = _nodes(item.need("totalInstanceCount"))
    except RowRejected as error:
        raise PayloadUnreadable(PROVIDER, f"capacity reservation: {error}") from error
    kind = item.text("reservationType") or "default"
    lease = Lease(
        provider=PROVIDER,
        reference=reference,
        state=RESERVATION_STATES.get(state, LeaseState.UNKNOWN),
        tag=item.tag(TAG_KEY),
        nodes=nodes,
        sku=item.text("instanceType") or "",
        region=region,
        window=_window(item),
        detail=f"{kind} {state}",
        access_note=_note(reference, region, is_block=kind == CAPACITY_BLOCK),
    )
    return CapacityReservation(lease, kind == CAPACITY_BLOCK)


def _note(reference: str, region: str, *, is_block: bool) -> str:
    """What its owner does next: a reservation holds capacity and has no machine."""
    market = " and MarketType capacity-block" if is_block else ""
    return (
        f"it holds capacity in your AWS account: launch instances in {region} with CapacityReservationId"
        f" {reference}{market} ({console(region, 'ec2')}#CapacityReservations:)"
    )


def console(region: str, service: str) -> str:
    """The page of a service in AWS's console."""
    return f"https://{region}.console.aws.amazon.com/{service}/home?region={region}"


def parse_instances(pages: Iterable[Node], region: str, user: str) -> tuple[Lease, ...]:
    """Every instance of DescribeInstances' pages; ``user`` logs in."""
    return tuple(
        parse_instance(item, region, user)
        for page in pages
        for reservation in page.items("reservationSet")
        for item in reservation.items("instancesSet")
    )


def parse_instance(item: Node, region: str, user: str) -> Lease:
    """One instance; its tag, or else the client token of its launch, identifies the order."""
    try:
        reference, state = item.need("instanceId"), item.need("instanceState", "name")
    except RowRejected as error:
        raise PayloadUnreadable(PROVIDER, f"instance: {error}") from error
    return Lease(
        provider=PROVIDER,
        reference=reference,
        state=INSTANCE_STATES.get(state, LeaseState.UNKNOWN),
        tag=item.tag(TAG_KEY) or item.text("clientToken"),
        nodes=1,
        sku=item.text("instanceType") or "",
        region=region,
        detail=f"{item.text('instanceLifecycle') or 'on-demand'} {state}",
        machines=_machines(item, reference, region, user),
    )


def _machines(item: Node, reference: str, region: str, user: str) -> tuple[Access, ...]:
    """The instance at its public address; at its private one where its subnet gives no other."""
    private = item.text("privateIpAddress")
    host = item.text("ipAddress") or private
    if host is None:
        return ()
    page = f"{console(region, 'ec2')}#InstanceDetails:instanceId={reference}"
    return (Access(host, user, private_host=private, console_url=page),)


def on_demand_params(order: Order, zone: str) -> Params:
    """Parameters of CreateCapacityReservation in one zone: billed as on demand from now until its end."""
    end = (
        {"EndDateType": "limited", "EndDate": time_text(order.window.end)}
        if order.window is not None
        else {"EndDateType": "unlimited"}
    )
    return {
        "ClientToken": client_token(order.tag, zone),
        "InstanceType": order.offer.sku.name,
        "InstancePlatform": PLATFORM,
        "InstanceCount": str(order.nodes),
        "AvailabilityZone": zone,
        "InstanceMatchCriteria": "targeted",
        **end,
        **tagged("capacity-reservation", order.tag, "TagSpecifications"),
    }


def spot_params(order: Order, machine: SpotMachine) -> Params:
    """Parameters of RunInstances for one spot instance that is not restarted after an interruption.

    EC2 takes one key pair an instance; so all keys come with the script, which cloud-init runs as root at the
    first start. The highest price leaves out the public address, which is billed apart.
    """
    most = order.limit_usd_per_node_hour
    if most is not None:
        most -= address_usd_per_hour(order.offer, load_provider_facts(PROVIDER))
    script = with_keys(order.script, order.keys, f"/home/{machine.user}")
    made = [order.network[GROUP]] if GROUP in order.network else []
    return {
        "ImageId": machine.image_id,
        **({"UserData": base64.b64encode(script.encode()).decode()} if script else {}),
        **listed("SecurityGroupId", machine.security_groups or made),
        "InstanceType": order.offer.sku.name,
        "MinCount": "1",
        "MaxCount": "1",
        "ClientToken": client_token(order.tag),
        "InstanceMarketOptions.MarketType": "spot",
        "InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time",
        **({} if most is None else {"InstanceMarketOptions.SpotOptions.MaxPrice": f"{most:f}"}),
        **({"Placement.AvailabilityZone": order.offer.zone} if order.offer.zone else {}),
        **tagged("instance", order.tag),
    }


def block_params(offering_id: str, tag: str) -> Params:
    """Parameters of PurchaseCapacityBlock.

    There is no client token: only the tag distinguishes one purchase from another.
    """
    return {
        "CapacityBlockOfferingId": offering_id,
        "InstancePlatform": PLATFORM,
        **tagged("capacity-reservation", tag),
    }


def reservation_filter(reference: str) -> Params:
    """Parameters of DescribeCapacityReservations for one id."""
    return listed("CapacityReservationId", [reference])


def client_token(tag: str, zone: str = "") -> str:
    """An idempotency token that depends on the order and the zone: another zone is another request."""
    token = f"{tag}-{zone}" if zone else tag
    return token if len(token) <= _LONGEST_CLIENT_TOKEN else hashlib.sha256(token.encode()).hexdigest()


def _nodes(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise RowRejected(f"totalInstanceCount {text[:20]!r} is not a count")
    return int(text[:9])


def _window(item: Node) -> Window | None:
    """From start to end; a committed reservation ends with its commitment."""
    info = item.child("commitmentInfo")
    committed = info is not None and info.text("commitmentEndDate") is not None
    try:
        start = item.instant("startDate")
        end = item.instant("commitmentInfo", "commitmentEndDate") if committed else item.instant("endDate")
    except RowRejected:
        return None
    return Window(start, end) if start < end else None

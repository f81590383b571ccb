"""Capacity reservations that start on a later date: asked for, assessed by EC2, and committed to.

Sold: G types alone (of the families that EC2 takes these for, C, I, M, R, T and G, the one with GPUs; P types
are sold as Capacity Blocks and training plans), 5 to 120 days ahead, at least 32 vCPUs in all (eight nodes
of four), at the on-demand price, used or not. There is no search and no stock: the request is assessed,
within days, and is then scheduled or found unsupported. It may be cancelled while it is assessed, when it is
late, and when its commitment is over; in between only against a quote of what the rest of the commitment
costs, which the broker does not ask for. Source: EC2 API model 2016-11-15.

Unverified: the least commitment (the model allows a second; 14 days are asked for), and whether ``gr6`` types
count as G (they are not offered). Starts are on whole days in UTC by our own choice, EC2 takes any instant;
small nodes are sold by the multiple of their least number, EC2 takes any number from there on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import ceil

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.window import Segment
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import CancelRule, Offer, Tier, WindowKind, WindowTerms
from providers.aws.nodes import billing
from providers.aws.query import PROVIDER, Params, tagged
from providers.aws.reservations import PLATFORM, client_token
from providers.rows import time_text

FAMILY = re.compile(r"g\d")
LEAST_VCPUS = 32
MOST_NODES = 1000
LEAD_DAYS, MOST_AHEAD_DAYS = 5, 120
LEAST_COMMITMENT_DAYS = 14
LONGEST_DAYS = MOST_AHEAD_DAYS + LEAST_COMMITMENT_DAYS - LEAD_DAYS
GRACE = timedelta(hours=1)
"""How much later than asked a reservation may end on its own.

EC2 refuses an end within the commitment, and the commitment only starts when the capacity is delivered.
This margin is added to the end that applies if nobody cancels the reservation.
"""

_DAY = timedelta(days=1)


def future_offers(on_demand: Iterable[Offer]) -> Iterator[Offer]:
    """For every on-demand offer of such a type, an offer of the same node with a later start."""
    for offer in on_demand:
        if FAMILY.match(offer.sku.name) and offer.sku.vcpus:
            yield replace(
                offer,
                offer_id=f"aws/future/{offer.region}/{offer.sku.name}",
                tier=Tier.WINDOW,
                source=f"CreateCapacityReservation, at the price of {offer.source}",
                min_hours=LEAST_COMMITMENT_DAYS * 24.0,
                window=replace(terms(offer.observed_at), lot_nodes=least_nodes(offer.sku.vcpus)),
            )


def least_nodes(vcpus: float) -> int:
    """How many nodes of ``vcpus`` have ``LEAST_VCPUS`` together."""
    return ceil(LEAST_VCPUS / vcpus)


def terms(observed_at: datetime) -> WindowTerms:
    """Which windows are sold: whole days, from the first start to the end of the shortest window of the last
    start."""
    today = observed_at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today + (LEAD_DAYS + 1) * _DAY
    last = today + (MOST_AHEAD_DAYS + LEAST_COMMITMENT_DAYS) * _DAY
    return WindowTerms(
        kind=WindowKind.REQUEST,
        segments=(Segment(first, last, MOST_NODES),),
        step_hours=24.0,
        durations_hours=tuple(days * 24.0 for days in range(LEAST_COMMITMENT_DAYS, LONGEST_DAYS)),
        lead_hours=LEAD_DAYS * 24.0,
        cancel=CancelRule.UNTIL,
        billed=billing().window_billed("future"),
    )


def future_params(order: Order, zone: str) -> Params:
    """Parameters of CreateCapacityReservation in one zone, committed for the whole window.

    OrderRejected without one.
    """
    window = order.window
    if window is None:
        raise OrderRejected(PROVIDER, f"offer {order.offer.offer_id} is sold for a window")
    return {
        "ClientToken": client_token(order.tag, zone),
        "InstanceType": order.offer.sku.name,
        "InstancePlatform": PLATFORM,
        "InstanceCount": str(order.nodes),
        "AvailabilityZone": zone,
        "InstanceMatchCriteria": "targeted",
        "StartDate": time_text(window.start),
        "CommitmentDuration": str(window.duration // timedelta(seconds=1)),
        "DeliveryPreference": "incremental",
        "EndDateType": "limited",
        "EndDate": time_text(window.end + GRACE),
        **tagged("capacity-reservation", order.tag, "TagSpecifications"),
    }

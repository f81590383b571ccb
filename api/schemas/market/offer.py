"""Offers as JSON: the form of ``broker offers --json``, of market files and of the API.

Amounts are exact decimals as text, times ISO 8601 with ``Z``. Unknown fields are ignored. Many fields are
optional, because market files are also written by hand.
"""

from __future__ import annotations

from datetime import time
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer

from api.schemas.base.forms import Form, From, UtcInstant, form_of, rounded
from api.schemas.base.parts import NotNegative, NotNegativeMoney, Positive
from api.schemas.base.windows import SEGMENT
from broker.domain.basics.money import format_usd, to_cents
from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from broker.domain.basics.window import Segment
from broker.domain.market.exchange import DayRate, Exchange
from broker.domain.market.launch_chance import launch_chance_of
from broker.domain.market.launch_statistics import LaunchStatistics
from broker.domain.market.offer import (
    ContractTerms,
    GpuPool,
    NativePrice,
    Offer,
    Stock,
    Tier,
    WindowBegin,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Fabric, IntraNode, Sku, SoldAmount

Name = Annotated[str, Field(min_length=1)]
AtLeastOne = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]

Form(
    IntraNode,
    about="The link inside a node: gigabytes per second and GPU, both directions.",
    types={"gbyte_s": Positive},
)
Form(
    Fabric,
    about="""The network between nodes: gigabits per second and node, one direction.

    Addition: ``measured_gbit_s_per_node``, the measured rate of a node, which plans then use.
    """,
    types={"gbit_s_per_node": Positive, "max_nodes": AtLeastOne, "measured_gbit_s_per_node": Positive},
    unless_none=("measured_gbit_s_per_node",),
    lenient=True,
)
Form(
    GpuPool,
    name="PoolForm",
    about="GPUs that several offers share; ``gpus`` null: the number is unknown.",
    rename={"pool_id": "id"},
    types={"pool_id": Name, "gpus": Count},
    optional={"gpus": None},
)
Form(
    Stock,
    about="The stock that the provider states; ``nodes`` null: some. ``pool``: GPUs that other offers share.",
    leave_out=("held_nodes",),  # set by the planner, not by the seller
    types={"nodes": Count},
    lenient=True,
)
Form(DayRate, about="An exchange rate, and the UTC day from which on it is used.")
Form(Exchange, about="How a price in another currency counts in USD.")
Form(
    NativePrice,
    name="NativeForm",
    about="The price as the provider quoted it.",
    unless_none=("exchange",),
    lenient=True,
)
Form(
    ContractTerms,
    name="ContractForm",
    about="The contract that sets the price of an offer, and the seller's list price.",
    rename={
        "list_usd_per_node_hour": "list_price_usd_per_node_hour",
    },
    types={"list_usd_per_node_hour": NotNegativeMoney, "list_upfront_usd": NotNegativeMoney},
    lenient=True,
)
Form(
    NodeLaunch,
    name="LaunchForm",
    about="""
    Seconds from the order until the node runs, and ``image_s`` until the engine's image is on it; null: the
    usual value of such nodes is assumed. ``weights_gbyte_s``: the rate at which weights are loaded, in GB/s;
    null with an ``image_s``: they are on the node already.""",
    types={"launch_s": NotNegative, "image_s": NotNegative, "weights_gbyte_s": Positive},
    optional={"basis": LaunchBasis.STATED},
    lenient=True,
)


def _wait_usd(offer: Offer, learned: LaunchStatistics) -> str:
    return format_usd(to_cents(offer.price_usd_per_node_hour * Decimal(learned.wait_hours)))


def _learned(offer: Offer) -> dict[str, Any] | None:
    """Statistics of our launches, with the cost of waiting, which depends on the offer."""
    if offer.learned is None:
        return None
    return LEARNED.write(offer.learned) | {"wait_usd_per_node": _wait_usd(offer, offer.learned)}


LEARNED = Form(
    LaunchStatistics,
    about="Our launch statistics; the ``wait_…`` figures and ``taken_for_sold_out`` follow from them.",
    types={
        "success_share": Annotated[float, Field(gt=0, le=1), rounded(4)],
        "minutes_to_usable": Annotated[NotNegative, rounded(2)],
        "attempts": AtLeastOne,
    },
    adds={
        "wait_minutes": Annotated[float, From(lambda learned: round(60 * learned.wait_hours, 2))],
        "wait_usd_per_node": Annotated[str, From(lambda _: None)],
        "taken_for_sold_out": Annotated[bool, From("is_rare")],
    },
    optional={"wait_minutes": None, "wait_usd_per_node": None, "taken_for_sold_out": None},
)


def _window(terms: dict[str, Any]) -> dict[str, Any]:
    counts = terms["node_counts"]
    if terms["kind"] is WindowKind.LISTED and not terms["segments"]:
        raise ValueError("at least one segment for a listed window")
    if counts is not None and all(count % terms["lot_nodes"] for count in counts):
        raise ValueError("a count that is a multiple of lot_nodes among node_counts")
    if terms["begins"] is WindowBegin.WHEN_AVAILABLE and (
        terms["kind"] is not WindowKind.REQUEST or terms["segments"] or terms["longest_wait_hours"] <= 0
    ):
        raise ValueError("a request without segments, with longest_wait_hours, if it begins when available")
    return terms | {"node_counts": None if counts is None else tuple(sorted(set(counts)))}


Form(
    WindowTerms,
    name="WindowForm",
    about="""The times that an offer can be bought for.

    Additions: ``teardown_s``, the seconds before the paid end at which the seller takes the nodes back;
    ``node_counts`` (null: any) and ``lot_nodes`` (whole multiples), the node counts of one purchase;
    ``begins``: on time, or when capacity is available, at most ``longest_wait_hours`` after the order
    (``wait_source`` is the source of this figure); ``billed``: all of it ``at_order``, or the time that
    passes ``from_start``.
    """,
    types={
        "segments": tuple[Annotated[Segment, SEGMENT], ...],
        "anchor_utc": Annotated[
            str,
            Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$"),
            AfterValidator(time.fromisoformat),
            PlainSerializer(lambda at: at.strftime("%H:%M")),
        ],
        "step_hours": Positive,
        "durations_hours": tuple[Positive, ...],
        "lead_hours": NotNegative,
        "teardown_s": Count,
        "node_counts": Annotated[tuple[AtLeastOne, ...], Field(min_length=1)],
        "lot_nodes": AtLeastOne,
        "longest_wait_hours": NotNegative,
    },
    lenient=True,
    optional={"segments": ()},
    or_null=("step_hours", "lead_hours", "cancel"),
    prepare=_window,
)


def _amount(told: dict[str, Any]) -> dict[str, Any]:
    most = told["max_gb"]
    if told["min_gb"] > told["default_gb"] or (most is not None and told["default_gb"] > most):
        raise ValueError("min_gb at most default_gb, and default_gb at most max_gb")
    return told


Form(
    SoldAmount,
    about="""Disk or memory that the buyer chooses; the offer's price contains ``default_gb``.

    Addition: ``step_gb``, of which every amount is a whole multiple.
    """,
    types={
        "default_gb": NotNegative,
        "min_gb": NotNegative,
        "max_gb": NotNegative,
        "usd_per_gb_hour": NotNegativeMoney,
        "step_gb": Positive,
    },
    optional={"step_gb": 1.0},
    lenient=True,
    prepare=_amount,
)
Form(
    Sku,
    rename={"name": "sku"},
    types={
        "gpus_per_node": AtLeastOne,
        "gpu_memory_gb": Positive,
        "vcpus": NotNegative,
        "memory_gb": NotNegative,
        "disk_gb": NotNegative,
    },
    lenient=True,
)


def _offer(told: dict[str, Any]) -> dict[str, Any]:
    if told["tier"] is Tier.WINDOW and told["window"] is None:
        raise ValueError("a window if the tier is window")
    native = told["native"] or NativePrice(told["price_usd_per_node_hour"], "USD", "node_hour")
    return told | {"native": native, "place": told["place"] or ""}


OFFER = Form(
    Offer,
    about="""
    One offer. ``mode``, ``seller``, ``contract``, ``learned``, ``launch``, ``reference`` and
    ``window.teardown_s`` are additions. ``mode`` says whether its seller is ``real`` or the ``sandbox``'s,
    where no money moves (null: a price list, or not known). Without ``place`` the place is the seller's zone
    or region, and without ``launch_chance`` it follows from our launches, the stock and the seller.
    """,
    inline=("sku",),
    types={
        "offer_id": Name,
        "provider": Name,
        "price_usd_per_node_hour": NotNegativeMoney,
        "observed_at": UtcInstant | None,
        "native": Annotated[NativePrice, form_of(NativePrice)] | None,
        "upfront_usd": NotNegativeMoney,
        "min_hours": NotNegative,
        "billing_increment_s": Count,
        "interruptions_per_hour": NotNegative,
        "learned": Annotated[LaunchStatistics, LEARNED, PlainSerializer(lambda told: told), From(_learned)],
        "place": str | None,
        "reliability": Share,
        "launch_chance": Annotated[float, Field(gt=0, le=1), From(launch_chance_of)],
    },
    order=(
        "offer_id provider mode sku region zone country place host reliability seller gpu gpus_per_node"
        " gpu_memory_gb vcpus memory_gb disk_gb memory disk form intra_node fabric tier"
        " price_usd_per_node_hour"
        " upfront_usd min_hours billing_increment_s window stock available_until compliance native"
        " observed_at source interruptions_per_hour rate_basis contract learned launch_chance launch"
        " reference",
    ),
    lenient=True,
    optional={"observed_at": None, "source": "", "native": None, "place": None},
    or_null=("min_hours", "billing_increment_s", "stock"),
    prepare=_offer,
)
OfferForm = Annotated[Offer, OFFER]

"""Reservations as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from api.release_words import estimate_words
from api.schemas.base.forms import Form, From, write
from api.schemas.base.parts import Money, NotNegativeMoney
from api.schemas.base.times import Instant, ToldInstant
from api.schemas.base.validation import PRINTABLE
from api.schemas.base.windows import WISH, Span
from broker.domain.basics.machines import AccessWish, Machine, PublicKey
from broker.domain.basics.money import ZERO, format_usd
from broker.domain.basics.window import Wish
from broker.domain.holding.back_off import next_try_at
from broker.domain.holding.capacity_promise import CapacityPromise, promise_of
from broker.domain.holding.early_holding import Hold
from broker.domain.holding.lease_money import price_basis, rate_usd_per_node_hour
from broker.domain.holding.reservation import (
    PriceBasis,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.holding.startup_run import StartupState
from broker.domain.market.offer import Tier
from broker.domain.market.seller_mode import SellerMode
from broker.domain.reconciling.shortfalls import Shortfall
from broker.domain.spend.charging import credited_usd, final_usd
from broker.domain.spend.order_quote import ExtensionQuote, HoldQuote, OrderQuote, PlacementQuote, PlanQuote
from broker.domain.spend.release_estimate import OwedAt, ReleaseEstimate, Resale
from broker.domain.workloads.startup import Startup


class Fit(StrEnum):
    """What happens to a requested time off the seller's grid: it is refused, or extended to the grid."""

    EXACT = "exact"
    OUTWARD = "outward"


def machines_of(unit: Unit) -> tuple[Machine, ...]:
    """The machines of a unit that is held, and that can be entered; an address that was given back may be
    somebody else's now."""
    is_held = unit.state is UnitState.HELD
    return tuple(one for one in unit.machines if is_held and one.access.is_entered)


def access_reason(unit: Unit) -> str | None:
    """Why it is not known how a unit is entered, or where to look; None if it is known."""
    if machines_of(unit):
        return None
    words = {
        UnitState.PLANNED: "it is not ordered yet",
        UnitState.ORDERING: "its order is not answered yet",
        UnitState.HELD: unit.access_note or "its seller has not told its address yet",
        UnitState.GONE: "it is over",
    }
    return words[unit.state]


def key_words(keys: Sequence[PublicKey]) -> list[str]:
    """Public keys, each as its name and fingerprint."""
    return [f"{key.name} {key.fingerprint}" for key in keys]


def _promise_at_start(reservation: Reservation) -> CapacityPromise | None:
    return promise_of(reservation, reservation.start)


# These names are fields within the form.
_BASIS, _NEXT_TRY = From(price_basis), From(next_try_at)


class AccessForm(BaseModel):
    """How a machine is entered, as its seller says it.

    ``private_host`` is its address within the seller's network. ``ssh_host_key`` is the key by which it
    proves itself, as its seller says it or as it was first seen. Null: not known.
    """

    host: Annotated[str, From("access.host")]
    port: Annotated[int, From("access.port")]
    user: Annotated[str, From("access.user")]
    private_host: Annotated[str | None, From("access.private_host")]
    console_url: Annotated[str | None, From("access.console_url")]
    ssh_host_key: Annotated[str | None, From("expected_host_key")]
    reachable_at: Annotated[Instant | None, Field(description="When its SSH port first answered.")] = None


class StartupRunForm(BaseModel):
    """What became of the start of a unit's machines.

    ``state``: ``ordered`` went with the order, and the seller does not tell its outcome; ``waiting`` is run
    by the broker over SSH once the machines answer, then it is ``running``, ``done`` or ``failed``;
    ``impossible``: the order holds capacity alone.
    """

    state: StartupState
    at: Instant
    exit_code: int | None
    error: Annotated[str | None, From(lambda run: run.error or None)]


class UnitForm(BaseModel):
    """What one order of a reservation bought: a node, or a block of nodes.

    ``access`` is how its first node is entered (null: see ``access_reason``), ``machines`` every node in the
    seller's order. ``reachable_at`` is when the SSH port of its last node first answered (null: not yet).
    ``startup``: the start of its machines (null: none was asked for, or it is of before the broker noted it).
    """

    ordinal: int
    nodes: int
    state: UnitState
    reference: Annotated[str | None, Field(description="The seller's own id; null before its answer.")]
    access: Annotated[AccessForm | None, From(lambda unit: next(iter(machines_of(unit)), None))]
    access_reason: Annotated[str | None, From(access_reason)]
    reachable_at: Annotated[Instant | None, From("reachable_at")]
    machines: Annotated[list[AccessForm], From(machines_of)]
    startup: StartupRunForm | None = None


class ReservationForm(BaseModel):
    """One reservation. ``end`` null: until released. ``mode`` and the fields after ``reason`` are additions.

    ``mode`` says whether it was ordered from a ``real`` seller, or in the ``sandbox`` market, where no money
    moves (null: it was ordered before the broker noted this).
    ``requested`` is the time as asked; ``start`` and ``end`` are the time as ordered; ``granted`` is the time
    that the seller gave (null: not known yet); ``usable`` is that time less the seller's teardown (null:
    until released). ``unwanted_hours`` and ``unwanted_usd`` are paid but were not asked for (null outside
    windows). ``replaces`` names the reservation that this one replaces. ``price_usd_per_node_hour`` is the
    billed price; ``price_basis`` says whether the seller ``confirmed`` it for the whole purchase, whether it
    is ``estimated`` from the list price before the order, or fixed by a ``contract``.
    ``limit_usd_per_node_hour`` is the most that the seller may charge (null: no limit). ``tries`` counts the
    seller's consecutive refusals of the current request, an order or a release; ``next_try_at`` is the time
    of the next attempt. ``not_tried``: it failed without an order, because another part of its plan was
    refused. ``credit_usd`` is what the seller gave back for an early end (a fee is
    negative; null: nothing yet). ``owed_usd`` is the total cost of a reservation that is over (null before).
    ``promise`` says what is promised of it: ``held`` (its seller has given it, or it is paid), ``holding``
    (the same, before it is needed at ``requested.start``) or ``at_start`` (it is ordered at its start, and
    nobody has promised it); null while an order is not answered, and from its release on.
    ``access`` says whether people enter its machines, and ``ssh_keys`` with which public keys they were
    ordered, each as its name and fingerprint; ``ssh_keys_left_out`` do not open them, as their seller takes
    fewer.
    """

    reservation_id: str
    state: ReservationState
    offer_id: Annotated[str, From("offer.offer_id")]
    provider: Annotated[str, From("offer.provider")]
    mode: Annotated[SellerMode | None, From("offer.mode")] = None
    sku: Annotated[str, From("offer.sku.name")]
    region: Annotated[str, From("offer.region")]
    nodes: int
    start: Instant
    workload: str | None
    plan_id: str | None
    provider_references: list[str]
    reason: str
    team: str | None = None
    created_at: Instant | None = None
    end: Instant | None
    active_at: Instant | None = None
    released_at: Instant | None = None
    requested: Annotated[Annotated[Wish, WISH] | None, From("wish")] = None
    granted: Span | None = None
    usable: Span | None = None
    unwanted_hours: Annotated[float | None, From("use?.unwanted_hours")] = None
    unwanted_usd: Annotated[Money | None, From("use?.unwanted_usd")] = None
    replaces: list[str] = []
    nodes_held: int = 0
    gpu: Annotated[str | None, From("offer.sku.gpu")] = None
    gpus_per_node: Annotated[int | None, From("offer.sku.gpus_per_node")] = None
    tier: Annotated[Tier | None, From("offer.tier")] = None
    price_usd_per_node_hour: Annotated[Money | None, From(rate_usd_per_node_hour)] = None
    price_basis: Annotated[PriceBasis | None, _BASIS] = None
    limit_usd_per_node_hour: Money | None = None
    tries: int = 0
    next_try_at: Annotated[Instant | None, _NEXT_TRY] = None
    not_tried: bool = False
    credit_usd: Annotated[Money | None, From(credited_usd)] = None
    owed_usd: Annotated[Money | None, From(final_usd)] = None
    units: list[UnitForm] = []
    access: Annotated[AccessWish, From("setup.access")] = AccessWish.SSH
    ssh_keys: Annotated[list[str], From(lambda row: key_words(row.setup.keys))] = []
    ssh_keys_left_out: Annotated[list[str], From(lambda row: key_words(row.setup.left_keys))] = []
    promise: Annotated[CapacityPromise | None, From(_promise_at_start)] = None


class ReservationsForm(BaseModel):
    """The answer to reserving a plan."""

    reservations: list[ReservationForm]


class PlanReleaseRequest(BaseModel):
    """The body of ``POST /v1/plans/{id}/release``. Null: all that the plan holds."""

    model_config = ConfigDict(extra="forbid")

    workload: Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)] | None = None
    offer_id: Annotated[str, Field(min_length=1, max_length=500, pattern=PRINTABLE)] | None = None


class PlanReleaseForm(BaseModel):
    """What was released of a plan, and what could not be."""

    reservations: Annotated[list[ReservationForm], From("asked")]
    failed: Annotated[
        dict[str, str],
        From(lambda done: {row.reservation_id: str(error) for row, error in done.failed}),
    ]


SHARE = Annotated[
    Money,
    PlainSerializer(lambda share: format_usd(round(share, 4)), return_type=str, when_used="json"),
]
Form(OwedAt, about="What all of it owes in the end, in USD, if it is released ``at`` that time.")
Form(
    Resale,
    about="Which share of the price a resale is expected to bring; ``sales`` 0: it is assumed.",
    types={"share": SHARE},
)
RELEASE_ESTIMATE = Form(
    ReleaseEstimate,
    name="ReleaseEstimateForm",
    about="""
    What a release now would give back of what is owed, and what would stay owed, in USD.

    ``resales``: what is assumed of windows that their seller only sells on; else the sellers' terms hold.
    ``min_hours``: minimum terms, by offer, of what is not bought yet. ``unknown``: the placements of a plan
    whose offer is not on sale now; they are in no amount. ``has_coming``: something is not bought yet. It
    owes nothing if it is released before its start, and ``coming_usd`` right after the last of it has
    started. ``later``: what all of it owes if it is released a day or a week after its begin. ``saves_usd``:
    what a release now saves against holding all of it until its end (null: it has no end, or nothing is held
    or ordered). ``text``: the amounts as sentences.
    """,
    optional={"has_coming": False, "coming_usd": ZERO, "first_start": None, "last_start": None, "later": ()}
    | {"saves_usd": None},
    adds={"text": Annotated[str, From(estimate_words)]},
)
ReleaseEstimateForm = Annotated[ReleaseEstimate, RELEASE_ESTIMATE]


class ReservationRequest(BaseModel):
    """The body of ``POST /v1/reservations``. Without ``start`` it begins now; without ``end`` it lasts until
    released.

    ``fit`` (an addition) ``outward``: for a time off the seller's grid, the shortest window that covers it is
    bought. ``max_price_usd_per_node_hour`` (null: the offer's price and the price tolerance): the order is
    refused if the offer has become dearer, and a lease for which the seller charges more is released at once.
    ``disk_gb`` and ``memory_gb`` (additions) are rounded up to what the seller sells. ``access`` ``none``:
    nobody enters the machines, so the order needs no key. ``startup``: what they start with.
    """

    model_config = ConfigDict(extra="forbid")

    offer_id: Annotated[str, Field(min_length=1, max_length=500, pattern=PRINTABLE)]
    nodes: Annotated[int, Field(strict=True, ge=1, le=10_000)]
    start: ToldInstant | None = None
    end: ToldInstant | None = None
    workload: Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)] | None = None
    fit: Fit = Fit.EXACT
    max_price_usd_per_node_hour: NotNegativeMoney | None = None
    disk_gb: Annotated[float, Field(strict=True, gt=0, le=1_000_000)] | None = None
    memory_gb: Annotated[float, Field(strict=True, gt=0, le=1_000_000)] | None = None
    access: AccessWish = AccessWish.SSH
    startup: Startup | None = None


class PlanReservationRequest(BaseModel):
    """The body of ``POST /v1/plans/{id}/reserve``; without it, ``hold`` is ``at_start``.

    ``hold`` says when capacity by the hour that starts later is ordered: ``at_start``, when its seller may
    have none, or ``now``, so that it is kept and charged from now on. Windows are bought now in any case, and
    spot capacity, which holding does not keep, at its start.
    """

    model_config = ConfigDict(extra="forbid")

    hold: Hold = Hold.AT_START


class OrderQuoteForm(BaseModel):
    """What an order of one offer would buy and cost now; nothing is ordered.

    ``start`` and ``end`` are the times as they would be ordered. ``cost_usd`` is the cost until the end at
    the present price, and ``most_usd`` at the limit (null: it has no end). ``usd_per_hour`` is the price of
    all nodes, ``at_once_usd`` what is paid with the order. ``on_release`` is what a release right after it
    gives back. ``market`` says whether the order costs money (empty: all sellers are real).
    """

    offer_id: Annotated[str, From("quote.intent.offer.offer_id")]
    nodes: Annotated[int, From("quote.intent.nodes")]
    start: Annotated[Instant, From("quote.intent.start")]
    end: Annotated[Instant | None, From("quote.intent.end")]
    price_usd_per_node_hour: Annotated[Money, From("quote.intent.offer.price_usd_per_node_hour")]
    limit_usd_per_node_hour: Annotated[Money | None, From("quote.intent.limit_usd_per_node_hour")]
    usd_per_hour: Annotated[Money, From("quote.usd_per_hour")]
    cost_usd: Annotated[Money | None, From("quote.cost_usd")]
    most_usd: Annotated[Money | None, From("quote.most_usd")]
    at_once_usd: Annotated[Money, From("quote.at_once_usd")]
    on_release: Annotated[ReleaseEstimateForm, From("quote.on_release")]
    market: str = ""


PLACEMENT_QUOTE = Form(
    PlacementQuote,
    name="PlacementQuoteForm",
    about="""
    How a placement is ordered if its plan is reserved now.

    ``promise`` is ``held`` if all of its ``orders`` are placed now, else ``at_start``: ``later`` of them are
    placed at their start, the first at ``first_later``, and nobody has promised them. ``hold_usd`` is what it
    adds to hold them now (null: they cannot be held early, or are bought now). ``stock`` is what its seller
    says, ``launch_chance`` the share of our own launches that succeeded there (null: not known).
    """,
)
PlacementQuoteForm = Annotated[PlacementQuote, PLACEMENT_QUOTE]


class PlanQuoteForm(BaseModel):
    """What the reservation of a plan would cost; nothing is ordered.

    ``at_once_usd`` is what is paid with the order; the rest is charged as it is held. ``hold_usd`` is what it
    adds to hold now what starts later (null: nothing can be held early, or needs to). ``on_release`` is what
    a release right after it gives back, and ``market`` says whether the order costs money (empty: all sellers
    are real).
    """

    plan_id: Annotated[str, From("quote.plan.plan_id")]
    cost_usd: Annotated[Money, From("quote.plan.cost_usd")]
    at_once_usd: Annotated[Money, From("quote.at_once_usd")]
    on_release: Annotated[ReleaseEstimateForm, From("quote.on_release")]
    market: str = ""
    hold_usd: Annotated[Money | None, From("quote.hold_usd")] = None
    placements: Annotated[list[PlacementQuoteForm], From("quote.placements")] = []


class HoldQuoteForm(BaseModel):
    """What it adds to hold a reservation now that is ordered at its start; nothing is ordered.

    ``hold_usd`` is the cost of the time until ``start``, ``usd_per_hour`` the price of all its nodes.
    ``market`` says whether the order costs money (empty: its seller is real).
    """

    reservation_id: Annotated[str, From("quote.reservation.reservation_id")]
    start: Annotated[Instant, From("quote.reservation.start")]
    hold_usd: Annotated[Money, From("quote.usd")]
    usd_per_hour: Annotated[Money, From("quote.usd_per_hour")]
    market: str = ""


class ExtensionQuoteForm(BaseModel):
    """What it adds to hold a reservation longer; nothing is changed.

    ``added_usd`` is the cost of the time from ``end_before`` until ``end``, by the rule of every bill, and
    ``usd_per_hour`` the price of all its nodes. ``market`` says whether that is money (empty: its seller is
    real).
    """

    reservation_id: Annotated[str, From("quote.reservation.reservation_id")]
    end_before: Annotated[Instant, From("quote.reservation.end")]
    end: Annotated[Instant, From("quote.end")]
    added_usd: Annotated[Money, From("quote.usd")]
    usd_per_hour: Annotated[Money, From("quote.usd_per_hour")]
    market: str = ""


@dataclass(frozen=True, slots=True)
class QuotedExtension:
    """The quote of an extension, and whether it costs money, in words."""

    quote: ExtensionQuote
    market: str


@dataclass(frozen=True, slots=True)
class QuotedHold:
    """The quote of holding a reservation now, and whether its order costs money, in words."""

    quote: HoldQuote
    market: str


@dataclass(frozen=True, slots=True)
class QuotedOrder:
    """The quote of an order of one offer, and whether it costs money, in words."""

    quote: OrderQuote
    market: str


@dataclass(frozen=True, slots=True)
class QuotedPlan:
    """The quote of a plan, and whether its order costs money, in words."""

    quote: PlanQuote
    market: str


def quote_to_document(quote: OrderQuote | PlanQuote | HoldQuote, market: str) -> dict[str, Any]:
    """The JSON form of ``quote`` as plain data; ``market`` says whether its order costs money."""
    if isinstance(quote, OrderQuote):
        return write(OrderQuoteForm, QuotedOrder(quote, market))
    if isinstance(quote, ExtensionQuote):
        return write(ExtensionQuoteForm, QuotedExtension(quote, market))
    if isinstance(quote, HoldQuote):
        return write(HoldQuoteForm, QuotedHold(quote, market))
    return write(PlanQuoteForm, QuotedPlan(quote, market))


class ExtensionRequest(BaseModel):
    """The body of ``POST /v1/reservations/{id}/extend``."""

    model_config = ConfigDict(extra="forbid")

    end: ToldInstant


def reservation_to_document(reservation: Reservation, now: datetime) -> dict[str, Any]:
    """The JSON form of ``reservation`` as plain data, with what is promised of it at ``now``."""
    return write(ReservationForm, reservation) | {"promise": promise_of(reservation, now)}


class SizeForm(BaseModel):
    """The number of nodes from an instant on."""

    at: Annotated[Instant, Field(description="The instant."), From(itemgetter(0))]
    nodes: Annotated[int, Field(description="Nodes that are reserved from then on."), From(itemgetter(1))]


class FleetForm(BaseModel):
    """All reservations of one workload for one offer.

    Reservations that are over are a separate item, by how and why they ended.
    """

    team: Annotated[str, From("fleet.first.team")]
    plan_id: Annotated[
        str | None, Field(description="Null if no plan reserved it."), From("fleet.first.plan_id")
    ]
    workload: Annotated[str | None, From("fleet.first.workload")]
    offer_id: Annotated[str, From("fleet.first.offer.offer_id")]
    provider: Annotated[str, From("fleet.first.offer.provider")]
    mode: Annotated[SellerMode | None, From("fleet.first.offer.mode")]
    sku: Annotated[str, From("fleet.first.offer.sku.name")]
    region: Annotated[str, From("fleet.first.offer.region")]
    gpu: Annotated[str, From("fleet.first.offer.sku.gpu")]
    gpus_per_node: Annotated[int, From("fleet.first.offer.sku.gpus_per_node")]
    tier: Annotated[Tier, From("fleet.first.offer.tier")]
    state: Annotated[
        ReservationState,
        Field(description="The most significant state of its reservations."),
        From("fleet.state"),
    ]
    reason: Annotated[str, Field(description="The reason of that state."), From("fleet.first.reason")]
    nodes: Annotated[int, Field(description="Nodes that are reserved now."), From("fleet.nodes")]
    next_change: Annotated[
        SizeForm | None, Field(description="The next change of its size; null: none."), From("fleet.next")
    ]
    least_nodes: Annotated[
        int, Field(description="The fewest nodes from its start to its end."), From("fleet.least")
    ]
    most_nodes: Annotated[int, Field(description="The most nodes at once."), From("fleet.most")]
    start: Annotated[Instant, Field(description="When its first one begins."), From("fleet.start")]
    end: Annotated[
        Instant | None, Field(description="When its last one ends; null: until released."), From("fleet.end")
    ]
    price_usd_per_node_hour: Annotated[Money, Field(description="The billed price of that reservation.")]
    owed_usd: Annotated[
        Money, Field(description="What its seller has billed until now."), From("money.owed_usd")
    ]
    expected_usd: Annotated[
        Money,
        Field(description="What will be billed until its end; 0 for reservations without an end."),
        From("money.expected_usd"),
    ]
    reservation_ids: Annotated[list[str], Field(description="Its reservations, in the order of their start.")]
    promises: Annotated[
        dict[str, int], Field(description="How many of its reservations are `held`, `holding`, `at_start`.")
    ] = {}


class RefusalForm(BaseModel):
    """A refusal, in the provider's own words."""

    provider: str
    said: str


SHORTFALL = Form(
    Shortfall,
    about="""
    ``nodes_short`` of the ``nodes`` that a workload is to have from ``start`` to ``end`` are refused.

    ``end`` null: until they are had. ``next_try_at`` null: at the next pass. ``text``: it all as a sentence.
    """,
    rename={"said": "refused_by"},
    types={
        "said": Annotated[
            list[RefusalForm],
            AfterValidator(lambda rows: tuple((row.provider, row.said) for row in rows)),
            PlainSerializer(lambda said: [{"provider": provider, "said": words} for provider, words in said]),
        ]
    },
    adds={"text": Annotated[str, From(str)]},
)
ShortfallForm = Annotated[Shortfall, SHORTFALL]

"""Reservations as JSON."""

from __future__ import annotations

from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from api.schemas.base.forms import Form, From, write
from api.schemas.base.parts import Money, NotNegativeMoney
from api.schemas.base.times import Instant, ToldInstant
from api.schemas.base.validation import PRINTABLE
from api.schemas.base.windows import WISH, Span
from broker.domain.basics.window import Wish
from broker.domain.holding.back_off import next_try_at
from broker.domain.holding.lease_money import price_basis, rate_usd_per_node_hour
from broker.domain.holding.reservation import PriceBasis, Reservation, ReservationState
from broker.domain.market.offer import Tier
from broker.domain.reconciling.shortfalls import Shortfall


class Fit(StrEnum):
    """What becomes of a wish that is off the seller's grid: refused, or snapped to what covers it."""

    EXACT = "exact"
    OUTWARD = "outward"


# Within the form these names are fields.
_BASIS, _NEXT_TRY = From(price_basis), From(next_try_at)


class ReservationForm(BaseModel):
    """One reservation. ``end`` null: until released. The fields after ``reason`` are additions.

    ``requested``: as asked; ``start`` and ``end``: as ordered; ``granted``: as the seller gave it (null: not
    said yet); ``usable``: less the seller's teardown (null: until released). ``unwanted_hours`` and
    ``unwanted_usd``: paid and not asked for (null outside windows). ``replaces``: whose place it takes.
    ``price_usd_per_node_hour``: at which it is billed; ``price_basis``: ``confirmed`` by the seller for all
    that is bought, ``estimated`` from what it asked before the order, or fixed by a ``contract``.
    ``limit_usd_per_node_hour``: the most that the seller may charge (null: whatever it asks).
    ``tries``: how often in a row its seller refused what is asked now, an order or its end; ``next_try_at``:
    when that is asked again.
    """

    reservation_id: str
    state: ReservationState
    offer_id: Annotated[str, From("offer.offer_id")]
    provider: Annotated[str, From("offer.provider")]
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
    gpu: Annotated[str | None, From("offer.sku.gpu")] = None
    gpus_per_node: Annotated[int | None, From("offer.sku.gpus_per_node")] = None
    tier: Annotated[Tier | None, From("offer.tier")] = None
    price_usd_per_node_hour: Annotated[Money | None, From(rate_usd_per_node_hour)] = None
    price_basis: Annotated[PriceBasis | None, _BASIS] = None
    limit_usd_per_node_hour: Money | None = None
    tries: int = 0
    next_try_at: Annotated[Instant | None, _NEXT_TRY] = None


class ReservationsForm(BaseModel):
    """The answer to reserving a plan."""

    reservations: list[ReservationForm]


class ReservationRequest(BaseModel):
    """The body of ``POST /v1/reservations``. ``start`` left out: now; ``end``: until released.

    ``fit`` (ours) ``outward``: a wish off the seller's grid buys the shortest window that covers it.
    ``max_price_usd_per_node_hour``: refused where the offer has become dearer; a lease for which its seller
    charges more is given back at once.
    """

    model_config = ConfigDict(extra="forbid")

    offer_id: Annotated[str, Field(min_length=1, max_length=500, pattern=PRINTABLE)]
    nodes: Annotated[int, Field(strict=True, ge=1, le=10_000)]
    start: ToldInstant | None = None
    end: ToldInstant | None = None
    workload: Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)] | None = None
    fit: Fit = Fit.EXACT
    max_price_usd_per_node_hour: NotNegativeMoney | None = None


class ExtensionRequest(BaseModel):
    """The body of ``POST /v1/reservations/{id}/extend``."""

    model_config = ConfigDict(extra="forbid")

    end: ToldInstant


def reservation_to_document(reservation: Reservation) -> dict[str, Any]:
    """The JSON form of ``reservation`` as plain data."""
    return write(ReservationForm, reservation)


class SizeForm(BaseModel):
    """How many nodes there are from an instant on."""

    at: Annotated[Instant, Field(description="From when."), From(itemgetter(0))]
    nodes: Annotated[int, Field(description="Nodes that are reserved from then on."), From(itemgetter(1))]


class FleetForm(BaseModel):
    """What a workload has of one offer, however many reservations that takes.

    What is over stands apart, by how and why it ended.
    """

    team: Annotated[str, From("line.first.team")]
    plan_id: Annotated[
        str | None, Field(description="Null where no plan reserved it."), From("line.first.plan_id")
    ]
    workload: Annotated[str | None, From("line.first.workload")]
    offer_id: Annotated[str, From("line.first.offer.offer_id")]
    provider: Annotated[str, From("line.first.offer.provider")]
    sku: Annotated[str, From("line.first.offer.sku.name")]
    region: Annotated[str, From("line.first.offer.region")]
    gpu: Annotated[str, From("line.first.offer.sku.gpu")]
    gpus_per_node: Annotated[int, From("line.first.offer.sku.gpus_per_node")]
    tier: Annotated[Tier, From("line.first.offer.tier")]
    state: Annotated[
        ReservationState,
        Field(description="Of its reservations, the one that says most."),
        From("line.state"),
    ]
    reason: Annotated[str, Field(description="Why that one is in its state."), From("line.first.reason")]
    nodes: Annotated[int, Field(description="Nodes that are reserved for now."), From("line.nodes")]
    next_change: Annotated[
        SizeForm | None, Field(description="The next other size; null: it stays so."), From("line.next")
    ]
    least_nodes: Annotated[
        int, Field(description="The fewest nodes from its start to its end."), From("line.least")
    ]
    most_nodes: Annotated[int, Field(description="The most nodes at once."), From("line.most")]
    start: Annotated[Instant, Field(description="When the first of it begins."), From("line.start")]
    end: Annotated[
        Instant | None, Field(description="When the last of it ends; null: until released."), From("line.end")
    ]
    price_usd_per_node_hour: Annotated[Money, Field(description="At which that reservation is billed.")]
    owed_usd: Annotated[Money, Field(description="What its seller has billed by now.")]
    expected_usd: Annotated[
        Money, Field(description="What is to be billed until its end; nothing for what has no end.")
    ]
    reservation_ids: Annotated[list[str], Field(description="Its reservations, in the order of their start.")]


class RefusalForm(BaseModel):
    """Who refuses, in its own words."""

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

"""Reservations as JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.parts import Money, NotNegativeMoney, PageForm, SpanForm
from api.schemas.base.times import Instant, ToldInstant, format_time
from api.schemas.base.validation import PRINTABLE
from api.schemas.base.windows import span_to_document
from broker.domain.basics.money import format_usd
from broker.domain.holding.back_off import next_try_at
from broker.domain.holding.lease_money import price_basis, rate_usd_per_node_hour
from broker.domain.holding.reservation import PriceBasis, Reservation, ReservationState
from broker.domain.market.offer import Tier
from broker.domain.reconciling.shortfalls import Shortfall


class WishForm(BaseModel):
    """Time as asked; ``end`` null: until released."""

    start: Instant
    end: Instant | None


class Fit(StrEnum):
    """What becomes of a wish that is off the seller's grid: refused, or snapped to what covers it."""

    EXACT = "exact"
    OUTWARD = "outward"


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
    offer_id: str
    provider: str
    sku: str
    region: str
    nodes: int
    start: Instant
    end: Instant | None
    workload: str | None
    plan_id: str | None
    provider_references: list[str]
    reason: str
    team: str | None = None
    created_at: Instant | None = None
    active_at: Instant | None = None
    released_at: Instant | None = None
    requested: WishForm | None = None
    granted: SpanForm | None = None
    usable: SpanForm | None = None
    unwanted_hours: float | None = None
    unwanted_usd: Money | None = None
    replaces: list[str] = []
    gpu: str | None = None
    gpus_per_node: int | None = None
    tier: Tier | None = None
    price_usd_per_node_hour: Money | None = None
    price_basis: PriceBasis | None = None
    limit_usd_per_node_hour: Money | None = None
    tries: int = 0
    next_try_at: Instant | None = None


ReservationPage = PageForm[ReservationForm]


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
    times = {
        name: format_time(instant) if instant is not None else None
        for name, instant in (
            ("end", reservation.end),
            ("active_at", reservation.active_at),
            ("released_at", reservation.released_at),
        )
    }
    use, wish, limit = reservation.use, reservation.wish, reservation.limit_usd_per_node_hour
    again = next_try_at(reservation)
    return {
        "reservation_id": reservation.reservation_id,
        "state": str(reservation.state),
        "offer_id": reservation.offer.offer_id,
        "provider": reservation.offer.provider,
        "sku": reservation.offer.sku.name,
        "region": reservation.offer.region,
        "nodes": reservation.nodes,
        "start": format_time(reservation.start),
        "workload": reservation.workload,
        "plan_id": reservation.plan_id,
        "provider_references": list(reservation.provider_references),
        "reason": reservation.reason,
        "team": reservation.team,
        "created_at": format_time(reservation.created_at),
        **times,
        "requested": {
            "start": format_time(wish.start),
            "end": format_time(wish.end) if wish.end is not None else None,
        },
        "granted": span_to_document(reservation.granted) if reservation.granted is not None else None,
        "usable": span_to_document(reservation.usable) if reservation.usable is not None else None,
        "unwanted_hours": use.unwanted_hours if use is not None else None,
        "unwanted_usd": format_usd(use.unwanted_usd) if use is not None else None,
        "replaces": list(reservation.replaces),
        "gpu": reservation.offer.sku.gpu,
        "gpus_per_node": reservation.offer.sku.gpus_per_node,
        "tier": str(reservation.offer.tier),
        "price_usd_per_node_hour": format_usd(rate_usd_per_node_hour(reservation)),
        "price_basis": str(price_basis(reservation)),
        "limit_usd_per_node_hour": format_usd(limit) if limit is not None else None,
        "tries": reservation.tries,
        "next_try_at": format_time(again) if again is not None else None,
    }


class SizeForm(BaseModel):
    """How many nodes there are from an instant on."""

    at: Annotated[Instant, Field(description="From when.")]
    nodes: Annotated[int, Field(description="Nodes that are reserved from then on.")]


class FleetForm(BaseModel):
    """What a workload has of one offer, however many reservations that takes.

    What is over stands apart, by how and why it ended.
    """

    team: str
    plan_id: Annotated[str | None, Field(description="Null where no plan reserved it.")]
    workload: str | None
    offer_id: str
    provider: str
    sku: str
    region: str
    gpu: str
    gpus_per_node: int
    tier: Tier
    state: Annotated[ReservationState, Field(description="Of its reservations, the one that says most.")]
    reason: Annotated[str, Field(description="Why that one is in its state.")]
    nodes: Annotated[int, Field(description="Nodes that are reserved for now.")]
    next_change: Annotated[SizeForm | None, Field(description="The next other size; null: it stays so.")]
    least_nodes: Annotated[int, Field(description="The fewest nodes from its start to its end.")]
    most_nodes: Annotated[int, Field(description="The most nodes at once.")]
    start: Annotated[Instant, Field(description="When the first of it begins.")]
    end: Annotated[Instant | None, Field(description="When the last of it ends; null: until released.")]
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


class ShortfallForm(BaseModel):
    """``nodes_short`` of the ``nodes`` that a workload is to have from ``start`` to ``end`` are refused.

    ``end`` null: until they are had. ``next_try_at`` null: at the next pass. ``text``: it all as a sentence.
    """

    team: str
    plan_id: str | None
    workload: str | None
    start: Instant
    end: Instant | None
    nodes_short: int
    nodes: int
    reservation_ids: list[str]
    refused_by: list[RefusalForm]
    next_try_at: Instant | None
    text: str


def shortfall_to_document(one: Shortfall) -> dict[str, Any]:
    """The JSON form of ``one`` as plain data."""
    return {
        "team": one.team,
        "plan_id": one.plan_id,
        "workload": one.workload,
        "start": format_time(one.start),
        "end": format_time(one.end) if one.end is not None else None,
        "nodes_short": one.nodes_short,
        "nodes": one.nodes,
        "reservation_ids": list(one.reservation_ids),
        "refused_by": [{"provider": provider, "said": said} for provider, said in one.said],
        "next_try_at": format_time(one.next_try_at) if one.next_try_at is not None else None,
        "text": str(one),
    }

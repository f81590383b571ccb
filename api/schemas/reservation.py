"""Reservations as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.schemas.times import Instant, format_time
from broker.domain.reservation import Reservation, ReservationState

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"


class ReservationForm(BaseModel):
    """One reservation. ``end`` null: until released. The fields after ``reason`` are additions."""

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


class ReservationsForm(BaseModel):
    """The answer to reserving a plan."""

    reservations: list[ReservationForm]


class ReservationPage(BaseModel):
    """A part of the list of reservations."""

    items: list[ReservationForm]
    next_cursor: str | None


class ReservationRequest(BaseModel):
    """The body of ``POST /v1/reservations``. ``start`` left out: now; ``end``: until released."""

    model_config = ConfigDict(extra="forbid")

    offer_id: Annotated[str, Field(min_length=1, max_length=500, pattern=PRINTABLE)]
    nodes: Annotated[int, Field(ge=1, le=10_000)]
    start: Instant | None = None
    end: Instant | None = None
    workload: Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> ReservationRequest:
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ValueError("an end after the start")
        return self


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
    }

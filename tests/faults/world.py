"""The words of the protocol's small world: rows, the cloud, actors, and what is fixed for one search."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from broker.domain.basics.identity import make_tag, next_tag
from broker.domain.holding.reservation import (
    Idempotency,
    Lease,
    LeaseState,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer

TICK = timedelta(minutes=1)
SETTLE_TICKS = 2
SECOND_LOOK_TICKS = 1
INSTALL = "model"
OFFER = an_offer("node")
IDLE = ("idle",)
DONE = ("done",)


class Design(StrEnum):
    """The protocol, and three ways to get it wrong."""

    SOUND = "sound"
    NO_INTENT = "no intent"  # the provider is called first, the row is stored after
    AGE_ONLY_SWEEP = "age-only sweep"  # strays are what no row refers to, open intents or not
    NO_FENCE = "no fence"  # answers and steps are written whatever the row has become


class Reply(StrEnum):
    """How the provider takes an order."""

    OK = "ok"
    LOST = "lost"  # made, the answer is lost (a timeout, or a 500 after the effect)
    NOT_MADE = "not made"  # the same answer, without the effect
    REFUSED = "refused"
    FAILS_LATER = "fails later"  # taken, and found to have no capacity afterwards


class Row(NamedTuple):
    """What is stored."""

    state: ReservationState
    unit: UnitState
    attempt: int
    reference: int | None
    ordered_at: int | None
    version: int


class Instance(NamedTuple):
    """A line of the ledger."""

    attempt: int
    born: int
    visible_at: int
    fails: bool
    ends_at: int | None

    def is_dead(self, now: int) -> bool:
        """Whether a release of it has taken effect."""
        return self.ends_at is not None and self.ends_at <= now


Local = tuple[Any, ...]
"""Where an actor stands: the name of its next step, then what it remembers."""


class World(NamedTuple):
    """Everything that the future depends on."""

    now: int
    row: Row | None
    cloud: tuple[Instance, ...]
    replies: tuple[Reply, ...]  # of the next orders; then all go well
    asked: bool  # the user's wish to release is stored
    buyer: Local
    user: Local
    reconciler: Local
    missed: int | None  # when the reconciler first missed what is held
    passes: int  # passes that may still begin before the closing ones
    deaths: int  # deaths that may still come


@dataclass(frozen=True)
class Scenario:
    """What is fixed for one search."""

    idempotency: Idempotency
    visible_after: int
    ends_after: int
    replies: tuple[Reply, ...]
    releases: bool
    design: Design = Design.SOUND
    ticks: int = 4
    passes: int = 2
    deaths: int = 2


@lru_cache(None)
def tag_of(attempt: int) -> str:
    """The tag of the n-th attempt, as the product makes it."""
    return make_tag(INSTALL, "rsv-1", 0) if attempt == 1 else next_tag(tag_of(attempt - 1))


@lru_cache(None)
def _attempt_of(tag: str) -> int:
    attempt = 1
    while tag_of(attempt) != tag:
        attempt += 1
    return attempt


@lru_cache(None)
def reservation_of(row: Row) -> Reservation:
    """The product's word for a row."""
    at = None if row.ordered_at is None else NOON + row.ordered_at * TICK
    reference = None if row.reference is None else str(row.reference)
    unit = Unit(0, tag_of(row.attempt), 1, row.unit, reference, at)
    return Reservation(
        "rsv-1", "t", row.state, OFFER, 1, NOON, None, (unit,), created_at=NOON, version=row.version
    )


def row_of(reservation: Reservation, before: Row) -> Row:
    (unit,) = reservation.units
    at = None if unit.ordered_at is None else (unit.ordered_at - NOON) // TICK
    reference = None if unit.reference is None else int(unit.reference)
    return Row(reservation.state, unit.state, _attempt_of(unit.tag), reference, at, before.version + 1)


@lru_cache(None)
def lease_of_instance(reference: int, instance: Instance, now: int) -> Lease:
    state = LeaseState.ACTIVE
    if instance.is_dead(now):
        state = LeaseState.ENDED
    elif instance.ends_at is not None:
        state = LeaseState.ENDING
    elif instance.fails:
        state = LeaseState.FAILED if now > instance.born else LeaseState.PROVISIONING
    return Lease("fake", str(reference), state, tag_of(instance.attempt))

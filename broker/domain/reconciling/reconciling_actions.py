"""What one pass of reconciling sees of a reservation, and what it may do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Idempotency, Lease, ReservationState


@dataclass(frozen=True, slots=True)
class ReconcileInput:
    """What one pass sees. ``leases``: the provider's list, with what a second look found.

    ``settle``: how long an unanswered order may be in flight or not yet listed.
    ``quiet_since``: the last step that anybody made for this reservation or its plan.
    ``behind``: a sibling of the same plan must be bought first. ``missed``: when each held unit, by its
    ordinal, was first not shown; what is not shown again ``second_look`` later is gone (None: one look is
    enough, for a caller that remembers none).
    """

    now: datetime
    leases: Sequence[Lease]
    idempotency: Idempotency
    settle: timedelta
    quiet_since: datetime
    behind: bool = False
    missed: Mapping[int, datetime] | None = None
    second_look: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do now."""


@dataclass(frozen=True, slots=True)
class Buy:
    """Order what is planned."""


@dataclass(frozen=True, slots=True)
class Resend:
    """The same call again: its token makes it safe."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """The lost answer was found: keep ``lease``, release ``extras``."""

    ordinal: int
    lease: Lease
    extras: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """The order surely came to nothing: plan another attempt under a new tag."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """It cannot be held. ``whole_plan``: nothing else of its plan stays held either."""

    reason: str
    whole_plan: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Units that the provider no longer holds, or that nobody can tell it does.

    ``at``: when those ended of which it is known, by ordinal; the others: now.
    """

    ordinals: tuple[int, ...]
    reason: str
    at: tuple[tuple[int, datetime], ...] = ()


@dataclass(frozen=True, slots=True)
class MoveTo:
    """The provider shows another state."""

    state: ReservationState


@dataclass(frozen=True, slots=True)
class Grant:
    """The provider shows another window than it showed before, or shows one at last."""

    window: Window


@dataclass(frozen=True, slots=True)
class Book:
    """The seller shows what it billed, or what it charges; or that is above the limit."""


@dataclass(frozen=True, slots=True)
class BeginRelease:
    """Its time is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Ask the provider for the end of ``leases``."""

    leases: tuple[Lease, ...]


Action = Wait | Buy | Resend | Adopt | Retry | Abandon | Lost | MoveTo | Grant | Book | BeginRelease | Release

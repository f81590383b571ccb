"""The input of one reconciliation pass, and the actions that it may decide on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Idempotency, Lease, ReservationState


@dataclass(frozen=True, slots=True)
class ReconcileInput:
    """The input of one pass. ``leases`` are the provider's leases, including those found one by one.

    ``order_grace`` is how long an unanswered order may be in flight or not listed yet. ``quiet_since`` is the
    time of the last order for this reservation or its plan. ``behind``: a sibling of the same plan must be
    bought first. ``missed`` is when each held unit was first missing, by ordinal; a unit that is still
    missing ``second_look`` later is gone. With ``missed`` None a unit is gone the first time that it is
    missing.
    """

    now: datetime
    leases: Sequence[Lease]
    idempotency: Idempotency
    order_grace: timedelta
    quiet_since: datetime
    behind: bool = False
    missed: Mapping[int, datetime] | None = None
    second_look: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do now."""


@dataclass(frozen=True, slots=True)
class Buy:
    """Order the planned units."""


@dataclass(frozen=True, slots=True)
class Resend:
    """Repeat the call; its idempotency token makes that safe."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """The lease of a lost answer was found: keep ``lease``, and release ``extras``."""

    ordinal: int
    lease: Lease
    extras: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """The order certainly failed: plan another attempt with a new tag."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """The reservation cannot be fulfilled. ``whole_plan``: release the rest of its plan too."""

    reason: str
    whole_plan: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Units that the provider no longer holds, or of which it cannot be known.

    ``at`` has (ordinal, time) for each unit whose end is known; the others end now.
    """

    ordinals: tuple[int, ...]
    reason: str
    at: tuple[tuple[int, datetime], ...] = ()


@dataclass(frozen=True, slots=True)
class MoveTo:
    """Set the state that the provider shows."""

    state: ReservationState


@dataclass(frozen=True, slots=True)
class Grant:
    """Store the window that the provider granted."""

    window: Window


@dataclass(frozen=True, slots=True)
class Book:
    """Store the bill or rate that the provider reports, or act on a rate above the limit."""


@dataclass(frozen=True, slots=True)
class BeginRelease:
    """Begin the release."""

    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Ask the provider to end ``leases``."""

    leases: tuple[Lease, ...]


Action = Wait | Buy | Resend | Adopt | Retry | Abandon | Lost | MoveTo | Grant | Book | BeginRelease | Release

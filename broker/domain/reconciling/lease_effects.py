"""A preview of the reconciler's next actions, for a person who must confirm them (after a restore). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from broker.domain.holding.reservation import Lease, Reservation, UnitState
from broker.domain.reconciling.reconciling_actions import (
    Abandon,
    Action,
    Adopt,
    BeginRelease,
    Buy,
    Lost,
    Release,
    Resend,
    Retry,
)
from broker.domain.reconciling.replacing import replacement_of


class EffectKind(StrEnum):
    """What an action does with a lease."""

    ADOPT = "adopt"
    END = "end"
    BUY = "buy"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class LeaseEffect:
    """One effect on a lease. ``reference`` is None if the lease does not exist yet; ``reservation_id`` is
    None if no reservation is for it.
    """

    deed: EffectKind
    provider: str
    reservation_id: str | None
    reference: str | None
    nodes: int
    detail: str


def effects_of(row: Reservation, action: Action, now: datetime) -> Iterator[LeaseEffect]:
    """The effects of ``action`` on leases; empty if it only changes the reservation."""
    match action:
        case Buy():
            planned = sum(unit.nodes for unit in row.units if unit.state is UnitState.PLANNED)
            yield _effect(EffectKind.BUY, row, None, planned, "it was not ordered yet")
        case Resend(ordinal) | Retry(ordinal):
            nodes = row.units[ordinal].nodes
            yield _effect(EffectKind.BUY, row, None, nodes, "the answer to its order was lost")
        case Adopt(_, lease, extras):
            yield _effect(EffectKind.ADOPT, row, lease.reference, lease.nodes, "it carries the order's tag")
            yield from _ended(row, extras, "it is a duplicate of a held lease")
        case Lost():
            yield from _lost(row, action, now)
        case Release(leases):
            yield from _ended(row, leases, "its release was requested")
        case BeginRelease(reason) | Abandon(reason):
            held = [unit for unit in row.units if unit.state is UnitState.HELD]
            yield from (_effect(EffectKind.END, row, unit.reference, unit.nodes, reason) for unit in held)
        case _:
            return


def _ended(row: Reservation, leases: Iterable[Lease], why: str) -> Iterator[LeaseEffect]:
    return (_effect(EffectKind.END, row, lease.reference, lease.nodes, why) for lease in leases)


def _lost(row: Reservation, lost: Lost, now: datetime) -> Iterator[LeaseEffect]:
    for ordinal in lost.ordinals:
        unit = row.units[ordinal]
        yield _effect(EffectKind.GONE, row, unit.reference, unit.nodes, lost.reason)
    wanted = replacement_of(row, lost.ordinals, now)
    if wanted is not None:
        yield _effect(EffectKind.BUY, row, None, wanted.nodes, "it replaces a lease that is gone")


def orphan_effect(lease: Lease, *, kept: bool) -> LeaseEffect:
    """The effect on an orphaned lease: one that carries our tag but belongs to no reservation."""
    deed = EffectKind.ADOPT if kept else EffectKind.END
    why = f"it carries our tag {lease.tag}, but no reservation is for it"
    return LeaseEffect(deed, lease.provider, None, lease.reference, lease.nodes, why)


def _effect(
    deed: EffectKind, row: Reservation, reference: str | None, nodes: int, detail: str
) -> LeaseEffect:
    return LeaseEffect(deed, row.offer.provider, row.reservation_id, reference, nodes, detail)

"""What is held of the nodes that a reserved plan places. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from broker.domain.holding.cost_of_keeping import waits_after_refusal
from broker.domain.holding.holding_orders import FOREVER
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.planning.plan import Plan

WAITING = frozenset({UnitState.PLANNED, UnitState.ORDERING})


@dataclass(frozen=True, slots=True)
class NodesHeld:
    """Of ``planned`` nodes of a workload, those ``held``, ``waiting`` to be bought, and ``missing``, at the
    instant from now on at which most are missing; if none are, now or at its next start.
    """

    workload: str
    planned: int
    held: int
    waiting: int
    missing: int

    def __str__(self) -> str:
        return held_of_planned(self.held, self.planned, self.waiting, self.missing)


@dataclass(frozen=True, slots=True)
class PlanHolding:
    """What is held of a reserved plan, by workload and in all."""

    workloads: tuple[NodesHeld, ...]

    @property
    def planned(self) -> int:
        """Number of planned nodes."""
        return sum(one.planned for one in self.workloads)

    @property
    def held(self) -> int:
        """Number of nodes that are held."""
        return sum(one.held for one in self.workloads)

    @property
    def waiting(self) -> int:
        """Number of nodes that are still to be bought and were not refused."""
        return sum(one.waiting for one in self.workloads)

    @property
    def missing(self) -> int:
        """Number of nodes that were refused, or taken away and not bought again."""
        return sum(one.missing for one in self.workloads)

    @property
    def text(self) -> str:
        """``3 of 16 nodes held, 13 missing``."""
        return held_of_planned(self.held, self.planned, self.waiting, self.missing)

    def of(self, workload: str) -> NodesHeld | None:
        """The part of one workload."""
        return next((one for one in self.workloads if one.workload == workload), None)


def held_of_planned(held: int, planned: int, waiting: int = 0, missing: int = 0) -> str:
    """``3 of 16 nodes held, 13 missing``: what is held of what is planned, in the words of every answer."""
    words = f"{held:,} of {planned:,} node{'' if planned == 1 else 's'} held"
    words += f", {waiting:,} not bought yet" if waiting else ""
    return f"{words}, {missing:,} missing" if missing else words


def find_holding(plan: Plan, reservations: Iterable[Reservation], now: datetime) -> PlanHolding | None:
    """What ``reservations`` hold of ``plan`` from ``now`` on; None if no time of it is left."""
    rows = [r for r in reservations if r.is_open and r.state is not ReservationState.RELEASING]
    names = dict.fromkeys(placement.workload for placement in plan.placements)
    found = (_nodes_held(plan, name, [r for r in rows if r.workload == name], now) for name in names)
    workloads = tuple(one for one in found if one is not None)
    return PlanHolding(workloads) if workloads else None


_Span = tuple[datetime, datetime, int]


def _nodes_held(plan: Plan, name: str, rows: Sequence[Reservation], now: datetime) -> NodesHeld | None:
    segments = (segment for part in plan.placements_of(name) for segment in part.segments)
    planned = [(max(s.start, now), s.end, s.nodes) for s in segments if s.end > now]
    held = [_span(row, now, UnitState.HELD) for row in rows]
    waiting = [_span(row, now, *WAITING) for row in rows if not waits_after_refusal(row)]
    instants = sorted({start for start, _, _ in (*planned, *held, *waiting)})
    if not planned:
        return None
    first = max(instants, key=lambda at: _missing(planned, held, waiting, at))
    if not _missing(planned, held, waiting, first):
        first = min(start for start, _, _ in planned)
    of, have = _at(planned, first), _at(held, first)
    return NodesHeld(
        workload=name,
        planned=of,
        held=min(have, of),
        waiting=max(0, min(_at(waiting, first), of - have)),
        missing=_missing(planned, held, waiting, first),
    )


def _span(row: Reservation, now: datetime, *states: UnitState) -> _Span:
    nodes = sum(unit.nodes for unit in row.units if unit.state in states)
    return max(row.start, now), row.ends_at or FOREVER, nodes


def _missing(planned: Sequence[_Span], held: Sequence[_Span], waiting: Sequence[_Span], at: datetime) -> int:
    return max(0, _at(planned, at) - _at(held, at) - _at(waiting, at))


def _at(spans: Sequence[_Span], at: datetime) -> int:
    return sum(nodes for start, end, nodes in spans if start <= at < end)

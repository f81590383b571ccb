"""A team's projected charges after the moves of a proposal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.holding.cost_of_keeping import HeldCapacity, left_usd
from broker.domain.moving.kept_parts import parts_held
from broker.domain.moving.reoptimization import Move, Reoptimization
from broker.domain.planning.plan import Plan
from broker.domain.spend.charging import plan_charges
from broker.domain.spend.spend import Charge, ChargeBasis


def charges_with_moves(
    charges: Iterable[Charge],
    look: Reoptimization,
    new: Plan,
    leaving: Iterable[HeldCapacity],
    keeping: Iterable[HeldCapacity],
    now: datetime,
) -> tuple[Charge, ...]:
    """``charges`` of a team as they are after the moves of the re-optimization ``look``.

    Actual charges stay, and those of parts that are kept (among ``keeping``). The other projected charges of
    moving workloads are replaced by those of ``new``. Of the
    released capacity (``leaving``), the earliest projected charges stay up to the cost that remains owed plus
    the overlap. Egress of moved data is billed on the first day at the new place.
    """
    every = tuple(charges)
    moves = {move.workload: move for move in look.moves}
    part = replace(new, placements=tuple(p for p in new.placements if p.workload in moves))
    part, rows = parts_held(part, keeping)
    stays = {row.reservation_id for row in rows}
    kept = [
        c
        for c in every
        if c.workload not in moves or c.basis is ChargeBasis.ACTUAL or c.reservation_id in stays
    ]
    held = tuple(leaving)
    for move in moves.values():
        mine = [one for one in held if one.workload == move.workload]
        kept += _still_owed(every, mine, now, max(ZERO, move.cost.overlap_usd))
    return (*kept, *_with_egress(plan_charges(part, look.team, new.plan_id), moves.values()))


def _still_owed(
    charges: Sequence[Charge], leaving: Sequence[HeldCapacity], now: datetime, overlap_usd: Decimal
) -> Iterator[Charge]:
    """The projected charges of capacity that is released now, up to the cost that remains owed."""
    keys = {one.reservation_id for one in leaving}
    mine = sorted((c for c in charges if c.reservation_id in keys), key=lambda c: c.window.start)
    left = sum((left_usd(one, now) for one in leaving), overlap_usd)
    for charge in mine:
        if charge.basis is ChargeBasis.ACTUAL:
            left -= charge.usd
    for charge in mine:
        if charge.basis is ChargeBasis.PROJECTED and left > 0:
            yield replace(charge, usd=min(left, charge.usd))
            left -= charge.usd


def _with_egress(charges: Iterable[Charge], moves: Iterable[Move]) -> Iterator[Charge]:
    more = {move.workload: move.cost.egress_usd for move in moves}
    for charge in charges:
        yield replace(charge, usd=charge.usd + more.pop(charge.workload, ZERO))

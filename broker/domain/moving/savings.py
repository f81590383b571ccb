"""Savings of plans compared with simpler strategies (baselines)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.moving.reoptimization import MoveState, Reoptimization
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest


@dataclass(frozen=True, slots=True)
class Saving:
    """One baseline over the ``plans`` plans for which it could run; ``plan_usd`` is their cost."""

    name: str
    plans: int
    baseline_usd: Decimal
    plan_usd: Decimal

    @property
    def saved_usd(self) -> Decimal:
        """The saving of the plans; negative if the baseline would have been cheaper."""
        return self.baseline_usd - self.plan_usd

    @property
    def saved_share(self) -> float:
        """The saving as a share of the baseline's cost."""
        return float(self.saved_usd / self.baseline_usd) if self.baseline_usd else 0.0


@dataclass(frozen=True, slots=True)
class NotRun:
    """A baseline that could not run for a plan, and the reason; it does not count as a saving."""

    name: str
    plan_id: str
    why: str


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A current plan that is in no sum, and the reason."""

    plan_id: str
    why: str


@dataclass(frozen=True, slots=True)
class MovedSaving:
    """What the ``moves`` of a re-optimization that are done save, as counted when they were proposed.

    ``saving_usd``: what staying would have cost from then on, less what the new places cost; ``moving_usd``
    is the one-time cost of the moves.
    """

    reoptimization_id: str
    plan_id: str
    decided_at: datetime | None
    moves: int
    saving_usd: Decimal
    moving_usd: Decimal

    @property
    def net_usd(self) -> Decimal:
        """The saving less the one-time cost of the moves."""
        return self.saving_usd - self.moving_usd


@dataclass(frozen=True, slots=True)
class Savings:
    """Savings by baseline, the baselines that could not run, and the plans that are in no sum;
    ``reoptimizations``: what moves saved beside that, newest first.
    """

    savings: tuple[Saving, ...]
    not_run: tuple[NotRun, ...]
    not_compared: tuple[NotCompared, ...] = ()
    reoptimizations: tuple[MovedSaving, ...] = ()


def moved_savings(looks: Iterable[Reoptimization]) -> tuple[MovedSaving, ...]:
    """What the moves of ``looks`` that are done save; one whose moves all failed is left out."""
    found = []
    for look in looks:
        done = [move for move in look.moves if move.state is MoveState.DONE]
        if done:
            saving_usd = sum((move.saving_usd for move in done), ZERO)
            moving_usd = sum((move.cost.total_usd for move in done), ZERO)
            ids = look.reoptimization_id, look.plan_id
            found.append(MovedSaving(*ids, look.decided_at, len(done), saving_usd, moving_usd))
    return tuple(found)


def savings_of(
    plans: Iterable[tuple[Plan, PlanRequest]], not_compared: Iterable[NotCompared] = ()
) -> Savings:
    """Savings over ``plans``, beside those ``not_compared``. Costs include lateness and delay on both sides.

    Penalties for unplaced workloads are excluded, because a baseline places the same workloads as its plan.
    """
    costs: defaultdict[str, list[tuple[Decimal, Decimal]]] = defaultdict(list)
    not_run, left = [], list(not_compared)
    for plan, request in plans:
        if not plan.placements:
            left.append(NotCompared(plan.plan_id, "it places nothing"))
            continue
        if not plan.baselines:
            left.append(NotCompared(plan.plan_id, "no simpler strategy was tried for it"))
        own_usd = plan.compared_usd + _lateness_usd(plan, request)
        for baseline in plan.baselines:
            if baseline.cost_usd is None:
                not_run.append(NotRun(baseline.name, plan.plan_id, baseline.why))
            else:
                costs[baseline.name].append((baseline.cost_usd, own_usd))
    savings = tuple(
        Saving(name, len(pairs), sum((b for b, _ in pairs), ZERO), sum((p for _, p in pairs), ZERO))
        for name, pairs in costs.items()
    )
    return Savings(savings, tuple(not_run), tuple(left))


def _lateness_usd(plan: Plan, request: PlanRequest) -> Decimal:
    left_out = {one.workload for one in plan.unplaced}
    penalties = (w.unplaced_usd or ZERO for w in request.missed(left_out))
    return max(plan.penalty_usd - sum(penalties, ZERO), ZERO)

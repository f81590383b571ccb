"""The gates: which offers a workload may use at all, and which rule dropped the others.

The gates that prune are the gates that explain: each is applied in the order of ``Obstacle``, its
losses are counted, and the first that lets no offer through is the workload's obstacle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np

from broker.domain.offer import Tier
from broker.domain.plan import Obstacle
from broker.domain.workload import Policy, Training, Workload
from optimizer.placement.problem import TIERS, Bools, OfferTable, Problem

FIT_GATES = (
    Obstacle.GPU_UNKNOWN,
    Obstacle.PRECISION,
    Obstacle.MEMORY,
    Obstacle.FABRIC,
    Obstacle.LATENCY,
)


@dataclass(slots=True)
class GateLog:
    """What passed so far, offers lost at each gate, and the gate that lost the last of them."""

    passing: Bools
    dropped: dict[Obstacle, int] = field(default_factory=dict)
    obstacle: Obstacle | None = None
    evaluated: int = 0
    kept: int = 0

    def apply(self, gate: Obstacle, allowed: Bools) -> bool:
        """Drops what ``gate`` forbids; whether something is left."""
        after = self.passing & allowed
        lost = int(self.passing.sum()) - int(after.sum())
        if lost:
            self.dropped[gate] = self.dropped.get(gate, 0) + lost
        if self.obstacle is None and not after.any():
            self.obstacle = gate
        self.passing = after
        return bool(after.any())


def open_gates(problem: Problem, workload: Workload) -> GateLog:
    """The gates that need no estimate: policy, tier, residency, compliance, stock."""
    table = problem.table
    log = GateLog(problem.allowed.copy())
    policies = (problem.request.policy, workload.policy)
    log.apply(Obstacle.POLICY, _every(table, policies, _policy_mask))
    log.apply(Obstacle.TIER, _every(table, policies, _tier_mask) & _tier_of_kind(table, workload))
    log.apply(Obstacle.RESIDENCY, _every(table, policies, _residency_mask))
    log.apply(Obstacle.COMPLIANCE, _every(table, policies, _compliance_mask))
    log.apply(Obstacle.STOCK, table.stock_nodes > 0)
    return log


def fit_gates(problem: Problem, log: GateLog, obstacles: Sequence[Obstacle | None], fits_kind: Bools) -> bool:
    """The performance core's gates over kinds of node [K]; whether something is left."""
    reasons = list(obstacles)
    for gate in FIT_GATES:
        blocked = np.array([r is gate for r in reasons], dtype=np.bool_) & ~fits_kind
        log.apply(gate, ~blocked[problem.table.sku_of])
    return log.apply(Obstacle.MEMORY, fits_kind[problem.table.sku_of])


def _every(
    table: OfferTable, policies: Sequence[Policy], mask: Callable[[OfferTable, Policy], Bools]
) -> Bools:
    found = np.ones(len(table), dtype=np.bool_)
    for policy in policies:
        found &= mask(table, policy)
    return found


def _mask(verdicts: Iterator[bool], size: int) -> Bools:
    return np.fromiter(verdicts, dtype=np.bool_, count=size)


def _policy_mask(table: OfferTable, policy: Policy) -> Bools:
    if policy.regions is None and policy.providers_only is None and not policy.providers_exclude:
        return np.ones(len(table), dtype=np.bool_)
    regions = {
        region: policy.regions is None or any(fnmatchcase(region, pattern) for pattern in policy.regions)
        for region in {offer.region for offer in table.offers}
    }
    providers = {
        provider: (policy.providers_only is None or provider in policy.providers_only)
        and provider not in policy.providers_exclude
        for provider in {offer.provider for offer in table.offers}
    }
    return _mask((regions[o.region] and providers[o.provider] for o in table.offers), len(table))


def _tier_mask(table: OfferTable, policy: Policy) -> Bools:
    if policy.tiers is None:
        return np.ones(len(table), dtype=np.bool_)
    mask: Bools = np.array([tier in policy.tiers for tier in TIERS], dtype=np.bool_)[table.tier_of]
    return mask


def _tier_of_kind(table: OfferTable, workload: Workload) -> Bools:
    """Spot for interruptible training alone; windows for runs alone, and only with terms."""
    on_spot = isinstance(workload, Training) and workload.interruptible
    spot = table.tier_of == TIERS.index(Tier.SPOT)
    window = (table.tier_of == TIERS.index(Tier.WINDOW)) | table.is_window
    on_window = table.is_window & (workload.kind != "serving")
    mask: Bools = (~spot | on_spot) & (~window | on_window)
    return mask


def _residency_mask(table: OfferTable, policy: Policy) -> Bools:
    if policy.countries is None:
        return np.ones(len(table), dtype=np.bool_)
    allowed = frozenset(policy.countries)
    return _mask((o.country in allowed for o in table.offers), len(table))


def _compliance_mask(table: OfferTable, policy: Policy) -> Bools:
    if not policy.compliance:
        return np.ones(len(table), dtype=np.bool_)
    asked = frozenset(policy.compliance)
    return _mask((asked <= o.compliance for o in table.offers), len(table))

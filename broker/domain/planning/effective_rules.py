"""The effective rules of a workload: from the team's policy, its own policy, and defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from broker.domain.market.offer import HostKind, Offer
from broker.domain.planning.workload import FleetLimits, PlanRequest, Policy, Serving, Workload
from broker.domain.workloads.gpu_rules import AllowedGpus, allowed_gpus

Number = TypeVar("Number", int, float)

DEFAULT_HOSTS = frozenset({HostKind.DATACENTER})
DEFAULT_ASSUMED_NODES = 16
DEFAULT_PREMIUM = 0.01
DEFAULT_MAX_GPU_KINDS = 2
MOST_POOLS = 4
"""The most pools of one service, unless it needs more places: fleets on more are not searched."""


@dataclass(frozen=True, slots=True)
class EffectiveRules:
    """Effective rules of a workload. Of the team's and the workload's rule the stricter one applies.

    ``max_pools`` and ``max_gpu_kinds`` apply to services; ``NO_LIMIT`` kinds are as many as wanted.
    """

    hosts: frozenset[HostKind]
    gpus: AllowedGpus
    min_reliability: float
    premium: float
    max_pools: int
    max_gpu_kinds: int

    def allow_host(self, offer: Offer) -> bool:
        """Whether the offer's kind of host is allowed, and its reliability is high enough.

        An unknown kind of host is allowed only if all kinds are. An unknown reliability fails any minimum.
        """
        known = {offer.host} if offer.host is not None else set(HostKind)
        if not known <= self.hosts:
            return False
        return not self.min_reliability or (offer.reliability or 0.0) >= self.min_reliability


def rules_of(team: Policy, workload: Workload) -> EffectiveRules:
    """The effective rules of ``workload`` in a document whose policy is ``team``."""
    policies = (team, workload.policy)
    said_hosts = [frozenset(policy.hosts) for policy in policies if policy.hosts is not None]
    fleets: list[FleetLimits] = [policy.fleet for policy in policies]
    zones = 1
    if isinstance(workload, Serving):
        fleets.append(workload.fleet)
        zones = workload.redundancy.zones
    return EffectiveRules(
        hosts=frozenset.intersection(*said_hosts) if said_hosts else DEFAULT_HOSTS,
        gpus=allowed_gpus([policy.gpus for policy in policies]),
        min_reliability=max((p.min_reliability or 0.0 for p in policies), default=0.0),
        premium=_least((p.premium for p in policies), DEFAULT_PREMIUM),
        max_pools=min(max(MOST_POOLS, zones), _least((limits.max_pools for limits in fleets), zones + 1)),
        max_gpu_kinds=_least((limits.max_gpu_kinds for limits in fleets), DEFAULT_MAX_GPU_KINDS),
    )


def assumed_nodes(request: PlanRequest) -> int:
    """How many nodes a plan assumes of an offer whose stock is unknown.

    Workloads share the stock, so there is one number: the smallest in the document's and workloads' policies.
    """
    policies = (request.policy, *(workload.policy for workload in request.workloads))
    return _least((policy.assumed_nodes for policy in policies), DEFAULT_ASSUMED_NODES)


def _least(said: Iterable[Number | None], default: Number) -> Number:
    return min((value for value in said if value is not None), default=default)

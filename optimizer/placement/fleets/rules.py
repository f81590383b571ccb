"""The rules of a fleet as numbers: spares, places, what must remain after the loss of a place, pools, kinds
of GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from broker.domain.basics.confidence import MEDIAN, joint_deviations
from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.workload import Serving
from optimizer.placement.problem.problem import Floats, Problem


@dataclass(frozen=True, slots=True)
class FleetRules:
    """``spare`` largest replicas beyond demand; ``places`` that each carry ``least_share`` of the demand.

    After the loss of any one place the others carry ``loss_share`` of the demand. At most ``pools`` pools of
    at most ``gpus`` kinds of GPU. Beside the spares more than ``idle`` replicas, however small the demand.
    ``confidence``: of the rates of replicas (``kinds_share``).
    """

    spare: int
    places: int
    loss_share: float
    least_share: float
    pools: int
    gpus: int
    idle: float = 0.0
    confidence: float = MEDIAN

    @property
    def most_kinds(self) -> int:
        """The most kinds of GPU that a fleet may have."""
        return min(self.gpus, self.pools)

    def kinds_share(self, deviation: Floats, kinds: int) -> Floats:
        """By what the rates of replicas are multiplied in the first stage of a fleet of ``kinds`` of GPU.

        The error of a rate is common to the replicas of one kind and independent between kinds, and some
        hours rest on one kind, others on another. So each kind counts at the quantile with which all of them
        hold together. ``deviation``: standard deviation of the logarithm of each rate.
        """
        found: Floats = np.exp(-joint_deviations(self.confidence, kinds) * deviation)
        return found


def fleet_rules(problem: Problem, service: Serving) -> FleetRules:
    """The rules that the document sets for a service's fleet."""
    standing, redundancy = rules_of(problem.request.policy, service), service.redundancy
    loss = redundancy.zone_loss_share if redundancy.survives_zone_loss else 0.0
    return FleetRules(
        spare=redundancy.spare_replicas,
        idle=float(max(0, service.min_replicas - 1)),
        places=max(1, redundancy.zones),
        loss_share=loss,
        least_share=loss / max(1, redundancy.zones - 1),
        pools=standing.max_pools,
        gpus=standing.max_gpu_kinds,
        confidence=service.planned_confidence,
    )

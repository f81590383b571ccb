"""The rules of a fleet as numbers: spares, places, what must remain after the loss of a place, pools, kinds
of GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.workload import Serving
from optimizer.placement.problem.problem import Problem


@dataclass(frozen=True, slots=True)
class FleetRules:
    """``spare`` largest replicas beyond demand; ``places`` that each carry ``least_share`` of the demand.

    After the loss of any one place the others carry ``loss_share`` of the demand. At most ``pools`` pools of
    at most ``gpus`` kinds of GPU. Beside the spares more than ``idle`` replicas, however small the demand.
    """

    spare: int
    places: int
    loss_share: float
    least_share: float
    pools: int
    gpus: int
    idle: float = 0.0


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
    )

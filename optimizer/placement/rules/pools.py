"""A service uses no more pools and kinds of GPU than its fleet may.

A pool is one seller's nodes of one kind of GPU in one place and one configuration.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import Serving
from optimizer.placement.rules.case import Case


def violations(case: Case) -> Iterator[str]:
    """Services on more pools or kinds of GPU than their documents allow."""
    for service in case.request.workloads:
        if not isinstance(service, Serving):
            continue
        rules = rules_of(case.request.policy, service)
        placements = [placement for _, placement, _, _ in case.placed.get(service.name, ())]
        gpus = {placement.gpu for placement in placements}
        if len(gpus) > rules.max_gpu_kinds:
            yield f"{service.name}: runs on {len(gpus)} kinds of GPU, {rules.max_gpu_kinds} are allowed"
        pools = {_pool(case, placement) for placement in placements}
        if len(pools) > rules.max_pools:
            yield f"{service.name}: stands on {len(pools)} pools, {rules.max_pools} are allowed"


def _pool(case: Case, placement: Placement) -> tuple[object, ...]:
    offer = case.offers[placement.offer_id]
    layout = placement.parallelism
    return (offer.provider, placement.gpu, offer.place, placement.precision, layout, placement.engine)

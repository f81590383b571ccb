"""What the limits of a fleet cost: of pools, and of kinds of GPU.

The service is planned anew with one more of them, beside all that the others hold. So the figure is that of
a plan that exists: it may be too low, and is never too high.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from broker.domain.standing_rules import rules_of
from broker.domain.workload import FleetLimits, PlanRequest, Policy, Serving
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column, in_usd
from optimizer.placement.fleet_rules import MOST_POOLS
from optimizer.placement.near_ties import NearTie, upkeep_of
from optimizer.placement.standing import Standing
from optimizer.placement.trials import Trials

LEAST_SHARE = 0.002
"""A smaller saving is within what the search of a fleet leaves open."""
MOST_SERVICES = 4
TRIALS_EACH = 2
ORDINALS = {2: "second", 3: "third", 4: "fourth"}


def limits_told(
    candidates: Candidates, standing: Standing, ties: Mapping[str, NearTie]
) -> dict[str, tuple[str, ...]]:
    """For each service that a limit holds, what one more pool or kind of GPU would save, in words.

    Only the dearest services are tried. What a near tie was decided for is no saving.
    """
    problem = candidates.problem
    services = [(s, standing.chosen[s.name]) for s in problem.services() if s.name in standing.chosen]
    services.sort(key=lambda row: (-row[1].cost_cents, row[0].name))
    trials = Trials(candidates, standing.chosen, MOST_SERVICES * TRIALS_EACH)
    told = {}
    for service, mine in services[:MOST_SERVICES]:
        paid = max(0, ties[service.name].more_cents) if service.name in ties else 0
        found = tuple(_told(trials, service, mine, mine.total_cents - paid))
        if found:
            told[service.name] = found
    return told


def _told(trials: Trials, service: Serving, mine: Column, least_cents: int) -> Iterator[str]:
    problem = trials.candidates.problem
    rules = rules_of(problem.request.policy, service)
    pools = upkeep_of(problem, mine).pools
    kinds = len({problem.table.offers[piece.offer].sku.gpu for piece in mine.pieces})
    if pools == rules.max_pools < MOST_POOLS:
        more = FleetLimits(max_pools=pools + 1, max_gpu_kinds=rules.max_gpu_kinds)
        saved = _saved_cents(trials, service, least_cents, more)
        if saved:
            noun = "pool is" if pools == 1 else "pools are"
            yield f"at most {pools} {noun} allowed, and a {ORDINALS[pools + 1]} would save ${in_usd(saved):,}"
    if kinds == rules.max_gpu_kinds < rules.max_pools <= MOST_POOLS:
        more = FleetLimits(max_pools=rules.max_pools, max_gpu_kinds=kinds + 1)
        saved = _saved_cents(trials, service, least_cents, more)
        if saved:
            noun = "kind of GPU is" if kinds == 1 else "kinds of GPU are"
            yield f"at most {kinds} {noun} allowed, and a {ORDINALS[kinds + 1]} would save ${in_usd(saved):,}"


def _saved_cents(trials: Trials, service: Serving, now_cents: int, limits: FleetLimits) -> int:
    """What a service saves under other limits; 0 where that is nothing to speak of."""
    way = trials.cheapest(_under(trials.candidates.problem.request, service, limits), service.name)
    saved = 0 if way is None else now_cents - way.total_cents
    return saved if saved > LEAST_SHARE * now_cents else 0


def _under(request: PlanRequest, service: Serving, limits: FleetLimits) -> PlanRequest:
    """The request with these limits of a service's fleet, whatever the policies say of fleets."""
    changed = replace(service, fleet=limits, policy=_unlimited(service.policy))
    workloads = tuple(changed if w.name == service.name else w for w in request.workloads)
    return replace(request, policy=_unlimited(request.policy), workloads=workloads)


def _unlimited(policy: Policy) -> Policy:
    return replace(policy, fleet=FleetLimits())

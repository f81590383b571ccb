"""What the limits of a fleet cost: those of pools, and of kinds of GPU.

The service is planned again with one more pool or kind while everything else stays, on the offers of its
known fleets and those with the lowest cost per request. So the saving is that of a feasible plan: it may be
understated, never overstated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from broker.domain.planning.effective_rules import MOST_POOLS, rules_of
from broker.domain.planning.workload import FleetLimits, Serving
from optimizer.placement.explain.near_ties import NearTie, upkeep_of
from optimizer.placement.explain.trials import Trials, fleets_under
from optimizer.placement.fleets.model import coarse_fleets, model_fleets
from optimizer.placement.problem.columns import Column, in_usd
from optimizer.placement.problem.units import Units
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.plan_state import PlanState

ORDINALS = {2: "second", 3: "third", 4: "fourth"}


def limits_told(
    state: PlanState,
    known: Mapping[str, Sequence[Column]],
    ties: Mapping[str, NearTie],
    most: int,
) -> dict[str, tuple[str, ...]]:
    """For each service with a binding limit, what one more pool or kind of GPU would save, in words.

    The most expensive services are tried first, ``most`` limits in total. ``known``: fleets of each, cheapest
    first. A premium that a near tie paid is not a saving.
    """
    candidates, problem = state.candidates, state.candidates.problem
    services = [(s, state.chosen[s.name]) for s in problem.services() if s.name in state.chosen]
    services.sort(key=lambda row: (-row[1].cost_cents, row[0].name))
    make = model_fleets if candidates.is_small else coarse_fleets
    trials = Trials(candidates, state.chosen, most, make=make)
    told = {}
    for service, mine in services:
        paid = max(0, ties[service.name].more_cents) if service.name in ties else 0
        near = (mine, *known.get(service.name, ())[: TUNING.explain.most_known_fleets])
        used = {piece.offer for column in near for piece in column.pieces}
        offers = sorted(used | _cheapest_per_request(candidates.fleets[service.name].units))
        found = tuple(_told(trials, service, mine, mine.total_cents - paid, offers))
        if found:
            told[service.name] = found
    return told


def _cheapest_per_request(units: Units) -> set[int]:
    """The offers with the lowest cost per request."""
    usd = units.usd_per_hour / units.requests_per_s
    return {
        int(offer)
        for offer in units.offer[np.argsort(usd, kind="stable")[: TUNING.explain.most_known_fleets]]
    }


def _told(
    trials: Trials, service: Serving, mine: Column, now_cents: int, offers: Sequence[int]
) -> Iterator[str]:
    problem = trials.candidates.problem
    rules = rules_of(problem.request.policy, service)
    pools = upkeep_of(problem, mine).pools
    kinds = len({problem.table.offers[piece.offer].sku.gpu for piece in mine.pieces})
    for what, count, limit, most, more in (
        ("pool", pools, rules.max_pools, MOST_POOLS, FleetLimits(pools + 1, rules.max_gpu_kinds)),
        ("kind", kinds, rules.max_gpu_kinds, rules.max_pools, FleetLimits(rules.max_pools, kinds + 1)),
    ):
        if count == limit < most:
            cents = [fleet.total_cents for fleet in fleets_under(trials, service, mine, more, offers)]
            saved = now_cents - min(cents, default=now_cents)
            if saved > TUNING.fleets.tolerance_share * now_cents:
                noun = f"{what}{'' if count == 1 else 's'}{' of GPU' * (what == 'kind')}"
                are, next_one = "is" if count == 1 else "are", ORDINALS[count + 1]
                yield f"at most {count} {noun} {are} allowed, and a {next_one} would save ${in_usd(saved):,}"

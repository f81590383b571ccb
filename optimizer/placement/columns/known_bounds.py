"""What an earlier search proved for each service, as far as it still holds in today's market.

Take a cheapest fleet of today; it uses only offers that no other makes redundant. Suppose that each of these
sold the same then, at no more than 1/r times today's price (r ≤ 1 is the smallest ratio of today's price to
the old one). Then the same fleet cost at most 1/r times as much then, so

  bound today ≥ r × old bound.

What ordering a node again is expected to cost counts as a price. If nothing about these offers moved, the old
bound is today's bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from broker.domain.market.offer import Offer, SizedId
from broker.domain.planning.workload import PlanRequest, Serving
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.carried import same_but_price
from optimizer.placement.columns.dual import Dual, DualPoint
from optimizer.placement.columns.prices import StockPrices
from optimizer.placement.fleets.bound import FleetBound
from optimizer.placement.fleets.model import wanted_units
from optimizer.placement.problem.problem import Floats, Ints, Problem, kind_of
from optimizer.placement.problem.units import FleetCase, surcharged

SLOT = "known bounds"


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """One service: its bound alone, and its lower bound at the dual prices (None: unknown); ``priced``:
    whether it was evaluated there. ``failure_cents``: what a node costs that is not to be had, by kind and
    configuration.
    """

    service: Serving
    failure_cents: Mapping[Hashable, int]
    bound: FleetBound
    priced_usd: float | None
    priced: bool


@dataclass(frozen=True, slots=True, eq=False)
class KnownBounds:
    """What one search over one market proved."""

    request: PlanRequest
    span_s: tuple[int, int]
    offers: Mapping[SizedId, Offer]
    dual_prices: Mapping[SizedId, float]
    services: Mapping[str, _Known]


def remember(candidates: Candidates, dual: Dual | None, centre: DualPoint | None) -> None:
    """Stores each service's bound, alone and at the prices of ``centre``, for the next search."""
    problem, services = candidates.problem, {}
    for service in _alone(problem):
        name, bound = service.name, candidates.bounds[service.name]
        if name not in candidates.bounded or not bound.met:
            continue
        services[name] = _Known(
            service,
            dict(_failure_cents(candidates, candidates.fleets[name], None)),
            bound,
            None if centre is None else centre.least_usd.get(name),
            centre is not None and dual is not None and dual.is_answered(name, centre.prices),
        )
    offers = problem.table.offers
    dual_prices = {} if centre is None else centre.prices.charged(problem)
    problem.memo.keep(
        _slot(problem),
        KnownBounds(
            problem.request,
            (problem.t0_s, problem.end_s),
            {offer.sized_id: offer for offer in offers},
            {offers[offer].sized_id: usd for offer, usd in dual_prices.items()},
            services,
        ),
    )


def _slot(problem: Problem) -> Hashable:
    return SLOT, tuple(service.name for service in _alone(problem))


def carry(candidates: Candidates) -> KnownBounds | None:
    """Gives each service the part of its old bound that still holds; returns the source, or None."""
    problem = candidates.problem
    known = problem.memo.kept(_slot(problem), KnownBounds)
    if known is None or not _is_comparable(problem, known):
        return None
    share = _shares(problem, known)
    for service in _alone(problem):
        found = known.services.get(service.name)
        if found is None or found.service != service:
            continue
        case = candidates.fleets[service.name]
        part, same = _part_of(candidates, case, share, found)
        if part <= 0:
            continue
        candidates.carry(service.name, found.bound.times(part), same=same)
    return known


def carry_priced(candidates: Candidates, dual: Dual, known: KnownBounds, prices: StockPrices) -> None:
    """The same for bounds at dual prices, if today's dual prices are at least those of the earlier search."""
    problem, today = candidates.problem, prices.charged(candidates.problem)
    before = {problem.index_of.get(key): usd for key, usd in known.dual_prices.items()}
    if not before or any(o is None or today.get(o, 0.0) < usd for o, usd in before.items()):
        return
    share, unmoved = _shares(problem, known), before == today
    for service in _alone(problem):
        found = known.services.get(service.name)
        if found is None or found.service != service or found.priced_usd is None:
            continue
        key = dual.key(service.name, prices)
        if not key:
            continue
        case = surcharged(candidates.fleets[service.name], dict(key))
        part, same = _part_of(candidates, case, share, found)
        answered = found.priced and same and unmoved
        dual.learn(service.name, key, part * found.priced_usd, answered=answered)


def _alone(problem: Problem) -> Iterator[Serving]:
    """Services that follow no run."""
    return (service for service in problem.services() if service.starts_after is None)


def _is_comparable(problem: Problem, known: KnownBounds) -> bool:
    """Whether the earlier search had the same horizon and rules."""
    mine, then = problem.request, known.request
    rules = (mine.policy, mine.quotas, mine.held, mine.horizon)
    return known.span_s == (problem.t0_s, problem.end_s) and rules == (
        then.policy,
        then.quotas,
        then.held,
        then.horizon,
    )


def _shares(problem: Problem, known: KnownBounds) -> Floats:
    """Ratio [O] of today's price to the earlier one, at most 1; 0 if anything but the price changed."""

    def made() -> Floats:
        before = known.offers
        return np.array([_share(before.get(o.sized_id), o) for o in problem.table.offers], dtype=np.float64)

    return problem.once_for_market(("shares", id(known)), made)


def _share(old: Offer | None, new: Offer) -> float:
    if old is new:
        return 1.0
    if old is None or not same_but_price(old, new):
        return 0.0
    pairs = (
        (old.price_usd_per_node_hour, new.price_usd_per_node_hour),
        (old.upfront_usd or 0, new.upfront_usd or 0),
    )
    moved = [float(now) / float(then) for then, now in pairs if then > 0]
    same = all(then == now for then, now in pairs)
    # Any change of price yields a ratio below 1, so that a ratio of exactly 1 means unchanged.
    return 1.0 if same else min([*moved, 1 - 1e-12])


def _part_of(candidates: Candidates, case: FleetCase, share: Floats, known: _Known) -> tuple[float, bool]:
    """The smallest ratio over the offers that a cheapest fleet may use, and whether none of them changed."""
    if not len(case.units):
        return 0.0, False
    wanted = wanted_units(candidates.problem, case)
    part, same = float(share[case.units.offer[wanted]].min(initial=1.0)), True
    for pair, cents in _failure_cents(candidates, case, wanted):
        before = known.failure_cents.get(pair)
        if before is None:
            return 0.0, False
        same &= cents == before
        part = min(part, cents / before if before else 1.0)
    return part, part == 1.0 and same


def _failure_cents(
    candidates: Candidates, case: FleetCase, wanted: Ints | None
) -> Iterator[tuple[Hashable, int]]:
    """What a node of each pair of kind and configuration among the ``wanted`` units (None: all) costs that is
    not to be had, under a name of the pair that holds in any market.
    """
    units, table = case.units, candidates.problem.table
    if case.relaunches is None:
        return
    pairs, first = np.unique(units.kind if wanted is None else units.kind[wanted], return_index=True)
    at = first if wanted is None else wanted[first]
    for pair, unit in zip(pairs.tolist(), at.tolist(), strict=True):
        config = candidates.estimates.serving.configs[int(units.config[unit])]
        name = kind_of(table.offers[int(units.offer[unit])]), config
        yield name, int(case.relaunches.more_cents[pair] + case.relaunches.missing_cents[pair])

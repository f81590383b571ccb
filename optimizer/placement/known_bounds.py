"""What an earlier search proved of each service, as far as it still holds in today's market.

A fleet of least cost is one of today's menu. Where each offer of that menu sold as much as today, at r times
today's price or less (r ≥ 1), the same fleet cost at most r times as much then; so no fleet costs less today
than the old bound over r. Where nothing of the menu moved, the old bound is today's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.offer import Offer
from broker.domain.workload import PlanRequest, Serving
from optimizer.placement.candidates import Candidates
from optimizer.placement.carried import same_but_price
from optimizer.placement.dual import Dual, DualPoint
from optimizer.placement.fleet_bound import FleetBound
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.fleet_menu import build_menu
from optimizer.placement.holding import due_s
from optimizer.placement.prices import StockPrices
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.units import HOUR_S, FleetCase, no_covers, surcharged

SLOT = "known bounds"
UnitName = tuple[str, int]
"""An offer and a configuration."""


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Of one service: what it costs at least alone, and at the prices of scarcity (None: not asked).

    ``depth`` and ``priced_depth``: how deep each was asked; ``covers``: cheap ones, by units.
    """

    service: Serving
    bound: FleetBound
    depth: int
    priced_usd: float | None
    priced_depth: int
    covers: tuple[Mapping[UnitName, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class KnownBounds:
    """Of one search over one market."""

    request: PlanRequest
    span_s: tuple[int, int]
    offers: Mapping[str, Offer]
    scarcity: Mapping[str, float]
    services: Mapping[str, _Known]


def remember(candidates: Candidates, dual: Dual | None, centre: DualPoint | None) -> None:
    """Keeps what is proven of each service alone, and at the prices of ``centre``, for the next search."""
    problem, services = candidates.problem, {}
    for service in _alone(problem):
        name, bound = service.name, candidates.bounds[service.name]
        if name not in candidates.bounded or not bound.feasible:
            continue
        due = _due_s(candidates, service, bound)
        services[name] = _Known(
            service,
            replace(bound.only_from(due), covers=no_covers()),
            candidates.depth_of(name),
            None if centre is None else centre.least_usd.get(name),
            0 if centre is None or dual is None else dual.depth_at(name, centre.prices),
            tuple(_named(problem, candidates.fleets[name])),
        )
    offers = problem.table.offers
    scarcity = {} if centre is None else centre.prices.charged(problem)
    problem.recall.keep(
        _slot(problem),
        KnownBounds(
            problem.request,
            (problem.t0_s, problem.end_s),
            {offer.offer_id: offer for offer in offers},
            {offers[offer].offer_id: usd for offer, usd in scarcity.items()},
            services,
        ),
    )


def _slot(problem: Problem) -> Hashable:
    return SLOT, tuple(service.name for service in _alone(problem))


def carry(candidates: Candidates) -> KnownBounds | None:
    """Gives each service the bound that still holds of it; what that was taken from."""
    problem = candidates.problem
    known = problem.recall.kept(_slot(problem), KnownBounds)
    if known is None or not _is_comparable(problem, known):
        return None
    share = _shares(problem, known)
    for service in _alone(problem):
        found = known.services.get(service.name)
        if found is None or found.service != service:
            continue
        case = candidates.fleets[service.name]
        part, same = _part_of(problem, case, share)
        if part <= 0:
            continue
        covers = _covers(problem, case, found.covers).astype(np.int16)
        bound = replace(found.bound, due_usd=part * found.bound.due_usd, covers=covers)
        candidates.carry(service.name, bound, depth=found.depth if same else 0)
    return known


def carry_priced(candidates: Candidates, dual: Dual, known: KnownBounds, prices: StockPrices) -> None:
    """The same at prices of scarcity, where they are at least those of the search before."""
    problem, today = candidates.problem, prices.charged(candidates.problem)
    before = {problem.index_of.get(offer_id): usd for offer_id, usd in known.scarcity.items()}
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
        part, same = _part_of(problem, case, share)
        depth = found.priced_depth if same and unmoved else 0
        dual.learn(service.name, key, part * found.priced_usd, depth)


def _alone(problem: Problem) -> Iterator[Serving]:
    """Services whose start no run decides."""
    return (service for service in problem.services() if service.starts_after is None)


def _is_comparable(problem: Problem, known: KnownBounds) -> bool:
    """Whether the same is asked over the same time, under the same rules."""
    mine, then = problem.request, known.request
    rules = (mine.policy, mine.quotas, mine.held, mine.horizon)
    return known.span_s == (problem.t0_s, problem.end_s) and rules == (
        then.policy,
        then.quotas,
        then.held,
        then.horizon,
    )


def _shares(problem: Problem, known: KnownBounds) -> Floats:
    """Of each offer [O] today's price over that of before, at most 1; 0 where anything else moved."""

    def made() -> Floats:
        before = known.offers
        return np.array([_share(before.get(o.offer_id), o) for o in problem.table.offers], dtype=np.float64)

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
    # What moved at all is never quite 1, so that equal shares say that nothing did.
    return 1.0 if same else min([*moved, 1 - 1e-12])


def _part_of(problem: Problem, case: FleetCase, share: Floats) -> tuple[float, bool]:
    """The least share over the menu of a case, and whether nothing of it moved."""
    if not len(case.units):
        return 0.0, False
    menu = build_menu(problem, case, (problem.end_s - problem.t0_s) / HOUR_S)
    part = float(share[case.units.offer[menu.unit]].min(initial=1.0))
    return part, part == 1.0


def _due_s(candidates: Candidates, service: Serving, bound: FleetBound) -> float:
    time = time_of(candidates.problem, candidates.fleets[service.name], None)
    return due_s(candidates.problem, time, False, bound.longest_cold_s)


def _named(problem: Problem, case: FleetCase) -> Iterator[dict[UnitName, int]]:
    units, offers = case.units, problem.table.offers
    for cover in case.covers:
        used = np.flatnonzero(cover)
        yield {(offers[units.offer[u]].offer_id, int(units.config[u])): int(cover[u]) for u in used}


def _covers(problem: Problem, case: FleetCase, named: tuple[Mapping[UnitName, int], ...]) -> Ints:
    """Covers [M, U] of which every unit is there today, as often as stock allows."""
    units = case.units
    offers = problem.table.offers
    place = {
        (offers[o].offer_id, int(c)): u
        for u, (o, c) in enumerate(zip(units.offer, units.config, strict=True))
    }
    rows = []
    for cover in named:
        at = [place.get(name, -1) for name in cover]
        counts = np.array(list(cover.values()), dtype=np.int64)
        if -1 not in at and bool((counts <= units.most[at]).all()):
            row = np.zeros(len(units), dtype=np.int64)
            row[at] = counts
            rows.append(row)
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(units))

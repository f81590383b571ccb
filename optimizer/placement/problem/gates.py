"""The gates decide which offers a workload may use, and record which rule removed the others.

The same gates prune and explain. They are applied in the order of ``Obstacle``; the removals of each are
counted, and the first gate that leaves no offer is the workload's obstacle. Workloads under the same rules
share the result of the gates that need no estimate. O offers, K kinds of node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np

from broker.catalogue import load_geographies, load_gpus, load_operators
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.effective_rules import EffectiveRules, rules_of
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Policy, Serving, Workload, may_run_on_spot
from optimizer.placement.problem.billing_groups import BillingGroups, build_billing_groups
from optimizer.placement.problem.host_room import needs_key, rows_for
from optimizer.placement.problem.problem import TIERS, Bools, Ints, OfferTable, Problem

FIT_GATES = (
    Obstacle.GPU_UNKNOWN,
    Obstacle.PRECISION,
    Obstacle.SIZE,
    Obstacle.MEMORY,
    Obstacle.DISK,
    Obstacle.FABRIC,
    Obstacle.LATENCY,
)

Value = TypeVar("Value", bound=Hashable)


@dataclass(slots=True)
class GateLog:
    """How many offers are left, how many each gate removed, and the gate that removed the last one.

    ``kept``: candidates (offer × size or configuration × start) that passed every gate.
    """

    left: int
    dropped: dict[Obstacle, int] = field(default_factory=dict)
    obstacle: Obstacle | None = None
    evaluated: int = 0
    kept: int = 0

    def keep(self, gate: Obstacle, left: int) -> bool:
        """Records that ``gate`` leaves ``left`` offers; returns whether any is left."""
        if left < self.left:
            self.dropped[gate] = self.dropped.get(gate, 0) + self.left - left
        if self.obstacle is None and not left:
            self.obstacle = gate
        self.left = left
        return left > 0


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """Result of the gates that need no estimate: ``passing`` [O], grouped by billing terms, and counted
    ``by_kind`` [K].
    """

    passing: Bools
    groups: BillingGroups
    by_kind: Ints
    dropped: Mapping[Obstacle, int]
    obstacle: Obstacle | None

    def log(self) -> GateLog:
        """A new log that continues from this result."""
        return GateLog(int(self.by_kind.sum()), dict(self.dropped), self.obstacle)


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Distinct values of the offer fields that policies test, and the index of each offer's value [O]."""

    regions: tuple[str, ...]
    region_of: Ints
    providers: tuple[str, ...]
    provider_of: Ints
    countries: tuple[str | None, ...]
    country_of: Ints
    tags: tuple[frozenset[str], ...]
    tags_of: Ints


def open_gates(problem: Problem, workload: Workload) -> Opened:
    """Applies the gates that need no estimate: policy, tier, residency, compliance, stock, and whether the
    offer is there at all.
    """
    policies = (problem.request.policy, workload.policy)
    rules = rules_of(problem.request.policy, workload)
    on_spot = may_run_on_spot(workload)
    is_run = not isinstance(workload, Serving)
    sizes = needs_key(workload) if problem.table.has_sizes else None
    return problem.once(
        ("opened", policies, rules.hosts, rules.min_reliability, on_spot, is_run, sizes),
        lambda: _opened(problem, policies, rules, on_spot, is_run, rows_for(problem, workload)),
    )


def without_offers_that_end(problem: Problem, opened: Opened, ended: Ints, log: GateLog) -> Opened:
    """Removes the offers ``ended``, which disappear before the run could finish on them."""
    if not len(ended):
        return opened
    passing = opened.passing.copy()
    passing[ended] = False
    log.keep(Obstacle.AVAILABILITY, log.left - len(ended))
    by_kind = opened.by_kind - np.bincount(problem.table.sku_of[ended], minlength=len(opened.by_kind))
    groups = market_groups(problem).only(passing)
    return Opened(passing, groups, by_kind, dict(log.dropped), log.obstacle)


def market_groups(problem: Problem) -> BillingGroups:
    """All offers of the market, grouped by billing terms."""
    return problem.once_for_market(("shelves",), lambda: build_billing_groups(problem.table))


def fit_gates(log: GateLog, opened: Opened, obstacles: Sequence[Obstacle | None], fits_kind: Bools) -> None:
    """The performance core's gates over kinds of node [K]."""
    blocked = np.zeros(len(fits_kind), dtype=np.bool_)
    for gate in FIT_GATES:
        if gate in obstacles:
            blocked |= np.array([reason is gate for reason in obstacles], dtype=np.bool_) & ~fits_kind
            log.keep(gate, int(opened.by_kind[~blocked].sum()))
    log.keep(Obstacle.MEMORY, int(opened.by_kind[fits_kind].sum()))


def _opened(
    problem: Problem,
    policies: Sequence[Policy],
    rules: EffectiveRules,
    on_spot: bool,
    is_run: bool,
    of_its_size: Bools,
) -> Opened:
    table = problem.table
    places = problem.once_for_market(("places",), lambda: _places(table.offers))
    passing = problem.allowed & of_its_size
    log = GateLog(int(passing.sum()))
    for gate, allowed in (
        (
            Obstacle.POLICY,
            _every(policies, places, _policy_mask) & _host_mask(problem, rules) & _gpu_mask(table, rules),
        ),
        (Obstacle.TIER, _tier_mask(table, policies) & _tier_of_kind(table, on_spot, is_run)),
        (Obstacle.RESIDENCY, _every(policies, places, _residency_mask)),
        (Obstacle.COMPLIANCE, _every(policies, places, _compliance_mask)),
        (Obstacle.STOCK, table.stock_nodes > 0),
        (Obstacle.AVAILABILITY, table.gone_s > problem.t0_s),
    ):
        passing &= allowed
        log.keep(gate, int(passing.sum()))
    by_kind = np.bincount(table.sku_of[passing], minlength=len(table.skus)).astype(np.int64)
    return Opened(passing, market_groups(problem).only(passing), by_kind, log.dropped, log.obstacle)


def _places(offers: Sequence[Offer]) -> _Places:
    regions, region_of = _numbered(offer.region for offer in offers)
    providers, provider_of = _numbered(offer.provider for offer in offers)
    countries, country_of = _numbered(offer.country for offer in offers)
    tags, tags_of = _numbered(offer.compliance for offer in offers)
    return _Places(regions, region_of, providers, provider_of, countries, country_of, tags, tags_of)


def _numbered(values: Iterable[Value]) -> tuple[tuple[Value, ...], Ints]:
    numbers: dict[Value, int] = {}
    of_each = np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
    return tuple(numbers), of_each


def _every(policies: Sequence[Policy], places: _Places, mask: Callable[[_Places, Policy], Bools]) -> Bools:
    found = np.ones(len(places.region_of), dtype=np.bool_)
    for policy in policies:
        found &= mask(places, policy)
    return found


def _of_offers(verdicts: Iterable[bool], place_of: Ints) -> Bools:
    mask: Bools = np.array([*verdicts, False], dtype=np.bool_)[place_of]
    return mask


def _policy_mask(places: _Places, policy: Policy) -> Bools:
    patterns, only = policy.regions, policy.providers.only
    regions = (
        patterns is None or any(fnmatchcase(region, pattern) for pattern in patterns)
        for region in places.regions
    )
    providers = (
        (not only or provider in only) and provider not in policy.providers.exclude
        for provider in places.providers
    )
    return _of_offers(regions, places.region_of) & _of_offers(providers, places.provider_of)


def _residency_mask(places: _Places, policy: Policy) -> Bools:
    allowed = allowed_countries(policy)
    return _of_offers((allowed is None or c in allowed for c in places.countries), places.country_of)


def allowed_countries(policy: Policy) -> frozenset[str] | None:
    """Codes that ``countries`` and ``geography`` both allow; None: any country, even an unknown one."""
    allowed = None if policy.countries is None else frozenset(policy.countries)
    if policy.geography is None:
        return allowed
    sets = load_geographies()
    inside = frozenset().union(*(sets[name] for name in policy.geography))
    return inside if allowed is None else inside & allowed


def _host_mask(problem: Problem, rules: EffectiveRules) -> Bools:
    """Where an offer does not name its host, what is known of its operator is used instead."""
    known = problem.once_for_market(
        ("known hosts",), lambda: load_operators().with_hosts(problem.table.offers)
    )
    return problem.once_for_market(
        ("hosts", rules.hosts, rules.min_reliability),
        lambda: np.array([rules.allow_host(offer) for offer in known], dtype=np.bool_),
    )


def _gpu_mask(table: OfferTable, rules: EffectiveRules) -> Bools:
    """By kind of node. A GPU without a data sheet fails rules on vendors and classes that somebody wrote."""
    specs = load_gpus()
    return _of_offers((rules.gpus.allow(sku, specs.get(sku.gpu)) for sku in table.skus), table.sku_of)


def _compliance_mask(places: _Places, policy: Policy) -> Bools:
    asked = frozenset(policy.compliance)
    return _of_offers((asked <= tags for tags in places.tags), places.tags_of)


def _tier_mask(table: OfferTable, policies: Sequence[Policy]) -> Bools:
    allowed = [all(p.tiers is None or tier in p.tiers for p in policies) for tier in TIERS]
    mask: Bools = np.array(allowed, dtype=np.bool_)[table.tier_of]
    return mask


def _tier_of_kind(table: OfferTable, on_spot: bool, on_window: bool) -> Bools:
    """Spot capacity is for interruptible runs only; windows are for runs only, and need terms."""
    spot = table.tier_of == TIERS.index(Tier.SPOT)
    window = (table.tier_of == TIERS.index(Tier.WINDOW)) | table.is_window
    mask: Bools = (~spot | on_spot) & (~window | (table.is_window & on_window))
    return mask

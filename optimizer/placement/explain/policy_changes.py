"""Policy rules, widened only as far as a left-out workload needs.

A rule is dropped, the cheapest option without it is found, and the rule is written again with what that
option needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from broker.catalogue import load_geographies
from broker.domain.market.offer import HostKind, Offer
from broker.domain.planning.notes import geography_named
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import PlanRequest, Policy, Providers
from optimizer.placement.explain.own_changes import Asked, Change

OUTSIDE = "(outside the policy: nothing that it allows can run this)"


class Narrowing(Protocol):
    """Writes a rule again with what ``offers`` need."""

    def __call__(self, policy: Policy, /, offers: Sequence[Offer]) -> Policy:
        """The policy with the rule written again."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a policy: whether it is present, how to drop it, and how to widen it for ``offers``."""

    gate: Obstacle
    is_written: Callable[[Policy], bool]
    drop: Callable[[Policy], Policy]
    narrow: Narrowing
    says: Callable[[Sequence[Policy], Sequence[Offer]], str]


def policy_changes(asked: Asked, reason: Obstacle) -> Iterator[Change]:
    """Each rule alone, those of the obstacle's gate first; then all together."""
    written = [rule for rule in RULES if any(rule.is_written(p) for p in _policies(asked))]
    ordered = sorted(written, key=lambda rule: rule.gate is not reason)
    if any(rule is REGIONS for rule in ordered):
        yield from _by_geography(asked)
    for rules in [*([rule] for rule in ordered), ordered if len(ordered) > 1 else []]:
        if rules:
            yield from _without(asked, rules)


def _policies(asked: Asked) -> tuple[Policy, Policy]:
    return asked.request.policy, asked.workload.policy


def _without(asked: Asked, rules: Sequence[Rule]) -> Iterator[Change]:
    dropped = asked.request
    for rule in rules:
        dropped = _changed(asked, dropped, rule.is_written, rule.drop)
    way = asked.trials.cheapest(dropped, asked.workload.name)
    if way is None:
        return
    table = asked.trials.candidates.problem.table
    offers = [table.offers[piece.offer] for piece in way.lead.pieces]
    narrowed, told = asked.request, []
    for rule in rules:
        before = narrowed
        narrowed = _changed(asked, narrowed, rule.is_written, partial(rule.narrow, offers=offers))
        if narrowed != before:
            told.append(rule.says(_policies(asked), offers))
    if narrowed != asked.request:
        yield Change(f"{' and '.join(told)} {OUTSIDE}", narrowed)


def _changed(
    asked: Asked,
    request: PlanRequest,
    is_written: Callable[[Policy], bool],
    change: Callable[[Policy], Policy],
) -> PlanRequest:
    """The request with a rule changed wherever it is present."""
    name = asked.workload.name
    policy = change(request.policy) if is_written(request.policy) else request.policy
    return replace(
        request,
        policy=policy,
        workloads=tuple(
            replace(w, policy=change(w.policy)) if w.name == name and is_written(w.policy) else w
            for w in request.workloads
        ),
    )


def _by_geography(asked: Asked) -> Iterator[Change]:
    """Countries instead of region patterns that begin with the name of a geography and match nothing."""
    for policy in _policies(asked):
        named = [geography_named(pattern) for pattern in policy.regions or ()]
        geography = tuple(dict.fromkeys(name for name in named if name is not None))
        if geography and policy.geography is None:

            def by_countries(policy: Policy, geography: tuple[str, ...] = geography) -> Policy:
                return replace(policy, regions=None, geography=geography)

            request = _changed(asked, asked.request, lambda p: p.regions is not None, by_countries)
            patterns = ", ".join(policy.regions or ())
            yield Change(f"geography: [{', '.join(geography)}] in place of regions: [{patterns}]", request)


def _joined(words: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _more(allowed: tuple[str, ...] | None, needed: Sequence[str]) -> tuple[str, ...] | None:
    return None if allowed is None else tuple(dict.fromkeys((*allowed, *needed)))


def _wider_countries(policy: Policy, offers: Sequence[Offer]) -> Policy:
    """Adds the countries of the offers; drops the rule if a country is unknown."""
    countries = [offer.country for offer in offers if offer.country is not None]
    if len(countries) < len(offers):
        return replace(policy, countries=None, geography=None)
    geography = policy.geography
    if geography is not None:
        sets = load_geographies()
        for country in countries:
            around = sorted(
                (name for name in sets if country in sets[name]), key=lambda name: len(sets[name])
            )
            if not around:
                return replace(policy, countries=_more(policy.countries, countries), geography=None)
            if not set(around) & set(geography):
                geography = (*geography, min(around, key=lambda name: len(sets[name])))
    return replace(policy, countries=_more(policy.countries, countries), geography=geography)


def _wider_providers(policy: Policy, offers: Sequence[Offer]) -> Policy:
    needed = [offer.provider for offer in offers]
    only, exclude = policy.providers.only, policy.providers.exclude
    wider = Providers(
        _more(only, needed) or () if only else (), tuple(name for name in exclude if name not in needed)
    )
    return replace(policy, providers=wider)


def _fewer_tags(policy: Policy, offers: Sequence[Offer]) -> Policy:
    kept = (tag for tag in policy.compliance if all(tag in offer.compliance for offer in offers))
    return replace(policy, compliance=tuple(kept))


def _less_reliable(policy: Policy, offers: Sequence[Offer]) -> Policy:
    least = min(offer.reliability or 0.0 for offer in offers)
    return replace(policy, min_reliability=least if least > 0 else None)


REGIONS = Rule(
    Obstacle.POLICY,
    lambda policy: policy.regions is not None,
    lambda policy: replace(policy, regions=None),
    lambda policy, offers: replace(policy, regions=_more(policy.regions, [o.region for o in offers])),
    lambda _, offers: f"regions with {_joined([o.region for o in offers])}",
)
RULES = (
    Rule(
        Obstacle.TIER,
        lambda policy: policy.tiers is not None,
        lambda policy: replace(policy, tiers=None),
        lambda policy, offers: replace(
            policy, tiers=tuple(dict.fromkeys((*(policy.tiers or ()), *(o.tier for o in offers))))
        ),
        lambda _, offers: f"tiers with {_joined([str(o.tier) for o in offers])}",
    ),
    Rule(
        Obstacle.COMPLIANCE,
        lambda policy: bool(policy.compliance),
        lambda policy: replace(policy, compliance=()),
        _fewer_tags,
        lambda policies, offers: f"compliance without {_joined(_tags_less(policies, offers))}",
    ),
    Rule(
        Obstacle.POLICY,
        lambda policy: policy.min_reliability is not None,
        lambda policy: replace(policy, min_reliability=None),
        _less_reliable,
        lambda _, offers: f"min_reliability of {min(o.reliability or 0.0 for o in offers):g}",
    ),
    REGIONS,
    Rule(
        Obstacle.RESIDENCY,
        lambda policy: policy.countries is not None or policy.geography is not None,
        lambda policy: replace(policy, countries=None, geography=None),
        _wider_countries,
        lambda _, offers: f"countries with {_joined([o.country or 'unknown ones' for o in offers])}",
    ),
    Rule(
        Obstacle.POLICY,
        lambda policy: policy.providers != Providers(),
        lambda policy: replace(policy, providers=Providers()),
        _wider_providers,
        lambda _, offers: f"providers with {_joined([o.provider for o in offers])}",
    ),
)


def _tags_less(policies: Sequence[Policy], offers: Sequence[Offer]) -> list[str]:
    return [
        tag
        for policy in policies
        for tag in policy.compliance
        if tag not in _fewer_tags(policy, offers).compliance
    ]


def hosts_change(asked: Asked) -> Iterator[Change]:
    """Allows community hosts, which is the last resort."""
    both = tuple(HostKind)
    said = [policy.hosts for policy in _policies(asked) if policy.hosts is not None]
    if said and all(set(hosts) == set(both) for hosts in said):
        return
    request = asked.request
    if said:
        request = _changed(asked, request, lambda p: p.hosts is not None, lambda p: replace(p, hosts=both))
    else:
        request = asked.with_workload(policy=replace(asked.workload.policy, hosts=both))
    yield Change(f"hosts: [{', '.join(both)}] {OUTSIDE}", request)

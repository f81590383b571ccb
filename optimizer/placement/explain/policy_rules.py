"""The rules of policies on offers: what would widen each, narrowly enough for what offers need.

A rule is dropped, the best way without it is found, and the rule is written again so that it allows that way.
Defaults on hosts and GPUs are widened last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from broker.catalogue import load_geographies, load_gpus
from broker.domain.market.offer import HostKind, Offer
from broker.domain.market.sku import GpuClass, GpuVendor
from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.notes import geography_named
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import PlanRequest, Policy, Providers
from broker.domain.workloads.gpu_rules import GpuRules, is_named
from optimizer.placement.explain.requirements import Asked, Change

OUTSIDE = "(outside the policy: nothing that it allows can run this)"
NO_RULES = Policy()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of policies: its fields, and how they are written again (``narrow``) and described (``says``)
    with what offers need.
    """

    gate: Obstacle
    fields: tuple[str, ...]
    narrow: Callable[[Policy, Sequence[Offer]], Mapping[str, Any]]
    says: Callable[[Sequence[Policy], Sequence[Offer]], str]

    def is_written(self, policy: Policy) -> bool:
        """Whether a policy has the rule."""
        return any(getattr(policy, field) != getattr(NO_RULES, field) for field in self.fields)

    def dropped(self, policy: Policy) -> Policy:
        """A policy without the rule."""
        return replace(policy, **{field: getattr(NO_RULES, field) for field in self.fields})

    def widened(self, policy: Policy, offers: Sequence[Offer]) -> Policy:
        """A policy whose rule allows the offers."""
        return replace(policy, **self.narrow(policy, offers))


def policy_changes(asked: Asked, reason: Obstacle) -> Iterator[Change]:
    """Each rule alone, those of the obstacle's gate first; then all together."""
    written = [rule for rule in RULES if any(rule.is_written(p) for p in asked.policies)]
    ordered = sorted(written, key=lambda rule: rule.gate is not reason)
    yield from _by_geography(asked)
    for rules in [*([rule] for rule in ordered), ordered if len(ordered) > 1 else []]:
        if rules:
            yield from _without(asked, rules)


def _without(asked: Asked, rules: Sequence[Rule]) -> Iterator[Change]:
    """All ``rules`` dropped, and written again with what the cheapest way needs."""
    dropped = asked.request
    for rule in rules:
        dropped = _rewritten(asked, dropped, rule.is_written, rule.dropped)
    way = asked.trials.cheapest(dropped, asked.workload.name)
    if way is None:
        return
    table = asked.trials.candidates.problem.table
    offers = [table.offers[piece.offer] for piece in way.lead.pieces]
    narrowed, told = asked.request, []
    for rule in rules:
        before = narrowed
        narrowed = _rewritten(asked, narrowed, rule.is_written, partial(rule.widened, offers=offers))
        if narrowed != before:
            told.append(rule.says(asked.policies, offers))
    if narrowed != asked.request:
        yield Change(f"{' and '.join(told)} {OUTSIDE}", narrowed)


def _rewritten(
    asked: Asked, request: PlanRequest, where: Callable[[Policy], bool], change: Callable[[Policy], Policy]
) -> PlanRequest:
    """The request with the policies of team and workload changed where that is due."""

    def changed(policy: Policy) -> Policy:
        return change(policy) if where(policy) else policy

    each = (
        replace(w, policy=changed(w.policy)) if w.name == asked.workload.name else w
        for w in request.workloads
    )
    return replace(request, policy=changed(request.policy), workloads=tuple(each))


def _by_geography(asked: Asked) -> Iterator[Change]:
    """Countries instead of region patterns that begin with the name of a geography and match nothing."""
    for policy in asked.policies:
        named = [geography_named(pattern) for pattern in policy.regions or ()]
        geography = tuple(dict.fromkeys(name for name in named if name is not None))
        if geography and policy.geography is None:
            by_countries = partial(replace, regions=None, geography=geography)
            request = _rewritten(asked, asked.request, lambda p: p.regions is not None, by_countries)
            patterns = ", ".join(policy.regions or ())
            yield Change(f"geography: [{', '.join(geography)}] in place of regions: [{patterns}]", request)


def hosts_change(asked: Asked) -> Iterator[Change]:
    """Allows community hosts, which is the last resort."""
    both = tuple(HostKind)
    said = [policy.hosts for policy in asked.policies if policy.hosts is not None]
    if said and all(set(hosts) == set(both) for hosts in said):
        return
    if said:
        everywhere = partial(replace, hosts=both)
        request = _rewritten(asked, asked.request, lambda p: p.hosts is not None, everywhere)
    else:
        request = asked.changed("policy.hosts", both)
    yield Change(f"hosts: [{', '.join(both)}] {OUTSIDE}", request)


def gpu_changes(asked: Asked) -> Iterator[Change]:
    """Allows GPUs of a further class or vendor, which is the last resort too."""
    allowed = rules_of(asked.request.policy, asked.workload).gpus
    for field, words, now in (
        ("classes", GpuClass, allowed.classes),
        ("vendor", GpuVendor, allowed.vendors),
    ):
        for word in (word for word in words if word not in now):
            listed = (*(one for one in words if one in now), word)
            written, added = partial(_says_gpus, field), partial(_add_gpus, field, word)
            request = _rewritten(asked, asked.request, written, added)
            if not any(written(policy) for policy in asked.policies):
                request = asked.changed(f"policy.gpus.{field}", listed)
            yield Change(f"gpus: {{{field}: [{', '.join(listed)}]}} {OUTSIDE}", request)


def _says_gpus(field: str, policy: Policy) -> bool:
    return getattr(policy.gpus, field) is not None


def _add_gpus(field: str, word: str, policy: Policy) -> Policy:
    changed: dict[str, Any] = {field: _more(getattr(policy.gpus, field), (word,))}
    return replace(policy, gpus=replace(policy.gpus, **changed))


def _more(allowed: tuple[Any, ...] | None, needed: Iterable[Any]) -> tuple[Any, ...] | None:
    return None if allowed is None else tuple(dict.fromkeys((*allowed, *needed)))


def _with_each(rule: str, of: Callable[[Offer], str | None]) -> Callable[[object, Sequence[Offer]], str]:
    """``rule with a, b``: what the offers have, each once."""
    return lambda _, offers: (
        f"{rule} with {', '.join(dict.fromkeys(of(o) or 'unknown ones' for o in offers))}"
    )


def _wider_countries(policy: Policy, offers: Sequence[Offer]) -> Mapping[str, Any]:
    """Adds the countries of the offers; drops the rule if a country is unknown."""
    countries = [offer.country for offer in offers if offer.country is not None]
    if len(countries) < len(offers):
        return {"countries": None, "geography": None}
    geography = policy.geography
    for country in countries if geography is not None else ():
        sets = load_geographies()
        around = sorted((name for name in sets if country in sets[name]), key=lambda name: len(sets[name]))
        if not around:
            geography = None
            break
        if not set(around) & set(geography or ()):
            geography = (*(geography or ()), around[0])
    return {"countries": _more(policy.countries, countries), "geography": geography}


def _wider_providers(policy: Policy, offers: Sequence[Offer]) -> Mapping[str, Any]:
    needed = [offer.provider for offer in offers]
    only = _more(policy.providers.only, needed) if policy.providers.only else ()
    exclude = tuple(name for name in policy.providers.exclude if name not in needed)
    return {"providers": Providers(only or (), exclude)}


def _wider_gpus(policy: Policy, offers: Sequence[Offer]) -> Mapping[str, Any]:
    """The rules with the names, memory, vendors and classes of the offers' GPUs."""
    rules, needed = policy.gpus, dict.fromkeys(offer.sku.gpu for offer in offers)
    specs = [load_gpus()[gpu] for gpu in needed if gpu in load_gpus()]
    least_gb = min((offer.sku.gpu_memory_gb for offer in offers), default=0.0)
    unnamed = [gpu for gpu in needed if not is_named(gpu, rules.only)]
    return {
        "gpus": GpuRules(
            only=(*rules.only, *unnamed) if rules.only else (),
            exclude=tuple(name for name in rules.exclude if not any(is_named(g, (name,)) for g in needed)),
            min_memory_gb=None if rules.min_memory_gb is None else min(rules.min_memory_gb, least_gb),
            vendor=_more(rules.vendor, (spec.maker for spec in specs)),
            classes=_more(rules.classes, (spec.product_class for spec in specs)),
        )
    }


def _kept_tags(policy: Policy, offers: Sequence[Offer]) -> tuple[str, ...]:
    return tuple(tag for tag in policy.compliance if all(tag in offer.compliance for offer in offers))


def _without_tags(policies: Sequence[Policy], offers: Sequence[Offer]) -> str:
    less = [tag for p in policies for tag in p.compliance if tag not in _kept_tags(p, offers)]
    return f"compliance without {', '.join(dict.fromkeys(less))}"


def _least_reliability(offers: Sequence[Offer]) -> float:
    return min(offer.reliability or 0.0 for offer in offers)


RULES = (
    Rule(
        Obstacle.TIER,
        ("tiers",),
        lambda policy, offers: {"tiers": _more(policy.tiers or (), (o.tier for o in offers))},
        _with_each("tiers", lambda offer: offer.tier),
    ),
    Rule(
        Obstacle.COMPLIANCE,
        ("compliance",),
        lambda policy, offers: {"compliance": _kept_tags(policy, offers)},
        _without_tags,
    ),
    Rule(
        Obstacle.POLICY,
        ("min_reliability",),
        lambda _, offers: {"min_reliability": _least_reliability(offers) or None},
        lambda _, offers: f"min_reliability of {_least_reliability(offers):g}",
    ),
    Rule(
        Obstacle.POLICY,
        ("regions",),
        lambda policy, offers: {"regions": _more(policy.regions, (o.region for o in offers))},
        _with_each("regions", lambda offer: offer.region),
    ),
    Rule(
        Obstacle.RESIDENCY,
        ("countries", "geography"),
        _wider_countries,
        _with_each("countries", lambda offer: offer.country),
    ),
    Rule(
        Obstacle.POLICY,
        ("providers",),
        _wider_providers,
        _with_each("providers", lambda offer: offer.provider),
    ),
    Rule(Obstacle.POLICY, ("gpus",), _wider_gpus, _with_each("gpus", lambda offer: offer.sku.gpu)),
)
"""The rules of policies on offers."""

"""The policies of team and workload both allow each offer that is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from broker.catalogue import load_geographies, load_gpus, load_operators
from broker.domain.market.offer import HostKind, Offer, Tier
from broker.domain.market.sku import GpuClass, GpuVendor
from broker.domain.planning.effective_rules import EffectiveRules, rules_of
from broker.domain.planning.workload import Policy, Serving, may_run_on_spot
from broker.domain.workloads.gpu_rules import DEFAULT_CLASSES, DEFAULT_VENDORS, GpuRules
from optimizer.placement.rules.case import Case


def violations(case: Case) -> Iterator[str]:
    """A sentence for each rule that an offer breaks."""
    for where, _, workload, offer in case.with_recourses():
        for owner, policy in (("team", case.request.policy), (workload.name, workload.policy)):
            for broken in broken_rules(policy, offer):
                yield f"{where}: {broken} (policy of {owner})"
        for broken in broken_host_rules(rules_of(case.request.policy, workload), offer):
            yield f"{where}: {broken}"
        for broken in broken_gpu_rules((case.request.policy.gpus, workload.policy.gpus), offer):
            yield f"{where}: {broken}"
        if offer.tier is Tier.SPOT and not may_run_on_spot(workload):
            yield f"{where}: tier spot needs an interruptible training run or batch"
        if offer.window is not None and isinstance(workload, Serving):
            yield f"{where}: windows are for training and batch"


def broken_rules(policy: Policy, offer: Offer) -> Iterator[str]:
    """The rules of ``policy`` that ``offer`` breaks."""
    if policy.regions is not None and not any(fnmatchcase(offer.region, p) for p in policy.regions):
        yield f"region {offer.region!r} matches none of {', '.join(policy.regions)}"
    if policy.countries is not None and offer.country not in policy.countries:
        yield f"country {offer.country or 'unknown'} is not among {', '.join(policy.countries)}"
    if policy.geography is not None and not _is_inside(policy.geography, offer.country):
        yield f"country {offer.country or 'unknown'} is not in {', '.join(policy.geography)}"
    if policy.providers.only and offer.provider not in policy.providers.only:
        yield f"provider {offer.provider!r} is not among {', '.join(policy.providers.only)}"
    if offer.provider in policy.providers.exclude:
        yield f"provider {offer.provider!r} is excluded"
    if policy.tiers is not None and offer.tier not in policy.tiers:
        yield f"tier {offer.tier} is not among {', '.join(policy.tiers)}"
    missing = [tag for tag in policy.compliance if tag not in offer.compliance]
    if missing:
        yield f"compliance tag {', '.join(missing)} is missing"


def broken_host_rules(rules: EffectiveRules, offer: Offer) -> Iterator[str]:
    """The rules on hosts, combined from team, workload and defaults, that an offer breaks."""
    host = offer.host or load_operators().host_of(offer.provider, offer.seller)
    if host not in rules.hosts and (host is not None or rules.hosts < frozenset(HostKind)):
        yield f"host {host or 'unknown'} is not among {_listed(rules.hosts)}"
    if rules.min_reliability and (offer.reliability is None or offer.reliability < rules.min_reliability):
        yield f"reliability {offer.reliability or 'unknown'} is below {rules.min_reliability:g}"


def broken_gpu_rules(policies: Sequence[GpuRules], offer: Offer) -> Iterator[str]:
    """The rules on GPUs of team, workload and defaults that an offer breaks."""
    gpu, memory_gb, spec = offer.sku.gpu, offer.sku.gpu_memory_gb, load_gpus().get(offer.sku.gpu)
    vendors, classes = frozenset(GpuVendor), frozenset(GpuClass)
    if not any(one.only for one in policies):
        vendors = vendors if any(one.vendor for one in policies) else DEFAULT_VENDORS
        classes = classes if any(one.classes for one in policies) else DEFAULT_CLASSES
    for one in policies:
        if one.only and not any(fnmatchcase(gpu, pattern) for pattern in one.only):
            yield f"GPU {gpu} is not among {', '.join(one.only)}"
        if any(fnmatchcase(gpu, pattern) for pattern in one.exclude):
            yield f"GPU {gpu} is excluded"
        if one.min_memory_gb is not None and memory_gb < one.min_memory_gb:
            yield f"GPU memory of {memory_gb:g} GB is below {one.min_memory_gb:g} GB"
        vendors &= frozenset(one.vendor or GpuVendor)
        classes &= frozenset(one.classes or GpuClass)
    if spec is None:
        if any(one.vendor or one.classes for one in policies):
            yield f"nothing is known of the vendor and class of GPU {gpu}"
    elif spec.maker not in vendors:
        yield f"vendor {spec.maker} of GPU {gpu} is not among {_listed(vendors)}"
    elif spec.product_class not in classes:
        yield f"class {spec.product_class} of GPU {gpu} is not among {_listed(classes)}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "those of team and workload"


def _is_inside(geography: Iterable[str], country: str | None) -> bool:
    sets = load_geographies()
    return any(country in sets[name] for name in geography)

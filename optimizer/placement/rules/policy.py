"""Team and workload policies both allow each offer that is used."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from broker.domain.offer import Offer, Tier
from broker.domain.workload import Policy, Training, Workload
from optimizer.placement.rules.case import Case


def violations(case: Case) -> Iterator[str]:
    """One sentence for each rule that an offer breaks."""
    for where, _, workload, offer in case.known():
        for owner, policy in (("team", case.request.policy), (workload.name, workload.policy)):
            for broken in broken_rules(policy, offer):
                yield f"{where}: {broken} (policy of {owner})"
        if offer.tier is Tier.SPOT and not _may_be_interrupted(workload):
            yield f"{where}: tier spot needs an interruptible training run"


def broken_rules(policy: Policy, offer: Offer) -> Iterator[str]:
    """What ``policy`` forbids about ``offer``."""
    if policy.regions is not None and not any(fnmatchcase(offer.region, p) for p in policy.regions):
        yield f"region {offer.region!r} matches none of {', '.join(policy.regions)}"
    if policy.countries is not None and offer.country not in policy.countries:
        yield f"country {offer.country or 'unknown'} is not among {', '.join(policy.countries)}"
    if policy.providers_only is not None and offer.provider not in policy.providers_only:
        yield f"provider {offer.provider!r} is not among {', '.join(policy.providers_only)}"
    if offer.provider in policy.providers_exclude:
        yield f"provider {offer.provider!r} is excluded"
    if policy.tiers is not None and offer.tier not in policy.tiers:
        yield f"tier {offer.tier} is not among {', '.join(policy.tiers)}"
    missing = [tag for tag in policy.compliance if tag not in offer.compliance]
    if missing:
        yield f"compliance tag {', '.join(missing)} is missing"


def _may_be_interrupted(workload: Workload) -> bool:
    return isinstance(workload, Training) and workload.interruptible

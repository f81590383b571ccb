"""Notes on workloads documents and plans. Pure.

Notes on a document are about things that are valid but may surprise its author.

A note is made for region patterns that match less than half of the offers on the continent that they seem to
mean: providers name regions as they like, and ``eu-*`` matches only a quarter of the offers in the European
Union. A note is also made for runs whose sequences are longer than the context of their model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase

from broker.domain.basics.money import price_words
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Quarantined
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Policy, Training

WORDS: Mapping[str, str] = {
    "eu": "eu",
    "europe": "eu",
    "us": "us",
    "usa": "us",
    "uk": "uk",
    "gb": "uk",
    "ca": "ca",
    "canada": "ca",
    "ap": "apac",
    "asia": "apac",
    "apac": "apac",
}
"""From the text before the first ``*`` of a pattern to the set of countries that it seems to mean."""
MOST_LEFT_OUT = 0.5


def document_notes(
    request: PlanRequest, offers: Sequence[Offer], geographies: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """All notes on ``request``, one sentence each."""
    return (*region_notes(request, offers, geographies), *_context_notes(request))


def _context_notes(request: PlanRequest) -> Iterator[str]:
    for run in request.workloads:
        if isinstance(run, Training) and 0 < run.model.context < run.sequence_length:
            yield (
                f"{run.name} trains on sequences of {run.sequence_length:,} tokens, which is more than the "
                f"context of {run.model.name} ({run.model.context:,}), so it extends the context"
            )


def region_notes(
    request: PlanRequest, offers: Sequence[Offer], geographies: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """A sentence for each set of countries of which a policy's region patterns match less than half."""
    owners = [("the team's policy", request.policy)]
    owners += [(f"the policy of {workload.name}", workload.policy) for workload in request.workloads]
    return tuple(note for owner, policy in owners for note in _notes(owner, policy, offers, geographies))


def geographies_meant(patterns: Sequence[str]) -> dict[str, list[str]]:
    """The sets of countries that region patterns seem to mean, each with its patterns."""
    meant: dict[str, list[str]] = {}
    for pattern in patterns:
        word, star, _ = pattern.partition("*")
        name = WORDS.get(word.strip("-_. ").lower())
        if star and name is not None:
            meant.setdefault(name, []).append(pattern)
    return meant


def geography_named(pattern: str) -> str | None:
    """The set of countries that the first word of a pattern names; None if it names none."""
    return WORDS.get(re.split(r"[-_. *]", pattern.lower(), maxsplit=1)[0])


def _notes(
    owner: str, policy: Policy, offers: Sequence[Offer], geographies: Mapping[str, frozenset[str]]
) -> Iterator[str]:
    for name, patterns in geographies_meant(policy.regions or ()).items():
        matching = [o for o in offers if any(fnmatchcase(o.region, pattern) for pattern in patterns)]
        inside = [o for o in offers if o.country in geographies[name]]
        kept = sum(o.country in geographies[name] for o in matching)
        if kept < MOST_LEFT_OUT * len(inside):
            others = len(matching) - kept
            outside = f", and {others:,} elsewhere" if others else ""
            yield (
                f"regions {', '.join(patterns)} in {owner} match {kept:,} of the {len(inside):,} offers in "
                f"{name.upper()}{outside}; geography: [{name}] allows all of them"
            )


def quarantine_note(plan: Plan, offers: Iterable[Offer], doubted: Iterable[Quarantined]) -> str:
    """A sentence about the lowest price in quarantine that is below what ``plan`` pays for such a GPU.

    It is empty if there is none. ``offers`` are those on sale, at current prices.
    """
    on_sale = tuple(offers)
    by_id = {offer.offer_id: offer for offer in on_sale}
    paid: dict[tuple[str, str], Decimal] = {}
    for placement in plan.placements:
        offer = by_id.get(placement.offer_id)
        if offer is not None:
            key = _kind(offer)
            paid[key] = min(paid.get(key, _per_gpu(offer)), _per_gpu(offer))
    cheaper = [
        entry.offer
        for entry in doubted
        if entry.released_at is None
        and _kind(entry.offer) in paid
        and _per_gpu(entry.offer) < paid[_kind(entry.offer)]
    ]
    if not cheaper:
        return ""
    least = min(cheaper, key=lambda offer: (_per_gpu(offer), offer.offer_id))
    others = [_per_gpu(o) for o in on_sale if _kind(o) == _kind(least) and o.provider != least.provider]
    asked = f" (others ask {price_words(min(others))} or more)" if others else ""
    price = price_words(_per_gpu(least))
    return f"the price at {least.provider}, {price} per GPU-hour, is in quarantine and was ignored{asked}"


def _kind(offer: Offer) -> tuple[str, str]:
    return offer.sku.gpu, str(offer.tier)


def _per_gpu(offer: Offer) -> Decimal:
    return offer.price_usd_per_node_hour / offer.sku.gpus_per_node

"""Notes on a workloads document: things that are valid but may surprise its author.

A note is made for region patterns that match less than half of the offers on the continent that they seem to
mean: providers name regions as they like, and ``eu-*`` matches only a quarter of the offers in the European
Union. A note is also made for runs whose sequences are longer than the context of their model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from broker.domain.market.offer import Offer
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

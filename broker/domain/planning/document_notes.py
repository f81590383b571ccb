"""What a reader should know of how a document was taken, though it is no mistake.

Patterns of regions that leave out most of the continent that they seem to mean, since sellers name regions
as they like: ``eu-*`` finds one in four of the offers in the European Union. Runs whose sequences are longer
than the context that the model was made for: continued training extends it.
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
"""What a pattern begins with before its first ``*``, and the set of countries that it seems to mean."""
MOST_LEFT_OUT = 0.5


def document_notes(
    request: PlanRequest, offers: Sequence[Offer], geographies: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """Everything that is worth telling, a sentence each."""
    return (*region_notes(request, offers, geographies), *_context_notes(request))


def _context_notes(request: PlanRequest) -> Iterator[str]:
    for run in request.workloads:
        if isinstance(run, Training) and 0 < run.model.context < run.sequence_length:
            yield (
                f"{run.name} trains on sequences of {run.sequence_length:,} tokens, beyond the context of "
                f"{run.model.name}, {run.model.context:,}: it extends the model"
            )


def region_notes(
    request: PlanRequest, offers: Sequence[Offer], geographies: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """A sentence for each set of countries of which a policy's patterns leave out more than half."""
    owners = [("the team's policy", request.policy)]
    owners += [(f"the policy of {workload.name}", workload.policy) for workload in request.workloads]
    return tuple(note for owner, policy in owners for note in _notes(owner, policy, offers, geographies))


def geographies_meant(patterns: Sequence[str]) -> dict[str, list[str]]:
    """The sets of countries that patterns of regions seem to mean, and which patterns mean each."""
    meant: dict[str, list[str]] = {}
    for pattern in patterns:
        word, star, _ = pattern.partition("*")
        name = WORDS.get(word.strip("-_. ").lower())
        if star and name is not None:
            meant.setdefault(name, []).append(pattern)
    return meant


def geography_named(pattern: str) -> str | None:
    """The set of countries that the first word of a pattern names; None where it names none."""
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

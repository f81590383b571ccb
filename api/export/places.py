"""Where a tool that launches nodes would run a placement, and what it must not be left to choose."""

from __future__ import annotations

from collections.abc import Iterator

from api.export.targets import Unsaid, Words
from api.export.workload_facts import WorkloadFacts
from api.plan_words import listed
from broker.domain.basics.errors import FieldProblem
from broker.domain.planning.plan import Placement

MANY_HOSTS = frozenset({"tensordock", "vast"})
"""Sellers of many owners' machines, of which a tool takes any."""


def place_problems(
    at: str, placement: Placement, words: Words, facts: WorkloadFacts
) -> Iterator[FieldProblem]:
    """Rules of the document that the tool may break, as it cannot be told the place or the host of the
    placement ``at`` a pointer.
    """
    if words.place_of(placement) is None and facts.place_rules:
        yield FieldProblem(
            f"{at}/region",
            repr(placement.region),
            f"a place that {words.target} can name, as the document rules {listed(facts.place_rules)}",
        )
    if placement.provider in MANY_HOSTS and facts.host_rules:
        yield FieldProblem(
            f"{at}/provider",
            f"{placement.provider!r}, of whose hosts {words.target} takes any",
            f"a seller of one operator, as the document rules {listed(facts.host_rules)}",
        )


def unsaid_places(placement: Placement, words: Words) -> Iterator[Unsaid]:
    """What the tool cannot be told of where the placement runs."""
    if words.place_of(placement) is None:
        why = f"{words.target} has other names of {placement.provider}'s places; it may take any of them"
        yield Unsaid(placement.workload, f"region {placement.region}", why)
    if placement.provider in MANY_HOSTS:
        yield Unsaid(
            placement.workload, f"host of {placement.offer_id}", f"{words.target} takes any host there"
        )

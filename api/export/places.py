"""What a tool must not be left to choose, and what of a placement its files cannot say."""

from __future__ import annotations

from collections.abc import Iterator

from api.export.servers import SERVED, engine_of, held_span
from api.export.targets import Target, Unsaid, Words, load_engine_words, load_unsaid_rules
from api.export.workload_facts import WorkloadFacts
from api.figures import plural
from api.plan_words import listed
from api.schemas.base.times import format_time
from broker.catalogue import load_gpus
from broker.domain.basics.errors import FieldProblem
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import WorkloadKind

MANY_HOSTS = frozenset({"tensordock", "vast"})
"""Sellers of many owners' machines, of which a tool takes any."""


USUAL_VENDOR = "NVIDIA"
"""Whose GPUs the packages and images of engines are for."""


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


def unsaid(placement: Placement, words: Words, *, reserved: bool) -> Iterator[Unsaid]:
    """What a tool that launches nodes cannot be told; it chooses none where the machines are ``reserved``."""
    yield from unsaid_rules(placement, words.target, reserved=reserved)
    if not reserved:
        yield from _unsaid_places(placement, words)


def _unsaid_places(placement: Placement, words: Words) -> Iterator[Unsaid]:
    """What the tool cannot be told of where the placement runs."""
    if words.place_of(placement) is None:
        why = f"{words.target} has other names of {placement.provider}'s places; it may take any of them"
        yield Unsaid(placement.workload, f"region {placement.region}", why)
    if placement.provider in MANY_HOSTS:
        yield Unsaid(
            placement.workload, f"host of {placement.offer_id}", f"{words.target} takes any host there"
        )
    if placement.provider not in words.same_types:
        alike = sorted(_alike(placement.gpu, words))
        if alike:
            why = f"{words.target} calls {listed(alike)} {words.gpus[placement.gpu]} too"
            yield Unsaid(placement.workload, f"form of {placement.gpu}", why)


def _alike(gpu: str, words: Words) -> Iterator[str]:
    """Other GPUs that the tool cannot tell from ``gpu``: of one name and one memory."""
    known = load_gpus()
    for other, name in words.gpus.items():
        if other != gpu and name == words.gpus[gpu] and known[other].memory_gb == known[gpu].memory_gb:
            yield other


def unsaid_rules(placement: Placement, target: Target, *, reserved: bool) -> Iterator[Unsaid]:
    """What the plan rests on and no file of the tool says, the rules of one reason together.

    ``reserved``: the files are those of the plan's own machines.
    """
    for row in load_unsaid_rules(target):
        if (row.tiers and placement.tier not in row.tiers) or (reserved and not row.of_reserved):
            continue
        told = [words for rule in row.rules if (words := _rule(placement, rule))]
        if told:
            yield Unsaid(placement.workload, listed(told), row.why)


def _rule(placement: Placement, rule: str) -> str:
    """A rule of the placement in words; empty where it has none."""
    begin, end = held_span(placement)
    serves = placement.kind is WorkloadKind.SERVING
    engine, vendor = engine_of(placement), load_gpus()[placement.gpu].vendor
    words = {
        "place": f"place {placement.provider} {placement.zone or placement.region}",
        "gpu": f"{placement.gpus} × {placement.gpu}",
        "tier": f"tier {placement.tier}",
        "hours": f"hours {format_time(begin)} to {format_time(end)}",
        "replicas": plural(placement.replicas or 0, "replica") if serves else "",
        "vendor": "" if vendor == USUAL_VENDOR else f"software for GPUs of {vendor}",
        "engine": f"{engine} {load_engine_words(engine).version}" if placement.kind in SERVED else "",
    }
    return words[rule]

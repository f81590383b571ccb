"""The names that export targets use for sellers and GPUs, from ``config/export.toml``."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from broker.catalogue import CONFIG
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import ServingEngine

LONGEST_NAME = 40
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


class Target(StrEnum):
    """A tool to which plans are exported."""

    SKYPILOT = "skypilot"
    DSTACK = "dstack"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Words:
    """The names of one tool. ``same_regions`` and ``same_types``: sellers whose own names it uses."""

    target: Target
    sellers: Mapping[str, str]
    gpus: Mapping[str, str]
    same_regions: frozenset[str]
    same_types: frozenset[str]


@cache
def _export_words() -> Mapping[str, Any]:
    return tomllib.loads((CONFIG / "export.toml").read_text(encoding="utf-8"))


def load_words(target: Target) -> Words:
    """The names of a tool that launches nodes."""
    table = _export_words()[target]
    return Words(
        target=target,
        sellers=table["sellers"],
        gpus=table["gpus"],
        same_regions=frozenset(table["same_regions"]),
        same_types=frozenset(table["same_types"]),
    )


def load_precisions(engine: ServingEngine) -> Mapping[str, Mapping[str, str]]:
    """An engine's arguments for each precision."""
    table: Mapping[str, Mapping[str, str]] = _export_words()[engine]["precisions"]
    return table


def require_words(plan: Plan, words: Words, source: str) -> None:
    """Raises InputError that names every placement whose seller or GPU the tool does not know."""
    problems = []
    for at, placement in enumerate(plan.placements):
        for field, found, known in (
            ("provider", placement.provider, words.sellers),
            ("gpu", placement.gpu, words.gpus),
        ):
            if found not in known:
                expected = f"one that {words.target} knows: {', '.join(sorted(known))}"
                problems.append(FieldProblem(f"/placements/{at}/{field}", repr(found), expected))
    if problems:
        raise InputError(source, tuple(problems))


def named(plan: Plan) -> Iterator[tuple[str, Placement]]:
    """Placements with unique names that every tool accepts: letters, digits and single dashes."""
    names = [_plain(placement.workload) for placement in plan.placements]
    counts, seen = Counter(names), Counter[str]()
    for name, placement in zip(names, plan.placements, strict=True):
        seen[name] += 1
        yield (name if counts[name] == 1 else f"{name}-{seen[name]}"), placement


def _plain(workload: str) -> str:
    name = _NOT_IN_NAMES.sub("-", workload.lower()).strip("-")[: LONGEST_NAME - 4].strip("-")
    return name if name[:1].isalpha() and len(name) > 1 else f"w-{name}".strip("-")

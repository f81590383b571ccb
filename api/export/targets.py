"""The names that export targets use for sellers and GPUs, from ``config/export.toml``."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    KUEUE = "kueue"
    SLURM = "slurm"
    ICAL = "ical"


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


def load_images() -> Mapping[str, str]:
    """Container images by engine, and ``training``'s."""
    images: Mapping[str, str] = _export_words()[Target.KUEUE]["images"]
    return images


def load_precisions(engine: ServingEngine) -> Mapping[str, Mapping[str, str]]:
    """An engine's arguments for each precision."""
    table: Mapping[str, Mapping[str, str]] = _export_words()[engine]["precisions"]
    return table


def word_problems(at: str, placement: Placement, words: Words) -> Iterator[FieldProblem]:
    """What the tool does not know of the placement ``at`` a pointer: its seller, its GPU."""
    for field, found, known in (
        ("provider", placement.provider, words.sellers),
        ("gpu", placement.gpu, words.gpus),
    ):
        if found not in known:
            expected = f"one that {words.target} knows: {', '.join(sorted(known))}"
            yield FieldProblem(f"{at}/{field}", repr(found), expected)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A placement that a tool cannot take, and everything that stands in the way."""

    workload: str
    problems: tuple[FieldProblem, ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """Texts by the name of their file, and what was left out."""

    files: Mapping[str, str]
    skipped: tuple[Skipped, ...] = ()


def export_each(
    plan: Plan,
    source: str,
    problems_of: Callable[[str, Placement], Iterable[FieldProblem]],
    files_of: Callable[[str, Placement], Mapping[str, str]],
) -> Exported:
    """The files of every placement without a problem. InputError with all problems where none is left.

    ``problems_of`` is given the pointer of a placement, ``files_of`` its name.
    """
    files: dict[str, str] = {}
    skipped = []
    for at, (name, placement) in enumerate(named(plan)):
        problems = tuple(problems_of(f"/placements/{at}", placement))
        if problems:
            skipped.append(Skipped(placement.workload, problems))
        else:
            files |= files_of(name, placement)
    if not files:
        nothing = FieldProblem("/placements", "none", "a plan that places a workload")
        raise InputError(source, tuple(p for one in skipped for p in one.problems) or (nothing,))
    return Exported(files, tuple(skipped))


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

"""The names that export targets use for sellers and GPUs, from ``config/export.toml``."""

from __future__ import annotations

import math
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
from broker.domain.planning.workload import Precision, ServingEngine
from broker.provider_facts import load_provider_facts

LONGEST_NAME = 40
GB_PER_GIB = 2**30 / 1e9
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
    """The names of one tool. ``places``: how it writes a place, by seller; ``same_types``: sellers whose own
    names of node types it uses.
    """

    target: Target
    sellers: Mapping[str, str]
    gpus: Mapping[str, str]
    places: Mapping[str, str]
    same_types: frozenset[str]

    def place_of(self, placement: Placement) -> str | None:
        """The tool's name of the placement's place; None where it has none."""
        form = self.places.get(placement.provider)
        if form is None:
            return None
        state, _, last = placement.region.rpartition(", ")
        country = load_provider_facts(placement.provider).country_of(placement.region)
        if "{state}" in form:
            is_known = len(last) == 2 and last.isupper()
            return f"{last}-{state}".strip("-").replace(" ", "").lower() if is_known else None
        if "{country}" in form and country is None:
            return None
        return form.format(region=placement.region, zone=placement.zone or "", country=country).rstrip("/")


@dataclass(frozen=True, slots=True)
class EngineWords:
    """An engine's words. ``as_published``: arguments for a checkpoint that is in the number format already;
    ``converts``: arguments for formats that it makes of a 16-bit checkpoint.
    """

    version: str
    as_published: Mapping[str, str]
    converts: Mapping[Precision, Mapping[str, str]]


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
        places=table["places"],
        same_types=frozenset(table["same_types"]),
    )


def load_images() -> Mapping[str, str]:
    """Container images by engine, of its version, and ``training``'s."""
    images: Mapping[str, str] = _export_words()[Target.KUEUE]["images"]
    versions = {str(engine): load_engine_words(engine).version for engine in ServingEngine}
    return {role: image.format(version=versions.get(role, "")) for role, image in images.items()}


@cache
def load_engine_words(engine: ServingEngine) -> EngineWords:
    """The words of ``engine``."""
    table = _export_words()[engine]
    converts = {Precision(name): arguments for name, arguments in table["converts"].items()}
    return EngineWords(table["version"], table["as_published"], converts)


@cache
def load_own_code_models() -> frozenset[str]:
    """Models whose repository brings code that engines must run."""
    return frozenset(_export_words()["models"]["own_code"])


@dataclass(frozen=True, slots=True)
class UnsaidRules:
    """What a tool's files cannot say of a placement (``rules``), and why. ``tiers``: of these alone; empty:
    of all. ``of_reserved``: also where the files are those of machines that are held.
    """

    rules: tuple[str, ...]
    why: str
    tiers: tuple[str, ...] = ()
    of_reserved: bool = False


@cache
def load_unsaid_rules(target: Target) -> tuple[UnsaidRules, ...]:
    """What the files of a tool cannot say."""
    rows: list[dict[str, Any]] = _export_words()[target]["unsaid"]
    return tuple(
        UnsaidRules(
            tuple(row["rules"]), row["why"], tuple(row.get("tiers", ())), row.get("of_reserved", False)
        )
        for row in rows
    )


def memory_gib(memory_gb: float) -> int:
    """Whole GiB, in which SkyPilot's catalogue and gpuhunt's lists count main memory."""
    return math.floor(round(memory_gb / GB_PER_GIB, 6))


def heading(plan: Plan, target: Target, *, reserved: bool) -> str:
    """The comment on top of a file: whether using it rents machines, and where those of the plan are.

    ``reserved``: the machines of ``plan`` are held or ordered, so that nothing else is to be rented.
    """
    hosts = f"broker hosts {plan.plan_id} --format"
    if reserved:
        first = {
            Target.SKYPILOT: f"{hosts} skypilot > ~/.sky/ssh_node_pools.yaml && sky ssh up",
            Target.DSTACK: f"{hosts} dstack > held.dstack.yml && dstack apply -f held.dstack.yml",
            Target.SLURM: f"{hosts} slurm >> slurm.conf",
        }.get(target, f"{hosts} ssh-config")
        return f"# The plan is reserved: this runs on its machines and rents none.\n# First: {first}\n"
    if target in (Target.SKYPILOT, Target.DSTACK):
        return (
            "# Running this buys capacity: do not reserve the plan too.\n"
            "# Once it is reserved, `broker export` writes files for its own machines.\n"
        )
    return f"# This buys nothing. Once the plan is reserved, its machines: {hosts} ssh-config\n"


def word_problems(
    at: str, placement: Placement, words: Words, *, reserved: bool = False
) -> Iterator[FieldProblem]:
    """What the tool does not know of the placement ``at`` a pointer: its GPU, and its seller unless the
    machines are ``reserved``."""
    seller = () if reserved else (("provider", placement.provider, words.sellers),)
    for field, found, known in (*seller, ("gpu", placement.gpu, words.gpus)):
        if found not in known:
            expected = f"one that {words.target} knows: {', '.join(sorted(known))}"
            yield FieldProblem(f"{at}/{field}", repr(found), expected)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A placement that a tool cannot take, and everything that stands in the way."""

    workload: str
    problems: tuple[FieldProblem, ...]


@dataclass(frozen=True, slots=True)
class Unsaid:
    """What the files of ``workload`` cannot say in the tool's words, and why it matters."""

    workload: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Exported:
    """Texts by the name of their file, what was left out, and what the files cannot say."""

    files: Mapping[str, str]
    skipped: tuple[Skipped, ...] = ()
    unsaid: tuple[Unsaid, ...] = ()


def export_each(
    plan: Plan,
    source: str,
    problems_of: Callable[[str, Placement], Iterable[FieldProblem]],
    files_of: Callable[[str, Placement], Mapping[str, str]],
    unsaid_of: Callable[[Placement], Iterable[Unsaid]],
) -> Exported:
    """The files of every placement without a problem. InputError with all problems where none is left.

    ``problems_of`` is given the pointer of a placement, ``files_of`` its name.
    """
    files: dict[str, str] = {}
    skipped = []
    unsaid: dict[Unsaid, None] = {}
    for at, (name, placement) in enumerate(named(plan)):
        problems = tuple(problems_of(f"/placements/{at}", placement))
        if problems:
            skipped.append(Skipped(placement.workload, problems))
        else:
            files |= files_of(name, placement)
            unsaid |= dict.fromkeys(unsaid_of(placement))
    if not files:
        nothing = FieldProblem("/placements", "none", "a plan that places a workload")
        raise InputError(source, tuple(p for one in skipped for p in one.problems) or (nothing,))
    return Exported(files, tuple(skipped), tuple(unsaid))


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

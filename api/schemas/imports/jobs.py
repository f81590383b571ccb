"""Tasks, services and manifests of schedulers: what they say beside their commands.

What a source may use is never widened: of several places only those are taken that a policy can name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.schemas.imports.draft import Draft, whole
from api.schemas.imports.gpu_kinds import gpus_named
from api.schemas.imports.tables import word
from broker.domain.planning.workload import WorkloadKind
from broker.provider_facts import load_provider_facts, load_provider_names

MOST_ALTERNATIVES = 100
_MEMORY = re.compile(r"(?P<least>[1-9]\d{0,3})gb((?P<open>\.\.)|\.\.\d{1,4}gb)?", re.IGNORECASE)
READ_BY_PROGRAMS = frozenset({"VLLM_ADDITIONAL_ARGS"})
"""Variables whose values are arguments of the command."""


@dataclass(frozen=True, slots=True)
class Place:
    """A seller's name in the tool, ours (None: unknown), its region and zone; None: any."""

    cloud: str | None
    provider: str | None
    region: str | None = None
    zone: str | None = None

    def __str__(self) -> str:
        parts = (self.cloud or "any cloud", self.region, self.zone)
        return "/".join(part for part in parts if part)


def place_of(cloud: Any, region: Any, zone: Any, names: Mapping[str, str], *, is_any: str = "*") -> Place:
    """A place in a tool's words; ``names``: sellers that it calls otherwise."""
    parts = [None if one is None or str(one) in ("", is_any) else str(one) for one in (cloud, region, zone)]
    called = parts[0].lower() if parts[0] else None
    key = names.get(called or "", called)
    return Place(called, key if key in load_provider_names() else None, parts[1], parts[2])


@dataclass(frozen=True, slots=True)
class Accelerators:
    """Accelerators of a node: what the source writes, the kind that it names, the fewest and the most."""

    what: str
    kind: str | None = None
    least: int | None = None
    most: int | None = None


@dataclass(slots=True)
class Job:
    """A task, a service or a manifest. ``commands``: shell text; ``unused``: fields that no reader uses.

    ``spot``: what each alternative says of interruptible nodes; ``beside``: objects that run nothing here.
    """

    title: str
    tool: str
    commands: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    environment: list[str] = field(default_factory=list)
    name: str | None = None
    kind: WorkloadKind | None = None
    accelerators: list[Accelerators] = field(default_factory=list)
    nodes: Any = None
    places: list[Place] = field(default_factory=list)
    spot: list[bool] = field(default_factory=list)
    min_replicas: int | None = None
    unused: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)

    @property
    def gpus(self) -> int | None:
        """The most GPUs of all nodes; None where they are not stated."""
        nodes = 1 if self.nodes is None else whole(self.nodes)
        most = max((one.most for one in self.accelerators if one.most is not None), default=None)
        return None if nodes is None or most is None else nodes * most


def complete(draft: Draft, job: Job, used: set[str]) -> None:
    """Adds what a job says beside its command. ``used``: variables that its command needed."""
    if len(job.places) > MOST_ALTERNATIVES:
        draft.refuse(f"{len(job.places):,} alternatives of resources", f"at most {MOST_ALTERNATIVES}")
    draft.tell("name", job.name)
    _tell_gpus(draft, job)
    _tell_places(draft, job.places)
    if any(job.spot):
        if draft.kind in (WorkloadKind.TRAINING, WorkloadKind.BATCH):
            draft.tell("interruptible", True)
        else:
            draft.leave("spot", "state policy.tiers, the ones that may be used")
    elif job.spot and draft.kind is WorkloadKind.BATCH:
        draft.tell("interruptible", False)
    if job.min_replicas is not None and draft.kind is WorkloadKind.SERVING:
        draft.tell_word("min_replicas", job.min_replicas, f"at least {job.min_replicas} replicas")
    draft.leave_together(
        [name for name in dict.fromkeys(job.environment) if name not in used | READ_BY_PROGRAMS],
        "the environment of the program is not planned",
        prefix="",
    )
    draft.leave_fields(job.tool, job.unused)
    draft.leave_together(job.beside, "an object beside the work", prefix="")


def tell_gpu_kinds(draft: Draft, kinds: Sequence[str], tool: str) -> None:
    """Notes the GPUs that a source names as the allowed ones; names that no GPU has are left out."""
    known = {kind: gpus_named(kind, tool) for kind in kinds}
    only = list(dict.fromkeys(gpu for gpus in known.values() for gpu in gpus))
    if only:
        draft.tell_word("gpus", only, "")
    unread = [kind for kind, gpus in known.items() if not gpus]
    draft.leave_together(unread, word("gpus").why, prefix="")


def _tell_gpus(draft: Draft, job: Job) -> None:
    kinds = list(dict.fromkeys(one.kind for one in job.accelerators if one.kind))
    tell_gpu_kinds(draft, kinds, job.tool)
    named = list(dict.fromkeys(one.what for one in job.accelerators if one.what))
    if named and draft.kind is not WorkloadKind.TRAINING:
        draft.leave(f"accelerators {', '.join(named)}", "the planner chooses how many GPUs share a replica")
    _tell_memory(draft, [size for one in named for size in map(_MEMORY.fullmatch, one.split(":")) if size])
    if draft.kind is not WorkloadKind.TRAINING:
        if job.nodes is not None:
            draft.leave(f"nodes {job.nodes}", "the planner chooses how GPUs share a replica")
        return
    nodes = 1 if job.nodes is None else whole(job.nodes)
    if nodes is None:
        draft.leave(f"nodes {job.nodes}", "state gpus, it names no number")
        return
    if "gpus/max" not in draft.fields:
        draft.tell("gpus/max", job.gpus)
    ranges = [one.least for one in job.accelerators if one.least is not None and one.least != one.most]
    if ranges and "gpus/min" not in draft.fields:
        draft.tell("gpus/min", nodes * max(min(ranges), 1))


def _tell_memory(draft: Draft, sizes: Sequence[re.Match[str]]) -> None:
    """Notes the least memory of a GPU that is stated; an upper limit is left out."""
    if sizes:
        draft.tell("policy/gpus/min_memory_gb", min(int(size["least"]) for size in sizes))
    bounded = [size[0] for size in sizes if size["open"] is None]
    if bounded:
        draft.leave(f"at most {', '.join(bounded)} per GPU", "a policy has a least memory, and no most")


def _tell_places(draft: Draft, places: Sequence[Place]) -> None:
    """Notes sellers and regions: all places that the two lists can name without allowing another one."""
    unknown = [place for place in places if place.cloud is not None and place.provider is None]
    known = [place for place in places if place not in unknown]
    if unknown and not known:
        keys = ", ".join(sorted(load_provider_names()))
        draft.refuse(
            f"the cloud of {unknown[0]}", f"a cloud of the broker's sellers ({keys}), or none for any"
        )
    for place in unknown:
        draft.leave(str(place), "the broker asks no seller of that name")
    for place in known:
        if place.zone is not None:
            draft.leave(f"zone {place.zone}", "the planner chooses the zone")
    kept = known if _is_exact(known) else list(_kept(draft, known))
    providers = list(dict.fromkeys(place.provider for place in kept if place.provider))
    regions = list(dict.fromkeys(place.region for place in kept if place.region))
    if providers:
        draft.tell("policy/providers", {"only": providers})
    if regions:
        draft.tell("policy/regions", regions)


def _kept(draft: Draft, known: Sequence[Place]) -> Iterator[Place]:
    """The places that fit together, in their order; the others are left out."""
    kept: list[Place] = []
    for place in known:
        if place in kept or _is_exact([*kept, place]):
            kept.append(place)
            yield place
        else:
            draft.leave(
                str(place), "a policy has one list of sellers and one of regions, which would allow more"
            )


def _is_exact(places: Sequence[Place]) -> bool:
    """Whether the list of sellers with the list of regions allows these places and no other."""
    if (
        len({place.provider is None for place in places}) > 1
        or len({place.region is None for place in places}) > 1
    ):
        return False
    stated = {(place.provider, place.region) for place in places}
    regions = {place.region for place in places if place.region}
    return all(
        (provider, region) in stated or not _may_have(provider, region)
        for provider in {place.provider for place in places}
        for region in regions
    )


def _may_have(provider: str | None, region: str) -> bool:
    """Whether a seller may have a region of that name; True where its regions are not known."""
    if provider is None:
        return True
    facts = load_provider_facts(provider)
    return not facts.countries or facts.country_of(region) is not None


def mapping(told: Any) -> Mapping[str, Any]:
    """A mapping; an empty one in the place of anything else."""
    return told if isinstance(told, dict) else {}


def listed(told: Any) -> list[Any]:
    """A list; text alone is a list of it, anything else an empty one."""
    return told if isinstance(told, list) else [told] if isinstance(told, str) else []


def items(told: Any) -> Iterator[tuple[Any, Any]]:
    """Names and values of a mapping, of a list of ``NAME=VALUE`` and ``{name, value}``, or of neither."""
    if isinstance(told, dict):
        yield from told.items()
    elif isinstance(told, list):
        for one in told:
            if isinstance(one, dict):
                yield one.get("name"), one.get("value")
            else:
                name, equals, value = str(one).partition("=")
                yield name, value if equals else None
    elif told is not None:
        yield told, None

"""SkyPilot tasks: nodes, accelerators, places and the commands that they run.

What a task may use is never widened: of several places only those are taken that a policy can name together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api.schemas.imports.draft import Draft, whole
from broker.domain.planning.workload import WorkloadKind
from broker.provider_facts import load_provider_facts, load_provider_names

PROVIDER_OF: Mapping[str, str] = {
    "do": "digitalocean",
    "primeintellect": "prime_intellect",
    "lambdalabs": "lambda",
}
"""Clouds that SkyPilot calls otherwise."""
ALTERNATIVES = ("any_of", "ordered")
MOST_ALTERNATIVES = 100
READ = frozenset({"accelerators", "use_spot", "region", "cloud", "infra", "zone", *ALTERNATIVES})
MACHINE = "the planner chooses nodes that hold the work; its needs of disk and memory are counted"
TOP_LEVEL: Mapping[str, str] = {
    "setup": "what is installed is not planned",
    "file_mounts": "what is copied is not planned; state dataset or weights for data that is paid for",
    "workdir": "what is copied is not planned",
    "volumes": "what is copied is not planned",
    "storage": "what is copied is not planned",
    "config": "SkyPilot's own settings",
    "event_callback": "SkyPilot's own settings",
    "inputs": "state dataset, with its size and place",
    "outputs": "state dataset, with its size and place",
}
SERVICE: Mapping[str, str] = {
    "replicas": "the planner chooses the number of replicas",
    "replica_policy": "the planner follows the traffic; state redundancy.spare_replicas for spares",
    "readiness_probe": "it sets up the server",
    "ports": "it sets up the server",
    "load_balancing_policy": "it sets up the server",
}
DISK_FIELDS = frozenset({
    "cpus", "memory", "instance_type", "disk_size", "disk_tier", "image_id", "ports", "labels",
    "autostop", "job_recovery", "network_tier", "priority", "accelerator_args", "local_disk",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A cloud, as SkyPilot calls it, and a region of it; None: any."""

    cloud: str | None
    region: str | None
    zone: str | None

    def __str__(self) -> str:
        parts = (self.cloud or "any cloud", self.region, self.zone)
        return "/".join(part for part in parts if part)

    @property
    def provider(self) -> str | None:
        """The seller of the broker with that name; None if there is none."""
        key = PROVIDER_OF.get(self.cloud or "", self.cloud)
        return key if key in load_provider_names() else None


def environment_of(task: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a task's commands see, as far as the task states their values."""
    envs = task.get("envs")
    found = {str(name): str(value) for name, value in _items(envs) if value is not None}
    gpus = next((count for _, count in _accelerators(_dict(task.get("resources")).get("accelerators"))), None)
    if whole(task.get("num_nodes")) is not None or "num_nodes" not in task:
        found.setdefault("SKYPILOT_NUM_NODES", str(whole(task.get("num_nodes")) or 1))
    if gpus is not None:
        found.setdefault("SKYPILOT_NUM_GPUS_PER_NODE", str(gpus))
    return found


def complete(draft: Draft, task: Mapping[str, Any], used: set[str]) -> None:
    """Adds what a task says beside its command. ``used``: variables that its command needed."""
    resources = _dict(task.get("resources"))
    options = list(_alternatives(resources))
    if len(options) > MOST_ALTERNATIVES:
        draft.refuse(f"{len(options):,} alternatives of resources", f"at most {MOST_ALTERNATIVES}")
    if isinstance(task.get("name"), str):
        draft.tell("name", task["name"])
    _tell_gpus(draft, task, options)
    _tell_places(draft, [_place(one) for one in options])
    if any(one.get("use_spot") is True for one in options):
        if draft.kind in (WorkloadKind.TRAINING, WorkloadKind.BATCH):
            draft.tell("interruptible", True)
        else:
            draft.leave("use_spot", "state policy.tiers, the ones that may be used")
    elif draft.kind is WorkloadKind.BATCH and any(one.get("use_spot") is False for one in options):
        draft.tell("interruptible", False)
    left = [name for one in options for name in one if name not in READ]
    machine = [name for name in dict.fromkeys(left) if name in DISK_FIELDS]
    draft.leave_together(machine, MACHINE, prefix="resources.")
    for name in dict.fromkeys(name for name in left if name not in DISK_FIELDS):
        draft.leave(f"resources.{name}", "no field of a document says it")
    _leave_top_level(draft, task, used)


def _alternatives(resources: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The resources that would do: each of ``any_of`` or ``ordered`` over what stands beside them."""
    named = next((name for name in ALTERNATIVES if isinstance(resources.get(name), list)), None)
    beside = {name: value for name, value in resources.items() if name not in ALTERNATIVES}
    if named is None:
        yield beside
        return
    for one in resources[named]:
        yield {**beside, **_dict(one)}


def _tell_gpus(draft: Draft, task: Mapping[str, Any], options: list[Mapping[str, Any]]) -> None:
    kinds = [kind for one in options for kind in _accelerators(one.get("accelerators"))]
    named = dict.fromkeys(name if count is None else f"{name}:{count}" for name, count in kinds)
    if named:
        draft.leave(f"accelerators {', '.join(named)}", "state policy.gpus, the GPUs that may be used")
    nodes = task.get("num_nodes")
    counts = [count for _, count in kinds if count is not None]
    if draft.kind is not WorkloadKind.TRAINING:
        if nodes is not None:
            draft.leave(f"num_nodes {nodes}", "the planner chooses how GPUs share a replica")
        return
    if nodes is not None and whole(nodes) is None:
        draft.leave(f"num_nodes {nodes}", "state gpus, it names no number")
    elif counts and "gpus/max" not in draft.fields:
        draft.tell("gpus/max", (whole(nodes) or 1) * max(counts))


def _accelerators(told: Any) -> Iterator[tuple[str, int | None]]:
    """Kinds and numbers of a node's accelerators, of ``H100:8``, of a list, or of a dict or set of them."""
    if isinstance(told, list):
        for one in told:
            yield from _accelerators(one)
    elif isinstance(told, dict):
        for name, count in told.items():
            kind, _, each = str(name).partition(":")
            yield kind, whole(each or count) or (1 if count is None and not each else None)
    elif isinstance(told, str) and told:
        kind, _, count = told.partition(":")
        yield kind, whole(count) if count else 1


def _place(resources: Mapping[str, Any]) -> Place:
    """The place of ``infra: aws/us-east-1`` or of the fields ``cloud``, ``region`` and ``zone``."""
    infra = resources.get("infra")
    parts = infra.split("/") if isinstance(infra, str) else []
    if not parts:
        parts = [str(resources.get(name) or "*") for name in ("cloud", "region", "zone")]
    cloud, region, zone, *_ = [*(part if part not in ("*", "") else None for part in parts), None, None, None]
    return Place(cloud.lower() if cloud else None, region, zone)


def _tell_places(draft: Draft, places: list[Place]) -> None:
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
    kept: list[Place] = []
    for place in known:
        if place in kept or _is_exact([*kept, place]):
            kept.append(place)
        else:
            draft.leave(
                str(place), "a policy has one list of sellers and one of regions, which would allow more"
            )
    providers = list(dict.fromkeys(place.provider for place in kept if place.provider))
    regions = list(dict.fromkeys(place.region for place in kept if place.region))
    if providers:
        draft.tell("policy/providers", {"only": providers})
    if regions:
        draft.tell("policy/regions", regions)


def _is_exact(places: list[Place]) -> bool:
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


def _leave_top_level(draft: Draft, task: Mapping[str, Any], used: set[str]) -> None:
    envs = [
        str(name)
        for part in ("envs", "secrets")
        for name, _ in _items(task.get(part))
        if str(name) not in used
    ]
    if envs:
        draft.leave(f"envs {', '.join(envs)}", "the environment of the program is not planned")
    for name, _ in _items(task.get("service")):
        draft.leave(f"service.{name}", SERVICE.get(str(name), "no field of a document says it"))
    read = {"name", "num_nodes", "resources", "run", "envs", "secrets", "service"}
    for name in (str(one) for one in task if one not in read):
        draft.leave(name, TOP_LEVEL.get(name, "no field of a document says it"))


def _dict(told: Any) -> Mapping[str, Any]:
    return told if isinstance(told, dict) else {}


def _items(told: Any) -> Iterator[tuple[Any, Any]]:
    """Names and values of a mapping, of a list of names, or of neither."""
    if isinstance(told, dict):
        yield from told.items()
    elif isinstance(told, list):
        yield from ((one, None) for one in told)
    elif told is not None:
        yield told, None

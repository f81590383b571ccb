"""SkyPilot tasks and dstack configurations → jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from api.schemas.imports.draft import whole
from api.schemas.imports.jobs import Accelerators, Job, items, listed, mapping, place_of
from api.schemas.imports.tables import clouds
from broker.domain.planning.workload import WorkloadKind

ALTERNATIVES = ("any_of", "ordered")
PLACED = frozenset({"accelerators", "use_spot", "region", "cloud", "infra", "zone", *ALTERNATIVES})
DSTACK_TYPES = frozenset({"service", "task", "dev-environment", "fleet", "gateway", "volume", "endpoint"})
DSTACK_READ = frozenset({
    "type", "name", "commands", "nodes", "resources", "env", "backends", "regions", "spot_policy", "groups",
})  # fmt: skip
RUN_TYPES = frozenset({"service", "task"})
SPOT: Mapping[str, list[bool]] = {"spot": [True], "on-demand": [False], "auto": [True, False]}
VENDORS = frozenset({"nvidia", "amd", "intel", "google", "tpu", "tenstorrent"})
LONGEST_AMOUNT = 40
_COUNT = re.compile(r"(\d+)?(\.\.(\d+)?)?")
_MEMORY = re.compile(r"[\d.]*(gb|tb|mb)?(\.\.[\d.]*(gb|tb|mb)?)?", re.IGNORECASE)


def is_task(data: Mapping[str, Any]) -> bool:
    """Whether this is a SkyPilot task."""
    return "resources" in data or "run" in data or "num_nodes" in data


def is_dstack(data: Mapping[str, Any]) -> bool:
    """Whether this is a dstack configuration."""
    return str(data.get("type")) in DSTACK_TYPES and "base_model" not in data


def job_of_task(task: Mapping[str, Any]) -> Job:
    """A SkyPilot task as a job."""
    resources = mapping(task.get("resources"))
    options = list(_alternatives(resources))
    service = task.get("service")
    run, name = task.get("run"), task.get("name")
    job = Job("a SkyPilot task", "skypilot", commands=run if isinstance(run, str) else "")
    job.name = name if isinstance(name, str) else None
    job.kind = WorkloadKind.SERVING if "service" in task else None
    job.nodes = task.get("num_nodes")
    job.accelerators = [kind for one in options for kind in _accelerators(one.get("accelerators"))]
    job.places = [_place(one) for one in options]
    job.spot = [one["use_spot"] for one in options if isinstance(one.get("use_spot"), bool)]
    job.min_replicas = whole(mapping(mapping(service).get("replica_policy")).get("min_replicas"))
    job.environment = [str(name) for part in ("envs", "secrets") for name, _ in items(task.get(part))]
    job.variables = {str(name): str(told) for name, told in items(task.get("envs")) if told is not None}
    _count(job, "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE")
    read = {"name", "num_nodes", "resources", "run", "envs", "secrets", "service"}
    job.unused = [f"resources.{name}" for one in options for name in one if name not in PLACED]
    job.unused += [f"service.{name}" for name, _ in items(service)]
    job.unused += [str(one) for one in task if one not in read]
    return job


def _count(job: Job, nodes_name: str, gpus_name: str, all_name: str = "") -> None:
    """Sets the variables by which a tool tells a program its nodes and GPUs."""
    nodes = 1 if job.nodes is None else whole(job.nodes)
    gpus = next((one.most for one in job.accelerators if one.most is not None), None)
    if nodes is not None:
        job.variables.setdefault(nodes_name, str(nodes))
    if gpus is not None:
        job.variables.setdefault(gpus_name, str(gpus))
    if all_name and nodes is not None and gpus is not None:
        job.variables.setdefault(all_name, str(nodes * gpus))


def _alternatives(resources: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The resources that would do: each of ``any_of`` or ``ordered`` over what stands beside them."""
    named = next((name for name in ALTERNATIVES if isinstance(resources.get(name), list)), None)
    beside = {name: value for name, value in resources.items() if name not in ALTERNATIVES}
    if named is None:
        yield beside
        return
    for one in resources[named]:
        yield {**beside, **mapping(one)}


def _accelerators(told: Any) -> Iterator[Accelerators]:
    """Accelerators of a node, of ``H100:8``, of a list, or of a dict or set of them."""
    if isinstance(told, list):
        for one in told:
            yield from _accelerators(one)
    elif isinstance(told, dict):
        for name, count in told.items():
            kind, _, each = str(name).partition(":")
            number = whole(each or count) or (1 if count is None and not each else None)
            yield _some(kind, number)
    elif isinstance(told, str) and told:
        kind, _, count = told.partition(":")
        yield _some(kind, whole(count) if count else 1)


def _some(kind: str, number: int | None) -> Accelerators:
    return Accelerators(kind if number is None else f"{kind}:{number}", kind, number, number)


def _place(resources: Mapping[str, Any]) -> Any:
    """The place of ``infra: aws/us-east-1`` or of the fields ``cloud``, ``region`` and ``zone``."""
    infra = resources.get("infra")
    parts: list[Any] = infra.split("/") if isinstance(infra, str) else []
    if not parts:
        parts = [resources.get(name) for name in ("cloud", "region", "zone")]
    cloud, region, zone, *_ = [*parts, None, None, None]
    return place_of(cloud, region, zone, clouds("skypilot"))


def job_of_dstack(told: Mapping[str, Any]) -> Job:
    """A dstack service or task as a job."""
    groups = [(name, one) for name in ("replicas", "groups") for one in listed(told.get(name))]
    parts = [one for _, one in groups if isinstance(one, dict)]
    holders = [told, *parts]
    job = Job(f"a dstack {told['type']}", "dstack")
    job.commands = "\n".join(
        str(line).strip("\n") for one in holders for line in listed(one.get("commands")) if line is not None
    )
    job.name = told["name"] if isinstance(told.get("name"), str) else None
    job.kind = WorkloadKind.SERVING if told["type"] == "service" else None
    counts = [whole(one["nodes"]) for one in parts if "nodes" in one]
    job.nodes = told.get("nodes", sum(filter(None, counts)) if counts and all(counts) else None)
    job.accelerators = [
        kind for one in holders for kind in _dstack_gpus(mapping(one.get("resources")).get("gpu"))
    ]
    backends, regions = (listed(told.get(name)) or [None] for name in ("backends", "regions"))
    if backends != [None] or regions != [None]:
        job.places = [place_of(one, here, None, clouds("dstack")) for one in backends for here in regions]
    job.spot = SPOT.get(str(told.get("spot_policy")), [])
    job.min_replicas = whole(str(told.get("replicas")).partition("..")[0]) if not parts else None
    job.environment = [str(name) for name, _ in items(told.get("env"))]
    job.variables = {str(name): str(value) for name, value in items(told.get("env")) if value is not None}
    _count(job, "DSTACK_NODES_NUM", "DSTACK_GPUS_PER_NODE", "DSTACK_GPUS_NUM")
    job.unused = [
        f"resources.{name}" for one in holders for name in mapping(one.get("resources")) if name != "gpu"
    ]
    job.unused += [str(one) for one in told if one not in DSTACK_READ and not (one == "model" and job.kind)]
    known = DSTACK_READ | {"count"}
    job.unused += [f"{name}.{field}" for name, one in groups for field in mapping(one) if field not in known]
    return job


def _dstack_gpus(told: Any) -> Iterator[Accelerators]:
    """GPUs of ``H100:4``, ``24GB:1..2``, ``1..8``, or of ``{name, memory, count}``."""
    if isinstance(told, dict):
        names = told.get("name")
        kinds = [str(one) for one in (names if isinstance(names, list) else [names] if names else [])]
        what = ":".join(str(one) for one in (",".join(kinds), told.get("memory")) if one)
        yield from _of_kinds(what, kinds, str(told.get("count", 1)))
    elif told is not None:
        words = str(told).split(":")
        count = next((one for one in words if _COUNT.fullmatch(one) and one), "1")
        kinds = [one for word in words if not _is_amount(word) for one in word.split(",")]
        is_count = all(map(_COUNT.fullmatch, words))
        yield from _of_kinds("" if is_count else str(told), kinds, count)


def _is_amount(word: str) -> bool:
    if len(word) > LONGEST_AMOUNT:
        return False
    return word.lower() in VENDORS or bool(_COUNT.fullmatch(word) or _MEMORY.fullmatch(word))


def _of_kinds(what: str, kinds: Iterable[str], count: str) -> Iterator[Accelerators]:
    found = _COUNT.fullmatch(count.strip())
    least, most = None, None
    if found is not None:
        least = whole(found[1]) if found[1] else None
        most = least if found[2] is None else whole(found[3]) if found[3] else None
    for kind in list(kinds) or [""]:
        yield Accelerators(what, kind or None, least, most)

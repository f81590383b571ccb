"""Kubernetes manifests of served models and of runs → jobs: whatever has pods, and KServe's services."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from api.schemas.imports.draft import whole
from api.schemas.imports.jobs import Accelerators, Job, Place, items, listed, mapping
from broker.domain.planning.workload import WorkloadKind

SERVED = frozenset({"InferenceService", "LLMInferenceService"})
NO_WORK = frozenset({"ServingRuntime", "ClusterServingRuntime", "LLMInferenceServiceConfig"})
SHELLS = re.compile(r"(\S*/)?(ba|z|da)?sh")
_GPU = re.compile(r"(nvidia|amd|gpu\.intel)\.com/.*|google\.com/tpu|aws\.amazon\.com/neuron\w*|habana\.ai/.*")
_KIND = re.compile(r".*(gke-accelerator|gpu\.product|instance-gpu-name|accelerator|instance-type|gpu-type)$")
REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
_HUB = re.compile(r"hf://(.+)")
_REFERENCE = re.compile(r"\$\((\w+)\)")
NODES = ("parallelism", "numNodes", "size")
"""Fields by which an object states how many of its pods work together."""
MOST_DEPTH = 40


def is_manifest(data: Mapping[str, Any]) -> bool:
    """Whether this is an object of Kubernetes."""
    return isinstance(data.get("apiVersion"), str) and isinstance(data.get("kind"), str)


def jobs_of_manifests(objects: Sequence[Mapping[str, Any]]) -> tuple[list[Job], list[str]]:
    """Jobs of the objects that run something, and the names of those that do not."""
    jobs: list[Job] = []
    beside: list[str] = []
    for one in objects:
        if one["kind"] not in NO_WORK and (one["kind"] in SERVED or any(_pods(one))):
            jobs.append(_job(one))
        else:
            beside.append(_title(one))
    return jobs, beside


def _title(told: Mapping[str, Any]) -> str:
    name = mapping(told.get("metadata")).get("name")
    return f"{told['kind']} {name}" if name else str(told["kind"])


def _job(told: Mapping[str, Any]) -> Job:
    spec, name = mapping(told.get("spec")), mapping(told.get("metadata")).get("name")
    job = Job(f"a Kubernetes {told['kind']}", "kubernetes")
    job.name = str(name) if name else None
    pods = list(_pods(spec))
    containers = [one for pod in pods for one in pod["containers"] if isinstance(one, dict)]
    nodes = _nodes(spec)
    job.nodes = nodes
    if nodes is not None:
        job.variables["LWS_GROUP_SIZE"] = str(nodes)
    for one in containers:
        job.environment += [str(each) for each, _ in items(one.get("env"))]
        job.variables |= {str(each): str(value) for each, value in items(one.get("env")) if value is not None}
    lines = [_line(one, job.variables) for one in containers]
    if told["kind"] in SERVED:
        job.kind = WorkloadKind.SERVING
        lines = _served(told["kind"], spec, containers, lines)
    job.commands = "\n".join(line for line in lines if line)
    labels = [label for pod in pods for label in _labels(pod)]
    kinds = [value for key, value in labels if _KIND.fullmatch(key)]
    counts = [number for one in containers for number in _gpus(one)] + list(_predictor_gpus(spec))
    job.accelerators = [
        Accelerators(", ".join([*kinds, f"{name} {count}"]), kind or None, count, count)
        for name, count in dict.fromkeys(counts)
        for kind in kinds or [""]
    ]
    job.places = [Place(None, None, value, None) for key, value in labels if key == REGION]
    job.places += [Place(None, None, None, value) for key, value in labels if key == ZONE]
    job.unused = [
        str(one) for one in spec if one not in ("template", "leaderWorkerTemplate", "predictor", "model")
    ]
    job.unused += _unused(spec, pods, containers)
    return job


def _unused(
    spec: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], containers: Sequence[Any]
) -> list[str]:
    """Fields of pods, containers and models that no reader uses."""
    found = [
        f"predictor.{name}" for name in mapping(spec.get("predictor")) if name not in ("model", "containers")
    ]
    model = mapping(mapping(spec.get("predictor")).get("model"))
    found += [
        f"predictor.model.{name}" for name in model if name not in ("storageUri", "args", "env", "resources")
    ]
    found += [f"model.{name}" for name in mapping(spec.get("model")) if name not in ("uri",)]
    found += [f"pod.{name}" for pod in pods for name in pod if name != "containers"]
    read = ("name", "image", "command", "args", "env", "resources")
    return found + [f"container.{name}" for one in containers for name in one if name not in read]


def _pods(told: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Everything below that has containers."""
    if depth > MOST_DEPTH:
        return
    if isinstance(told, dict):
        if isinstance(told.get("containers"), list):
            yield told
        for name, inner in told.items():
            if name != "prefill":
                yield from _pods(inner, depth + 1)
    elif isinstance(told, list):
        for inner in told:
            yield from _pods(inner, depth + 1)


def _nodes(spec: Mapping[str, Any]) -> int | None:
    """Pods that work together; None where each works alone."""
    replicas = [mapping(one).get("replicas") for kind, group in spec.items()
                if kind.endswith("ReplicaSpecs") for one in mapping(group).values()]  # fmt: skip
    if replicas:
        return sum(whole(one) or 0 for one in replicas)
    holders = (spec, mapping(spec.get("leaderWorkerTemplate")), mapping(spec.get("trainer")))
    found = (whole(one[name]) for one in holders for name in NODES if name in one)
    return next((one for one in found if one is not None), None)


def _line(container: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """The command of a container as a line of shell, with its image where it has no command of its own."""
    words = [
        str(one) for name in ("command", "args") for one in listed(container.get(name)) if one is not None
    ]
    words = [
        _REFERENCE.sub(lambda one: f"${{{one[1]}}}" if one[1] in variables else one[0], one) for one in words
    ]
    if len(words) > 2 and SHELLS.fullmatch(words[0]):
        at = next((index for index, one in enumerate(words) if re.fullmatch(r"-\w*c", one)), None)
        if at is not None and at + 1 < len(words):
            return words[at + 1]
    image = container.get("image")
    if not container.get("command") and isinstance(image, str):
        words.insert(0, image)
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """A word of shell in which variables still count."""
    return (
        '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if re.search(r"[\s;&|<>()'\"]", word)
        else word
    )


def _served(kind: str, spec: Mapping[str, Any], containers: Sequence[Any], lines: Sequence[str]) -> list[str]:
    """The command that KServe makes of a model: its runtimes serve language models with vLLM."""
    told = (
        mapping(spec.get("model"))
        if kind == "LLMInferenceService"
        else mapping(mapping(spec.get("predictor")).get("model"))
    )
    if not told:
        return list(lines)
    uri = str(told.get("uri") or told.get("storageUri") or "")
    hub = _HUB.fullmatch(uri)
    args = [str(one) for one in listed(told.get("args"))]
    for one in containers:
        args += [str(each) for each in listed(one.get("args"))]
        args += [str(value) for name, value in items(one.get("env")) if name == "VLLM_ADDITIONAL_ARGS"]
    is_named = any(one.lstrip("-").replace("_", "-").startswith("model-id") for one in args)
    model = hub[1] if hub else "" if is_named else str(told.get("name") or uri)
    return [" ".join(["vllm", "serve", model, *args])]


def _labels(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Labels that the nodes of a pod must have: of its selector and its affinity."""
    for key, value in items(pod.get("nodeSelector")):
        yield str(key), str(value)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = mapping(mapping(mapping(pod.get("affinity")).get("nodeAffinity")).get(required))
    for term in listed(affinity.get("nodeSelectorTerms")):
        for one in listed(mapping(term).get("matchExpressions")):
            if mapping(one).get("operator") == "In":
                for value in listed(one.get("values")):
                    yield str(one.get("key")), str(value)


def _gpus(container: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    """The accelerators that a container asks for: the resource's name and the count."""
    resources = mapping(container.get("resources"))
    asked = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
    for name, count in asked.items():
        if _GPU.fullmatch(str(name)):
            yield str(name), whole(count)


def _predictor_gpus(spec: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    return _gpus(mapping(mapping(spec.get("predictor")).get("model")))

"""Placements as Kubernetes objects that Kueue admits: ``kubectl apply -f FILE``.

Fields: those of ``kueue.x-k8s.io/v1beta2`` and Kubernetes. Kueue knows quotas and no calendar, so each
placement has a queue of its own, which is held until its window begins, and a run ends with its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import yaml

from api.export.engines import command_problems, commands_of
from api.export.environment import MODEL_GUARD, RUN_GUARD, batch_guard, environment
from api.export.places import unsaid_rules
from api.export.servers import PORT, engine_of, gpus_per_node, held_span, nodes_per_server, servers
from api.export.targets import Exported, Target, export_each, heading, load_images
from api.export.vllm import batch_command
from api.export.workload_facts import Facts, WorkloadFacts, facts_for
from api.schemas.base.times import format_time
from broker.catalogue import load_gpus
from broker.domain.basics.errors import FieldProblem
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import WorkloadKind

QUEUES = "kueue.x-k8s.io/v1beta2"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
LONGEST_RUN = "kueue.x-k8s.io/max-exec-time-seconds"
PLACEMENT = "gpu-capacity-broker/placement"
"""The label that nodes of a placement carry, so that its workload runs on what was bought for it."""
RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""What the vendors' device plugins call a GPU."""
MASTER_PORT = 29500
_INDEX = '"$JOB_COMPLETION_INDEX"'


def kueue_files(plan: Plan, facts: Facts, source: str, *, reserved: bool = False) -> Exported:
    """Flavor, queues and workload a placement; what no command can start is skipped."""
    top = heading(plan, Target.KUEUE, reserved=reserved)

    def files_of(name: str, placement: Placement) -> dict[str, str]:
        objects = [*_queues(name, placement), *_workload(name, placement, facts_for(facts, placement))]
        text = yaml.safe_dump_all(objects, sort_keys=False, width=200)
        return {f"{name}.kueue.yaml": top + _told(name, placement) + text}

    def problems_of(at: str, placement: Placement) -> Iterator[FieldProblem]:
        return _problems(at, placement, facts_for(facts, placement))

    unsaid = partial(unsaid_rules, target=Target.KUEUE, reserved=reserved)
    return export_each(plan, source, problems_of, files_of, unsaid)


def _problems(at: str, placement: Placement, facts: WorkloadFacts) -> Iterator[FieldProblem]:
    yield from command_problems(at, placement, facts)
    gpu = load_gpus().get(placement.gpu)
    if gpu is None or gpu.vendor not in RESOURCES:
        expected = f"one of {' or '.join(RESOURCES)}, whose device plugins are known"
        yield FieldProblem(f"{at}/gpu", repr(placement.gpu), expected)
    if placement.kind is WorkloadKind.SERVING and nodes_per_server(placement) > 1:
        found = f"{placement.gpus_per_replica} GPUs"
        expected = "replicas of at most one node, as the pods of a Deployment are"
        yield FieldProblem(f"{at}/gpus_per_replica", found, expected)


def _told(name: str, placement: Placement) -> str:
    start, end = held_span(placement)
    return (
        f"# Held from {format_time(start)} until {format_time(end)}: label the nodes when they have joined,\n"
        f"#   kubectl label node NODE {PLACEMENT}={name}\n"
        "# and let the queue start:\n"
        f'#   kubectl patch clusterqueue {name} --type merge -p \'{{"spec": {{"stopPolicy": "None"}}}}\'\n'
    )


def _resource(placement: Placement) -> str:
    return RESOURCES[load_gpus()[placement.gpu].vendor]


def _queues(name: str, placement: Placement) -> Iterator[dict[str, Any]]:
    yield {
        "apiVersion": QUEUES,
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": {PLACEMENT: name}},
    }
    quota = {"name": _resource(placement), "nominalQuota": placement.gpus}
    group = {"coveredResources": [_resource(placement)], "flavors": [{"name": name, "resources": [quota]}]}
    yield {
        "apiVersion": QUEUES,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group], "stopPolicy": "Hold"},
    }
    yield {
        "apiVersion": QUEUES,
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterQueue": name},
    }


def _workload(name: str, placement: Placement, facts: WorkloadFacts) -> Iterator[dict[str, Any]]:
    if placement.kind is WorkloadKind.SERVING:
        yield _deployment(name, placement, facts)
        yield _service(name, {"app": name}, {"port": PORT})
        return
    yield _job(name, placement, facts)
    if placement.nodes > 1 and placement.kind is WorkloadKind.TRAINING:
        yield _service(
            name,
            {"batch.kubernetes.io/job-name": name},
            {"port": MASTER_PORT},
            clusterIP="None",
            publishNotReadyAddresses=True,
        )


def _service(name: str, selector: Mapping[str, str], port: Mapping[str, int], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": dict(selector), "ports": [dict(port)], **more},
    }


def _metadata(name: str, **labels: str) -> dict[str, Any]:
    return {"name": name, "namespace": "default", "labels": {QUEUE_NAME: name, **labels}}


def _job(name: str, placement: Placement, facts: WorkloadFacts) -> dict[str, Any]:
    start, end = held_span(placement)
    training, nodes = placement.kind is WorkloadKind.TRAINING, placement.nodes
    script = f"{RUN_GUARD}\n{_torchrun(name, placement)}\n"
    if not training:
        script = f"{MODEL_GUARD}\n{batch_guard(placement, _INDEX)}\n{batch_command(placement, facts)}\n"
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [_container(placement, facts, script)]}
    if nodes > 1 and training:
        pod = {"subdomain": name, **pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(name, **{LONGEST_RUN: str(round((end - start).total_seconds()))}),
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "parallelism": nodes,
            "completions": nodes,
            "backoffLimit": 0,
            "template": {"spec": pod},
        },
    }


def _torchrun(name: str, placement: Placement) -> str:
    per_node = gpus_per_node(placement)
    if placement.nodes == 1:
        return f"torchrun --standalone --nproc-per-node {per_node} $COMMAND"
    return (
        f'torchrun --nnodes {placement.nodes} --node-rank "$JOB_COMPLETION_INDEX" '
        f"--nproc-per-node {per_node} --master-addr {name}-0.{name} --master-port {MASTER_PORT} $COMMAND"
    )


def _deployment(name: str, placement: Placement, facts: WorkloadFacts) -> dict[str, Any]:
    _, most = servers(placement)
    script = f"{MODEL_GUARD}\n{commands_of(placement).serve(placement, facts)}\n"
    container = _container(placement, facts, script)
    container["ports"] = [{"containerPort": PORT}]
    container["readinessProbe"] = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 10}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(name),
        "spec": {
            "replicas": most,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
        },
    }


def _container(placement: Placement, facts: WorkloadFacts, script: str) -> dict[str, Any]:
    role = "training" if placement.kind is WorkloadKind.TRAINING else str(engine_of(placement))
    gpus = {_resource(placement): gpus_per_node(placement)}
    env = [{"name": name, "value": value} for name, value in environment(placement, facts).items()]
    return {
        "name": "main",
        "image": load_images()[role],
        "command": ["bash", "-c", script],
        "env": env,
        "resources": {"requests": gpus, "limits": dict(gpus)},
    }

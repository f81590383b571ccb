"""The GPUs that tools name are the ones that a policy allows, and never more."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from api.schemas.imports.gpu_kinds import gpus_named, gpus_of_directives
from api.schemas.imports.starting_points import StartingPoint, read_starting_point
from broker.catalogue import load_gpus, resolve_gpus

SERVE = "vllm serve Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("kind", "tool", "gpus"),
    [
        ("H100", "dstack", ("H100",)),
        ("A100", "skypilot", ("A100-SXM-40GB", "A100-PCIe-40GB")),
        ("A100-80GB", "skypilot", ("A100-SXM-80GB", "A100-PCIe-80GB")),
        ("nvidia-tesla-a100", "kubernetes", ("A100-SXM-40GB", "A100-PCIe-40GB")),
        ("NVIDIA-A100-SXM4-80GB", "kubernetes", ("A100-SXM-80GB",)),
        ("RTX3090", "dstack", ("RTX-3090",)),
        ("L4-24GB", "slurm", ("L4",)),
        ("p5.48xlarge", "kubernetes", ()),
        ("80GB", "dstack", ()),
        ("SXM4", "slurm", ()),
        ("RTX", "slurm", ()),
    ],
)
def test_a_name_means_what_its_tool_means(kind: str, tool: str, gpus: tuple[str, ...]) -> None:
    assert gpus_named(kind, tool) == gpus


@given(st.sampled_from(sorted(load_gpus())), st.sampled_from(["skypilot", "dstack", "kubernetes", "slurm"]))
def test_a_name_of_the_catalogue_is_read_as_itself(gpu: str, tool: str) -> None:
    assert gpus_named(gpu, tool) == (gpu,)


@given(st.text(max_size=70))
def test_any_text_gives_names_that_a_policy_takes(kind: str) -> None:
    for gpu in gpus_named(kind, "dstack"):
        assert resolve_gpus(gpu, "", "t")


def begin(told: object) -> StartingPoint:
    return read_starting_point(told if isinstance(told, str) else yaml.safe_dump(told), "t")


def test_each_alternative_of_a_task_is_allowed() -> None:
    told = [{"accelerators": "L40S:1"}, {"accelerators": {"L4": 2, "Gaudi9": 1}}]
    found = begin({"resources": {"any_of": told}, "run": SERVE})
    assert found.workload["policy"]["gpus"] == {"only": ["L40S", "L4"]}
    assert "Gaudi9" in {one.what for one in found.left_out}


def test_slurm_directives_name_gpus() -> None:
    lines = "#SBATCH --gres=gpu:h100:8\n#SBATCH --gpus-per-node=a30:4\n#SBATCH -G 8\n#SBATCH --gres=gpu:8\n"
    assert gpus_of_directives(lines) == ["h100", "a30"]
    found = begin(f"#!/bin/bash\n{lines}srun {SERVE}\n")
    assert found.workload["policy"]["gpus"] == {"only": ["H100", "A30"]}


def test_every_value_of_a_node_affinity_is_allowed() -> None:
    terms = [{"matchExpressions": [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L40S", "NVIDIA-A10G"]}
    ]}]  # fmt: skip
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    limits = {"limits": {"nvidia.com/gpu": 1}}
    pod = {
        "affinity": {"nodeAffinity": required},
        "containers": [{"name": "a", "command": SERVE.split(), "resources": limits}],
    }
    found = begin({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})
    assert found.workload["policy"]["gpus"] == {"only": ["L40S", "A10G"]}


@pytest.mark.parametrize(("memory", "is_open"), [("80GB", False), ("80GB..", True), ("80GB..96GB", False)])
def test_memory_of_a_dstack_gpu_is_the_least(memory: str, is_open: bool) -> None:
    found = begin({"type": "task", "commands": [SERVE], "resources": {"gpu": f"A100:{memory}:2"}})
    assert found.workload["policy"]["gpus"] == {"only": ["A100"], "min_memory_gb": 80}
    assert (f"at most {memory} per GPU" in {one.what for one in found.left_out}) is not is_open

"""Workloads from what a team has: what is known is filled in, what is missing is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.schemas.imports.starting_points import StartingPoint, read_starting_point
from api.schemas.workloads.document_edit import EditedDocument, empty_document
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import known_model
from broker.domain.basics.errors import InputError
from broker.domain.basics.left_out import LeftOut
from broker.domain.planning.workload import WorkloadKind
from tests.domain.test_model_config import NAMED
from tests.fakes.clock import NOON
from tests.peers_env import run

CATALOGUE = Path(__file__).parents[2] / "fixtures" / "providers" / "skypilot"
TORCHRUN = """\
export OMP_NUM_THREADS=8
torchrun --nnodes=4 --nproc_per_node 8 \\
  --rdzv_backend c10d --rdzv_endpoint $HEAD:29500 \\
  train.py --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096 \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --bf16 True \\
  --max_steps 2000 --fsdp full_shard
"""
TASK = """\
name: tune
num_nodes: 2
resources:
  accelerators: H100:8
  use_spot: true
  infra: aws/us-east-1
  disk_size: 500
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=8 train.py --model Qwen/Qwen3-8B
"""
SERVE_TASK = """\
name: chat
resources: {accelerators: {A100-80GB: 2}, cloud: lambda, region: us-west-2}
service: {readiness_probe: /health, replicas: 2}
run: vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2
"""


def begin(text: str, **more: Any) -> StartingPoint:
    """A starting point whose workload makes a document that is read without an error."""
    found = read_starting_point(text, "test", **more)
    document = EditedDocument(empty_document("research"), "test")
    document.add(found.workload)
    read_workloads(document.text, source="test", base=None, now=NOON)
    return found


def test_a_vllm_line_tells_model_format_and_name() -> None:
    line = (
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 "
        "--quantization=fp8 --enable-prefix-caching --served-model-name chat --max-model-len 8192"
    )
    found = begin(line)
    assert (found.workload["kind"], found.workload["model"]) == ("serving", "Llama-3.1-70B")
    assert (found.workload["name"], found.workload["precisions"]) == ("chat", ["fp8"])
    assert "Requests per second at the peak" in found.missing
    assert "Model" not in found.missing
    assert {one.what for one in found.left_out} == {
        "--tensor-parallel-size 4",
        "--enable-prefix-caching",
        "--max-model-len 8192",
        "CUDA_VISIBLE_DEVICES",
    }


def test_a_flag_before_the_model_does_not_take_it_for_its_value() -> None:
    line = "python -m foo; vllm serve --enforce-eager --dtype bfloat16 --model Qwen/Qwen3-8B"
    assert begin(line).workload["model"] == "Qwen3-8B"
    assert begin("vllm serve --trust-remote-code Qwen/Qwen3-8B").workload["model"] == "Qwen3-8B"


def test_a_torchrun_line_tells_gpus_batch_steps_and_software() -> None:
    found = begin(TORCHRUN)
    run_ = found.workload
    assert (run_["kind"], run_["model"], run_["gpus"]) == ("training", "Llama-3.1-8B", {"max": 32})
    assert run_["sequence_length"] == 4096
    assert run_["global_batch_tokens"] == 2 * 8 * 32 * 4096
    assert run_["tokens"] == 2000 * 2 * 8 * 32 * 4096
    assert (run_["precision"], run_["software"]) == ("bf16", "fsdp")
    assert found.missing == ("Done by",)


def test_an_elastic_run_and_one_without_a_number_of_gpus() -> None:
    elastic = begin("torchrun --nnodes 1:4 --nproc-per-node 8 train.py")
    assert elastic.workload["gpus"] == {"max": 32, "min": 8}
    module = begin("python3 -m torch.distributed.run --nproc_per_node gpu -m axolotl.cli.train")
    assert "gpus" not in module.workload
    assert any("nproc-per-node" in one.what for one in module.left_out)
    assert {"Model", "Tokens to train on", "Sequence length"} <= set(module.missing)


@pytest.mark.xdist_group("peers")
def test_a_skypilot_task_is_read_as_skypilot_reads_it(tmp_path: Path) -> None:
    for cloud in ("aws", "lambda"):
        place = tmp_path / ".sky" / "catalogs" / "v8" / cloud
        place.mkdir(parents=True)
        shutil.copy(CATALOGUE / f"{cloud}-vms.csv", place / "vms.csv")
    (tmp_path / "tune.sky.yaml").write_text(TASK)
    (tmp_path / "chat.sky.yaml").write_text(SERVE_TASK)
    home = str(tmp_path)
    environ = {"HOME": home, "SKY_RUNTIME_DIR": home, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    theirs = run("skypilot", "accept_skypilot.py", str(tmp_path), environ=environ)

    tune, told = begin(TASK).workload, theirs["tune.sky.yaml"]
    (count,) = told["resources"]["accelerators"].values()
    assert tune["name"] == told["name"]
    assert tune["gpus"] == {"max": told["num_nodes"] * count}
    assert tune["interruptible"] is told["resources"]["use_spot"] is True
    cloud, _, region = told["resources"]["infra"].partition("/")
    gpus = {"only": ["H100-SXM-80GB", "H100-PCIe-80GB"]}
    assert tune["policy"] == {"regions": [region], "providers": {"only": [cloud]}, "gpus": gpus}
    assert tune["model"] == "Qwen3-8B"

    chat, told = begin(SERVE_TASK), theirs["chat.sky.yaml"]
    assert "service" in told
    cloud, _, region = told["resources"]["infra"].partition("/")
    gpus = {"only": ["A100-SXM-80GB", "A100-PCIe-80GB"]}
    assert chat.workload["policy"] == {"regions": [region], "providers": {"only": [cloud]}, "gpus": gpus}
    assert (chat.workload["kind"], chat.workload["model"]) == ("serving", "Llama-3.1-8B")
    why = "the planner chooses how many GPUs share a replica"
    assert LeftOut("accelerators A100-80GB:2", why) in chat.left_out


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_config_names_the_model_of_its_shape(name: str) -> None:
    found = begin(json.dumps({"architectures": ["X"], **NAMED[name]}))
    assert found.workload["model"].partition("-Instruct")[0].startswith(name.split("-")[0])


def test_a_config_says_its_name_before_its_shape() -> None:
    config = {**NAMED["Mistral-7B"], "_name_or_path": "meta-llama/Llama-3.1-8B-Instruct"}
    assert begin(json.dumps(config)).workload["model"] == "Llama-3.1-8B"


def test_a_config_of_an_own_model_is_named_by_its_file() -> None:
    own = json.dumps({**NAMED["Llama-3.1-70B"], "num_hidden_layers": 12})
    with pytest.raises(InputError, match="broker init"):
        read_starting_point(own, "test")
    assert read_starting_point(own, "test", "config.json").workload["model"] == "config.json"


@pytest.mark.parametrize(
    "text", ["", "hello", "ls -l", "vllm bench", '{"a": 1}', "torchrun 'unclosed", "[1, 2]"]
)
def test_what_is_none_of_them_is_told_what_would_be(text: str) -> None:
    with pytest.raises(InputError, match=r"a dstack service or task, .* or a command line with"):
        read_starting_point(text, "test")


RESOURCES: list[Any] = [
    None,
    [],
    "x",
    {"accelerators": None},
    {"accelerators": ["H100:8", "A100:8"]},
    {"accelerators": "H100:0.5"},
    {"any_of": [{"infra": "aws"}]},
    {"infra": "*/us-east-1"},
]


@pytest.mark.parametrize("resources", RESOURCES, ids=str)
def test_tasks_of_any_form_are_read(resources: Any) -> None:
    text = yaml.safe_dump({"num_nodes": "${N}", "resources": resources, "run": None})
    assert begin(text, kind=WorkloadKind.TRAINING).workload["kind"] == "training"


def test_names_of_models_at_hugging_face() -> None:
    assert known_model("meta-llama/Meta-Llama-3.1-8B-Instruct") == "Llama-3.1-8B"
    assert known_model("someone/unheard-of") == "someone/unheard-of"

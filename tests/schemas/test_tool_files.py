"""Files of other tools: dstack configurations, Kubernetes manifests, and configurations of trainers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from api.schemas.imports.shell import Shell
from api.schemas.imports.starting_points import read_starting_point
from api.schemas.imports.tables import import_words, option_table, word
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload import WorkloadKind
from tests.depth import examples
from tests.schemas.test_imports import left_out
from tests.schemas.test_starting_points import begin

SERVER = "vllm serve Qwen/Qwen3-32B-FP8 --tensor-parallel-size $DSTACK_GPUS_NUM"
DPO_RECIPE = (
    "model: {_component_: torchtune.models.qwen3.qwen3_8b}\nloss: {_component_: torchtune.rlhf.loss.DPOLoss}"
)


def refused(text: str, **more: Any) -> tuple[str, str]:
    """What of a source is refused, and what is expected in its place."""
    with pytest.raises(InputError) as error:
        read_starting_point(text, "t", **more)
    (problem,) = error.value.problems
    return problem.found, problem.expected


def dstack(**fields: Any) -> str:
    return yaml.safe_dump({"type": "service", "name": "chat", "commands": [SERVER], **fields})


def test_a_dstack_service_is_a_service_where_it_may_run() -> None:
    found = begin(
        dstack(
            env=["HF_TOKEN", "UNUSED=1"],
            backends=["aws", "vastai"],
            regions=["us-east-1"],
            resources={"gpu": "H100:4", "disk": "500GB"},
            replicas="1..4",
            scaling={"metric": "rps", "target": 10},
            max_price=9,
        )
    )
    service = found.workload
    assert (service["kind"], service["model"], service["precisions"]) == ("serving", "Qwen3-32B", ["fp8"])
    assert service["policy"] == {
        "providers": {"only": ["aws", "vast"]},
        "regions": ["us-east-1"],
        "gpus": {"only": ["H100"]},
    }
    assert service["min_replicas"] == 1
    listed = left_out(found)
    assert {
        "--tensor-parallel-size 4", "accelerators H100:4", "HF_TOKEN, UNUSED",
        "resources.disk", "replicas", "scaling", "max_price",
    } <= set(listed)  # fmt: skip
    assert listed["max_price"] == "a document limits money in all: state budget.usd"


@pytest.mark.parametrize(
    ("gpu", "nodes", "gpus"),
    [
        ("H100:8", 2, {"max": 16}),
        ("80GB:1..4", 2, {"min": 2, "max": 8}),
        (8, None, {"max": 8}),
        ({"name": ["A100", "H100"], "memory": "80GB", "count": 4}, 1, {"max": 4}),
        ("H100", 1, {"max": 1}),
        ("24GB..:2..", 1, {"min": 2}),
    ],
)
def test_a_dstack_task_tells_the_gpus_of_its_nodes(gpu: Any, nodes: int | None, gpus: Any) -> None:
    command = "accelerate launch train.py --model_name_or_path Qwen/Qwen3-8B --max_seq_length 1024"
    fields = {"type": "task", "commands": [command], "resources": {"gpu": gpu}}
    text = dstack(**fields, **({} if nodes is None else {"nodes": nodes}))
    assert begin(text).workload.get("gpus") == gpus


def test_a_spot_policy_of_a_batch_is_kept() -> None:
    for policy, interruptible in (("spot", True), ("auto", True), ("on-demand", False)):
        batch = begin(dstack(spot_policy=policy), kind=WorkloadKind.BATCH).workload
        assert batch["interruptible"] is interruptible


def test_what_is_no_run_of_dstack_is_refused() -> None:
    assert refused("type: fleet\nnodes: 4\nresources: {gpu: 1}") == ("fleet", "a dstack service or task")
    assert "torchrun" in refused(dstack(commands=["make serve"]))[1]


POD = {
    "containers": [
        {
            "name": "server",
            "image": "vllm/vllm-openai:v0.11.0",
            "args": ["--model=$(MODEL)", "--tensor-parallel-size", "2", "--enable-lora"],
            "env": [{"name": "MODEL", "value": "meta-llama/Llama-3.1-8B-Instruct"}, {"name": "HF_TOKEN"}],
            "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "64Gi"}},
            "livenessProbe": {},
        }
    ],
    "nodeSelector": {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "topology.kubernetes.io/region": "europe-west4",
    },
    "tolerations": [],
}


def manifest(kind: str, spec: dict[str, Any], version: str = "apps/v1") -> str:
    told = {"apiVersion": version, "kind": kind, "metadata": {"name": "chat"}, "spec": spec}
    return yaml.safe_dump(told)


def test_a_deployment_is_the_server_of_its_pods() -> None:
    service = manifest("Service", {"ports": [{"port": 80}]}, "v1")
    found = begin(manifest("Deployment", {"replicas": 3, "template": {"spec": POD}}) + "---\n" + service)
    workload = found.workload
    assert (workload["name"], workload["kind"], workload["model"]) == ("chat", "serving", "Llama-3.1-8B")
    assert workload["policy"] == {"regions": ["europe-west4"], "gpus": {"only": ["L4"]}}
    listed = left_out(found)
    assert {
        "--tensor-parallel-size 2", "--enable-lora", "accelerators nvidia-l4, nvidia.com/gpu 2", "HF_TOKEN",
        "replicas", "Service chat", "pod.nodeSelector, pod.tolerations, container.livenessProbe",
    } <= set(listed)  # fmt: skip


def test_a_shell_in_a_container_is_read_with_its_variables() -> None:
    container = {
        "command": ["/bin/bash", "-c", 'set -e; if [ "$X" ]; then exec vllm serve "$MODEL" -tp 2; fi'],
        "env": [{"name": "MODEL", "value": "Qwen/Qwen3-8B"}],
    }
    found = begin(manifest("StatefulSet", {"template": {"spec": {"containers": [container]}}}))
    assert found.workload["model"] == "Qwen3-8B"


def test_a_group_of_workers_is_one_replica_over_its_nodes() -> None:
    leader = {"containers": [{"command": [
        "python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-32B",
        "--tp", "16", "--nnodes", "$(LWS_GROUP_SIZE)", "--trust-remote-code",
    ]}]}  # fmt: skip
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "leaderTemplate": {"spec": leader}}}
    found = begin(manifest("LeaderWorkerSet", spec, "leaderworkerset.x-k8s.io/v1"))
    assert (found.workload["model"], found.workload["engine"]) == ("Qwen3-32B", "sglang")
    assert {"--nnodes 2", "nodes 2"} <= set(left_out(found))


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("LLMInferenceService", {"model": {"uri": "hf://Qwen/Qwen3-8B", "name": "x"}, "replicas": 2}),
        (
            "InferenceService",
            {"predictor": {"minReplicas": 1, "model": {
                "modelFormat": {"name": "huggingface"},
                "args": ["--model_id=Qwen/Qwen3-8B", "--dtype=bfloat16"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }}},
        ),
        ("InferenceService", {"predictor": {"model": {"storageUri": "hf://Qwen/Qwen3-8B"}}}),
    ],
)  # fmt: skip
def test_a_service_of_kserve_names_its_model(kind: str, spec: dict[str, Any]) -> None:
    found = begin(manifest(kind, spec, "serving.kserve.io/v1beta1"))
    assert (found.workload["kind"], found.workload["model"]) == ("serving", "Qwen3-8B")
    assert "Model" not in found.missing


def test_a_job_of_several_pods_is_a_run_on_all_of_them() -> None:
    container = {
        "command": ["torchrun"],
        "args": ["--nnodes=4", "--nproc_per_node=8", "train.py", "--model", "Qwen/Qwen3-8B"],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    roles = {"Master": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
             "Worker": {"replicas": 3, "template": {"spec": {"containers": [container]}}}}  # fmt: skip
    found = begin(manifest("PyTorchJob", {"pytorchReplicaSpecs": roles}, "kubeflow.org/v1"))
    assert (found.workload["kind"], found.workload["gpus"]) == ("training", {"max": 32})


def test_objects_that_serve_nothing_are_refused() -> None:
    assert refused(manifest("ConfigMap", {}, "v1"))[0] == "ConfigMap chat"
    pod = {"containers": [{"image": "ghcr.io/huggingface/text-generation-inference:2.4"}]}
    assert refused(manifest("Deployment", {"template": {"spec": pod}}))[0] == "Text Generation Inference"
    cpu = {"containers": [{"image": "vllm/vllm-openai-cpu:v0.19.0", "args": ["--model=Qwen/Qwen3-8B"]}]}
    found = refused(manifest("Deployment", {"template": {"spec": cpu}}))[0]
    assert found == "vLLM on processors that are no GPUs"
    with pytest.raises(InputError, match="malformed YAML"):
        read_starting_point("apiVersion: v1\nkind: Pod\nspec: [", "t")


AXOLOTL = {
    "base_model": "NousResearch/Meta-Llama-3.1-8B",
    "datasets": [{"path": "x", "type": "alpaca"}],
    "sequence_len": 4096,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": "auto",
    "optimizer": "adamw_torch_fused",
    "load_in_8bit": False,
    "adapter": None,
    "fsdp_config": {"offload_params": False},
    "new_trick": 7,
}


def test_an_axolotl_configuration_is_a_run() -> None:
    found = begin(yaml.safe_dump(AXOLOTL).replace("NousResearch", "meta-llama"))
    run = found.workload
    assert (run["kind"], run["model"], run["sequence_length"]) == ("training", "Llama-3.1-8B", 4096)
    assert (run["precision"], run["software"]) == ("bf16", "fsdp")
    listed = left_out(found)
    assert listed["new_trick: 7"] == "a document has no field for it"
    assert listed["load_in_8bit: false"] == "it is switched off"
    assert "the number of GPUs" in listed
    batch = "micro_batch_size: 2, gradient_accumulation_steps: 4"
    assert listed[batch] == "the number of GPUs is not stated: state global_batch_tokens and tokens"
    assert refused(yaml.safe_dump(AXOLOTL), kind=WorkloadKind.SERVING)[0] == "serving"


@pytest.mark.parametrize(
    "other",
    [
        {"load_in_4bit": True},
        {"rl": "grpo"},
        {"optimizer": "lion"},
        {"fsdp_config": {"offload_params": True}},
        {"activation_offloading": True},
        {"qat": {"weight_dtype": "int4"}},
        {"reward_model": True},
    ],
)
def test_another_method_of_a_configuration_is_refused(other: dict[str, Any]) -> None:
    found, expected = refused(yaml.safe_dump(AXOLOTL | other))
    assert next(iter(other)) in found
    assert "cannot be planned yet" in expected


@pytest.mark.parametrize(
    ("other", "field", "value"),
    [
        ({"adapter": "qlora", "lora_r": 32}, "adapter", {"kind": "lora", "rank": 32, "base": "int4"}),
        ({"rl": "dpo"}, "method", "dpo"),
        ({"optimizer": "paged_adamw_8bit"}, "optimizer", {"name": "paged_adamw8bit"}),
        ({"optimizer": "muon"}, "optimizer", {"name": "muon"}),
    ],
)
def test_how_a_configuration_trains_is_read(other: dict[str, Any], field: str, value: object) -> None:
    assert begin(yaml.safe_dump(AXOLOTL | other)).workload[field] == value


def recipe(**fields: Any) -> str:
    plain = {
        "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
        "checkpointer": {"checkpoint_dir": "/tmp/Meta-Llama-3.1-8B-Instruct/"},
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 2048},
        "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5},
        "batch_size": 2,
        "dtype": "bf16",
    }
    return yaml.safe_dump(plain | fields)


def test_a_torchtune_recipe_is_a_run() -> None:
    run = begin(recipe()).workload
    assert (run["model"], run["sequence_length"], run["precision"]) == ("Llama-3.1-8B", 2048, "bf16")
    assert begin(recipe(checkpointer={"checkpoint_dir": "/data"})).workload["model"] == "Llama-3.1-8B"
    paged = begin(recipe(optimizer={"_component_": "bitsandbytes.optim.PagedAdamW8bit"})).workload
    assert paged["optimizer"] == {"name": "paged_adamw8bit"}
    lora = {"_component_": "torchtune.models.llama3_1.lora_llama3_1_8b", "lora_rank": 8}
    assert "lora_llama3_1_8b" in refused(recipe(model=lora))[0]
    assert "DPOLoss" in refused(DPO_RECIPE)[0]


def test_the_options_of_a_trainer_may_stand_in_a_file() -> None:
    told = {
        "model_name_or_path": "Qwen/Qwen3-8B",
        "cutoff_len": 1024,
        "stage": "sft",
        "finetuning_type": "full",
    }
    assert begin(json.dumps(told)).workload["sequence_length"] == 1024
    assert begin(json.dumps(told | {"stage": "dpo"})).workload["method"] == "dpo"
    assert refused(json.dumps(told | {"stage": "ppo"}))[0] == "stage: ppo"


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("axolotl train --base_model Qwen/Qwen3-8B -- --nproc_per_node=2 --nnodes=2", {"max": 4}),
        ("tune run --nproc_per_node 4 full_finetune_distributed model=Qwen/Qwen3-8B", {"max": 4}),
        ("trl sft --model_name_or_path Qwen/Qwen3-8B --num_processes 8", {"max": 8}),
        ("python train.py --model_name Qwen/Qwen3-8B --per_device_train_batch_size 1", {"max": 1}),
        ("N=2; torchrun --nnodes $N --nproc-per-node $((2 * $N)) t.py --model Qwen/Qwen3-8B", {"max": 8}),
    ],
)
def test_runs_are_known_however_they_are_started(line: str, gpus: dict[str, int]) -> None:
    run = begin(line).workload
    assert (run["kind"], run["model"], run["gpus"]) == ("training", "Qwen3-8B", gpus)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("axolotl train config.yml", "config.yml"),
        ("tune run full_finetune_single_device --config qwen3/8B_full", "qwen3/8B_full"),
        ("accelerate launch --num_processes 8 sft.py --config sft.yaml", "sft.yaml"),
        ("tune run --nproc_per_node 2 lora_finetune_distributed --config x", "lora_finetune_distributed"),
        ("accelerate launch -m axolotl.cli.train qlora.yml", "qlora.yml"),
        ("trl grpo --model_name_or_path Qwen/Qwen3-8B", "grpo"),
        ("vllm serve Qwen/Qwen3-8B --task embed", "--task embed"),
        ("vllm serve Qwen/Qwen3-8B --device cpu", "--device cpu"),
        ("docker run ollama/ollama:latest", "Ollama"),
    ],
)
def test_what_a_command_does_not_say_is_never_guessed(line: str, named: str) -> None:
    assert refused(line)[0] == named


def test_an_argument_is_no_server() -> None:
    assert begin("pip install lmdeploy ollama\nvllm serve Qwen/Qwen3-8B").workload["model"] == "Qwen3-8B"


def test_a_variable_with_several_values_has_none() -> None:
    text = "if [ $A ]; then M=Qwen/Qwen3-8B; else M=Qwen/Qwen3-32B; fi\nvllm serve $M"
    assert refused(text) == (
        "'$M'",
        "the name of the model in place of a variable that has no value here, or several",
    )
    (command,) = list(Shell("if x; then M=a; fi\necho $M", {}).commands())[-1:]
    assert command.words == ["echo", "a"]


SAMPLES = [
    yaml.safe_load(
        dstack(env=["A=1"], backends=["aws"], resources={"gpu": "H100:4"}, replicas=[{"count": 1}])
    ),
    json.loads(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat"}, "spec": POD})),
    AXOLOTL,
    yaml.safe_load(recipe()),
    {
        "name": "t",
        "num_nodes": 2,
        "resources": {"any_of": [{"infra": "aws"}]},
        "envs": {"A": 1},
        "run": SERVER,
    },
]
VALUES = st.sampled_from(
    [None, 0, -1, 3.5, True, "", "x", "..", "${X}", [], [None], [[1]], ["a"], {}, {"a": 1}]
)


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_file_with_an_odd_value_anywhere_is_read_or_refused(
    sample: dict[str, Any], data: st.DataObject
) -> None:
    node: Any = (told := json.loads(json.dumps(sample)))
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = data.draw(VALUES)
    for kind in (None, WorkloadKind.TRAINING):
        with suppress(InputError):
            assert read_starting_point(json.dumps(told), "t", kind=kind).workload


def test_every_reason_of_the_tables_is_a_sentence() -> None:
    words = import_words()
    used = {name for table in ("servers", "runs") for name in words[table]["options"]}
    used |= {
        name for tool in ("skypilot", "dstack", "kubernetes") for name in words[tool] if name != "clouds"
    }
    assert used <= words["reasons"].keys() | words["words"].keys()
    assert option_table("servers").why("tensor-parallel-size") == words["reasons"]["layout"]
    assert word("gpus").why == "state policy.gpus, the GPUs that may be used"

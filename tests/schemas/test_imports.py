"""Commands and tasks as people publish them: nothing is dropped without a word or guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from api.schemas.imports.server_lines import find_server
from api.schemas.imports.shell import MOST_REPLACED, Shell
from api.schemas.imports.starting_points import StartingPoint, read_starting_point
from api.schemas.imports.training_lines import find_launcher
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload import WorkloadKind
from tests.domain.test_model_config import NAMED
from tests.schemas.test_starting_points import begin

QLORA = """\
torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-2-70b-hf --use_lora True \\
  --lora_r 8 --load_in_4bit True --bf16 True --max_steps 1000
"""
API_SERVER = """\
envs:
  MODEL_NAME: meta-llama/Llama-3.1-8B-Instruct
  HF_TOKEN: null
resources: {accelerators: "A100-80GB:8", ports: 8081}
setup: pip install vllm
run: |
  conda activate vllm
  python -u -m vllm.entrypoints.openai.api_server --model $MODEL_NAME \\
    --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE 2>&1 | tee api.log &
"""


def left_out(found: StartingPoint) -> dict[str, str]:
    return {one.what: one.why for one in found.left_out}


@pytest.mark.parametrize(
    ("line", "model", "precisions"),
    [
        ("vllm serve meta-llama/Meta-Llama-3.1-405B-Instruct-FP8 -tp 8", "Llama-3.1-405B", ["fp8"]),
        ("vllm serve Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "Qwen3-Coder-480B-A35B", ["fp8"]),
        ("vllm serve Qwen/Qwen3-14B-AWQ --dtype half", "Qwen3-14B", ["int4"]),
        ("vllm serve Qwen/Qwen3-32B-FP8", "Qwen3-32B", ["fp8"]),
        ("vllm serve nvidia/Llama-3.1-405B-Instruct-NVFP4", "Llama-3.1-405B", ["fp4"]),
        ("vllm serve unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "Llama-3.3-70B", ["int4"]),
        ("vllm serve x/Llama-3.1-70B-Instruct-quantized.w4a16", "Llama-3.1-70B", ["int4"]),
        ("vllm serve Qwen/Qwen3-8B --quantization bitsandbytes", "Qwen3-8B", ["int4"]),
        ("vllm serve /mnt/models/Qwen3-30B-A3B-quantized.w4a16/ --dtype float16", "Qwen3-30B-A3B", ["int4"]),
        ("vllm serve Qwen/Qwen3-8B", "Qwen3-8B", None),
    ],
)
def test_the_format_of_a_checkpoint_is_planned(line: str, model: str, precisions: list[str] | None) -> None:
    workload = begin(line).workload
    assert (workload["model"], workload.get("precisions")) == (model, precisions)


class Words(list[str]):
    """Words that count how many of them are copied."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.copied += len(found) if isinstance(at, slice) else 0
        return found


@pytest.mark.parametrize(
    ("words", "copies"),
    [("echo a -m b", 0), ("nohup vllm serve m", 2), ("env -m torch.distributed.run t.py", 2)],
)
def test_a_long_command_is_looked_through_without_a_copy_at_each_word(words: str, copies: int) -> None:
    """A copy at each of 95,000 words held a core for half a minute."""
    read = Words(words.split())
    found = [finder(read) for finder in (find_server, find_launcher)]
    assert (read.copied, bool(copies)) == (copies, any(found))


def test_what_takes_the_place_of_variables_and_substitutions_is_bounded() -> None:
    for text in ("echo " + "`a" * 90_000, "a=" + "$a" * 40_000 + "\necho " + "$a" * 40_000):
        (command, *_) = Shell(text).commands()
        assert sum(map(len, command.words)) < len(text) + MOST_REPLACED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("vllm serve m" + " " * 200_000, "200,012 characters"),
        (
            json.dumps({"run": "vllm serve m", "resources": {"any_of": [{"cloud": "aws"}] * 101}}),
            "101 alternatives of resources",
        ),
    ],
)
def test_a_source_that_no_person_writes_is_refused_before_it_is_read(text: str, found: str) -> None:
    with pytest.raises(InputError) as refused:
        begin(text)
    assert [one.found for one in refused.value.problems] == [found]


def test_a_format_of_no_plan_is_said() -> None:
    found = begin("vllm serve Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8")
    assert found.workload["precisions"] == ["fp8"]
    assert (
        "needs GPUs that multiply it"
        in left_out(found)["weights in int8 of Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8"]
    )
    with pytest.raises(InputError, match="expected a method of bf16, fp16, fp8, fp4, int4"):
        read_starting_point("vllm serve Qwen/Qwen3-8B --quantization tritonq", "t")


@pytest.mark.parametrize(
    "word", ["FP6", "1bit-HQQ", "4.0bpw-h6-exl2", "AQLM-2Bit-1x16", "Q4_K_M-GGUF", "W4A4"]
)
def test_a_format_of_few_bits_in_a_name_is_said(word: str) -> None:
    found = begin(f"vllm serve x/Llama-3.1-8B-Instruct-{word}")
    assert found.workload["model"] == "Llama-3.1-8B"
    ((what, why),) = left_out(found).items()
    assert what.endswith(f"of x/Llama-3.1-8B-Instruct-{word}")
    assert why.startswith("no format of a plan")


@pytest.mark.parametrize(
    ("told", "precision"),
    [
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        (None, None),
    ],
)
def test_the_format_of_a_config_stays_with_a_known_model(told: Any, precision: str | None) -> None:
    config = {"architectures": ["X"], **NAMED["Llama-3.1-70B"], "torch_dtype": "bfloat16"}
    found = begin(json.dumps(config | ({"quantization_config": told} if told else {})))
    assert found.workload.get("precisions") == ([precision] if precision else None)


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B --port 80", None),
        ("docker run --gpus all -p 80:80 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B", None),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2", "sglang"),
        ("trtllm-serve Qwen/Qwen3-8B --tp_size 4", "tensorrt_llm"),
    ],
)
def test_servers_are_known_however_they_are_started(line: str, engine: str | None) -> None:
    workload = begin(line).workload
    assert (workload["kind"], workload["model"], workload.get("engine")) == ("serving", "Qwen3-8B", engine)


def test_another_engine_is_an_error() -> None:
    with pytest.raises(InputError, match=r"Text Generation Inference, expected an engine .* vllm, sglang"):
        read_starting_point("text-generation-launcher --model-id bigcode/starcoder", "t")


def test_a_task_that_serves_by_a_module_is_a_service() -> None:
    found = begin(API_SERVER)
    assert (found.workload["kind"], found.workload["model"]) == ("serving", "Llama-3.1-8B")
    assert {"--tensor-parallel-size 8", "setup", "HF_TOKEN", "resources.ports"} <= set(left_out(found))


def test_the_kind_is_binding() -> None:
    with pytest.raises(InputError, match="/kind: found serving, expected training"):
        read_starting_point("torchrun --nproc-per-node 8 train.py", "t", kind=WorkloadKind.SERVING)
    with pytest.raises(InputError, match="/kind: found training, expected serving or batch"):
        read_starting_point(API_SERVER, "t", kind=WorkloadKind.TRAINING)
    assert begin("vllm serve Qwen/Qwen3-8B", kind=WorkloadKind.BATCH).workload["kind"] == "batch"
    task = "resources: {accelerators: 'H100:8'}\nrun: python train.py\n"
    with pytest.raises(InputError, match="--kind"):
        read_starting_point(task, "t")
    found = begin(task, kind=WorkloadKind.TRAINING)
    assert (found.workload["gpus"], "run 'python train.py'" in left_out(found)) == ({"max": 8}, True)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("torchrun train.py --use_lora True --lora_target embed_tokens", "--lora-target embed_tokens"),
        ("deepspeed --num_gpus 1 main.py --adapter ia3", "--adapter ia3"),
        ("accelerate launch --num_processes=8 grpo.py --model-name Qwen/Qwen3-8B", "the script grpo.py"),
        ("accelerate launch --config_file zero3_offload.yaml --num_processes 8 sft.py", "zero3_offload.yaml"),
        ("torchrun train.py --optim lion_8bit", "--optim lion_8bit"),
        ("torchrun train.py --stage ppo", "--stage ppo"),
        ("torchrun train.py --model unsloth/Llama-3.1-8B-bnb-4bit", "weights in int4"),
    ],
)
def test_another_method_is_never_planned_as_full_training(line: str, named: str) -> None:
    with pytest.raises(InputError) as error:
        read_starting_point(line, "t")
    assert named in error.value.problems[0].found
    expected = error.value.problems[0].expected
    assert "cannot be planned yet" in expected or "by adapters alone" in expected


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (QLORA, {"adapter": {"kind": "lora", "rank": 8, "base": "int4"}}),
        (
            "deepspeed --num_gpus 1 main.py --lora_dim 8 --only_optimize_lora --zero_stage 3",
            {"adapter": {"kind": "lora", "rank": 8}, "software": "deepspeed"},
        ),
        ("torchrun train.py --adapter qlora", {"adapter": {"kind": "lora", "base": "int4"}}),
        (
            "torchrun train.py --use_lora --use_dora --lora_target_modules q_proj,v_proj",
            {"adapter": {"kind": "dora", "targets": ["q_proj", "v_proj"]}},
        ),
        ("torchrun train.py --finetuning_type lora --lora_target all --quantization_bit 8",
         {"adapter": {"kind": "lora", "targets": ["all"], "base": "int8"}}),
        ("torchrun train.py --optim paged_adamw_8bit", {"optimizer": {"name": "paged_adamw8bit"}}),
        ("torchrun train.py --stage dpo", {"method": "dpo"}),
        ("accelerate launch --num_processes 8 dpo_tune.py", {"method": "dpo"}),
        (
            "torchrun train.py --use_lora True --model unsloth/Llama-3.1-8B-bnb-4bit",
            {"adapter": {"kind": "lora", "base": "int4"}, "model": "Llama-3.1-8B"},
        ),
    ],
)  # fmt: skip
def test_the_method_of_a_line_is_read(line: str, fields: dict[str, Any]) -> None:
    found = begin(line).workload
    assert {name: found.get(name) for name in fields} == fields


def test_options_of_a_full_run_are_all_used_or_listed() -> None:
    found = begin(
        "torchrun --nproc_per_node 8 --master_port 1 train.py --use_lora False --lora_r 8 --bf16 True "
        "--optim adamw_torch --max_steps 10 --num_train_epochs 3 --deepspeed ds.json --my_trick 7 "
        "--seed 1 --model Qwen/Qwen3-8B recipe.yaml"
    )
    listed = left_out(found)
    assert {
        "--max-steps 10",
        "--num-train-epochs 3",
        "--deepspeed ds.json",
        "--my-trick 7",
        "recipe.yaml",
    } <= set(listed)
    assert any("--seed" in what and "--master-port" in what for what in listed)
    assert (found.workload["precision"], found.workload["software"]) == ("bf16", "deepspeed")


def test_places_are_never_more_than_the_task_allows() -> None:
    def policy(*places: str) -> tuple[Any, set[str]]:
        task = {
            "resources": {"any_of": [{"infra": place} for place in places]},
            "run": "vllm serve Qwen/Qwen3-8B",
        }
        found = begin(yaml.safe_dump(task))
        return found.workload.get("policy"), {one.what for one in found.left_out}

    both = {"providers": {"only": ["aws", "gcp"]}, "regions": ["eu-central-1", "europe-west4"]}
    assert policy("aws/eu-central-1", "gcp/europe-west4") == (both, set())
    # Lambda has a region of the same name, which the task does not allow.
    assert policy("aws/us-east-1", "lambda/us-west-2")[1] == {"lambda/us-west-2"}
    assert policy("aws", "gcp/europe-west4") == ({"providers": {"only": ["aws"]}}, {"gcp/europe-west4"})
    assert policy("aws", "kubernetes")[1] == {"kubernetes"}
    with pytest.raises(InputError, match="a cloud of the broker's sellers"):
        policy("kubernetes")


def test_each_kind_of_accelerator_is_named() -> None:
    task = {"resources": {"accelerators": {"A100": 8, "H100": 8}}, "run": "vllm serve Qwen/Qwen3-8B"}
    assert "accelerators A100:8, H100:8" in left_out(begin(yaml.safe_dump(task)))


def test_variables_have_the_values_of_the_text() -> None:
    text = "model=Qwen/Qwen3-8B; vllm serve ${model} -tp ${TP:-4} --api-key $(cat key)"
    found = begin(text)
    assert found.workload["model"] == "Qwen3-8B"
    assert "--tensor-parallel-size 4" in left_out(found)
    with pytest.raises(InputError, match="in place of a variable"):
        read_starting_point("vllm serve $MODEL", "t")


def test_variables_that_hold_each_other_take_bounded_memory() -> None:
    text = "A=" + "x" * 1000 + "\n" + "A=$A$A$A$A\n" * 40 + "vllm serve $A\n"
    assert sum(len(word) for command in Shell(text).commands() for word in command.words) < 5_000_000

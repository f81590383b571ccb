"""Plans as files of other tools: those tools read them, and say the same of nodes, GPUs and places."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.export.dstack import dstack_files
from api.export.kueue import kueue_files
from api.export.skypilot import skypilot_files
from api.export.slurm import slurm_files
from api.export.targets import Target, load_words
from api.export.vllm import vllm_files
from api.export.workload_facts import WorkloadFacts
from api.schemas.plans.plan import PLAN, read_plan
from broker.catalogue import load_gpus, load_hugging_face_names
from broker.domain.basics.errors import InputError
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import Precision, ServingEngine, WorkloadKind
from providers.registry import SPECS
from tests.cli.running import broker
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer
from tests.peers_env import run

CATALOGUE = Path(__file__).parents[2] / "fixtures" / "providers" / "skypilot"
MODEL = "meta-llama/Llama-3.1-8B"
CHAT = {"chat": WorkloadFacts(model=MODEL)}
METRICS = {"requests_per_s_per_replica": 2.5, "cold_start_s": 90.0}


def placed(provider: str, sku: str, region: str, name: str, kind: WorkloadKind, **changes: Any) -> Placement:
    offer = an_offer(f"{provider}-{name}", provider=provider)
    offer = replace(offer, sku=replace(offer.sku, name=sku), region=region)
    segments = [a_segment(0, 10, 2), a_segment(10, 20, 4)]
    return replace(a_placement(offer, segments, name, kind), **changes)


def the_plan() -> Plan:
    estimate = Estimate(METRICS, METRICS, METRICS)
    layout = Parallelism(tp=2)
    serving = {"gpus_per_replica": 2, "replicas": 16, "parallelism": layout, "estimate": estimate}
    kind = WorkloadKind
    return a_plan(
        placed("lambda", "gpu_8x_v100", "us-south-1", "Pre train/8B", kind.TRAINING, gpu="V100-SXM2-16GB"),
        placed("aws", "p5.48xlarge", "us-east-1", "chat", kind.SERVING, tier=Tier.SPOT, **serving),
        placed("aws", "p5.48xlarge", "us-east-1", "chat", kind.SERVING, precision=Precision.FP8, **serving),
        placed(
            "runpod", "NVIDIA H100", "US-KS-2", "8 summaries", kind.BATCH, gpus_per_replica=8, disk_gb=300.0
        ),
    )


@pytest.fixture(scope="module")
def sky_tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan's tasks as SkyPilot reads them, its catalogue at hand."""
    folder = tmp_path_factory.mktemp("sky")
    for cloud in ("aws", "lambda"):
        place = folder / ".sky" / "catalogs" / "v8" / cloud
        place.mkdir(parents=True)
        shutil.copy(CATALOGUE / f"{cloud}-vms.csv", place / "vms.csv")
    for name, text in skypilot_files(the_plan(), CHAT, "plan.json").files.items():
        (folder / name).write_text(text)
    environ = {"HOME": str(folder), "SKY_RUNTIME_DIR": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    found: dict[str, Any] = run("skypilot", "accept_skypilot.py", str(folder), environ=environ)
    return found


@pytest.mark.xdist_group("peers")
def test_skypilot_reads_the_tasks(sky_tasks: dict[str, Any]) -> None:
    assert set(sky_tasks) == {f"{n}.sky.yaml" for n in ("pre-train-8b", "chat-1", "chat-2", "w-8-summaries")}
    run_, chat = sky_tasks["pre-train-8b.sky.yaml"], sky_tasks["chat-1.sky.yaml"]
    assert run_["num_nodes"] == 4
    assert run_["resources"]["infra"] == "lambda/us-south-1"
    assert run_["resources"]["instance_type"] == "gpu_8x_v100"
    assert chat["resources"]["use_spot"] is True
    assert chat["service"]["replica_policy"]["max_replicas"] == 4
    assert chat["service"]["replica_policy"]["target_qps_per_replica"] == 10
    assert chat["envs"]["MODEL"] == MODEL
    assert "--tensor-parallel-size 2" in chat["run"]
    assert "--data-parallel-size 4" in chat["run"]
    batch = sky_tasks["w-8-summaries.sky.yaml"]["resources"]
    assert (batch["accelerators"], batch["disk_size"]) == ({"H100": 8}, 300)


@pytest.mark.xdist_group("peers")
def test_skypilot_runs_a_reserved_plan_on_its_pools(tmp_path: Path) -> None:
    """As SkyPilot reads them, with the pools that ``broker hosts`` writes."""
    pools = tmp_path / ".sky" / "ssh_node_pools.yaml"
    pools.parent.mkdir()
    names = ("pre-train-8b", "chat", "8-summaries")
    pools.write_text(yaml.safe_dump({name: {"user": "root", "hosts": ["10.0.0.1"]} for name in names}))
    for name, text in skypilot_files(the_plan(), CHAT, "plan.json", reserved=True).files.items():
        (tmp_path / name).write_text(text)
    environ = {
        "HOME": str(tmp_path),
        "SKY_RUNTIME_DIR": str(tmp_path),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    found = run("skypilot", "accept_skypilot.py", str(tmp_path), environ=environ)
    told = {name: task["resources"] for name, task in found.items()}
    assert told["pre-train-8b.sky.yaml"]["infra"] == "ssh/pre-train-8b"
    assert told["chat-1.sky.yaml"]["infra"] == told["chat-2.sky.yaml"]["infra"] == "ssh/chat"
    assert told["w-8-summaries.sky.yaml"]["accelerators"] == {"H100": 8}


@pytest.mark.xdist_group("peers")
def test_dstack_runs_a_reserved_plan_on_its_fleets(tmp_path: Path) -> None:
    for name, text in dstack_files(the_plan(), CHAT, "plan.json", reserved=True).files.items():
        (tmp_path / name).write_text(text)
    found = run("dstack", "accept_dstack.py", str(tmp_path), environ={"HOME": str(tmp_path)})
    assert not [name for name in found if ".fleet." in name]
    service = found["chat-2.dstack.yml"]
    assert (service["fleets"][0]["name"], service["backends"]) == ("chat", None)
    assert found["pre-train-8b.dstack.yml"]["fleets"][0]["name"] == "pre-train-8b"


EXPORTS = {
    Target.SKYPILOT: skypilot_files,
    Target.DSTACK: dstack_files,
    Target.VLLM: vllm_files,
    Target.KUEUE: kueue_files,
    Target.SLURM: slurm_files,
}


@pytest.mark.parametrize("target", EXPORTS)
def test_every_file_says_whether_it_buys(target: Target) -> None:
    plan, files_of = the_plan(), EXPORTS[target]
    drafts, held = (files_of(plan, CHAT, "plan.json", reserved=one).files for one in (False, True))
    buys = target in (Target.SKYPILOT, Target.DSTACK)
    for text in drafts.values():
        assert ("Running this buys capacity: do not reserve the plan too" in text) is buys
        assert ("This buys nothing" in text) is not buys
    for text in held.values():
        assert "this runs on its machines and rents none" in text
        assert f"broker hosts {plan.plan_id} --format" in text


def test_a_reserved_plan_is_run_whoever_sold_it() -> None:
    plan = a_plan(placed("sfcompute", "h100", "hayesvalley", "run", WorkloadKind.TRAINING))
    assert set(skypilot_files(plan, {}, "plan.json", reserved=True).files) == {"run.sky.yaml"}
    script = slurm_files(plan, {}, "plan.json", reserved=True).files["run.sbatch"]
    assert "#SBATCH --partition=run\n" in script
    assert "#SBATCH --gres=gpu:h100-sxm-80gb:8\n" in script, "as `broker hosts --format slurm` has it"


@pytest.mark.xdist_group("peers")
def test_dstack_reads_fleets_and_runs(tmp_path: Path) -> None:
    for name, text in dstack_files(the_plan(), CHAT, "plan.json").files.items():
        (tmp_path / name).write_text(text)
    found = run("dstack", "accept_dstack.py", str(tmp_path), environ={"HOME": str(tmp_path)})
    assert len(found) == 11
    fleet, task = found["pre-train-8b.fleet.dstack.yml"], found["pre-train-8b.dstack.yml"]
    assert (fleet["nodes"], fleet["placement"]) == ({"min": 4, "max": 4}, "cluster")
    assert fleet["resources"]["gpu"]["name"] == ["V100"]
    assert fleet["resources"]["gpu"]["count"] == {"min": 8, "max": 8}
    assert (task["type"], task["nodes"], task["fleets"][0]["name"]) == ("task", 4, "pre-train-8b-f")
    service = found["chat-2.dstack.yml"]
    assert (service["type"], service["replicas"]) == ("service", {"min": 2, "max": 4})
    assert service["spot_policy"] == "on-demand"
    assert "--quantization fp8" in service["commands"][-1]
    batch = found["w-8-summaries-n0.dstack.yml"]
    assert batch["backends"] == ["runpod"]
    assert batch["resources"]["disk"]["size"] == {"min": 300.0, "max": None}


VLLM_OPTIONS = {
    "model",
    "served-model-name",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "enable-expert-parallel",
    "max-model-len",
    "trust-remote-code",
    "max-num-seqs",
    "dtype",
    "quantization",
    "host",
    "port",
}
"""Of the documented options of ``vllm serve``."""


def test_vllm_configurations_have_documented_options_only() -> None:
    files = vllm_files(the_plan(), CHAT, "plan.json").files
    assert set(files) == {"chat-1.vllm.yaml", "chat-2.vllm.yaml", "w-8-summaries.vllm.yaml"}
    read = {name: yaml.safe_load(text) for name, text in files.items()}
    assert all(set(settings) <= VLLM_OPTIONS for settings in read.values())
    assert read["chat-2.vllm.yaml"]["quantization"] == "fp8"
    assert (read["chat-1.vllm.yaml"]["model"], read["chat-1.vllm.yaml"]["dtype"]) == (MODEL, "bfloat16")
    assert "model" not in read["w-8-summaries.vllm.yaml"]
    with pytest.raises(InputError, match="a service or batch, which vLLM serves"):
        vllm_files(replace(the_plan(), placements=the_plan().placements[:1]), {}, "plan.json")


def test_a_replica_over_two_nodes_is_one_server() -> None:
    wide = placed(
        "aws",
        "p5.48xlarge",
        "us-east-1",
        "wide",
        WorkloadKind.SERVING,
        gpus_per_replica=16,
        replicas=2,
        parallelism=Parallelism(tp=8, pp=2),
    )
    task = yaml.safe_load(skypilot_files(a_plan(wide), {}, "plan.json").files["wide.sky.yaml"])
    assert task["num_nodes"] == 2
    assert task["service"]["replica_policy"] == {"min_replicas": 1, "max_replicas": 2}
    assert "--node-rank" in task["run"]
    with pytest.raises(InputError, match="at most one node"):
        dstack_files(a_plan(wide), {}, "plan.json")


def served_by(engine: ServingEngine, kind: WorkloadKind = WorkloadKind.SERVING, **changes: Any) -> Plan:
    degrees = {name: changes.pop(name, 1) for name in ("dp", "ep")}
    layout = Parallelism(tp=changes.get("gpus_per_replica", 8), **degrees)
    shape = {"gpus_per_replica": 8, "replicas": 4, "parallelism": layout, "engine": engine, **changes}
    return a_plan(placed("aws", "p5.48xlarge", "us-east-1", "chat", kind, **shape))


@pytest.mark.parametrize(
    ("engine", "install", "command"),
    [
        (ServingEngine.SGLANG, "sglang[all]", "python -m sglang.launch_server --model-path"),
        (ServingEngine.TENSORRT_LLM, "tensorrt-llm", "trtllm-serve"),
        (ServingEngine.VLLM, "vllm", "vllm serve"),
    ],
)
def test_each_engine_is_installed_and_started(engine: ServingEngine, install: str, command: str) -> None:
    """A plan for one engine run on another would not be the plan."""
    plan = served_by(engine)
    task = yaml.safe_load(skypilot_files(plan, {}, "plan.json").files["chat.sky.yaml"])
    run_ = yaml.safe_load(dstack_files(plan, {}, "plan.json").files["chat.dstack.yml"])
    assert install in task["setup"]
    assert command in task["run"]
    assert install in run_["commands"][0]
    assert command in run_["commands"][-1]


def test_sglang_s_options() -> None:
    """Of its page of server arguments: degrees, replicas side by side, format, place; nodes of a server."""
    plan = served_by(ServingEngine.SGLANG, gpus_per_replica=4, ep=4, precision=Precision.FP8)
    command = yaml.safe_load(dstack_files(plan, {}, "plan.json").files["chat.dstack.yml"])["commands"][-1]
    for option in ("--tp-size 4", "--dp-size 2", "--ep-size 4", "--quantization fp8", "--port 8000"):
        assert option in command
    wide = served_by(ServingEngine.SGLANG, gpus_per_replica=16, replicas=2)
    task = yaml.safe_load(skypilot_files(wide, {}, "plan.json").files["chat.sky.yaml"])
    assert '--nnodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" --dist-init-addr' in task["run"]


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (
            ServingEngine.VLLM,
            "--tensor-parallel-size 1 --pipeline-parallel-size 1 --data-parallel-size 8"
            " --max-num-seqs 256 --enable-expert-parallel",
        ),
        (
            ServingEngine.SGLANG,
            "--tp-size 8 --dp-size 8 --max-running-requests 2048 --enable-dp-attention --ep-size 8",
        ),
        (
            ServingEngine.TENSORRT_LLM,
            "--tp_size 8 --max_batch_size 256 --ep_size 8 --extra_llm_api_options attention_ranks.yaml",
        ),
    ],
)
def test_attention_ranks_in_each_engine_s_words(engine: ServingEngine, told: str) -> None:
    """vLLM counts them beside the tensor group and limits sequences a rank, SGLang inside it and over all,
    TensorRT-LLM reads them from a file."""
    plan = served_by(engine, dp=8, ep=8)
    command = yaml.safe_load(dstack_files(plan, {}, "plan.json").files["chat.dstack.yml"])["commands"][-1]
    for option in told.split(" --"):
        assert f"--{option.removeprefix('--')}" in command
    if engine is ServingEngine.TENSORRT_LLM:
        written = yaml.safe_load(command.removeprefix("echo '").split("' > attention_ranks.yaml && ")[0])
        assert written["enable_attention_dp"] is True
        assert written["attention_dp_config"]["enable_balance"] is True


@pytest.mark.parametrize(
    ("plan", "field", "expected"),
    [
        (
            served_by(ServingEngine.TENSORRT_LLM, gpus_per_replica=2),
            "gpus_per_replica",
            "one replica per node",
        ),
        (
            served_by(ServingEngine.TENSORRT_LLM, gpus_per_replica=16, replicas=2),
            "gpus_per_replica",
            "one node",
        ),
        (served_by(ServingEngine.SGLANG, WorkloadKind.BATCH), "engine", "vllm, which can process files"),
    ],
)
def test_what_an_engine_has_no_command_for_is_named(plan: Plan, field: str, expected: str) -> None:
    with pytest.raises(InputError, match=rf"/placements/0/{field}.*{expected}"):
        skypilot_files(plan, {}, "plan.json")


def test_vllm_is_given_what_it_serves_alone() -> None:
    plan = a_plan(*the_plan().placements, *served_by(ServingEngine.SGLANG).placements)
    assert set(vllm_files(plan, {}, "plan.json").files) == {
        "chat-1.vllm.yaml",
        "chat-2.vllm.yaml",
        "w-8-summaries.vllm.yaml",
    }


def test_a_plan_keeps_its_engines() -> None:
    plan = served_by(ServingEngine.TENSORRT_LLM)
    document = PLAN.write(plan)
    assert document["placements"][0]["engine"] == "tensorrt_llm"
    again = read_plan(json.dumps(document), "plan.json")
    assert again.placements[0].engine is ServingEngine.TENSORRT_LLM
    del document["placements"][0]["engine"]
    assert read_plan(json.dumps(document), "plan.json").placements[0].engine is None


def test_what_a_tool_does_not_know_is_named() -> None:
    plan = a_plan(placed("sfcompute", "h100", "hayesvalley", "run", WorkloadKind.TRAINING))
    with pytest.raises(
        InputError, match=r"/placements/0/provider.*'sfcompute'.*one that skypilot knows: aws"
    ):
        skypilot_files(plan, {}, "plan.json")


@pytest.mark.parametrize("target", [Target.SKYPILOT, Target.DSTACK])
def test_the_tables_name_what_we_have(target: Target) -> None:
    words = load_words(target)
    assert set(words.sellers) <= set(SPECS)
    assert set(words.gpus) <= set(load_gpus())
    assert set(words.places) | words.same_types <= set(words.sellers)


def test_the_command_writes_and_prints(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN.write(the_plan())))
    done = broker("export", plan, "--to", "dstack", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "out").iterdir())) == 11
    printed = broker("export", plan, "--to", "vllm", "--json")
    assert set(json.loads(printed.stdout)["files"]) == set(vllm_files(the_plan(), {}, "plan.json").files)
    assert broker("export", tmp_path / "none.json", "--to", "vllm").exit_code == 2
    assert load_hugging_face_names()["Llama-2-7B"] == "meta-llama/Llama-2-7b-hf"

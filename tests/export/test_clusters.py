"""Plans for clusters: Kubernetes' own schemas take the objects, and a shell runs the Slurm scripts."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.export.dstack import dstack_files
from api.export.ical import plan_calendar
from api.export.kueue import kueue_files
from api.export.skypilot import skypilot_files
from api.export.slurm import slurm_files
from api.export.targets import Exported
from api.export.workload_facts import WorkloadFacts
from api.schemas.plans.plan import PLAN
from broker.domain.basics.errors import InputError
from broker.domain.basics.estimate import Parallelism
from broker.domain.basics.window import Segment
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from tests.cli.running import broker, write_market
from tests.export.test_export import MODEL, placed, the_plan
from tests.fakes.examples import a_plan, a_segment
from tests.peers_env import run

SBATCH_OPTIONS = {"job-name", "nodes", "ntasks-per-node", "gres", "begin", "time", "array"}
"""Of the options in the manual page of ``sbatch`` (Slurm 22.05 to 25.05)."""


def kueue() -> Exported:
    return kueue_files(the_plan(), {"chat": WorkloadFacts(model=MODEL)}, "plan.json")


def objects(name: str) -> dict[str, dict[str, Any]]:
    """The objects of one file by their kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(kueue().files[f"{name}.kueue.yaml"])}


@pytest.mark.xdist_group("peers")
def test_kubernetes_schemas_take_jobs_deployments_and_services(tmp_path: Path) -> None:
    for name, text in kueue().files.items():
        (tmp_path / name).write_text(text)
    found = run("kubernetes", "accept_kubernetes.py", str(tmp_path), environ={"HOME": str(tmp_path)})
    assert found["pre-train-8b.kueue.yaml"] == ["Job", "Service"]
    assert found["chat-1.kueue.yaml"] == ["Deployment", "Service"]
    assert found["w-8-summaries.kueue.yaml"] == ["Job"]
    wrong = yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": {}})
    (tmp_path / "wrong.kueue.yaml").write_text(wrong)
    refused = run("kubernetes", "accept_kubernetes.py", str(tmp_path), environ={"HOME": str(tmp_path)})
    assert "template" in refused["wrong.kueue.yaml"][0]


def test_a_placement_has_its_own_queue_over_its_own_nodes_for_its_own_time() -> None:
    found = objects("pre-train-8b")
    flavor, queue, local, job = (
        found[kind] for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue", "Job")
    )
    (group,) = queue["spec"]["resourceGroups"]
    assert group["flavors"][0]["name"] == flavor["metadata"]["name"]
    assert group["flavors"][0]["resources"] == [{"name": "nvidia.com/gpu", "nominalQuota": 32}]
    assert queue["spec"]["stopPolicy"] == "Hold"
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    assert job["metadata"]["namespace"] == local["metadata"]["namespace"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] == str(20 * 3600)
    assert (job["spec"]["suspend"], job["spec"]["parallelism"], job["spec"]["completions"]) == (True, 4, 4)
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == found["Service"]["metadata"]["name"]
    asked = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert asked * job["spec"]["parallelism"] == 32
    label = flavor["spec"]["nodeLabels"]
    assert f"{next(iter(label))}={next(iter(label.values()))}" in kueue().files["pre-train-8b.kueue.yaml"]


def test_a_service_is_as_many_pods_as_it_has_servers() -> None:
    deployment = objects("chat-1")["Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert deployment["spec"]["replicas"] == 4
    assert container["image"].startswith("vllm/")
    assert {"name": "MODEL", "value": MODEL} in container["env"]
    assert "&id" not in kueue().files["chat-1.kueue.yaml"]


def test_gpus_without_a_device_plugin_are_left_out() -> None:
    tpu = placed("gcp", "ct5p", "us-east5", "run", WorkloadKind.TRAINING, gpu="TPU-v5p")
    with pytest.raises(InputError, match=r"/placements/0/gpu.*NVIDIA or AMD"):
        kueue_files(a_plan(tpu), {}, "plan.json")
    both = kueue_files(a_plan(tpu, *the_plan().placements[:1]), {}, "plan.json")
    assert [one.workload for one in both.skipped] == ["run"]
    assert set(both.files) == {"pre-train-8b.kueue.yaml"}


def scripts() -> dict[str, str]:
    return dict(slurm_files(the_plan(), {"chat": WorkloadFacts(model=MODEL)}, "plan.json").files)


def options(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return dict(line.split("=", 1) for line in lines)


def test_a_script_asks_slurm_for_what_the_plan_holds() -> None:
    found = options(scripts()["pre-train-8b.sbatch"])
    assert set(found) <= SBATCH_OPTIONS
    assert found["nodes"] == "4"
    assert found["gres"] == "gpu:v100:8"
    assert (found["begin"], found["time"]) == ("2026-11-23T12:00:00", "0-20:00:00")
    service = options(scripts()["chat-1.sbatch"])
    assert (service["nodes"], service["array"], service["gres"]) == ("1", "1-4", "gpu:h100:8")


def run_script(text: str, folder: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """Runs a script as Slurm does on a first node of four: ``srun`` starts its command on each node."""
    tools = {
        "srun": 'for SLURM_NODEID in $(seq 0 $((SLURM_NNODES - 1))); do export SLURM_NODEID; "$@"; done',
        "scontrol": "printf 'node1\\nnode2\\n'",
        "torchrun": 'echo torchrun "$@"',
        "vllm": 'echo vllm "$@"',
    }
    for name, body in tools.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[1-2]", **given}
    return subprocess.run(
        ["bash"], input=text, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_run_is_started_on_each_node_with_its_rank(tmp_path: Path) -> None:
    script = scripts()["pre-train-8b.sbatch"]
    done = run_script(script, tmp_path, SLURM_NNODES="4", COMMAND="train.py --lr 1e-4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "torchrun --nnodes 4 --node-rank 0 --nproc-per-node 8 --master-addr node1 --master-port 29500 "
        "train.py --lr 1e-4"
    )
    assert [line.split("--node-rank ")[1][0] for line in lines] == ["0", "1", "2", "3"]
    silent = run_script(script, tmp_path, SLURM_NNODES="4")
    assert silent.returncode != 0
    assert "set COMMAND to the training script" in silent.stderr


def test_a_service_and_a_batch_get_their_model_and_files(tmp_path: Path) -> None:
    served = run_script(scripts()["chat-1.sbatch"], tmp_path, SLURM_NNODES="1")
    assert served.stdout.startswith(f"vllm serve {MODEL} --served-model-name chat")
    other = run_script(scripts()["chat-1.sbatch"], tmp_path, SLURM_NNODES="1", MODEL="/models/mine")
    assert other.stdout.startswith("vllm serve /models/mine ")
    (tmp_path / "in.jsonl").write_text("one\n" * 8)
    given = {"MODEL": MODEL, "INPUT": str(tmp_path / "in.jsonl"), "OUTPUT": "out"} | {
        "SLURM_NNODES": "1",
        "SLURM_ARRAY_TASK_ID": "2",
    }
    batch = run_script(scripts()["w-8-summaries.sbatch"], tmp_path, **given)
    assert batch.stdout.startswith(
        f"vllm run-batch --model {MODEL} --input-file {tmp_path}/in.jsonl.2 --output-file out.2"
    )


def test_each_part_of_a_batch_answers_its_own_requests(tmp_path: Path) -> None:
    whole = next(one for one in the_plan().placements if one.kind is WorkloadKind.BATCH)
    whole = replace(whole, nodes=1, gpus=8)
    parts = (
        replace(whole, work_share=0.25, requests=1.0, first_request=0.0),
        replace(whole, work_share=0.75, requests=3.0, first_request=1.0),
    )
    (tmp_path / "in.jsonl").write_text("one\ntwo\nthree\nfour\n")
    given = {"MODEL": MODEL, "INPUT": str(tmp_path / "in.jsonl"), "OUTPUT": "out", "SLURM_NNODES": "1"}
    files = slurm_files(a_plan(*parts), {}, "plan.json").files
    slices = (("one\n", "out.0"), ("two\nthree\nfour\n", "out.1"))
    for (name, text), (lines, answers) in zip(sorted(files.items()), slices, strict=True):
        done = run_script(text, tmp_path, **given)
        assert done.returncode == 0, name + done.stderr
        words = done.stdout.split()
        assert Path(words[words.index("--input-file") + 1]).read_text() == lines
        assert words[words.index("--output-file") + 1] == answers
    events = plan_calendar(a_plan(*parts)).replace("\r\n ", "")
    assert "part 2 of 2\\, 75 %: requests 2 to 4" in events


def _batch_of_three(**changes: Any) -> Plan:
    whole = next(one for one in the_plan().placements if one.kind is WorkloadKind.BATCH)
    segments = tuple(replace(segment, nodes=3) for segment in whole.segments)
    size: dict[str, Any] = {"nodes": 3, "gpus": 24, "replicas": 3, "segments": segments}
    return a_plan(replace(whole, workload="sums", **{**size, **changes}))


def _shares(plan: Plan) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """What each tool runs, once for each of three nodes: the script, and what the tool sets there."""
    nodes = range(3)
    sky = yaml.safe_load(skypilot_files(plan, {}, "plan.json").files["sums.sky.yaml"])
    assert sky["num_nodes"] == 3
    assert "network_tier" not in sky["resources"]
    job = next(
        one
        for one in yaml.safe_load_all(kueue_files(plan, {}, "plan.json").files["sums.kueue.yaml"])
        if one["kind"] == "Job"
    )
    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (3, 3)
    pod = job["spec"]["template"]["spec"]["containers"][0]["command"][2]
    slurm = slurm_files(plan, {}, "plan.json").files["sums.sbatch"]
    assert (options(slurm)["nodes"], options(slurm)["array"]) == ("1", "1-3")
    guard = slurm[slurm.index(": ", slurm.index("set -euo")) :].replace("srun ", "")
    tasks = {name: yaml.safe_load(text) for name, text in dstack_files(plan, {}, "plan.json").files.items()}
    assert tasks["sums.fleet.dstack.yml"]["nodes"] == 3
    runs = [tasks[f"sums-n{node}.dstack.yml"] for node in nodes]
    assert {run["fleets"][0] for run in runs} == {"sums-f"}
    return {
        "skypilot": [(sky["run"], {"SKYPILOT_NODE_RANK": str(node)}) for node in nodes],
        "kueue": [(pod, {"JOB_COMPLETION_INDEX": str(node)}) for node in nodes],
        "slurm": [(guard, {"SLURM_ARRAY_TASK_ID": str(node + 1)}) for node in nodes],
        "dstack": [("\n".join(run["commands"][1:]), {}) for run in runs],
    }


@pytest.mark.parametrize("part", [False, True])
def test_each_node_of_a_batch_answers_its_own_requests(tmp_path: Path, part: bool) -> None:
    requests = [f"request {number}" for number in range(10)]
    (tmp_path / "in.jsonl").write_text("\n".join(requests))  # the last line has no end
    changes = {"work_share": 0.7, "requests": 7.0, "first_request": 2.0} if part else {}
    of_part = {"FIRST_REQUEST": "2", "REQUESTS": "7"} if part else {}
    for tool, scripts_of_nodes in _shares(_batch_of_three(**changes)).items():
        answered, outputs = [], set()
        for script, told in scripts_of_nodes:
            # bash's word for vllm shows what it is given
            given = {"MODEL": MODEL, "INPUT": str(tmp_path / "in.jsonl"), "OUTPUT": "out"} | of_part | told
            shown = 'vllm() { cat "$5"; echo; echo "$7"; }\n' + script
            done = subprocess.run(
                ["bash", "-c", shown], env={"PATH": os.environ["PATH"], **given},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            *lines, output = done.stdout.split("\n")[:-1]
            answered += [line for line in lines if line]
            outputs.add(output)
        assert answered == (requests[2:9] if part else requests), tool
        assert len(outputs) == 3, tool


def test_a_batch_whose_replica_spans_nodes_is_not_written() -> None:
    wide = _batch_of_three(gpus_per_replica=16, parallelism=Parallelism(tp=8, pp=2))
    for files in (skypilot_files, dstack_files, kueue_files, slurm_files):
        with pytest.raises(InputError, match="replicas of at most one node"):
            files(wide, {}, "plan.json")


def test_a_replica_over_two_nodes_is_one_job_of_two_nodes(tmp_path: Path) -> None:
    wide = placed(
        "aws", "p5", "us-east-1", "wide", WorkloadKind.SERVING,
        gpus_per_replica=16, replicas=2, parallelism=Parallelism(tp=8, pp=2),
    )  # fmt: skip
    script = slurm_files(a_plan(wide), {"wide": WorkloadFacts(model=MODEL)}, "plan.json").files["wide.sbatch"]
    assert (options(script)["nodes"], options(script)["array"]) == ("2", "1-2")
    done = run_script(script, tmp_path, SLURM_NNODES="2")
    first, second = done.stdout.splitlines()
    assert "--nnodes 2 --node-rank 0 --master-addr node1" in first
    assert "--node-rank 1 --master-addr node1 --headless" in second
    with pytest.raises(InputError, match="pods of a Deployment"):
        kueue_files(a_plan(wide), {}, "plan.json")


def test_a_job_does_not_outlive_its_window() -> None:
    start = a_segment(0, 1).start
    segments = (Segment(start, start + timedelta(days=2, minutes=1, seconds=59), 4),)
    odd = a_plan(placed("aws", "p5", "us-east-1", "run", WorkloadKind.TRAINING, segments=segments))
    assert options(slurm_files(odd, {}, "plan.json").files["run.sbatch"])["time"] == "2-00:01:00"


def test_an_export_leaves_out_what_the_tool_does_not_know_and_says_so(tmp_path: Path) -> None:
    unknown = placed("sfcompute", "h100", "hayesvalley", "elsewhere", WorkloadKind.TRAINING)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN.write(a_plan(*the_plan().placements, unknown))))
    done = broker("export", plan, "--to", "skypilot", "--json", width=500)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert len(document["files"]) == 4
    skipped = [one["workload"] for one in document["skipped"] if one["what"] == "the placement"]
    assert skipped == ["elsewhere"]
    assert document["skipped"][0]["problems"][0]["found"] == "'sfcompute'"
    assert "skipped elsewhere: /placements/4/provider: found 'sfcompute'" in done.stderr
    assert "give --workloads FILE" in done.stderr
    assert document["notes"]


def test_a_plan_brings_its_models_along(tmp_path: Path) -> None:
    """The document that ``broker plan`` was given is in its plan."""
    plan = tmp_path / "plan.json"
    document = tmp_path / "work.yaml"
    document.write_text(
        "team: t\nhorizon: {start: 2026-11-24T00:00:00Z, days: 3}\n"
        "workloads:\n"
        "  - {name: chat, kind: serving, model: Llama-3.1-8B, precisions: [bf16],\n"
        "     traffic: {peak_requests_per_s: 1, input_tokens: 500, output_tokens: 100},\n"
        "     slo: {ttft_p95_ms: 2000, itl_p95_ms: 100}}\n"
    )
    made = broker("plan", document, "--market", write_market(tmp_path), "--time-limit", "5", "--output", plan)
    assert made.exit_code == 0, made.output
    done = broker("export", plan, "--to", "vllm", "--json")
    (text,) = json.loads(done.stdout)["files"].values()
    assert yaml.safe_load(text)["model"] == MODEL
    assert json.loads(done.stdout)["notes"] == []
    checked = broker("check", plan, "--market", tmp_path / "market.json", "--workloads", document)
    assert checked.exit_code == 0, checked.output

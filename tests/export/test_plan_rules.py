"""An exported file keeps what the plan rests on, place, host, format and lengths, or is not written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.export.dstack import dstack_files
from api.export.kueue import kueue_files
from api.export.skypilot import skypilot_files
from api.export.slurm import slurm_files
from api.export.targets import Exported, Target, load_engine_words, load_words
from api.export.vllm import vllm_files
from api.export.workload_facts import Facts, facts_of
from api.schemas.plans.plan import PLAN
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import Policy, Precision, ServingEngine, WorkloadKind
from tests.cli.running import broker
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer
from tests.peers_env import run

DOCUMENT: dict[str, Any] = {
    "team": "research",
    "horizon": {"start": "2026-11-24T00:00:00Z", "days": 7},
    "workloads": [
        {
            "name": "chat",
            "kind": "serving",
            "model": "Qwen3-32B",
            "precisions": ["fp8"],
            "traffic": {
                "peak_requests_per_s": 3,
                "input_tokens": 1500,
                "output_tokens": 300,
                "shape": "flat",
            },
            "slo": {"ttft_p95_ms": 2000, "itl_p95_ms": 80},
        }
    ],
}


def facts(policy: Mapping[str, Any] | None = None, chosen: str | None = None, **workload: Any) -> Facts:
    document = {**DOCUMENT, "workloads": [{**DOCUMENT["workloads"][0], **workload}], "policy": policy or {}}
    request = read_workloads(json.dumps(document), source="w", base=None, now=NOON)
    written = {row["name"]: row["model"] for row in document["workloads"]}
    return facts_of(request, written, {} if chosen is None else {"chat": chosen})


def chat(provider: str, region: str, precision: Precision = Precision.FP8, **changes: Any) -> Plan:
    metrics = {"requests_per_s_per_replica": 2.5, "cold_start_s": 90.0, "kv_tokens": 29_000.0}
    offer = replace(an_offer(f"{provider}/x", provider=provider), region=region)
    placed = a_placement(offer, [a_segment(0, 10)], "chat", WorkloadKind.SERVING)
    shape: dict[str, Any] = {
        "gpu": "L40S",
        "gpus": 1,
        "gpus_per_replica": 1,
        "parallelism": Parallelism(),
        "estimate": Estimate(metrics, metrics, metrics),
        "precision": precision,
        **changes,
    }
    return a_plan(replace(placed, **shape))


def sky(exported: Exported) -> dict[str, Any]:
    return dict(yaml.safe_load(exported.files["chat.sky.yaml"]))


def settings_of(plan: Plan, known: Facts) -> dict[str, Any]:
    return dict(yaml.safe_load(vllm_files(plan, known, "p").files["chat.vllm.yaml"]))


@pytest.mark.parametrize(
    ("provider", "region", "infra", "location"),
    [
        ("runpod", "EU-SE-1", "runpod/SE/EU-SE-1", "EU-SE-1"),
        ("runpod", "US-KS-2", "runpod/US/US-KS-2", "US-KS-2"),
        ("digitalocean", "ams3", "do/ams3", "ams3"),
        ("cudo", "no-kristiansand-1", "cudo/no-kristiansand-1", None),
        ("mithril", "us-central2-a", "mithril/us-central2-a", None),
        ("verda", "FIN-02", "verda/FIN-02", "FIN-02"),
        ("hotaisle", "michigan", None, "us-michigan-1"),
        ("vast", "Bavaria, DE", None, "de-bavaria"),
        ("vast", "British Columbia, CA", None, "ca-britishcolumbia"),
        ("vast", "unknown", None, None),
    ],
)
def test_a_place_is_written_in_the_tool_s_own_words(
    provider: str, region: str, infra: str | None, location: str | None
) -> None:
    """SkyPilot's catalogue has RunPod's countries as regions and its data centres as zones; gpuhunt has the
    data centre, and Vast's country before its state.
    """
    plan = chat(provider, region)
    known = facts({"geography": ["eu", "us", "ca", "nordics"]})
    if infra is None:
        with pytest.raises(InputError, match=r"/placements/0/(region|provider)"):
            skypilot_files(plan, known, "p")
    else:
        assert sky(skypilot_files(plan, known, "p"))["resources"]["infra"] == infra
    if location is None:
        with pytest.raises(InputError, match=r"/placements/0/(region|provider)"):
            dstack_files(plan, known, "p")
    else:
        files = dstack_files(plan, known, "p").files
        assert {tuple(yaml.safe_load(text)["regions"]) for text in files.values()} == {(location,)}


@pytest.mark.parametrize(
    ("policy", "rules"),
    [
        ({"geography": ["eu"], "compliance": ["gdpr"]}, "geography and compliance"),
        ({"countries": ["DE"]}, "countries"),
        ({"regions": ["*DE"]}, "regions"),
    ],
)
def test_a_file_that_would_leave_the_allowed_places_is_not_written(
    policy: Mapping[str, Any], rules: str
) -> None:
    with pytest.raises(InputError, match=rf"/placements/0/region.*as the document rules {rules}"):
        skypilot_files(chat("vast", "Bavaria, DE"), facts(policy), "p")


def test_without_a_rule_the_file_is_written_and_says_what_it_cannot_say() -> None:
    exported = skypilot_files(chat("vast", "Bavaria, DE"), facts(), "p")
    assert sky(exported)["resources"]["infra"] == "vast"
    assert [(row.workload, row.what) for row in exported.unsaid] == [
        ("chat", "hours 2026-11-23T12:00:00Z to 2026-11-23T22:00:00Z"),
        ("chat", "region Bavaria, DE"),
        ("chat", "host of vast/x"),
    ]


EXPORTS = {
    Target.SKYPILOT: skypilot_files,
    Target.DSTACK: dstack_files,
    Target.VLLM: vllm_files,
    Target.KUEUE: kueue_files,
    Target.SLURM: slurm_files,
}
PLACED = [
    chat("verda", "FIN-02"),
    chat("runpod", "EU-SE-1", tier=Tier.SPOT),
    chat("vast", "Bavaria, DE", gpu="H100-SXM-80GB"),
    chat("lambda", "us-west-2", sku="gpu_8x_h100_sxm5", gpu="H100-SXM-80GB", gpus=8, gpus_per_replica=8,
         parallelism=Parallelism(tp=8)),
    chat("aws", "us-east-1", zone="us-east-1a", sku="p5.48xlarge", gpu="H100-SXM-80GB", gpus=8,
         gpus_per_replica=4, parallelism=Parallelism(tp=4)),
    chat("verda", "FIN-02", tier=Tier.COMMITTED),
    chat("oci", "eu-frankfurt-1", tier=Tier.WINDOW, gpus_per_replica=1),
    chat("verda", "FIN-02", engine=ServingEngine.SGLANG),
    chat("gcp", "europe-west4", Precision.BF16, engine=ServingEngine.TENSORRT_LLM, zone="europe-west4-a"),
    chat("digitalocean", "ams3", gpu="H200-SXM-141GB"),
]  # fmt: skip


def stated(placement: Placement, target: Target) -> dict[str, list[str]]:
    """The rules of a plan, each with the words of which one must stand in a file of the tool."""
    words = load_words(target) if target in (Target.SKYPILOT, Target.DSTACK) else None
    gpu = placement.gpu if words is None else words.gpus[placement.gpu]
    engine = placement.engine or ServingEngine.VLLM
    version = load_engine_words(engine).version
    place = None if words is None else words.place_of(placement)
    return {
        "place": [place or "nowhere"],
        "gpu": [f"{gpu}:{placement.gpus}", f"name: {gpu}\n", f"instance_type: {placement.sku}",
                f"gpu:{gpu.split('-')[0].lower()}:{placement.gpus}"],
        "tier": [f"use_spot: {str(placement.tier is Tier.SPOT).lower()}",
                 f"spot_policy: {'spot' if placement.tier is Tier.SPOT else 'on-demand'}"],
        "hours": ["--begin=2026-11-23T12:00:00", "Held from 2026-11-23T12:00:00Z until"],
        "format": [str(placement.precision), "bfloat16"],
        "engine": [f"=={version}", f":v{version}", f":{version}"],
        "length": ["max-model-len", "context-length", "max_seq_len"],
        "parallelism": [f"tensor-parallel-size{mark} {placement.parallelism.tp}" for mark in ("", ":")]
        + [f"{name} {placement.parallelism.tp}" for name in ("--tp", "--tp-size", "--tp_size")],
    }  # fmt: skip


SPOKEN = {"place": ("place ", "region "), "gpu": (" × ",), "tier": ("tier ",), "hours": ("hours ",),
          "engine": ("vllm ", "sglang ", "tensorrt_llm ")}  # fmt: skip


@pytest.mark.parametrize("target", EXPORTS)
@pytest.mark.parametrize(
    "plan", PLACED, ids=lambda plan: f"{plan.placements[0].provider}-{plan.placements[0].tier}"
)
def test_every_rule_of_the_plan_stands_in_the_file_or_is_named(plan: Plan, target: Target) -> None:
    (placement,) = plan.placements
    known = facts(precisions=[str(placement.precision)])
    engine = placement.engine or ServingEngine.VLLM
    if target is Target.VLLM and engine is not ServingEngine.VLLM:
        with pytest.raises(InputError, match="/placements/0/engine"):
            EXPORTS[target](plan, known, "p")
        return
    exported = EXPORTS[target](plan, known, "p")
    text = "\n".join(exported.files.values())
    said = ", ".join(row.what for row in exported.unsaid)
    for rule, words in stated(placement, target).items():
        is_named = any(start in said for start in SPOKEN.get(rule, ()))
        assert is_named or any(word in text for word in words), (rule, words, text)
    is_bought_by_the_hour = target in (Target.SKYPILOT, Target.DSTACK)
    if is_bought_by_the_hour and placement.tier in (Tier.COMMITTED, Tier.WINDOW):
        assert f"tier {placement.tier}" in said


def test_of_a_reserved_plan_only_what_no_machine_settles_is_named() -> None:
    plan = chat("verda", "FIN-02", Precision.FP8, tier=Tier.COMMITTED)
    named = {target: [row.what for row in write(plan, facts(), "p", reserved=True).unsaid]
             for target, write in EXPORTS.items()}  # fmt: skip
    version = f"vllm {load_engine_words(ServingEngine.VLLM).version}"
    assert named == {
        Target.SKYPILOT: [], Target.DSTACK: [], Target.KUEUE: [],
        Target.VLLM: [version], Target.SLURM: [version],
    }  # fmt: skip


def test_software_for_another_vendor_is_named() -> None:
    plan = chat("verda", "FIN-02", gpu="MI300X-192GB")
    for target in (Target.SKYPILOT, Target.KUEUE):
        assert "software for GPUs of AMD" in [row.what for row in EXPORTS[target](plan, facts(), "p").unsaid]


def test_a_gpu_whose_form_the_tool_cannot_tell_is_named() -> None:
    exported = skypilot_files(chat("verda", "FIN-02", gpu="H100-SXM-80GB"), facts(), "p")
    assert ("form of H100-SXM-80GB", "skypilot calls H100-PCIe-80GB H100 too") in [
        (row.what, row.why) for row in exported.unsaid
    ]


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        ({"compliance": ["hipaa"]}, "compliance"),
        ({"min_reliability": 0.99}, "min_reliability"),
        ({"hosts": ["datacenter"]}, "hosts"),
    ],
)
def test_a_tool_that_takes_any_host_is_not_given_a_plan_with_rules_on_hosts(
    policy: Mapping[str, Any], rule: str
) -> None:
    with pytest.raises(InputError, match=rf"/placements/0/provider.*takes any.*as the document rules {rule}"):
        dstack_files(chat("vast", "Bavaria, DE"), facts(policy), "p")


def test_a_run_s_script_is_told_how_it_trains() -> None:
    run = {
        "kind": "training", "name": "chat", "model": "Llama-3.1-70B", "tokens": 5e7, "sequence_length": 4096,
        "global_batch_tokens": 131072, "deadline": "+5d", "method": "dpo", "packed": False,
        "mean_tokens": 900, "optimizer": "paged_adamw8bit",
        "adapter": {"rank": 8, "targets": ["q_proj", "v_proj"], "base": "int4"},
    }  # fmt: skip
    document = {**DOCUMENT, "workloads": [run]}
    request = read_workloads(json.dumps(document), source="w", base=None, now=NOON)
    plan = chat("aws", "us-east-1", Precision.BF16, kind=WorkloadKind.TRAINING)
    envs = sky(skypilot_files(plan, facts_of(request, {}, {}), "p"))["envs"]
    told = {
        name: envs[name] for name in envs if name.startswith(("ADAPTER", "METHOD", "OPT", "PACK", "MEAN"))
    }
    assert told == {
        "METHOD": "dpo", "ADAPTER": "lora", "ADAPTER_RANK": "8", "ADAPTER_TARGETS": "q_proj,v_proj",
        "ADAPTER_BASE": "int4", "OPTIMIZER": "paged_adamw8bit", "PACKED": "false", "MEAN_TOKENS": "900",
    }  # fmt: skip
    assert not {"WEIGHTS", "OFFLOAD", "TEACHER"} & set(envs)


def test_memory_is_told_in_the_gib_of_the_tools_lists() -> None:
    """64 GiB at CUDO, which both lists have as 64; asked for as 68, a node of 96 GiB would be taken."""
    plan = chat("cudo", "no-kristiansand-1", memory_gb=64 * 2**30 / 1e9, disk_gb=322.2)
    task = sky(skypilot_files(plan, facts(), "p"))["resources"]
    assert (task["memory"], task["disk_size"]) == ("64+", 323)
    fleet = yaml.safe_load(dstack_files(plan, facts(), "p").files["chat.fleet.dstack.yml"])
    assert fleet["resources"]["memory"] == "64GB.."


def test_int4_needs_a_checkpoint_in_int4() -> None:
    """`dtype: auto` alone would serve the published BF16 weights: twice the bytes a token."""
    plan = chat("verda", "FIN-02", Precision.INT4)
    published = facts(model="Qwen2.5-72B", precisions=["int4"])
    with pytest.raises(InputError, match=r"/placements/0/precision.*published in bf16.*--model chat="):
        vllm_files(plan, published, "p")
    own = facts(model="Qwen2.5-72B", precisions=["int4"], chosen="Qwen/Qwen2.5-72B-Instruct-AWQ")
    settings = settings_of(plan, own)
    assert (settings["model"], settings["dtype"]) == ("Qwen/Qwen2.5-72B-Instruct-AWQ", "auto")
    assert "quantization" not in settings
    kimi = settings_of(plan, facts(model="Kimi-K2.5", precisions=["int4"]))
    assert (kimi["model"], kimi["dtype"], kimi["trust-remote-code"]) == (
        "moonshotai/Kimi-K2.5",
        "auto",
        True,
    )


def test_a_checkpoint_that_is_published_in_fp8_is_neither_converted_nor_widened() -> None:
    published = facts(model="DeepSeek-R1", precisions=["fp8"])
    assert "quantization" not in settings_of(chat("verda", "FIN-02"), published)
    assert settings_of(chat("verda", "FIN-02"), facts())["quantization"] == "fp8"
    with pytest.raises(InputError, match="published in fp8"):
        vllm_files(chat("verda", "FIN-02", Precision.BF16), published, "p")


def test_a_server_reserves_no_more_context_than_its_cache_holds() -> None:
    """An L40S with Qwen3-32B in FP8 has room for 29,000 tokens; the model's 40,960 would stop the server."""
    assert settings_of(chat("verda", "FIN-02"), facts())["max-model-len"] == 14_512
    long = {"peak_requests_per_s": 1, "input_tokens": 20_000, "output_tokens": 900, "shape": "flat"}
    assert settings_of(chat("verda", "FIN-02"), facts(traffic=long))["max-model-len"] == 20_912
    assert "max-model-len" not in settings_of(chat("verda", "FIN-02"), {})


@pytest.mark.parametrize(
    ("engine", "length", "own_code"),
    [
        (ServingEngine.VLLM, "--max-model-len 14512", "--trust-remote-code"),
        (ServingEngine.SGLANG, "--context-length 14512", "--trust-remote-code"),
        (ServingEngine.TENSORRT_LLM, "--max_seq_len 14512", "--trust_remote_code"),
    ],
)
def test_each_engine_is_told_the_same_in_its_own_words(
    engine: ServingEngine, length: str, own_code: str
) -> None:
    plan = chat("verda", "FIN-02", Precision.INT4, engine=engine)
    task = sky(skypilot_files(plan, facts(model="Kimi-K2.5", precisions=["int4"]), "p"))
    assert length in task["run"]
    assert own_code in task["run"]
    assert re.search(r"==\d+\.\d+\.\d+", task["setup"]), "another version may not have these options"


def test_a_repository_in_the_document_is_the_one_that_is_served() -> None:
    known = facts(model="Qwen/Qwen3-32B")
    assert known["chat"] == replace(facts()["chat"], model="Qwen/Qwen3-32B")
    tuned = facts(model="Qwen/Qwen2.5-72B-Instruct", precisions=["bf16"])
    assert tuned["chat"].model == "Qwen/Qwen2.5-72B-Instruct", "not the base model of the same shape"


def test_the_command_says_what_is_not_written_and_why(tmp_path: Path) -> None:
    policy = {"geography": ["eu"]}
    here = chat("runpod", "EU-SE-1").placements[0]
    there = chat("vast", "Bavaria, DE").placements[0]
    (tmp_path / "w.json").write_text(json.dumps({**DOCUMENT, "policy": policy}))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN.write(a_plan(here, there))))
    done = broker(
        "export", tmp_path / "plan.json", "--to", "skypilot", "--workloads", tmp_path / "w.json", "--json"
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(told["files"]) == {"chat-1.sky.yaml"}
    skipped, *unsaid = told["skipped"]
    assert [one["what"].split()[0] for one in unsaid] == ["hours"]
    assert (skipped["workload"], skipped["what"]) == ("chat", "the placement")
    assert "as the document rules geography" in skipped["why"]
    wrong = broker("export", tmp_path / "plan.json", "--to", "vllm", "--model", "talk=a/b")
    assert (wrong.exit_code, "a workload of the plan: chat" in wrong.stderr) == (2, True)


@pytest.mark.xdist_group("peers")
def test_the_tools_read_the_places(tmp_path: Path) -> None:
    known = facts({"geography": ["eu"]})
    for name, text in dstack_files(chat("runpod", "EU-SE-1"), known, "p").files.items():
        (tmp_path / name).write_text(text)
    for name, text in skypilot_files(chat("runpod", "EU-SE-1"), known, "p").files.items():
        (tmp_path / name).write_text(text)
    read = run("dstack", "accept_dstack.py", str(tmp_path), environ={"HOME": str(tmp_path)})
    assert read["chat.dstack.yml"]["regions"] == ["EU-SE-1"]
    assert read["chat.fleet.dstack.yml"]["regions"] == ["EU-SE-1"]
    place = tmp_path / ".sky" / "catalogs" / "v8" / "runpod"
    place.mkdir(parents=True)
    columns = "InstanceType AcceleratorName AcceleratorCount vCPUs MemoryGiB GpuInfo Region SpotPrice Price"
    header = ",".join([*columns.split(), "AvailabilityZone"])
    rows = ["1x_L40S_SECURE,L40S,1,16,94,,SE,,0.86,EU-SE-1", "1x_L40S_SECURE,L40S,1,16,94,,US,,0.86,US-KS-2"]
    (place / "vms.csv").write_text("\n".join([header, *rows, ""]))
    environ = {
        "HOME": str(tmp_path),
        "SKY_RUNTIME_DIR": str(tmp_path),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    task = run("skypilot", "accept_skypilot.py", str(tmp_path), environ=environ)["chat.sky.yaml"]
    assert task["resources"]["infra"] == "runpod/SE/EU-SE-1"


KEPT_BY_EXPORTS = {"regions", "countries", "geography", "compliance", "hosts", "min_reliability"}
"""Rules that a scheduler could break when it places a job again: ``workload_facts`` names them."""
SETTLED_BY_THE_PLAN = {
    "providers", "tiers", "gpus", "quotas", "reoptimize", "assumed_nodes", "premium", "fleet", "mix_sandbox",
}  # fmt: skip
"""An exported file names provider, tier, GPU and number of nodes; the others say how plans are made."""


def test_exports_say_what_they_do_with_every_field_of_a_policy() -> None:
    assert {one.name for one in fields(Policy)} == KEPT_BY_EXPORTS | SETTLED_BY_THE_PLAN
    assert not KEPT_BY_EXPORTS & SETTLED_BY_THE_PLAN
    values = {"regions": ["eu-*"], "countries": ["NL"], "geography": ["europe"], "compliance": ["soc2"],
              "hosts": ["datacenter"], "min_reliability": 0.99}  # fmt: skip
    for name, value in values.items():
        chat_facts = facts(policy={name: value})["chat"]
        assert name in {*chat_facts.place_rules, *chat_facts.host_rules}
    assert values.keys() == KEPT_BY_EXPORTS

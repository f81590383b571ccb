"""The server of a placement as the start of its machines."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from api.export.engine_start import engine_start
from api.export.targets import load_engine_words
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import Precision, ServingEngine, WorkloadKind
from broker.domain.workloads.startup import SecretName, Startup
from tests.export.test_export import METRICS, placed
from tests.fakes.clock import NOON

MODEL = "meta-llama/Llama-3.1-8B"
WISH = Startup(engine=True, env={"HF_TOKEN": SecretName("HF_TOKEN")})
DOCUMENT = json.dumps(
    {
        "team": "ml",
        "horizon": {"start": "2026-11-24T00:00:00Z", "days": 2},
        "workloads": [
            {
                "name": "chat",
                "kind": "serving",
                "model": MODEL,
                "traffic": {"peak_requests_per_s": 2, "input_tokens": 1000, "output_tokens": 200},
                "slo": {"ttft_p95_ms": 1500, "itl_p95_ms": 80},
                "startup": {"engine": True, "env": {"HF_TOKEN": {"secret": "HF_TOKEN"}}},
            }
        ],
    }
)
REQUEST = read_workloads(DOCUMENT, source="test", base=None, now=NOON)


def served(engine: ServingEngine | None, **changes: Any) -> Placement:
    shape: dict[str, Any] = {
        "gpus_per_replica": 8,
        "replicas": 4,
        "parallelism": Parallelism(tp=8),
        "precision": Precision.BF16,
        "engine": engine,
        "estimate": Estimate(METRICS, METRICS, METRICS),
    }
    return placed("lambda", "gpu_8x", "us-south-1", "chat", WorkloadKind.SERVING, **{**shape, **changes})


def started(placement: Placement) -> Startup:
    return engine_start(DOCUMENT, REQUEST, placement, WISH)


@pytest.mark.parametrize(
    ("engine", "image", "begins"),
    [
        (None, "vllm/vllm-openai:v{}", f"{MODEL} --served-model-name chat"),
        (ServingEngine.VLLM, "vllm/vllm-openai:v{}", f"{MODEL} --served-model-name chat"),
        (
            ServingEngine.SGLANG,
            "lmsysorg/sglang:v{}",
            f"python -m sglang.launch_server --model-path {MODEL} ",
        ),
    ],
)
def test_an_engine_s_image_is_given_its_command(
    engine: ServingEngine | None, image: str, begins: str
) -> None:
    found = started(served(engine))
    assert found.image == image.format(load_engine_words(engine or ServingEngine.VLLM).version)
    command = found.command or ""
    assert command.startswith(begins)
    for option in ("--port 8000", "8", "--dtype bfloat16"):
        assert option in command
    assert (found.script, found.engine, found.env) == (None, False, WISH.env)


def test_the_command_follows_the_placement() -> None:
    wide = started(served(ServingEngine.VLLM)).command or ""
    narrow = (
        started(served(ServingEngine.VLLM, gpus_per_replica=2, parallelism=Parallelism(tp=2))).command or ""
    )
    assert "--tensor-parallel-size 8 " in wide
    assert "--tensor-parallel-size 2 " in narrow
    assert "--data-parallel-size 4 " in narrow
    assert "--max-model-len" in narrow


def test_attention_ranks_of_tensorrt_llm_are_written_by_a_shell() -> None:
    layout = Parallelism(tp=8, dp=8, ep=8)
    words = shlex.split(started(served(ServingEngine.TENSORRT_LLM, parallelism=layout)).command or "")
    assert words[:2] == ["bash", "-c"]
    assert f"&& trtllm-serve {MODEL} " in words[2]


@pytest.mark.parametrize(
    ("placement", "told"),
    [
        (served(ServingEngine.VLLM, gpus_per_replica=16, replicas=2), "more than a node has"),
        (served(ServingEngine.VLLM, gpu="MI300X-192GB"), "not of NVIDIA"),
        (served(ServingEngine.VLLM, precision=Precision.FP4), "a checkpoint in fp4"),
    ],
)
def test_what_cannot_be_started_is_named(placement: Placement, told: str) -> None:
    with pytest.raises(InputError, match=told):
        started(placement)


def test_only_a_service_has_an_engine() -> None:
    document = json.loads(DOCUMENT)
    document["workloads"][0] |= {"kind": "batch", "requests": 1000, "input_tokens": 100, "output_tokens": 10}
    document["workloads"][0] |= {"deadline": "2026-11-25T00:00:00Z"}
    for name in ("traffic", "slo"):
        del document["workloads"][0][name]
    with pytest.raises(InputError, match=r"/workloads/0/startup/engine.*service"):
        read_workloads(json.dumps(document), source="test", base=None, now=NOON)
    both = replace(WISH, engine=False, image="busybox")
    with pytest.raises(ValueError, match="either a script, an image, or engine"):
        replace(both, engine=True)

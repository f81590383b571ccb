"""The command line of a server: vLLM, SGLang or TensorRT-LLM, however it is started."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from api.schemas.imports.draft import NO_FIELD, Draft, is_on
from api.schemas.imports.shell import options_of, pair_at
from broker.catalogue import named_format
from broker.domain.planning.workload import ServingEngine, WorkloadKind
from broker.models.weight_formats import PLANNED, format_of_method


@dataclass(frozen=True, slots=True)
class Server:
    """A server's engine, the words by which people know it, and the arguments of its command.

    ``before``: the words before it, of a container or a scheduler.
    """

    engine: ServingEngine
    title: str
    arguments: tuple[str, ...]
    is_batch: bool = False
    before: tuple[str, ...] = ()


MODULES: Mapping[str, tuple[ServingEngine, bool]] = {
    "vllm.entrypoints.openai.api_server": (ServingEngine.VLLM, False),
    "vllm.entrypoints.api_server": (ServingEngine.VLLM, False),
    "vllm.entrypoints.openai.run_batch": (ServingEngine.VLLM, True),
    "sglang.launch_server": (ServingEngine.SGLANG, False),
    "tensorrt_llm.commands.serve": (ServingEngine.TENSORRT_LLM, False),
}
"""Modules of ``python -m`` that serve; true: a file of requests."""
IMAGE = re.compile(r"([\w.:-]+/)*(vllm/vllm-openai[\w-]*|rocm/vllm[\w-]*|vllm/vllm-tpu)([:@]\S+)?")
OTHER_SERVERS: Mapping[str, str] = {
    "text-generation-launcher": "Text Generation Inference",
    "llama-server": "llama.cpp",
    "lmdeploy": "LMDeploy",
    "ollama": "Ollama",
    "tritonserver": "Triton",
    "mlc_llm": "MLC LLM",
    "aphrodite": "Aphrodite",
    "lightllm.server.api_server": "LightLLM",
    "xinference": "Xinference",
}
OTHER_IMAGE = re.compile(r"(\S*/)?text-generation-inference([:@]\S+)?")
FLAGS = frozenset({
    "enforce-eager", "trust-remote-code", "enable-prefix-caching", "no-enable-prefix-caching",
    "enable-chunked-prefill", "no-enable-chunked-prefill", "disable-log-stats",
    "disable-log-requests", "enable-lora", "enable-auto-tool-choice", "enable-expert-parallel",
    "enable-reasoning", "disable-cuda-graph", "disable-radix-cache", "enable-metrics",
    "enable-torch-compile", "enable-dp-attention", "disable-overlap-schedule", "disable-overlap",
    "use-v2-block-manager", "disable-custom-all-reduce", "enable-mixed-chunk", "enable-p2p-check",
    "headless", "async-scheduling", "is-embedding", "enable-sleep-mode", "skip-tokenizer-init",
    "enable-server-load-tracking", "data-parallel-hybrid-lb",
})  # fmt: skip
"""Options without a value."""
SHORT: Mapping[str, str] = {
    "tp": "tensor-parallel-size", "tp-size": "tensor-parallel-size", "pp": "pipeline-parallel-size",
    "pp-size": "pipeline-parallel-size", "dp": "data-parallel-size", "dp-size": "data-parallel-size",
    "ep": "expert-parallel-size", "ep-size": "expert-parallel-size", "q": "quantization",
    "model-path": "model", "m": "model",
}  # fmt: skip
LAYOUT = "the planner chooses how GPUs share a replica, and the number of replicas"
LENGTHS = "the lengths of requests are the traffic's"
MEMORY = "the engine's usual setting is planned; state measured for the rate of yours"
SPECULATION = "state speculation, with the acceptance that you measured"
PREFIX = "state prefix_cache_hit_share, the share of prompts that it holds"
EAGER = "planned with CUDA graphs; without them tokens take up to twice as long: drop it, or state measured"
CONTEXT = "name a config.json whose rope_scaling extends the context"
ADAPTERS = "adapters beside the model are not planned"
OFFLOAD = "weights and cache are planned in GPU memory alone"
CACHE = "the cache is planned in 16 bits"
SET_UP = "they set up the server and change nothing that is planned"
NOTED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"(tensor|pipeline|data|expert|decode-context)-parallel.*|enable-expert-parallel", LAYOUT),
        (r"enable-dp-attention|nnodes|node-rank|moe-.*-parallel.*|enable-ep.*|cp-size", LAYOUT),
        (r"max-model-len|context-length|max-seq-len|max-input-len|max-total-tokens", LENGTHS),
        (r"gpu-memory-utilization|mem-fraction-static|(kv-cache-)?free-gpu-memory-fraction", MEMORY),
        (r"max-num-seqs|max-num-batched-tokens|max-running-requests|max-batch-size|max-num-tokens", MEMORY),
        (r"(no-)?enable-chunked-prefill|chunked-prefill-size|schedule-.*|compilation-config|O\d?", MEMORY),
        (r"cuda-graph-.*|enable-torch-compile|attention-backend|extra-llm-api-options|config", MEMORY),
        (r"kv-cache-free-gpu-memory-fraction|kv-cache-memory.*|num-gpu-blocks.*", MEMORY),
        (r"spec.*|num-speculative-tokens|ngram-.*", SPECULATION),
        (r"(no-)?enable-prefix-caching|disable-radix-cache", PREFIX),
        (r"enforce-eager|disable-cuda-graph", EAGER),
        (r"rope-.*|hf-overrides|json-model-override-args", CONTEXT),
        (r"enable-lora.*|(max-)?lora-.*|max-loras.*|fully-sharded-loras", ADAPTERS),
        (r"cpu-offload.*|swap-space|offload.*|.*hicache.*|kv-transfer-config|kv-offload.*", OFFLOAD),
        (r"kv-cache-dtype.*|calculate-kv-scales", CACHE),
        (r"task|runner|convert|is-embedding|pooler-config|override-pooler-config",
         "planned as a model that generates text"),
    )
)  # fmt: skip
HARMLESS = re.compile(
    r"host|port|api-key.*|admin-api-key|uvicorn-.*|ssl-.*|.*log.*|chat-template.*|tool-.*|enable-auto-tool.*|"
    r"reasoning-.*|enable-reasoning|trust-remote-code|download-dir|(code-)?revision|.*tokenizer.*|seed|random-seed|"
    r"load-format|allow.*|root-path|middleware|enable-metrics|distributed-executor-backend|device|disable-custom.*|"
    r"served-model-name|limit-mm.*|mm-.*|watchdog.*|dist-.*|nccl-.*|master-.*|response-role|guided.*|grammar.*|"
    r"structured-.*|block-size|page-size|backend|disable-overlap.*|enable-p2p.*|worker.*|headless|ray-.*|"
    r"generation-config|override-generation-config|otlp-.*|collect-.*|disable-uvicorn.*|i|o|input-file|output-file|"
    r"num-gpus|gpus|skip-.*|show-.*|numa.*|stream-.*|model-loader-extra-config|disable-frontend.*|h(elp)?"
)
OF_CHECKPOINT = frozenset({
    "auto", "none", "marlin", "compressed-tensors", "compressed_tensors", "modelopt", "quark", "torchao",
    "inc", "gguf", "bitsandbytes",
})  # fmt: skip
"""Methods that leave the format to the checkpoint."""


def find_server(words: Sequence[str]) -> Server | str | None:
    """The server that a command starts; the name of one that is not planned; None if it is none."""
    for index, word in enumerate(words):
        found = _server_at(words, index)
        if found is not None:
            return replace(found, before=tuple(words[:index]))
        base = word.rpartition("/")[2]
        if base in OTHER_SERVERS or OTHER_IMAGE.fullmatch(word):
            return OTHER_SERVERS.get(base, "Text Generation Inference")
    for index, word in enumerate(words):
        if IMAGE.fullmatch(word):
            title = word.partition(":")[0].partition("@")[0]
            rest, before = tuple(words[index + 1 :]), tuple(words[:index])
            return Server(ServingEngine.VLLM, title, rest, before=before)
    return None


def _server_at(words: Sequence[str], index: int) -> Server | None:
    base, following = pair_at(words, index)
    if base == "vllm" and following in ("serve", "run-batch"):
        is_batch = following == "run-batch"
        return Server(ServingEngine.VLLM, f"vllm {following}", tuple(words[index + 2 :]), is_batch)
    if base == "sglang" and following == "serve":
        return Server(ServingEngine.SGLANG, "sglang serve", tuple(words[index + 2 :]))
    if base == "trtllm-serve":
        rest = words[index + (2 if following == "serve" else 1) :]
        return Server(ServingEngine.TENSORRT_LLM, "trtllm-serve", tuple(rest))
    if words[index] == "-m" and following in MODULES:
        engine, is_batch = MODULES[following]
        return Server(engine, following, tuple(words[index + 2 :]), is_batch)
    return None


def draft_of_server(server: Server, source: str, kind: WorkloadKind | None = None) -> Draft:
    """The workload of a server's command; ``kind``: a service or a batch of requests to it."""
    draft = Draft(kind or (WorkloadKind.BATCH if server.is_batch else WorkloadKind.SERVING), source)
    options, rest = options_of(server.arguments, FLAGS, SHORT)
    model = options.pop("model", None) or (rest.pop(0) if rest else None)
    if model is None:
        draft.leave("the model", f"{server.title} names none here")
    draft.name_model(model, _method(options, model or "", draft))
    _tell_dtype(options, draft)
    draft.tell("name", _name(options.get("served-model-name", "")))
    if server.engine is not ServingEngine.VLLM:
        draft.tell("engine", server.engine.value)
    for name in ("quantization", "dtype"):
        options.pop(name, None)
    _leave_options(options, draft)
    draft.leave_together(rest, "no option's value", prefix="")
    return draft


def _name(told: str) -> str | None:
    """A served name as the name of a workload, which has no slashes."""
    plain = re.sub(r"[^A-Za-z0-9._ -]+", "-", told.rpartition("/")[2]).strip("-. _")
    return plain[:100] or None


def _method(options: Mapping[str, str], model: str, draft: Draft) -> str | None:
    """The number format that --quantization or --load-format states; None where the checkpoint states it."""
    method = options.get("quantization", "").strip().lower()
    if "bitsandbytes" in (options.get("load-format"), method):
        return named_format(model) or "int4"
    if method in OF_CHECKPOINT:
        is_open = named_format(model) is None and is_on(method)
        if is_open and method != "modelopt":
            draft.leave(f"--quantization {method}", "the checkpoint has the format; state precisions")
        return "fp8" if is_open and method == "modelopt" else None
    found = format_of_method(method) if method else None
    if method and found is None:
        expected = f"a method of {', '.join(PLANNED)}: fp8, awq, gptq, bitsandbytes, mxfp4, modelopt_fp4"
        draft.refuse(f"--quantization {method}", expected)
    return found


def _tell_dtype(options: Mapping[str, str], draft: Draft) -> None:
    """Notes the 16-bit format of --dtype, unless the weights have another one."""
    dtype = options.get("dtype", "auto").strip().lower()
    if dtype in ("auto", ""):
        return
    found = format_of_method(dtype)
    if found not in ("bf16", "fp16"):
        draft.refuse(f"--dtype {dtype}", "auto, bfloat16 or float16")
    if "precisions" not in draft.fields and found is not None:
        draft.tell("precisions", [found])


def _leave_options(options: Mapping[str, str], draft: Draft) -> None:
    """Names every option that is not used, those that only set up the server together."""
    set_up: list[str] = []
    for name, value in options.items():
        why = next((why for pattern, why in NOTED if pattern.fullmatch(name)), None)
        if value == "auto":
            continue
        if why is not None:
            draft.leave(f"--{name} {value}".rstrip(), why)
        elif HARMLESS.fullmatch(name):
            if name != "served-model-name":
                set_up.append(name)
        else:
            draft.leave(f"--{name} {value}".rstrip(), NO_FIELD)
    draft.leave_together(set_up, SET_UP)

"""The command line of a server: vLLM, SGLang or TensorRT-LLM, however it is started."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from api.schemas.imports.draft import Draft, is_on
from api.schemas.imports.shell import options_of, pair_at
from api.schemas.imports.tables import import_words, option_table
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
IMAGE = re.compile(r"([\w.:-]+/)*(vllm/vllm-openai|rocm/vllm[\w-]*|vllm-openai)([:@]\S+)?")
NAMES = frozenset({"served-model-name", "model-name"})
SET_UP = "they set up the server and change nothing that is planned"
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
        if _others().fullmatch(base) and _is_run(words, index):
            return _name_of_other(base)
    for index, word in enumerate(words):
        if IMAGE.fullmatch(word):
            title = word.partition(":")[0].partition("@")[0]
            rest, before = tuple(words[index + 1 :]), tuple(words[:index])
            return Server(ServingEngine.VLLM, title, rest, before=before)
    return None


def _is_run(words: Sequence[str], index: int) -> bool:
    """Whether a word is a program, a module or an image that a command runs, and no argument of another."""
    return index == 0 or words[index - 1] == "-m" or words[0].rpartition("/")[2] in RUNNERS


RUNNERS = frozenset({"docker", "podman", "nerdctl", "srun", "singularity", "apptainer", "numactl", "python3"})
VERSION = r"([:@].*)?"
"""What an image's name ends with."""


@cache
def _others() -> re.Pattern[str]:
    """Programs and images of servers that cannot be planned."""
    return re.compile(f"({'|'.join(import_words()['servers']['others'])}){VERSION}")


def _name_of_other(base: str) -> str:
    others: Mapping[str, str] = import_words()["servers"]["others"]
    return next(name for pattern, name in others.items() if re.fullmatch(f"({pattern}){VERSION}", base))


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
    table = option_table("servers")
    options, rest = options_of(server.arguments, table.flags, table.short)
    _require_values(options, draft)
    model = options.pop("model", None) or (rest.pop(0) if rest else None)
    if model is None:
        draft.leave("the model", f"{server.title} names none here")
    draft.name_model(model, _method(options, model or "", draft))
    _tell_dtype(options, draft)
    draft.tell("name", _name(options.get("served-model-name", options.get("model-name", ""))))
    if server.engine is not ServingEngine.VLLM:
        draft.tell("engine", server.engine.value)
    for name in ("quantization", "dtype"):
        options.pop(name, None)
    unused = {name: value for name, value in options.items() if value != "auto" and name not in NAMES}
    draft.leave_options(unused, table, SET_UP)
    draft.leave_together(rest, "no option's value", prefix="")
    return draft


def _require_values(options: Mapping[str, str], draft: Draft) -> None:
    """Raises InputError for an option that makes another workload of the server than one that is planned."""
    for name, known in import_words()["servers"]["must"].items():
        if name in options and options[name].lower() not in known["values"]:
            draft.refuse(f"--{name} {options[name]}".rstrip(), known["expected"])


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

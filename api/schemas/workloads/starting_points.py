"""Workloads from what a team already has: a model's ``config.json``, a SkyPilot task, a command line.

What is known is filled in. ``missing`` are needed fields that the source does not tell, which have examples
in their place; ``left_out`` says what a workloads document has no field for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.schemas.base.document import read_document
from api.schemas.workloads.form_fields import NEW_WORKLOADS, WORKLOAD_FIELDS, value_at
from broker.catalogue import known_model, load_models, load_provider_names
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.planning.model_shape import ModelShape
from broker.domain.planning.workload import WorkloadKind
from broker.models.config import model_from_hf_config

EXPECTED = (
    "a Hugging Face config.json, a SkyPilot task, or a command line that begins with vllm serve or torchrun"
)
VLLM_FORMATS: Mapping[str, str] = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8": "fp8", "awq": "int4", "awq_marlin": "int4",
    "gptq": "int4", "gptq_marlin": "int4", "modelopt": "fp8", "modelopt_fp4": "fp4", "mxfp4": "fp4",
}  # fmt: skip
"""Words of --dtype and --quantization, and the number formats that they mean."""
VLLM_FLAGS = frozenset(
    {
        "enable-prefix-caching",
        "enforce-eager",
        "trust-remote-code",
        "enable-chunked-prefill",
        "disable-log-stats",
    }
)
VLLM_NOTED: Mapping[str, str] = {
    "tensor-parallel-size": "the planner chooses how GPUs share a replica",
    "pipeline-parallel-size": "the planner chooses how GPUs share a replica",
    "data-parallel-size": "the planner chooses the number of replicas",
    "max-model-len": "the lengths of requests are the traffic's",
    "enable-prefix-caching": "tell prefix_cache_hit_share, the share of prompts that it holds",
    "speculative-config": "tell speculation, with the acceptance that you measured",
}
SHORT: Mapping[str, str] = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "q": "quantization"}
SEQUENCE = (
    "max-seq-length",
    "max-length",
    "seq-length",
    "seq-len",
    "block-size",
    "model-max-length",
    "sequence-length",
)
MODEL = (
    "model-name-or-path",
    "model",
    "model-id",
    "model-name",
    "model-path",
    "pretrained-model-name-or-path",
)
SOFTWARE: Mapping[str, str] = {"deepspeed": "deepspeed", "fsdp": "fsdp"}
SAME_SIZE = 0.01
_CONTINUED = re.compile(r"\\\r?\n")
_VARIABLE = re.compile(r"\$\{?\w+\}?")


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A workload that a source describes; ``policy`` and ``left_out`` as sentences say what else it told."""

    found: str
    workload: dict[str, Any]
    missing: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    """What a source tells, before the examples fill the rest."""

    kind: WorkloadKind
    told: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def tell(self, path: str, value: Any) -> None:
        """Notes a field; what is None is not told."""
        if value is not None:
            self.told[path] = value


def read_starting_point(text: str, source: str, model_file: str | None = None) -> StartingPoint:
    """The workload that ``text`` describes. ``model_file``: the name under which a ``config.json`` of a model
    without a name can be found. Raises InputError for text that is none of the known kinds.
    """
    data = _plain(text)
    if isinstance(data, dict) and ("architectures" in data or "model_type" in data):
        return _finished("a Hugging Face config.json", _of_config(data, source, model_file))
    if isinstance(data, dict) and ("resources" in data or "run" in data or "num_nodes" in data):
        return _finished("a SkyPilot task", _of_task(data))
    for words in _commands(text):
        draft = _of_command(words)
        if draft is not None:
            return _finished(f"a {words[0]} line", draft)
    shown = text.strip().splitlines()[0][:60] if text.strip() else "nothing"
    raise InputError(source, (FieldProblem("", repr(shown), EXPECTED),))


def _plain(text: str) -> Any:
    try:
        return read_document(text, "text").data
    except InputError:
        return None


def _finished(found: str, draft: _Draft) -> StartingPoint:
    """The draft over the example of its kind, with the needed fields that it does not tell."""
    workload: dict[str, Any] = json.loads(json.dumps(NEW_WORKLOADS[draft.kind]))
    for path, value in draft.told.items():
        *outer, last = path.split("/")
        holder = workload
        for step in outer:
            holder = holder.setdefault(step, {})
        holder[last] = value
    given = {
        one.path for one in WORKLOAD_FIELDS[draft.kind] if value_at(NEW_WORKLOADS[draft.kind], one.steps)
    }
    missing = [
        one.label for one in WORKLOAD_FIELDS[draft.kind] if one.path in given - set(draft.told) - {"name"}
    ]
    return StartingPoint(found, workload, tuple(missing), tuple(dict.fromkeys(draft.left_out)))


def _of_config(config: Mapping[str, Any], source: str, model_file: str | None) -> _Draft:
    draft = _Draft(WorkloadKind.SERVING)
    called = config.get("_name_or_path")
    if isinstance(called, str) and known_model(called) in load_models():
        draft.tell("model", known_model(called))
        return draft
    try:
        shape = model_from_hf_config(config, "config.json")
    except (ValueError, RecursionError) as error:
        raise InputError(source, (FieldProblem("", str(error), "a transformer's config.json"),)) from error
    alike = [known for known in load_models().values() if _is_alike(known, shape)]
    if alike:
        draft.tell("model", min(alike, key=lambda known: abs(known.context - shape.context)).name)
        return draft
    if model_file is None:
        expected = (
            "a model that the broker names; `broker init --from` on the command line takes the file itself"
        )
        raise InputError(
            source, (FieldProblem("", f"a model of {shape.total_params:.3g} parameters", expected),)
        )
    draft.tell("model", model_file)
    return draft


def _is_alike(known: ModelShape, shape: ModelShape) -> bool:
    """Whether both are one architecture of one size."""
    told, asked = (
        (one.attention, one.layers, one.hidden, one.heads, one.kv_heads, one.experts, one.vocab)
        for one in (known, shape)
    )
    return told == asked and abs(known.total_params - shape.total_params) <= SAME_SIZE * shape.total_params


def _of_task(task: Mapping[str, Any]) -> _Draft:
    """A SkyPilot task: nodes, accelerators, spot, place, and the commands that it runs."""
    resources = task.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    run = task.get("run") if isinstance(task.get("run"), str) else ""
    draft = next(filter(None, (_of_command(words) for words in _commands(str(run)))), None)
    if draft is None:
        draft = _Draft(WorkloadKind.SERVING if "service" in task else WorkloadKind.TRAINING)
    if isinstance(task.get("name"), str):
        draft.tell("name", task["name"])
    nodes, (gpu, each) = _whole(task.get("num_nodes")) or 1, _accelerators(resources.get("accelerators"))
    if draft.kind is WorkloadKind.TRAINING and each is not None:
        draft.told.setdefault("gpus/max", nodes * each)
    if gpu is not None:
        draft.left_out.append(f"accelerators {gpu}: the planner chooses the kind of GPU")
    if resources.get("use_spot") is True and draft.kind is WorkloadKind.TRAINING:
        draft.tell("interruptible", True)
    if resources.get("use_spot") is False and draft.kind is WorkloadKind.BATCH:
        draft.tell("interruptible", False)
    cloud, region = _place(resources)
    if region is not None:
        draft.tell("policy/regions", [region])
    if cloud in load_provider_names():
        draft.tell("policy/providers", {"only": [cloud]})
    elif cloud is not None:
        draft.left_out.append(f"cloud {cloud}: the broker asks no provider of that name")
    told = {"accelerators", "use_spot", "region", "cloud", "infra"}
    draft.left_out += [f"resources.{name}" for name in resources if name not in told]
    return draft


def _accelerators(told: Any) -> tuple[str | None, int | None]:
    """Kind and number of a node's accelerators, of ``H100:8``, ``{H100: 8}`` or the first in a list."""
    if isinstance(told, list) and told:
        told = told[0]
    if isinstance(told, dict) and told:
        name, count = next(iter(told.items()))
        return str(name), _whole(count) or 1
    if isinstance(told, str) and told:
        name, _, count = told.partition(":")
        return name, _whole(count) if count else 1
    return None, None


def _place(resources: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Cloud and region, of ``infra: aws/us-east-1`` or of the two fields."""
    infra = resources.get("infra")
    parts = infra.split("/") if isinstance(infra, str) else []
    cloud = parts[0] if parts else resources.get("cloud")
    region = parts[1] if len(parts) > 1 else resources.get("region")
    return (
        str(cloud).lower() if cloud and cloud != "*" else None,
        str(region) if region and region != "*" else None,
    )


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each line of a shell text, from the program on."""
    for line in _CONTINUED.sub(" ", text).splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # no shell text, such as a quote that is not closed
            continue
        for index, word in enumerate(words):
            if word.rpartition("/")[2] in ("vllm", "torchrun"):
                yield [word.rpartition("/")[2], *words[index + 1 :]]
            elif word == "-m" and words[index + 1 : index + 2] == ["torch.distributed.run"]:
                yield ["torchrun", *words[index + 2 :]]


def _of_command(words: Sequence[str]) -> _Draft | None:
    if words[0] == "vllm" and words[1:2] == ["serve"]:
        return _of_vllm(words[2:])
    return _of_torchrun(words[1:]) if words[0] == "torchrun" else None


def _of_vllm(words: Sequence[str]) -> _Draft:
    draft = _Draft(WorkloadKind.SERVING)
    options, rest = _options(words, VLLM_FLAGS)
    model = options.get("model") or (rest[0] if rest else None)
    draft.tell("model", known_model(model) if model else None)
    draft.tell("name", options.get("served-model-name"))
    told = options.get("quantization") or options.get("dtype", "auto")
    if told in VLLM_FORMATS:
        draft.tell("precisions", [VLLM_FORMATS[told]])
    draft.left_out += [f"--{name}: {why}" for name, why in VLLM_NOTED.items() if name in options]
    return draft


def _of_torchrun(words: Sequence[str]) -> _Draft:
    draft = _Draft(WorkloadKind.TRAINING)
    launcher, script = _split_at_script(words)
    options, _ = _options(script, frozenset())
    least, most = _nodes(launcher.get("nnodes", "1"))
    each = _whole(launcher.get("nproc-per-node", "1"))
    if each is None:
        draft.left_out.append(
            f"--nproc-per-node {launcher.get('nproc-per-node')}: tell gpus, it names no number"
        )
    else:
        if most is not None:
            draft.tell("gpus/max", most * each)
        if least is not None and least != most:
            draft.tell("gpus/min", least * each)
    model = next((options[name] for name in MODEL if options.get(name)), None)
    draft.tell("model", known_model(model) if model else None)
    sequence = next((_whole(options[name]) for name in SEQUENCE if name in options), None)
    draft.tell("sequence_length", sequence)
    batch = _batch(options, sequence, most * each if most and each else None)
    draft.tell("global_batch_tokens", batch)
    steps = _whole(options.get("max-steps", "")) or _whole(options.get("train-iters", ""))
    draft.tell("tokens", None if batch is None or steps is None else batch * steps)
    for name, precision in (("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8")):
        if options.get(name, "false").lower() in ("", "true", "1"):
            draft.tell("precision", precision)
    draft.tell("software", next((word for name, word in SOFTWARE.items() if name in options), None))
    return draft


def _split_at_script(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """The launcher's options, and the words after the script."""
    for index, word in enumerate(words):
        if word.endswith(".py") or word in ("-m", "--module"):
            skip = 1 if word.endswith(".py") else 2
            return _options(words[:index], frozenset({"standalone", "no-python"}))[0], words[index + skip :]
    return _options(words, frozenset({"standalone", "no-python"}))[0], ()


def _batch(options: Mapping[str, str], sequence: int | None, gpus: int | None) -> int | None:
    """Tokens of an optimizer step, of a global batch or of the batch of each device."""
    if sequence is None:
        return None
    whole = _whole(options.get("global-batch-size", ""))
    each = _whole(options.get("per-device-train-batch-size", ""))
    if whole is None and each is not None and gpus is not None:
        whole = each * (_whole(options.get("gradient-accumulation-steps", "1")) or 1) * gpus
    return None if whole is None else whole * sequence


def _nodes(told: str) -> tuple[int | None, int | None]:
    """The fewest and the most nodes: ``4``, or ``1:4`` of an elastic run."""
    least, _, most = told.partition(":")
    return _whole(least), _whole(most or least)


def _options(words: Sequence[str], flags: frozenset[str]) -> tuple[dict[str, str], list[str]]:
    """Options by name with dashes, and all other words. ``flags`` take no value."""
    options: dict[str, str] = {}
    rest: list[str] = []
    name: str | None = None
    for word in words:
        is_option = word.startswith("-") and not re.fullmatch(r"-[\d.]+", word)
        if is_option:
            told, equals, value = word.lstrip("-").partition("=")
            told = told.replace("_", "-")
            told = SHORT.get(told, told)
            options[told] = value
            name = None if equals or told in flags else told
        elif name is not None:
            options[name], name = word, None
        else:
            rest.append(word)
    return options, rest


def _whole(told: Any) -> int | None:
    """A whole number; None for a variable and for other words."""
    text = str(told)
    return int(text) if re.fullmatch(r"\d{1,9}", text) and not _VARIABLE.search(text) else None

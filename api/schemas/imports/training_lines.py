"""The command line of a training run: torchrun, accelerate or deepspeed, with the options of its script.

How it trains is read by ``training_options``. What would make another run of it and is not known there (other
preference methods, optimizers and adapters, offload of a file) is refused; it is never planned as a full run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.schemas.imports.draft import NO_FIELD, Draft, first_whole, is_on, whole
from api.schemas.imports.shell import options_of, pair_at
from api.schemas.imports.training_options import is_preference, tell_method
from broker.domain.planning.workload import WorkloadKind


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher's name, the words after it, and those before it, of a container or a scheduler."""

    name: str
    words: tuple[str, ...]
    before: tuple[str, ...] = ()


TORCHRUN, ACCELERATE, DEEPSPEED = "torchrun", "accelerate launch", "deepspeed"
MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
LAUNCHER_FLAGS = frozenset({
    "standalone", "no-python", "use-env", "multi-gpu", "use-deepspeed", "use-fsdp", "no-local-rank",
    "force-multi", "same-network", "main-training-function", "tpu", "mps", "module",
})  # fmt: skip
SCRIPT_FLAGS = frozenset({
    "use-lora", "qlora", "lora", "load-in-4bit", "load-in-8bit", "gradient-checkpointing",
    "overwrite-output-dir", "do-train", "do-eval", "use-peft", "use-flash-attn", "use-flash-attn-2",
    "packing", "trust-remote-code", "only-optimize-lora", "offload", "deepspeed-offload",
    "sequence-parallel", "use-distributed-optimizer", "use-mcore-models", "swiglu",
    "untie-embeddings-and-output-weights", "no-position-embedding", "disable-bias-linear",
    "group-query-attention", "recompute-activations", "use-dora",
})  # fmt: skip
SEQUENCE = (
    "max-seq-length", "max-length", "seq-length", "seq-len", "block-size", "model-max-length",
    "sequence-length", "max-seq-len", "cutoff-len",
)  # fmt: skip
MODEL = (
    "model-name-or-path", "model", "model-id", "model-name", "model-path",
    "pretrained-model-name-or-path", "base-model", "hf-model",
)  # fmt: skip
STEPS = ("max-steps", "train-iters", "max-train-steps", "num-train-steps")
WHOLE_BATCH = ("global-batch-size", "train-batch-size", "global-train-batch-size")
DEVICE_BATCH = ("per-device-train-batch-size", "micro-batch-size", "per-gpu-train-batch-size")
ACCUMULATION = ("gradient-accumulation-steps", "accumulate-grad-batches")
SOFTWARE: Mapping[str, str] = {"deepspeed": "deepspeed", "fsdp": "fsdp", "zero-stage": "deepspeed"}
PRECISIONS = ("bf16", "fp16", "fp8")

ADAPTERS = re.compile(
    r"(use-)?q?lora(-.*)?|(use-)?dora(-.*)?|(use-)?peft(-.*)?|adapter(s|-.*)?|finetuning-type|train-type|"
    r"tuner-type|.*-lora|lora.*"
)
FEW_BITS = re.compile(
    r"(use-)?(load-in-)?[48]-?bit(s)?(-.*)?|quantization-bit|bnb-.*|quant(ization)?-(type|method)"
)
SWITCH = re.compile(r"use-(q?lora|peft|dora)|q?lora|peft")
PREFERENCES = re.compile(
    r"(^|[^a-z])(q?lora|dora|dpo|grpo|ppo|orpo|kto|rlhf|rloo|simpo|distill\w*)([^a-z]|$)"
)
METHODS = frozenset({"stage", "rlhf-type", "method", "training-method", "algorithm", "train-method"})
KNOWN_METHODS = frozenset({"sft", "pt", "pretrain", "pretraining", "full", "clm", "finetune", "instruct"})
ADAMW = re.compile(r"(fused_?)?adamw?(_(torch|hf|apex|fused|torch_fused|apex_fused|torch_xla|npu_fused))*")
UNREAD_FILE = "the file's options are not read"
LAYOUT = "the planner chooses the layout, and what is computed again"
NOTED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"(num-(train-)?)?epochs", "a document counts tokens; state tokens, epochs times those of the data"),
        (r".*-parallel(-size)?|.*parallel-degree|sequence-parallel.*|zero-stage|use-distributed-optimizer|"
         r"(gradient|activation)-checkpointing.*|recompute.*|fsdp-.*|overlap-.*", LAYOUT),
        (r"(use-)?flash-attn.*|attn-implementation|use-liger.*|use-unsloth.*|torch-compile.*|compile",
         "tuned kernels are planned; state measured for the rate of yours"),
        (r"optim|optimizer(-type)?", "AdamW with states in 32 bits is planned"),
        (r"packing|.*pack.*|padding.*", "sequences are planned as full"),
        (r"freeze-.*|.*trainable.*|modules-to-save", "all weights are planned as trained"),
        (r"num-layers|hidden-size|ffn-hidden-size|num-attention-heads|num-query-groups|max-position.*|vocab.*",
         "name the model or its config.json; options are not read into one"),
        (r"config(-file|-name|-path)?|recipe|args-file|deepspeed(-config)?|fsdp", UNREAD_FILE),
    )
)  # fmt: skip
HARMLESS = re.compile(
    r"rdzv-.*|master-.*|main-process-.*|machine-rank|node-rank|local-addr|standalone|max-restarts|monitor.*|log.*|"
    r"report-to|run-name|wandb.*|project.*|save.*|output.*|eval.*|per-device-eval.*|do-.*|seed|data-?seed|"
    r"(learning|min|max)-(learning-)?(rate|lr)|learning-rate|lr.*|warmup.*|.*weight-decay|adam-.*|beta[12]?|eps.*|"
    r"max-grad-norm|clip-grad|num-workers|dataloader.*|ddp-.*|tokenizer.*|cache-dir|overwrite.*|trust-remote-code|"
    r"remove-unused.*|load-best.*|metric.*|push-to-hub.*|hub-.*|resume.*|data.*|dataset.*|train-(file|data).*|"
    r"validation.*|test.*|.*template|prompt.*|conv.*|version|preprocessing.*|plot-.*|tee|redirects|role|tf32|"
    r"group-by-.*|include.*|exclude.*|init.*|rank|hostfile|main-training.*|dynamo.*|same-network|multi-gpu|"
    r"use-deepspeed|use-fsdp|num-cpu.*|run-path|ckpt.*|checkpoint.*|load|split|exit-.*|shuffle.*|no-local-rank|"
    r"use-env|force-multi|hf-token|token|no-python|lazy.*|disable-tqdm|local-rank|nccl.*|timeout.*|ssh.*"
)
SET_UP = "they change neither the work of a step nor its memory"
REFUSED = (
    "full training, LoRA, DoRA or QLoRA, by tokens, answers or DPO, with AdamW (also in 8 bits), Adafactor, "
    "Muon or SGD. Others (GRPO, PPO, other adapters, weights in few bits without adapters) cannot be planned "
    "yet; what is offloaded stands in a document: optimizer: {offload: optimizer} or all"
)


def find_launcher(words: Sequence[str]) -> Launcher | None:
    """The launcher that a command names; None if it names none."""
    for index, word in enumerate(words):
        base, following = pair_at(words, index)
        found = None
        if base == "torchrun":
            found = TORCHRUN, 1
        elif word == "-m" and following in MODULES:
            found = TORCHRUN, 2
        elif base == "accelerate" and following == "launch":
            found = ACCELERATE, 2
        elif base == "deepspeed" and following:
            found = DEEPSPEED, 1
        if found is not None:
            return Launcher(found[0], tuple(words[index + found[1] :]), tuple(words[:index]))
    return None


def draft_of_launcher(launcher: Launcher, source: str) -> Draft:
    """The workload of a launcher's command."""
    draft = Draft(WorkloadKind.TRAINING, source)
    own, script, words = _split_at_script(launcher.words)
    launched, beside = options_of(own, LAUNCHER_FLAGS)
    options, rest = options_of(words, SCRIPT_FLAGS)
    used = tell_method(script, launched | options, draft)
    unknown = {name: value for name, value in {**launched, **options}.items() if name not in used}
    _refuse_other_methods("" if is_preference(script) else script, unknown, draft)
    used |= {name for name in SOFTWARE if name in options and not options[name].endswith(".json")}
    gpus = _gpus(launcher, launched, draft)
    model = next((name for name in MODEL if options.get(name)), None)
    draft.name_model(options[model] if model is not None else None)
    used |= {*MODEL}
    used |= _tell_work(options, gpus, draft)
    used |= _tell_precision(options, launched, draft)
    draft.tell("software", _software(launcher, launched, options))
    _leave_options({n: v for n, v in {**launched, **options}.items() if n not in used | LAUNCHED}, draft)
    files = [word for word in (*beside, *rest) if word.endswith((".yaml", ".yml", ".json", ".toml", ".py"))]
    for word in files:
        draft.leave(word, UNREAD_FILE)
    if script:
        draft.leave(script, "what the script sets by itself is not read")
    draft.leave_together([word for word in (*beside, *rest) if word not in files], NO_FIELD, prefix="")
    return draft


LAUNCHED = frozenset({"nnodes", "nproc-per-node", "num-processes", "num-machines", "num-gpus", "num-nodes"})


def _split_at_script(words: Sequence[str]) -> tuple[Sequence[str], str, Sequence[str]]:
    """The launcher's words, the script or module, and the words after it."""
    for index, word in enumerate(words):
        if word.endswith((".py", ".sh")) and not word.startswith("-"):
            return words[:index], word, words[index + 1 :]
        if word in ("-m", "--module") and words[index + 1 : index + 2]:
            return words[:index], words[index + 1], words[index + 2 :]
    return words, "", ()


def _refuse_other_methods(script: str, options: Mapping[str, str], draft: Draft) -> None:
    """Raises InputError that names what makes another run than full training with AdamW."""
    switched_off = any(SWITCH.fullmatch(name) and not is_on(value) for name, value in options.items())
    found = [f"the script {script}"] if PREFERENCES.search(script.rpartition("/")[2].lower()) else []
    for name, value in options.items():
        if _changes_work(name, value, adapters_off=switched_off):
            found.append(f"--{name} {value}".rstrip())
    if found:
        draft.refuse(", ".join(found), REFUSED)


def _changes_work(name: str, value: str, *, adapters_off: bool) -> bool:
    """Whether an option makes another run of it."""
    word = value.strip().lower()
    if not is_on(value):
        return False
    if name in ("finetuning-type", "train-type", "tuner-type"):
        return word not in KNOWN_METHODS
    if name in METHODS:
        return word not in KNOWN_METHODS and not word.isdigit()
    if ADAPTERS.fullmatch(name):
        return not adapters_off
    if name in ("optim", "optimizer", "optimizer-type"):
        return ADAMW.fullmatch(word.replace("-", "_")) is None
    if "offload" in name or (name in ("deepspeed", "fsdp", "config-file") and "offload" in word):
        return True
    return FEW_BITS.fullmatch(name) is not None or name in ("num-generations", "reward-model", "reward-funcs")


def _gpus(launcher: Launcher, launched: Mapping[str, str], draft: Draft) -> int | None:
    """Notes the fewest and the most GPUs; returns the most."""
    if launcher.name == ACCELERATE:
        most = whole(launched.get("num-processes", ""))
        if most is None:
            draft.leave(launcher.name, "it names no number of processes: state gpus")
        draft.tell("gpus/max", most)
        return most
    names = ("num-nodes", "num-gpus") if launcher.name == DEEPSPEED else ("nnodes", "nproc-per-node")
    least, _, most_told = launched.get(names[0], "1").partition(":")
    fewest, nodes = whole(least), whole(most_told or least)
    told = launched.get(names[1], "" if launcher.name == DEEPSPEED else "1")
    each = whole(told)
    if each is None:
        draft.leave(f"--{names[1]} {told}".rstrip(), "state gpus, it names no number")
        return None
    if nodes is None:
        draft.leave(f"--{names[0]} {launched[names[0]]}", "state gpus, it names no number")
        return None
    draft.tell("gpus/max", nodes * each)
    if fewest is not None and fewest != nodes:
        draft.tell("gpus/min", fewest * each)
    return nodes * each


def _tell_work(options: Mapping[str, str], gpus: int | None, draft: Draft) -> set[str]:
    """Notes sequence length, tokens a step and tokens in all; returns the options that were used for them."""
    length_name, length = first_whole(options, SEQUENCE)
    draft.tell("sequence_length", length)
    used = {length_name} if length_name is not None else set()
    batch_name, batch = first_whole(options, WHOLE_BATCH)
    part_name, part = first_whole(options, DEVICE_BATCH)
    more_name, more = first_whole(options, ACCUMULATION)
    steps_name, steps = first_whole(options, STEPS)
    if batch is not None:
        used.add(batch_name or "")
    elif part is not None and gpus is not None and length is not None:
        batch = part * (more or 1) * gpus
        used |= {part_name or "", more_name or ""}
    if batch is None or length is None:
        missing = "the sequence length" if length is None else "the batch of each GPU"
        needed = [name for name in (part_name, more_name, batch_name, steps_name) if name]
        draft.leave_together(
            [f"{name} {options[name]}" for name in needed],
            f"{missing} is not stated: state global_batch_tokens and tokens",
        )
        return used | set(needed)
    draft.tell("global_batch_tokens", batch * length)
    draft.tell("tokens", None if steps is None else batch * length * steps)
    if part_name is not None and part_name not in used:
        draft.leave_together([name for name in (part_name, more_name) if name], LAYOUT)
    return used | {name for name in (steps_name, part_name, more_name) if name}


def _tell_precision(options: Mapping[str, str], launched: Mapping[str, str], draft: Draft) -> set[str]:
    """Notes the number format; returns the options that state it."""
    used: set[str] = set()
    for name in PRECISIONS:
        if name in options:
            used.add(name)
            if is_on(options[name]):
                draft.tell("precision", name)
    for holder in (launched, options):
        for name in ("mixed-precision", "torch-dtype", "dtype", "precision"):
            told = holder.get(name, "").lower()
            if not is_on(told) or not told:
                used |= {name} if name in holder else set()
                continue
            found = {"bfloat16": "bf16", "float16": "fp16", "16": "fp16"}.get(told, told.partition("-")[0])
            if found not in PRECISIONS:
                draft.refuse(f"--{name} {told}", f"one of {', '.join(PRECISIONS)}")
            draft.tell("precision", found)
            used.add(name)
    return used


def _software(launcher: Launcher, launched: Mapping[str, str], options: Mapping[str, str]) -> str | None:
    if launcher.name == DEEPSPEED or "use-deepspeed" in launched:
        return "deepspeed"
    if "use-fsdp" in launched:
        return "fsdp"
    return next((word for name, word in SOFTWARE.items() if name in options and is_on(options[name])), None)


def _leave_options(options: Mapping[str, str], draft: Draft) -> None:
    """Names every option that is not used, those that change nothing together."""
    set_up: list[str] = []
    for name, value in options.items():
        why = next((why for pattern, why in NOTED if pattern.fullmatch(name)), None)
        if why is not None:
            draft.leave(f"--{name} {value}".rstrip(), why)
        elif HARMLESS.fullmatch(name):
            set_up.append(name)
        else:
            draft.leave(f"--{name} {value}".rstrip(), NO_FIELD)
    draft.leave_together(set_up, SET_UP)

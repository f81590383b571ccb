"""The command line of a training run: torchrun, accelerate or deepspeed, with the options of its script.

How it trains is read by ``training_options``. What would make another run of it and is not known there (other
preference methods, optimizers and adapters, offload of a file) is refused; it is never planned as a full run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.schemas.imports.draft import Draft, first_whole, is_on, whole
from api.schemas.imports.shell import options_of, pair_at
from api.schemas.imports.tables import NO_FIELD, import_words, option_table
from api.schemas.imports.training_options import is_preference, tell_method
from broker.domain.planning.workload import WorkloadKind


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher's name, the words after it, and those before it, of a container or a scheduler."""

    name: str
    words: tuple[str, ...]
    before: tuple[str, ...] = ()


TORCHRUN, ACCELERATE, DEEPSPEED = "torchrun", "accelerate launch", "deepspeed"
AXOLOTL, TUNE, TRL, FACTORY = "axolotl train", "tune run", "trl", "llamafactory-cli train"
PYTHON = "python"
TRAINERS: Mapping[tuple[str, str], str] = {
    ("accelerate", "launch"): ACCELERATE,
    ("axolotl", "train"): AXOLOTL,
    ("tune", "run"): TUNE,
    ("trl", "sft"): TRL,
    ("trl", "dpo"): TRL,
    ("trl", "grpo"): TRL,
    ("trl", "kto"): TRL,
    ("trl", "reward"): TRL,
    ("llamafactory-cli", "train"): FACTORY,
}
"""Programs that train, and their commands."""
MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
LAUNCHER_FLAGS = frozenset({
    "standalone", "no-python", "use-env", "multi-gpu", "use-deepspeed", "use-fsdp", "no-local-rank",
    "force-multi", "same-network", "main-training-function", "tpu", "mps", "module",
})  # fmt: skip
SEQUENCE = (
    "max-seq-length", "max-length", "seq-length", "seq-len", "block-size", "model-max-length",
    "sequence-length", "max-seq-len", "cutoff-len", "sequence-len",
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
    r"(^|[^a-z])(q?lora|dora|dpo|grpo|ppo|orpo|kto|rlhf|rloo|simpo|qat|reward|distill\w*|\w*_?distillation)([^a-z]|$)"
)
METHODS = frozenset({
    "stage", "rlhf-type", "method", "training-method", "algorithm", "train-method", "rl", "loss.-component-",
})  # fmt: skip
KNOWN_METHODS = frozenset({
    "sft", "pt", "pretrain", "pretraining", "full", "clm", "finetune", "instruct", "linearcrossentropyloss",
    "cewithchunkedoutputloss", "crossentropyloss", "chunkedcrossentropyloss",
})  # fmt: skip
OTHER_MODELS = re.compile(
    r"(reward|teacher|ref|process-reward|value|policy)-?(model|checkpointer|funcs|trl)?(\..*)?|qat(\..*)?|quantizer(\..*)?|"
    r"num-generations|trl\..*|dpo-.*|kto-.*|grpo.*|ebft.*|relora.*|peft\..*|noisy-embedding.*|diffusion(\..*)?"
)
"""Options of runs with further models, or of another method."""
ADAMW = re.compile(r"(fused_?)?adamw?(_(torch|hf|apex|fused|torch_fused|apex_fused|torch_xla|npu_fused))*")
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
        elif word == "-m" and following == AXOLOTL_MODULE:
            found = AXOLOTL, 2
        elif (base, following) in TRAINERS:
            found = TRAINERS[base, following], 1 if base == TRL else 2
        elif base == "deepspeed" and following:
            found = DEEPSPEED, 1
        elif index == 0 and base.startswith(PYTHON) and _is_training(words):
            found = PYTHON, 1
        if found is not None:
            return Launcher(found[0], tuple(words[index + found[1] :]), tuple(words[:index]))
    return None


AXOLOTL_MODULE = "axolotl.cli.train"


def _is_training(words: Sequence[str]) -> bool:
    """Whether a script's options are those of a training run: a model, and the batch of a device."""
    names = {word.lstrip("-").partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    return bool(names & {*MODEL}) and bool(names & {*DEVICE_BATCH})


def draft_of_launcher(launcher: Launcher, source: str, of_job: int | None = None) -> Draft:
    """The workload of a launcher's command; ``of_job``: the GPUs of the job that runs it."""
    draft = Draft(WorkloadKind.TRAINING, source)
    own, script, words = _split_at_script(launcher)
    table = option_table("runs")
    launched, beside = options_of(own, LAUNCHER_FLAGS)
    options, rest = options_of(words, table.flags)
    rest = [word for word in rest if word != "--"]
    sets = dict(word.split("=", 1) for word in rest if re.fullmatch(r"[\w.]+=.*", word))
    rest = [word for word in rest if word.partition("=")[0] not in sets]
    options = {**options, **{_option(name): value for name, value in sets.items()}}
    files = [word for word in (*beside, *rest) if word.endswith(FILES)]
    used = tell_method(script, launched | options, draft)
    left = {name: value for name, value in {**launched, **options}.items() if name not in used}
    _refuse_other_methods([one for one in (script, *files) if not is_preference(one)], left, draft)
    _require_model(launched | options, files, draft)
    gpus = _gpus(launcher, launched | options if launcher.name in NOT_SPLIT else launched, of_job, draft)
    tell_run(draft, left, gpus, _software(launcher, launched, options))
    for word in files:
        draft.leave(word, "the file's options are not read")
    if script:
        draft.leave(script, "what the script sets by itself is not read")
    draft.leave_together([word for word in (*beside, *rest) if word not in files], NO_FIELD, prefix="")
    return draft


NOT_SPLIT = (AXOLOTL, FACTORY, TRL)
"""Launchers whose own options stand among those of the run."""
FILES = (".yaml", ".yml", ".json", ".toml", ".py")


def tell_run(draft: Draft, options: Mapping[str, str], gpus: int | None, software: str | None) -> None:
    """Notes model, work and number format of a run's options, and leaves out the others."""
    used = {name for name in SOFTWARE if name in options and not options[name].endswith(".json")}
    model = next((name for name in MODEL if options.get(name)), None)
    draft.name_model(options[model] if model is not None else None)
    used |= {*MODEL, *LAUNCHED, "model.-component-"}
    used |= _tell_work(options, gpus, draft)
    used |= _tell_precision(options, draft)
    draft.tell("software", software)
    unused = {name: value for name, value in options.items() if name not in used}
    draft.leave_options(unused, option_table("runs"), SET_UP)


def _require_model(options: Mapping[str, str], files: Sequence[str], draft: Draft) -> None:
    """Raises InputError where a file holds what the command does not say: the model, and its method."""
    held = [*(options[name] for name in OF_RUN if options.get(name)), *files]
    read = next((name for name in held if not name.endswith(".py")), None)
    if read is not None and not any(options.get(name) for name in MODEL):
        draft.refuse(
            read,
            "the model in the command, or the file itself in its place: it holds the model and the method",
        )


OF_RUN = ("config", "recipe", "args-file")


def draft_of_recipe(options: Mapping[str, str], source: str) -> Draft:
    """The workload of a configuration file of a trainer, with its options by name."""
    draft = Draft(WorkloadKind.TRAINING, source)
    named = {_option(name): value for name, value in options.items()}
    draft.spelled = {_option(name): name for name in options}
    used = tell_method("", named, draft)
    left = {name: value for name, value in named.items() if name not in used}
    _refuse_other_methods((), left, draft)
    draft.leave("the number of GPUs", "the file does not state it: state gpus")
    tell_run(draft, left, None, _software(None, {}, named))
    return draft


def _option(name: str) -> str:
    """The name of an option on command lines, of its name in a file."""
    told = name.replace("_", "-")
    return str(import_words()["runs"]["names"].get(told, told))


LAUNCHED = frozenset({"nnodes", "nproc-per-node", "num-processes", "num-machines", "num-gpus", "num-nodes"})


def _split_at_script(launcher: Launcher) -> tuple[Sequence[str], str, Sequence[str]]:
    """The launcher's words, the script, module or recipe, and the words after it."""
    words = launcher.words
    if launcher.name == TRL:
        return (), words[0], words[1:]
    if launcher.name in (AXOLOTL, FACTORY):
        return (), "", words
    for index, word in enumerate(words):
        if launcher.name == TUNE and not word.startswith("-") and _is_recipe(words, index):
            return words[:index], word, words[index + 1 :]
        if word.endswith((".py", ".sh")) and not word.startswith("-"):
            return words[:index], word, words[index + 1 :]
        if word in ("-m", "--module") and words[index + 1 : index + 2]:
            return words[:index], words[index + 1], words[index + 2 :]
    return words, "", ()


def _is_recipe(words: Sequence[str], index: int) -> bool:
    """Whether a word of ``tune run`` is the recipe's name: no option's value."""
    before = words[index - 1] if index else ""
    return not before.startswith("-") or "=" in before


def _refuse_other_methods(named: Sequence[str], options: Mapping[str, str], draft: Draft) -> None:
    """Raises InputError that names what makes another run than full training with AdamW.

    ``named``: the script and the files of the command.
    """
    switched_off = any(SWITCH.fullmatch(name) and not is_on(value) for name, value in options.items())
    found = [f"the script {one}" if one.endswith(".py") else one for one in named
             if PREFERENCES.search(one.rpartition("/")[2].lower())]  # fmt: skip
    for name, value in options.items():
        if _changes_work(name, value, adapters_off=switched_off):
            found.append(draft.shown(name, value))
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
        return word.rpartition(".")[2] not in KNOWN_METHODS and not word.isdigit()
    if name == "model.-component-":
        return PREFERENCES.search(word.rpartition(".")[2]) is not None
    if ADAPTERS.fullmatch(name):
        return not adapters_off
    if name in ("optim", "optimizer", "optimizer-type"):
        return ADAMW.fullmatch(word.rpartition(".")[2].replace("-", "_")) is None
    if "offload" in name or (name in ("deepspeed", "fsdp", "config-file") and "offload" in word):
        return True
    if name in ("config", "config-file", "recipe"):
        return PREFERENCES.search(word.rpartition("/")[2]) is not None
    return FEW_BITS.fullmatch(name) is not None or OTHER_MODELS.fullmatch(name) is not None


def _gpus(launcher: Launcher, launched: Mapping[str, str], of_job: int | None, draft: Draft) -> int | None:
    """Notes the fewest and the most GPUs; returns the most: of the launcher, else of the job that runs it."""
    fewest, most, what = _processes(launcher, launched)
    if most is None and of_job is not None:
        most = of_job
    elif most is None:
        draft.leave(what, "it names no number of processes: state gpus")
    draft.tell("gpus/max", most)
    draft.tell("gpus/min", fewest)
    return most


def _processes(launcher: Launcher, launched: Mapping[str, str]) -> tuple[int | None, int | None, str]:
    """The fewest processes where there are several, the most, and what does not state them."""
    if launcher.name == PYTHON:
        return None, 1, launcher.name
    if launcher.name in (ACCELERATE, TRL, FACTORY):
        return None, whole(launched.get("num-processes", "")), launcher.name
    nodes_name, each_name = COUNTS.get(launcher.name, ("nnodes", "nproc-per-node"))
    least, _, most = launched.get(nodes_name, "1").partition(":")
    fewest, nodes = whole(least), whole(most or least)
    told = launched.get(each_name, "" if launcher.name in (DEEPSPEED, AXOLOTL) else "1")
    each = whole(told)
    if each is None or nodes is None:
        name, value = (each_name, told) if each is None else (nodes_name, launched[nodes_name])
        return None, None, f"--{name} {value}" if value else launcher.name
    return fewest * each if fewest is not None and fewest != nodes else None, nodes * each, ""


COUNTS: Mapping[str, tuple[str, str]] = {DEEPSPEED: ("num-nodes", "num-gpus")}


def _tell_work(options: Mapping[str, str], gpus: int | None, draft: Draft) -> set[str]:
    """Notes sequence length, tokens a step and tokens in all; returns the options that were used for them."""
    length_name, length = first_whole(options, SEQUENCE)
    draft.tell("sequence_length", length)
    used = {length_name} if length_name is not None else set()
    batch_name, batch = first_whole(options, WHOLE_BATCH)
    part_name, part = first_whole(options, DEVICE_BATCH)
    more_name, more = first_whole(options, ACCUMULATION)
    steps_name, steps = first_whole(options, STEPS)
    if steps_name is not None and (whole(options.get("epochs", "1")) or 1) > 1:
        steps = (steps or 0) * (whole(options["epochs"]) or 1)
    if batch is not None:
        used.add(batch_name or "")
    elif part is not None and gpus is not None and length is not None:
        batch = part * (more or 1) * gpus
        used |= {part_name or "", more_name or ""}
    if batch is None or length is None:
        missing = "the batch of each GPU" if gpus is not None else "the number of GPUs"
        missing = "the sequence length" if length is None else missing
        needed = [name for name in (part_name, more_name, batch_name, steps_name) if name]
        draft.leave_together(
            [draft.shown(name, options[name]) for name in needed],
            f"{missing} is not stated: state global_batch_tokens and tokens",
            prefix="",
        )
        return used | set(needed)
    draft.tell("global_batch_tokens", batch * length)
    draft.tell("tokens", None if steps is None else batch * length * steps)
    if part_name is not None and part_name not in used:
        draft.leave_together(
            [name for name in (part_name, more_name) if name], import_words()["reasons"]["run_layout"]
        )
    return used | {name for name in (steps_name, part_name, more_name) if name}


def _tell_precision(options: Mapping[str, str], draft: Draft) -> set[str]:
    """Notes the number format; returns the options that state it."""
    used: set[str] = set()
    for name in PRECISIONS:
        if name in options:
            used.add(name)
            if is_on(options[name]) or options[name].lower() == "auto":
                draft.tell("precision", name)
    for name in ("mixed-precision", "torch-dtype", "dtype", "precision"):
        told = options.get(name, "").lower()
        used |= {name} & options.keys()
        if not told or not is_on(told):
            continue
        found = {"bfloat16": "bf16", "float16": "fp16", "16": "fp16"}.get(told, told.partition("-")[0])
        if found not in PRECISIONS:
            draft.refuse(f"--{name} {told}", f"one of {', '.join(PRECISIONS)}")
        draft.tell("precision", found)
    return used


def _software(
    launcher: Launcher | None, launched: Mapping[str, str], options: Mapping[str, str]
) -> str | None:
    if (launcher is not None and launcher.name == DEEPSPEED) or "use-deepspeed" in launched:
        return "deepspeed"
    if "use-fsdp" in launched:
        return "fsdp"
    if any(name.startswith(("fsdp-", "fsdp.")) for name in options):
        return "fsdp"
    return next((word for name, word in SOFTWARE.items() if name in options and is_on(options[name])), None)

"""How a run trains, by the options of its trainer: adapters, few-bit bases, optimizers, preferences."""

from __future__ import annotations

import re
from collections.abc import Mapping

from api.schemas.imports.draft import Draft, is_on, whole
from broker.domain.workloads.training_method import Target

ADAPTERS = ("adapter", "finetuning-type", "train-type", "tuner-type")
SWITCHES: Mapping[str, str] = {
    "use-lora": "lora", "lora": "lora", "use-peft": "lora", "peft": "lora", "only-optimize-lora": "lora",
    "use-dora": "dora", "peft-use-dora": "dora", "qlora": "qlora", "use-qlora": "qlora",
}  # fmt: skip
KINDS: Mapping[str, tuple[str, str | None]] = {
    "lora": ("lora", None), "dora": ("dora", None), "qlora": ("lora", "int4"), "qdora": ("dora", "int4"),
}  # fmt: skip
RANKS = ("lora-r", "lora-rank", "lora-dim", "peft-lora-r")
TARGETS = ("lora-target-modules", "lora-target", "target-modules", "lora-modules")
WORDS: Mapping[str, str] = {"all-linear": "all", "output_proj": "o_proj"}
BITS: Mapping[str, str] = {"load-in-4bit": "int4", "load-in-8bit": "int8"}
OPTIMIZERS: Mapping[str, str] = {
    "adamw_8bit": "adamw8bit", "adamw_bnb_8bit": "adamw8bit", "adamw8bit": "adamw8bit",
    "paged_adamw_8bit": "paged_adamw8bit", "paged_adamw8bit": "paged_adamw8bit",
    "pagedadamw8bit": "paged_adamw8bit", "adafactor": "adafactor", "muon": "muon", "sgd": "sgd",
}  # fmt: skip
OPTIMIZER_OPTIONS = ("optim", "optimizer", "optimizer-type")
OBJECTIVES = ("stage", "rlhf-type", "method", "training-method", "rl")
PREFERENCE = re.compile(r"(^|[^a-z])dpo([^a-z]|$)")
OF_ADAPTERS = re.compile(r"(peft-)?lora-(alpha|dropout|bias|plus.*)|use-rslora|bnb-4bit-.*")
SAME_WORK = "it changes neither the work of a step nor its memory"


def tell_method(named: str, options: Mapping[str, str], draft: Draft) -> set[str]:
    """Notes how the run trains; returns the options that say so. ``named``: its script or recipe.

    What it does not know stays among the options.
    """
    used = _tell_adapter(options, draft) | _tell_optimizer(options, draft)
    found = [name for name in OBJECTIVES if options.get(name, "").strip().lower() == "dpo"]
    if found or is_preference(named):
        draft.tell("method", "dpo")
    return used | {*found}


def is_preference(named: str) -> bool:
    """Whether a script or recipe is named after preferences between two answers."""
    return PREFERENCE.search(named.rpartition("/")[2].lower()) is not None


def _tell_adapter(options: Mapping[str, str], draft: Draft) -> set[str]:
    words = {name: options[name].strip().lower() for name in ADAPTERS if name in options}
    used = {name for name, word in words.items() if word in KINDS}
    found = [KINDS[words[name]] for name in ADAPTERS if name in used]
    for name, word in SWITCHES.items():
        if name in options:
            used.add(name)
            found += [KINDS[word]] if is_on(options[name]) else []
    ranks = [name for name in RANKS if whole(options.get(name, "")) is not None]
    is_off = any(not is_on(options[name]) for name in SWITCHES if name in options)
    if not found and ranks and not is_off:
        found = [KINDS["lora"]]
    rest = {name for name in options if OF_ADAPTERS.fullmatch(name)}
    if not found:
        return set()
    kind = "dora" if ("dora", None) in found or ("dora", "int4") in found else "lora"
    draft.tell("adapter/kind", kind)
    draft.tell("adapter/rank", whole(options[ranks[0]]) if ranks else None)
    draft.leave_together(sorted(rest), SAME_WORK)
    return used | rest | {*ranks} | _tell_targets(options, draft) | _tell_base(options, found, draft)


def _tell_targets(options: Mapping[str, str], draft: Draft) -> set[str]:
    """Notes the matrices with adapters; a name that no document has stays among the options."""
    for name in TARGETS:
        told = re.findall(r"[\w-]+", options.get(name, "").lower())
        words = [WORDS.get(word, word) for word in told]
        if words and set(words) <= set(Target):
            draft.tell("adapter/targets", list(dict.fromkeys(words)))
            return {name}
    return set()


def _tell_base(options: Mapping[str, str], found: list[tuple[str, str | None]], draft: Draft) -> set[str]:
    bits = {"4": "int4", "8": "int8"}.get(options.get("quantization-bit", ""))
    stated = [base for name, base in BITS.items() if is_on(options.get(name, "false"))]
    named = [base for _, base in found if base is not None]
    draft.tell("adapter/base", next(iter((*stated, *named, *([bits] if bits else []))), None))
    return {name for name in BITS if name in options} | ({"quantization-bit"} if bits else set())


def _tell_optimizer(options: Mapping[str, str], draft: Draft) -> set[str]:
    for name in OPTIMIZER_OPTIONS:
        word = options.get(name, "").strip().lower().rpartition(".")[2].replace("-", "_")
        if word in OPTIMIZERS:
            draft.tell("optimizer/name", OPTIMIZERS[word])
            return {name}
    return set()

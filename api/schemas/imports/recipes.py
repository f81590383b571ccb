"""Configuration files of trainers → the options that the same run has on a command line.

axolotl, torchtune, and the trainers whose files have the options of transformers (TRL, LLaMA-Factory).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from broker.catalogue import known_model, load_models

COMPONENT = "_component_"
MOST_DEPTH = 8


def recipe_title(data: Mapping[str, Any]) -> str | None:
    """What configuration file this is; None if it is none."""
    if isinstance(data.get("base_model"), str):
        return "an axolotl configuration"
    model = data.get("model")
    if isinstance(model, dict) and str(model.get(COMPONENT, "")).startswith("torchtune."):
        return "a torchtune recipe"
    if isinstance(data.get("model_name_or_path"), str):
        return "a trainer's configuration"
    return None


def recipe_options(data: Mapping[str, Any]) -> dict[str, str]:
    """The options of a configuration file by name; what has no value is not among them."""
    options = dict(_flat(data, "", 0))
    component = options.get(f"model.{COMPONENT}")
    if component is not None:
        options["model"] = _torchtune_model(component, data)
        options = {name: value for name, value in options.items() if not _is_place(name)}
    return options


def _flat(told: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(told, dict) and depth < MOST_DEPTH:
        for name, inner in told.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name), depth + 1)
    elif isinstance(told, list):
        plain = [str(one) for one in told if not isinstance(one, dict | list)]
        if told:
            yield path, ",".join(plain) if len(plain) == len(told) else f"{len(told)} entries"
    elif isinstance(told, bool):
        yield path, str(told).lower()
    elif told is not None and str(told) != "":
        yield path, str(told)


def _is_place(name: str) -> bool:
    return name.startswith(("checkpointer.", "tokenizer.")) and name != "tokenizer.max_seq_len"


def _torchtune_model(component: str, data: Mapping[str, Any]) -> str:
    """The model of a recipe: of the folder of its checkpoint, else of its builder (``llama3_1_8b``)."""
    checkpointer = data.get("checkpointer")
    folder = str(checkpointer.get("checkpoint_dir", "")) if isinstance(checkpointer, dict) else ""
    named = known_model(folder)
    if named in load_models():
        return named
    built = re.sub(r"^(q?lora|dora)_", "", component.rpartition(".")[2])
    plain = re.sub(r"(?<=\d)_(?=\d+_)", ".", built).replace("_", "-")
    apart = known_model(re.sub(r"(?<=[a-z])(?=\d)", "-", plain, count=1))
    return apart if apart in load_models() else plain

"""Names of GPUs and models as published tables spell them → the catalogue's names.

``H100 80GB HBM3``, ``NVIDIA A100-PCIE-40GB``, ``MI300X`` · ``meta-llama/Llama-3.1-70B-Instruct``,
``Qwen3-30B-A3B-Instruct-2507-FP8``, ``llama2-70b-chat``. A note states every choice among several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log

from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.tables.cells import Unreadable

FORMS = {"SXM": "SXM", "PCIE": "PCIE", "NVL": "NVL", "OAM": "OAM"}
# fmt: off
GPU_FILLERS = frozenset({
    "NVIDIA", "AMD", "INTEL", "GOOGLE", "INSTINCT", "GEFORCE", "TESLA", "QUADRO", "TENSOR", "CORE",
    "GPU", "HGX", "DGX", "GENERATION", "EDITION", "SERVER", "WORKSTATION", "BLACKWELL", "HBM2", "HBM2E",
    "HBM3", "HBM3E", "GDDR6", "GDDR6X", "GDDR7", "NVL72", "NVLINK", "HL", "SLICE", "PODSLICE",
})
# fmt: on
GPU_SPELLINGS = (
    (r"\bIRONWOOD\b|\bTPU\s*-?\s*V?7X\b", "TPU-V7X"),
    (r"\bTRILLIUM\b", "TPU-V6E"),
    (r"\bV5\s*-?\s*LITE(POD)?\b", "V5E"),
    (r"^\s*(V\d[EPX])\b", r"TPU-\1"),
)
PREFERRED_FORMS = ("SXM", "OAM", "", "PCIE", "NVL")
SHORTEST = 3
MEMORY = re.compile(r"^(\d+)G(I?B)?$")
WATTS = re.compile(r"\d{3}W")

SIZE = re.compile(r"^(\d+(?:\.\d+)?)([bmt])$")
SIZE_UNITS = {"m": 1e-3, "b": 1.0, "t": 1e3}
VERSION = re.compile(r"\d+\.\d+")
SPELLINGS = {"gptoss": "gpt-oss", "r+": "r-plus", "llama3.": "llama-3."}
EXPERTS_TIMES = re.compile(r"(\d+)x(\d+(?:\.\d+)?)b")
ACTIVE = re.compile(r"^a(\d+(?:\.\d+)?)b$")
MODEL_WORDS = re.compile(r"\d+x\d+(?:\.\d+)?[bm]|a?\d+(?:\.\d+)?[bmt](?![a-z0-9])|\d+(?:\.\d+)?|[a-z]+")
DISTILLED = "distill"
SAME_SIZE = 0.12
SPARSE = 0.8
BILLION = 1e9
USUAL_VOCABULARY, ODD_VOCABULARY = 64000, 0.02


def find_gpu(text: str, gpus: Mapping[str, GpuSpec], memory_gb: float | None = None) -> tuple[GpuSpec, str]:
    """The GPU of a published name, with a note if the name was ambiguous.

    ``memory_gb``: the memory of one GPU, if another column gives it. Raises Unreadable.
    """
    known = gpus.get(text.strip())
    if known is not None:
        return known, ""
    words = gpu_words(text)
    told = next((float(size[1]) for word in words if (size := MEMORY.match(word))), memory_gb)
    form = next((name for word, name in FORMS.items() if any(w.startswith(word) for w in words)), "")
    core = tuple(w for w in words if not MEMORY.match(w) and not w.startswith(tuple(FORMS)))
    same = [spec for spec in gpus.values() if core and _core(spec.gpu) == core]
    same = same or [spec for spec in gpus.values() if core and _shortened("".join(core), spec.gpu)]
    if form:
        same = [spec for spec in same if form in spec.gpu.upper()] or same
    if not same:
        raise Unreadable(f"unknown GPU {text!r}")
    found = min(same, key=lambda spec: _distance(spec, told))
    note = f"GPU {text.strip()!r} taken as {found.gpu}" if len(same) > 1 else ""
    return found, note


def gpu_words(text: str) -> tuple[str, ...]:
    """Upper-case words of a GPU's name without vendors, boards and kinds of memory."""
    plain = re.sub(r"^\s*\d+\s*X\s*|(?<![A-Z])\s*X\s*\d{1,2}\s*$", "", text.upper())
    plain = re.sub(r"PCI-E\b", "PCIE", plain)
    for spelled, usual in GPU_SPELLINGS:
        plain = re.sub(spelled, usual, plain)
    plain = re.sub(r"(\d+)\s+GI?B\b", r"\1GB", plain)
    plain = re.sub(r"\b(RTX|MI|TPU|GAUDI|V)\s*-?\s*(\d)", r"\1\2", plain)
    words = dict.fromkeys(word for word in re.split(r"[^A-Z0-9]+", plain) if word)
    return tuple(word for word in words if word not in GPU_FILLERS and not WATTS.fullmatch(word))


@lru_cache(maxsize=256)
def _core(name: str) -> tuple[str, ...]:
    words = gpu_words(name)
    return tuple(w for w in words if not MEMORY.match(w) and not w.startswith(tuple(FORMS)))


def _shortened(text: str, name: str) -> bool:
    """Whether ``text`` is a usual short form of ``name``: without its series, or without its X."""
    core = "".join(_core(name))
    return len(text) > SHORTEST and (core.endswith(text) or core == f"{text}X")


def _distance(spec: GpuSpec, memory_gb: float | None) -> tuple[float, int, int, float]:
    """Sort key: the nearest memory, then the form factor that clouds rent most, the plainest name, the
    largest memory."""
    apart = abs(log(spec.memory_gb / memory_gb)) if memory_gb else 0.0
    name = spec.gpu.upper()
    form = next((word for word in PREFERRED_FORMS if word and word in name), "")
    return round(apart, 2), PREFERRED_FORMS.index(form), name.count("-"), -spec.memory_gb


def find_model(
    text: str,
    models: Mapping[str, ModelShape],
    total_b: float | None = None,
    active_b: float | None = None,
) -> tuple[ModelShape, str]:
    """The model of a published name. If no known one is like it, the nearest in size, scaled to its parameter
    counts.

    ``total_b``, ``active_b``: parameters in billions, if other columns give them. Raises Unreadable.
    """
    found = known_model(text, models, total_b)
    if found is not None:
        exact = found.name == text.strip()
        return found, "" if exact else f"model {text.strip()!r} taken as {found.name}"
    total, active = sizes_of(_own_words(text))
    total, active = total_b or total, active_b or active or total_b or total
    if not total or not active:
        raise Unreadable(f"unknown model {text!r}, and nothing says how large it is")
    return _scaled_to(text.strip(), models, total, min(active, total))


def known_model(
    text: str, models: Mapping[str, ModelShape], total_b: float | None = None
) -> ModelShape | None:
    """The known model that a published name means; None if none is like it."""
    return models.get(text.strip()) or _similar_model(_own_words(text), models, total_b)


def _own_words(text: str) -> tuple[str, ...]:
    """Words of a model's name; for a distilled model the name of the student."""
    words = model_words(text)
    return words[words.index(DISTILLED) + 1 :] if DISTILLED in words else words


def model_words(text: str) -> tuple[str, ...]:
    """Lower-case words of a model's name without its owner: letters, versions, sizes."""
    name = text.strip().lower().rsplit("/", 1)[-1].replace("_", "-")
    for spelled, usual in SPELLINGS.items():
        name = name.replace(spelled, usual)
    return tuple(MODEL_WORDS.findall(re.sub(r"(?<=\d)-(?=\d-)", ".", name)))


def sizes_of(words: Sequence[str]) -> tuple[float | None, float | None]:
    """Total and active parameters in billions by the words of a name.

    An ``8x7b`` has 6.7 times the size of an expert, because experts share attention; two experts are active.
    """
    times = next((found for word in words if (found := EXPERTS_TIMES.fullmatch(word))), None)
    if times:
        one = float(times[2])
        return float(times[1]) * one * 0.84, one * 1.84
    active = next((float(found[1]) for word in words if (found := ACTIVE.fullmatch(word))), None)
    sizes = [size for word in words if (size := _size_b(word)) is not None]
    return (max(sizes) if sizes else None), active


def _size_b(word: str) -> float | None:
    found = SIZE.match(word)
    return float(found[1]) * SIZE_UNITS[found[2]] if found else None


def _similar_model(
    words: Sequence[str], models: Mapping[str, ModelShape], total_b: float | None
) -> ModelShape | None:
    """The known model whose words are all in the name, the most words first; else one of the same family and
    size; else, if the name has no size, the family's model of the same major version."""
    told, active = sizes_of(words)
    size = total_b or told
    for have in (set(words), set(words) | set(_majors(words))):
        fitting = [
            (len(wanted), model)
            for model in models.values()
            if (wanted := model_words(model.name)) and set(wanted) <= have and _same_size(model, size, wanted)
        ]
        if fitting:
            return max(fitting, key=lambda entry: entry[0])[1]
    if not words:
        return None
    family = [model for model in _plain(models) if model_words(model.name)[0] == words[0]]
    if size is not None:
        alike = (m for m in reversed(family) if m.is_moe is (active is not None))
        return next((m for m in alike if _as_large(m, size, active)), None)
    plain = set(_majors(words))
    namesakes = [model for model in family if set(_majors(_unsized(model_words(model.name)))) <= plain]
    return max(namesakes, key=_similarity, default=None)


def _plain(models: Mapping[str, ModelShape]) -> Sequence[ModelShape]:
    """Models with attention in all layers, which are the substitutes for unknown models."""
    return [model for model in models.values() if not model.states.count]


def _similarity(model: ModelShape) -> tuple[int, bool, float]:
    """Sort key: the most common words, then names that also have no size, then the larger model."""
    words = model_words(model.name)
    return len(_unsized(words)), _unsized(words) == words, model.total_params


def _unsized(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        w for w in words if _size_b(w) is None and not ACTIVE.match(w) and not EXPERTS_TIMES.match(w)
    )


def _majors(words: Sequence[str]) -> tuple[str, ...]:
    """Versions without their minor part, because a model 3.1 may have the shape of model 3."""
    return tuple(word.split(".")[0] if VERSION.fullmatch(word) else word for word in words)


def _same_size(model: ModelShape, size: float | None, wanted: Sequence[str]) -> bool:
    """Whether the model may have a size that the name states; a name with a size was compared before."""
    if size is None or any(_size_b(word) is not None for word in wanted):
        return True
    return min(_apart(model.total_params, size), _apart(model.active_params, size)) < SAME_SIZE


def _as_large(model: ModelShape, total: float, active: float | None) -> bool:
    both = (_apart(model.total_params, total), _apart(model.active_params, active or total))
    return max(both) < SAME_SIZE


def _apart(params: float, size_b: float) -> float:
    return abs(log(params / BILLION / size_b))


def _scaled_to(
    name: str, models: Mapping[str, ModelShape], total: float, active: float
) -> tuple[ModelShape, str]:
    """The known model nearest in size, with the given parameters (billions) instead of its own."""
    sparse = active < SPARSE * total
    alike = [model for model in _plain(models) if model.is_moe is sparse]

    def distance(model: ModelShape) -> float:
        sizes = _apart(model.total_params, total) ** 2 + _apart(model.active_params, active) ** 2
        return sizes + ODD_VOCABULARY * log(model.vocab / USUAL_VOCABULARY) ** 2

    near = min(alike, key=distance)
    made = replace(near, name=name, total_params=total * BILLION, active_params=active * BILLION)
    return made, f"{name!r} is not a known model: the shape of {near.name} with {total:.3g} B parameters"

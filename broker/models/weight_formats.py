"""Number formats of weights, as names of models and ``quantization_config`` state them.

``vllm serve`` and its like take the format from the checkpoint, so a name or a file often states it alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.domain.planning.workload import Precision

PLANNED = tuple(one.value for one in Precision)
"""The formats that a plan can have."""
MXFP4_BYTES = 0.5 + 1 / 32
NVFP4_BYTES = 0.5 + 1 / 16
NEAREST: Mapping[str, str] = {"int8": "fp8"}
"""Formats of no plan, and the one of a plan that has their size."""
OTHER_FORMAT = "a format that is not known"
FORMAT_TOKENS: Mapping[str, str] = {
    r"(mx|auto)?fp8(wo|dq)?|float8(wo|dq)?|w8a8fp8": "fp8",
    r"(nv|mx)?fp4(a16)?": "fp4",
    r"awq|awq_marlin|gptq|gptq_marlin|gptqv2|gptqmodel|u?int4(wo)?|u4|4-?bits?|w4a16|w4a8|w4a8fp8|w4afp8|"
    r"w4a8kv4|w4|8da4w|qserve|qoq|nf4|autoround|hqq": "int4",
    r"(mx|u)?int8(wo|dq)?|8-?bits?|w8a8|w8a16|w8|eetq|smoothquant": "int8",
    r"bf16|bfloat16": "bf16",
    r"fp16|float16|half": "fp16",
    r"u?int[12356]|[12356](\.\d+)?-?bits?|w[1-356]a\d+|(mx)?fp[356]|aqlm|quip|vptq|spqr|squeezellm|bitnet|"
    r"onebit|ternary|b1\.58": "fewer than 8 bits",
    r"gguf|(t|i)?q[1-8](_.+)?|exl[2-4]|ggml(v\d)?|mlx|mlc|q\df\d+(_\d)?|\d(\.\d+)?bpw|onnx|openvino|ov|coreml|"
    r"uqff": "a format of local engines",
    r".*quant|.*\d-?bits?|(mx|nv|u|b)?(fp|int|float)\d+\w*|w\da\w+|a\d+w\d+|higgs|paretoq|sinq": OTHER_FORMAT,
}
"""What words of names and of ``--quantization`` mean; the last ones state a format, but not which."""
TUNED = re.compile(
    r"-(instruct|chat|it|base|thinking)(-(v?\d+(\.\d+)*[km]?|hf|preview|sft|dpo|rl|thinking|instruct|chat))*$",
    re.IGNORECASE,
)
"""The end of the name of a model that was tuned for instructions, with its version and no other word."""
_TOKENS = tuple((re.compile(pattern, re.IGNORECASE), meaning) for pattern, meaning in FORMAT_TOKENS.items())
_FILLERS = re.compile(
    r"dynamic|kv|block|preview|quantized|unsloth|bnb|torchao|static|tensor|channel|token|symmetric|g?\d+g?|"
    r"act(order)?|llmcompressor|marlin|inc|quark|ptq|compressed|tensors|v\d+|ct|ao|qat|qad|rtn|dw?q|ud|pv|sq|h\d|"
    r"\d+x\d+|sharp|attn|mixed|e[45]m[23]|k\d+|woft|s\d|cpu|gpu|cuda|imatrix|i1",
    re.IGNORECASE,
)
_WIDTHS = re.compile(r"w8a\d+|w8")
_METHODS = frozenset(
    {"awq", "gptq", "gptqv2", "gptqmodel", "autoround", "hqq", "mlx", "gguf", "higgs", "sinq"}
)
"""Methods, whose format another word may state: ``GPTQ-Int8``."""
_BITS_OF_METHODS: Mapping[str, str] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "mxfp4": "fp4",
    "gpt_oss_mxfp4": "fp4",
    "modelopt_fp4": "fp4",
    "awq": "int4",
    "hqq": "int4",
    "eetq": "int8",
}
_INTEGERS = {2: "int2", 3: "int3", 4: "int4", 8: "int8"}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The format of stored weights: its name, and bytes of a weight with its scales."""

    name: str
    bytes_each: float

    @property
    def planned(self) -> str | None:
        """The format of a plan that has its size; None if there is none."""
        return self.name if self.name in PLANNED else NEAREST.get(self.name)


def without_format(name: str) -> tuple[str, str | None]:
    """The name of a model without the words at its end that state a number format, and that format.

    ``Qwen3-32B-FP8`` gives ``Qwen3-32B`` and ``fp8``; ``…-GPTQ-Int8`` gives ``int8``, which no plan has.
    """
    words = re.split(r"-(?!bits?\b)|(?<=[A-Za-z0-9])\.(?=[A-Za-z])", name, flags=re.IGNORECASE)
    stated: list[tuple[int, str]] = []
    kept = len(words)
    for index in range(len(words) - 1, 0, -1):
        word = words[index].lower()
        meaning = _meaning_of(word)
        if meaning is None:
            if not _FILLERS.fullmatch(word):
                break
            continue
        kept = index
        stated.append((2 if word in _METHODS else 1 if _WIDTHS.fullmatch(word) else 0, meaning))
    if not stated:
        return name, None
    return _joined(name, words, kept), min(reversed(stated), key=lambda one: one[0])[1]


def _meaning_of(word: str) -> str | None:
    found = next((meaning for pattern, meaning in _TOKENS if pattern.fullmatch(word)), None)
    parts = word.split("_")
    if found not in (None, OTHER_FORMAT) or len(parts) == 1:
        return found
    told = [_meaning_of(part) for part in parts if part != "moe" and not _FILLERS.fullmatch(part)]
    return next(iter(told), found) if all(told) else found


def _joined(name: str, words: list[str], kept: int) -> str:
    """The beginning of ``name`` up to its first ``kept`` words, without fillers at its end."""
    while kept > 1 and _FILLERS.fullmatch(words[kept - 1]) and not words[kept - 1].isdigit():
        kept -= 1
    length = sum(len(word) for word in words[:kept]) + kept - 1
    return name[:length]


def format_of_method(word: str) -> str | None:
    """The format that a word of ``--quantization`` or ``--dtype`` names; None for an unknown word."""
    return _meaning_of(word.strip().lower().replace("-", "_")) or _BITS_OF_METHODS.get(word.strip().lower())


def format_of_config(told: Mapping[str, Any]) -> WeightFormat:
    """The format of a ``quantization_config``. Raises ValueError that names the known ones."""
    method = str(told.get("quant_method", "")).lower().replace("-", "_")
    algorithm = str(told.get("quant_algo", told.get("quant_type", ""))).lower()
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return WeightFormat("fp4", MXFP4_BYTES)
    if method.startswith(("bitsandbytes", "bnb")):
        return _integers(4, 64) if _is_true(told, "load_in_4bit") else WeightFormat("int8", 1.0)
    weights = _weights_of(told)
    bits = _whole(weights.get("num_bits", weights.get("bits", weights.get("nbits", weights.get("w_bit")))))
    size = _whole(weights.get("group_size", weights.get("q_group_size")))
    kind = f"{weights.get('type', '')} {weights.get('dtype', '')} {weights.get('data_type', '')}".lower()
    if "fp4" in f"{algorithm} {kind} {method}" or (bits == 4 and "float" in kind):
        return WeightFormat("fp4", MXFP4_BYTES if "mx" in f"{algorithm} {kind}" else NVFP4_BYTES)
    if "fp8" in f"{algorithm} {kind} {method}" or "float8" in f"{algorithm} {kind}":
        return WeightFormat("fp8", 1.0)
    if bits == 8 and "float" in kind:
        return WeightFormat("fp8", 1.0)
    if bits is not None:
        return _integers(bits, size)
    named = _BITS_OF_METHODS.get(method) or _meaning_of(method) or _format_in(f"{algorithm} {kind}")
    if named in ("int4", "fp8", "fp4", "int8"):
        return _integers(4, size) if named == "int4" else WeightFormat(named, 1.0)
    known = "fp8, fbgemm_fp8, modelopt, mxfp4, awq, gptq, compressed-tensors, bitsandbytes, hqq, quark"
    found = method or algorithm or "no method"
    raise ValueError(f"quantization_config: {found!r} is no known method (known: {known})")


def _format_in(text: str) -> str | None:
    """The format of a compound word such as ``w4a16_awq`` or ``int4_weight_only``."""
    return next(filter(None, (_meaning_of(word) for word in re.split(r"[^a-z0-9]+", text))), None)


def _weights_of(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a configuration that describes weights: of its first group, of its own, or the whole."""
    groups: Any = told.get("config_groups")
    group: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    inner: Any = told.get("quant_config") or told.get("global_quant_config") or {}
    for holder in (group, inner):
        for name in ("weights", "weight", "weight_quant_params"):
            part = holder.get(name) if isinstance(holder, Mapping) else None
            if isinstance(part, Mapping):
                return part
    return told


def _integers(bits: int, size: int | None) -> WeightFormat:
    """Integers of ``bits`` bits with a 16-bit scale per ``size`` weights."""
    scale = 2.0 / size if size is not None and size > 0 and bits < 8 else 0.0
    return WeightFormat(_INTEGERS.get(bits, f"int{bits}"), bits / 8 + scale)


def _is_true(told: Mapping[str, Any], *names: str) -> bool:
    return any(told.get(name) is True or told.get(f"_{name}") is True for name in names)


def _whole(told: Any) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) else None

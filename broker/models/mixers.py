"""The token mixer of each layer in a Hugging Face ``config.json``: attention, or a state of fixed size.

Families describe it by a pattern of letters, a list of kinds, a period or a rule. Separate fields give the
sizes of layers with a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.domain.workloads.model_shape import StateLayers
from broker.models.fields import count, needed

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
FEED_FORWARD = frozenset({"mlp", "moe"})
STATE_WORDS = ("mamba", "linear", "conv", "recurrent")
FULL_EVERY = {"qwen3_next": 4, "qwen3_5": 4, "qwen3_5_text": 4, "qwen3_5_moe": 4, "qwen3_5_moe_text": 4}
PARALLEL = frozenset({"falcon_h1"})
WIDE_STATE, NARROW_STATE = 4, 2


@dataclass(frozen=True, slots=True)
class Mixers:
    """Numbers of layers by kind.

    ``layers`` counts pairs of a mixer and a feed-forward. ``dense`` and ``moe`` count feed-forwards without
    and with experts if they are separate layers (None: each layer has one).
    """

    layers: int
    attention: int
    states: StateLayers
    dense: int | None = None
    moe: int | None = None


def mixers_of(text: Mapping[str, Any], hidden: int) -> Mixers:
    """The layers of a language model with the hidden width ``hidden``.

    Raises ValueError, naming the field, if it is missing or has an unknown kind of layer.
    """
    kinds = _kinds(text)
    if kinds is not None and FEED_FORWARD & set(kinds):
        return _apart(text, kinds, hidden)
    layers = needed(text, "num_hidden_layers", "n_layers", "n_layer", "num_layers")
    attention, states = _attention_layers(text, kinds, layers)
    return Mixers(layers, attention, _state_layers(text, states, hidden))


def _apart(text: Mapping[str, Any], kinds: Sequence[str], hidden: int) -> Mixers:
    """Counts for files that list mixers and feed-forwards as separate layers: two make one usual layer."""
    attention, dense, moe = (kinds.count(kind) for kind in ("attention", "mlp", "moe"))
    states = sum(1 for kind in kinds if _keeps_state(kind))
    return Mixers(-(-len(kinds) // 2), attention, _state_layers(text, states, hidden), dense, moe)


def _kinds(text: Mapping[str, Any]) -> list[str] | None:
    """The kind of every layer; None if the file does not list them."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        unknown = sorted(set(pattern) - set(LETTERS))
        if unknown:
            raise ValueError(f"hybrid_override_pattern: {unknown[0]!r} must be one of {', '.join(LETTERS)}")
        return [LETTERS[letter] for letter in pattern]
    for name in ("layers_block_type", "layer_types"):
        if isinstance(text.get(name), list):
            return [str(kind) for kind in text[name]]
    switches = text.get("attn_type_list")
    if isinstance(switches, list):
        return ["attention" if full else "linear_attention" for full in switches]
    return None


def _keeps_state(kind: str) -> bool:
    return any(word in kind for word in STATE_WORDS)


def _attention_layers(text: Mapping[str, Any], kinds: list[str] | None, layers: int) -> tuple[int, int]:
    """Number of layers with a KV cache, and number of layers with a state."""
    if text["model_type"] in PARALLEL:
        return layers, layers
    if kinds is not None:
        states = sum(1 for kind in kinds if _keeps_state(kind))
        return len(kinds) - states, states
    full = _ruled(text, layers)
    return full, layers - full


def _ruled(text: Mapping[str, Any], layers: int) -> int:
    """Number of attention layers by the file's rule; all layers if there is no rule."""
    listed = text.get("attn_layer_indices") or (text.get("linear_attn_config") or {}).get("full_attn_layers")
    if isinstance(listed, list):
        return len(listed)
    group = count(text, "layer_group_size")
    if group:
        return layers // group + layers % group
    every = count(text, "attn_layer_period", "full_attention_interval")
    every = every or FULL_EVERY.get(str(text["model_type"]), 0)
    if not every:
        return layers
    first = count(text, "attn_layer_offset") if "attn_layer_period" in text else every - 1
    return len(range(first, layers, every))


def _state_layers(text: Mapping[str, Any], layers: int, hidden: int) -> StateLayers:
    """Sizes of ``layers`` layers with a state. The fields in the file tell which kind they are."""
    if not layers:
        return StateLayers()
    if count(text, "linear_num_value_heads"):
        return _gated_delta(text, layers, hidden)
    if text.get("linear_attn_config"):
        return _delta_by_channel(text["linear_attn_config"], layers, hidden)
    if count(text, "conv_L_cache"):
        kept = NARROW_STATE * hidden * (count(text, "conv_L_cache") - 1)
        return StateLayers(layers, hidden, 4 * hidden * hidden, kept)
    if count(text, "mamba_num_heads", "mamba_n_heads"):
        return _mamba_2(text, layers, hidden)
    if count(text, "mamba_d_state"):
        return _mamba_1(text, layers, hidden)
    heads = needed(text, "num_attention_heads")
    head = count(text, "head_dim") or hidden // heads
    return StateLayers(layers, heads * head, 5 * hidden * heads * head, NARROW_STATE * heads * head * head)


def _gated_delta(text: Mapping[str, Any], layers: int, hidden: int) -> StateLayers:
    """Gated delta rule (Qwen3-Next and later): a key × value matrix per head."""
    heads, value = count(text, "linear_num_value_heads"), needed(text, "linear_value_head_dim")
    key = needed(text, "linear_key_head_dim")
    keys, width = needed(text, "linear_num_key_heads") * key, heads * value
    mixed = 2 * keys + width
    params = hidden * (mixed + width + 2 * heads) + width * hidden
    state = _state_size(text) * heads * key * value + _window_bytes(text, mixed)
    return StateLayers(layers, width, params, state)


def _delta_by_channel(fields: Mapping[str, Any], layers: int, hidden: int) -> StateLayers:
    """Kimi's delta attention: low-rank forget gates per channel, low-rank output gates, states in FP32."""
    heads, head = needed(fields, "num_heads"), needed(fields, "head_dim")
    width = heads * head
    gates = 2 * head * (hidden + width) + hidden * heads
    params = 4 * hidden * width + gates
    state = WIDE_STATE * heads * head * head + _window_bytes(fields, 3 * width)
    return StateLayers(layers, width, params, state)


def _mamba_2(text: Mapping[str, Any], layers: int, hidden: int) -> StateLayers:
    """Mamba-2: one input projection for values, gates, B, C and steps; head × N state numbers per head."""
    heads = count(text, "mamba_num_heads", "mamba_n_heads")
    told = text.get("mamba_head_dim") or text.get("mamba_d_head")
    expanded = count(text, "mamba_d_ssm") or count(text, "mamba_expand", "expand") * hidden
    width = heads * int(told) if isinstance(told, int) else expanded
    state = needed(text, "ssm_state_size", "mamba_d_state")
    mixed = width + 2 * (count(text, "mamba_n_groups", "n_groups") or 1) * state
    params = hidden * (mixed + width + heads) + width * hidden
    return StateLayers(layers, width, params, _state_size(text) * width * state + _window_bytes(text, mixed))


def _mamba_1(text: Mapping[str, Any], layers: int, hidden: int) -> StateLayers:
    """Mamba: low-rank steps; a state of N numbers per channel."""
    width, state = (count(text, "mamba_expand") or 2) * hidden, needed(text, "mamba_d_state")
    rank = count(text, "mamba_dt_rank") or -(-hidden // 16)
    params = 3 * hidden * width + width * (2 * rank + 2 * state)
    return StateLayers(layers, width, params, _state_size(text) * width * state + _window_bytes(text, width))


def _state_size(text: Mapping[str, Any]) -> int:
    """Bytes per number of the state: 4 (FP32) if the file says so, else 2, as engines store it."""
    word = text.get("mamba_ssm_cache_dtype") or text.get("mamba_ssm_dtype")
    return WIDE_STATE if word == "float32" else NARROW_STATE


def _window_bytes(text: Mapping[str, Any], width: int) -> int:
    """Bytes of the short convolution's state: all but one of its taps, in 16 bits."""
    names = ("linear_conv_kernel_dim", "short_conv_kernel_size", "conv_kernel", "mamba_d_conv")
    return NARROW_STATE * width * ((count(text, *names) or 4) - 1)

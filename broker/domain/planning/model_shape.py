"""The shape of a transformer: what the performance core needs to know about a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Attention(StrEnum):
    """How keys and values are kept."""

    MHA = "MHA"
    GQA = "GQA"
    MQA = "MQA"
    MLA = "MLA"


@dataclass(frozen=True, slots=True)
class StateLayers:
    """Layers that keep a state of fixed size for a sequence instead of keys and values: Mamba, the gated
    delta rule, linear attention, short convolutions.

    ``width``: of the values that run through one; ``params``: matrix parameters of one; ``state_bytes``: what
    one keeps for a sequence.
    """

    count: int = 0
    width: int = 0
    params: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CacheIndex:
    """An index that chooses what a query attends to (sparse attention).

    ``tokens`` of the context are chosen, in ``layers`` of its own (others take over their choice);
    ``bytes_per_token``: its keys in all layers; ``share`` of the cached numbers are read through it.
    """

    tokens: int = 0
    layers: int = 0
    bytes_per_token: float = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Weights of which the routed experts alone are packed: their number format and bytes each, scales
    included, and the format of all the rest."""

    precision: str
    bytes_each: float
    rest: str


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder-only transformer, of others mixed with layers that keep a state.

    ``layers``: pairs of a mixer (attention or state) and a feed-forward; where the two are layers of their
    own, half of their sum. ``mlp_mats``: 3 for gated feed-forward, else 2. ``moe_ffn``: hidden width of one
    expert, ``moe_hidden`` of the tokens that routed experts meet (0: ``hidden``). ``first_k_dense``: leading
    layers without experts; ``moe_every``: every how many layers has experts. ``dense_layers``: those with a
    plain feed-forward (None: all without experts). ``attention_layers`` keep a cache (None: all but the state
    layers); ``attention_params``: matrix parameters of one on average (0: counted from heads).
    ``sliding_window`` tokens (None: full), ``full_attn_layers`` of those that cache see all; windowed ones
    have ``windowed_kv_heads`` and ``windowed_head_dim`` (0: as the others).
    MLA ranks are zero for other attentions. ``v_head_dim``: 0 where as wide as ``head_dim``.
    ``context``: the longest sequence, prompt and answer, in tokens; 0 where nobody says.
    ``cache_compression``: tokens that a cached vector stands for. ``residual_streams``: copies of the hidden
    state that layers mix (hyper-connections), 1 of plain residuals.
    ``published_precision``: the number format of its weights as published; ``packed``: how weights in that
    format, or in another that is published too, are kept where the experts alone are packed.
    ``total_params`` and ``active_params`` are counts.
    ``kv_elements_per_token``: cached numbers per token over all layers, 2·L·kv_heads·head_dim, or
    L·(kv_lora_rank + qk_rope_dim) for MLA.
    """

    name: str
    attention: Attention
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    total_params: float
    active_params: float
    kv_elements_per_token: int
    mlp_mats: int = 3
    experts: int = 0
    active_experts: int = 0
    shared_experts: int = 0
    moe_ffn: int = 0
    moe_hidden: int = 0
    first_k_dense: int = 0
    moe_every: int = 1
    dense_layers: int | None = None
    tie_embeddings: bool = False
    context: int = 0
    attention_layers: int | None = None
    attention_params: float = 0.0
    sliding_window: int | None = None
    full_attn_layers: int | None = None
    windowed_kv_heads: int = 0
    windowed_head_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_dim: int = 0
    qk_nope_dim: int = 0
    v_head_dim: int = 0
    cache_compression: float = 1.0
    residual_streams: int = 1
    states: StateLayers = StateLayers()
    index: CacheIndex = CacheIndex()
    published_precision: str = "bf16"
    packed: PackedExperts | None = None
    source: str = ""

    @property
    def is_moe(self) -> bool:
        """Whether some layers route tokens to experts."""
        return self.experts > 0

    def packed_in(self, precision: str) -> PackedExperts | None:
        """How weights in ``precision`` are kept where the experts alone are packed; None: all alike."""
        return self.packed if self.packed is not None and self.packed.precision == precision else None

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return (self.layers - self.first_k_dense) // self.moe_every if self.is_moe else 0

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert."""
        return self.mlp_mats * (self.moe_hidden or self.hidden) * self.moe_ffn

    @property
    def caching_layers(self) -> int:
        """Layers that keep keys and values."""
        if self.attention_layers is None:
            return self.layers - self.states.count
        return self.attention_layers

    @property
    def windowed_layers(self) -> int:
        """Of these, those that see ``sliding_window`` tokens only."""
        if not self.sliding_window or self.full_attn_layers is None:
            return 0
        return max(self.caching_layers - self.full_attn_layers, 0)

    @property
    def head_widths(self) -> tuple[int, int]:
        """Widths of a head's queries and keys, and of its values, where all is seen."""
        if self.attention is Attention.MLA:
            return self.qk_nope_dim + self.qk_rope_dim, self.v_head_dim
        return self.head_dim, self.v_head_dim or self.head_dim

    @property
    def windowed_head_widths(self) -> tuple[int, int]:
        """The same of a windowed layer."""
        keys, values = self.head_widths
        if not self.windowed_head_dim:
            return keys, values
        return self.windowed_head_dim, self.v_head_dim or self.windowed_head_dim

    @property
    def kept_elements(self) -> tuple[int, int]:
        """Numbers that a layer caches of a token: one that sees all, and a windowed one."""
        if self.attention is Attention.MLA:
            latent = self.kv_lora_rank + self.qk_rope_dim
            return latent, latent
        windowed = (self.windowed_kv_heads or self.kv_heads) * sum(self.windowed_head_widths)
        return self.kv_heads * sum(self.head_widths), windowed

    def with_counted_params(self) -> ModelShape:
        """The shape with parameters and cached elements counted from its matrices.

        Norms and biases (under 0.1 %) are left out. Embedding counts once when tied, else twice.
        """
        plain = self.layers - self.moe_layers if self.dense_layers is None else self.dense_layers
        ffn = self.mlp_mats * self.hidden
        beside = self.shared_experts * ffn * self.moe_ffn + self.hidden * self.experts
        beside += 2 * self.hidden * self.moe_hidden
        embedding = self.vocab * self.hidden * (1 if self.tie_embeddings else 2)
        shared = self._all_attention_params() + self.states.count * self.states.params
        shared += plain * ffn * self.ffn + self.moe_layers * beside + embedding
        full, windowed = self.kept_elements
        narrow = self.windowed_layers
        return replace(
            self,
            kv_elements_per_token=(self.caching_layers - narrow) * full + narrow * windowed,
            total_params=float(shared + self.moe_layers * self.experts * self.expert_params),
            active_params=float(shared + self.moe_layers * self.active_experts * self.expert_params),
        )

    def _all_attention_params(self) -> float:
        if self.attention_params:
            return self.caching_layers * self.attention_params
        full = self._attention_params(self.kv_heads, sum(self.head_widths))
        narrow = self._attention_params(
            self.windowed_kv_heads or self.kv_heads, sum(self.windowed_head_widths)
        )
        return (self.caching_layers - self.windowed_layers) * full + self.windowed_layers * narrow

    def _attention_params(self, kv_heads: int, widths: int) -> int:
        if self.attention is not Attention.MLA:
            return self.hidden * widths * (self.heads + kv_heads)
        query_width = self.heads * (self.qk_nope_dim + self.qk_rope_dim)
        query = (
            self.q_lora_rank * (self.hidden + query_width) if self.q_lora_rank else self.hidden * query_width
        )
        down = self.hidden * (self.kv_lora_rank + self.qk_rope_dim)
        up = self.kv_lora_rank * self.heads * (self.qk_nope_dim + self.v_head_dim)
        return query + down + up + self.heads * self.v_head_dim * self.hidden


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One accelerator as data: peaks dense (no sparsity), per GPU.

    ``scaleup_gbyte_s_per_dir``: link to other GPUs of the node, one direction; ``matmul_best_*``:
    best measured matrix rate, None where nobody measured it.
    """

    gpu: str
    vendor: str
    arch: str
    bf16_tflops: float | None
    fp16_tflops: float | None
    fp8_tflops: float | None
    fp4_tflops: float | None
    memory_gb: float
    hbm_gbyte_s: float
    scaleup_gbyte_s_per_dir: float | None
    scaleup_kind: str
    pcie_gbyte_s_per_dir: float | None
    tdp_w: float | None
    matmul_best_bf16_tflops: float | None
    matmul_best_fp8_tflops: float | None
    status: str
    source: str

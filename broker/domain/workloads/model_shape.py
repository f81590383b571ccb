"""The shape of a transformer: what the performance core needs to know about a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from broker.domain.market.sku import GpuClass, GpuVendor


class Attention(StrEnum):
    """Kind of attention: multi-head, grouped-query, multi-query, or multi-head latent."""

    MHA = "MHA"
    GQA = "GQA"
    MQA = "MQA"
    MLA = "MLA"


@dataclass(frozen=True, slots=True)
class StateLayers:
    """Layers with a state of fixed size per sequence instead of a KV cache.

    Examples are Mamba, the gated delta rule, linear attention and short convolutions. ``width`` is the width
    of the values in a layer, ``params`` are its matrix parameters, and ``state_bytes`` is its state per
    sequence.
    """

    count: int = 0
    width: int = 0
    params: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CacheIndex:
    """The index of sparse attention, which selects the tokens that a query attends to.

    It selects ``tokens`` of the context. ``layers`` layers have an index of their own; the others reuse its
    selection. ``bytes_per_token`` is the size of its keys in all layers. ``share`` is the share of cached
    numbers that are read through it.
    """

    tokens: int = 0
    layers: int = 0
    bytes_per_token: float = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class MixedWeights:
    """Published weights of which a part has another format.

    ``precision`` and ``bytes_each`` (including scales) are those of the experts' parameters; ``rest`` is the
    format of all other weights. ``wide_params`` counts those of them (without embeddings) that stay in 16
    bits.
    """

    precision: str
    bytes_each: float
    rest: str
    wide_params: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder-only transformer, which may contain state layers.

    Layers: ``layers`` counts pairs of a mixer (attention or state) and a feed-forward; if these are separate
    layers, it is half of their number. ``mlp_mats`` is 3 for a gated feed-forward, else 2. ``dense_layers``
    have a plain feed-forward (None: all layers without experts).
    Experts: ``moe_ffn`` is the hidden width of one expert, and ``moe_hidden`` the width of tokens at routed
    experts (0: ``hidden``). The first ``first_k_dense`` layers have no experts; after them one in
    ``moe_every`` layers has.
    Attention: ``attention_layers`` have a KV cache (None: all but the state layers). ``attention_params`` are
    the matrix parameters of one of them on average (0: computed from heads). ``sliding_window`` is in tokens
    (None: full attention); ``full_attn_layers`` of the caching layers see the whole context, and the others
    have ``windowed_kv_heads`` and ``windowed_head_dim`` (0: the same as full layers). MLA ranks are zero for
    other kinds of attention. ``v_head_dim`` is 0 if it equals ``head_dim``. ``cache_compression`` is the
    number of tokens per cached vector.
    ``context`` is the longest sequence (prompt and answer) in tokens; 0 if it is unknown.
    ``residual_streams`` counts the copies of the hidden state (hyper-connections); 1 for plain residuals.
    ``published_precision`` is the number format of the published weights. ``packed`` describes published
    weights of which a part has another format.
    ``total_params`` and ``active_params`` are counts.
    ``kv_elements_per_token`` counts cached numbers per token over all layers: 2·L·kv_heads·head_dim, or
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
    packed: MixedWeights | None = None
    source: str = ""

    @property
    def is_moe(self) -> bool:
        """Whether some layers route tokens to experts."""
        return self.experts > 0

    def packed_in(self, precision: str) -> MixedWeights | None:
        """The published weights in ``precision``; None if all of them have the same format."""
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
        """Number of layers with a KV cache."""
        if self.attention_layers is None:
            return self.layers - self.states.count
        return self.attention_layers

    @property
    def windowed_layers(self) -> int:
        """Number of layers with a KV cache whose attention is limited to ``sliding_window`` tokens."""
        if not self.sliding_window or self.full_attn_layers is None:
            return 0
        return max(self.caching_layers - self.full_attn_layers, 0)

    @property
    def head_widths(self) -> tuple[int, int]:
        """In a full-attention layer: width of a head's queries and keys, and width of its values."""
        if self.attention is Attention.MLA:
            return self.qk_nope_dim + self.qk_rope_dim, self.v_head_dim
        return self.head_dim, self.v_head_dim or self.head_dim

    @property
    def windowed_head_widths(self) -> tuple[int, int]:
        """In a windowed layer: width of a head's queries and keys, and width of its values."""
        keys, values = self.head_widths
        if not self.windowed_head_dim:
            return keys, values
        return self.windowed_head_dim, self.v_head_dim or self.windowed_head_dim

    @property
    def kept_elements(self) -> tuple[int, int]:
        """Cached numbers per token and layer: of a full-attention layer, and of a windowed layer."""
        if self.attention is Attention.MLA:
            latent = self.kv_lora_rank + self.qk_rope_dim
            return latent, latent
        windowed = (self.windowed_kv_heads or self.kv_heads) * sum(self.windowed_head_widths)
        return self.kv_heads * sum(self.head_widths), windowed

    def with_counted_params(self) -> ModelShape:
        """The shape with parameters and cached elements computed from its matrices.

        Norms and biases (under 0.1 %) are ignored. A tied embedding counts once, else it counts twice.
        """
        plain = self.layers - self.moe_layers if self.dense_layers is None else self.dense_layers
        ffn = self.mlp_mats * self.hidden
        beside = self.shared_experts * ffn * self.moe_ffn + self.hidden * self.experts
        beside += 2 * self.hidden * self.moe_hidden
        embedding = self.vocab * self.hidden * (1 if self.tie_embeddings else 2)
        shared = self.all_attention_params + self.states.count * self.states.params
        shared += plain * ffn * self.ffn + self.moe_layers * beside + embedding
        full, windowed = self.kept_elements
        narrow = self.windowed_layers
        return replace(
            self,
            kv_elements_per_token=(self.caching_layers - narrow) * full + narrow * windowed,
            total_params=float(shared + self.moe_layers * self.experts * self.expert_params),
            active_params=float(shared + self.moe_layers * self.active_experts * self.expert_params),
        )

    @property
    def all_attention_params(self) -> float:
        """Matrix parameters of the attention of all layers."""
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
    """Data sheet of a GPU. Peak rates are dense (without sparsity).

    ``scaleup_gbyte_s_per_dir`` is the link to the other GPUs of the node in one direction.
    ``matmul_best_*`` is the best measured rate of a matrix product; None if there is no measurement.
    ``class_source`` says where the vendor states the product class.
    """

    gpu: str
    vendor: str
    product_class: GpuClass
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
    class_source: str

    @property
    def maker(self) -> GpuVendor:
        """The vendor, as documents write it."""
        return GpuVendor(self.vendor.lower())

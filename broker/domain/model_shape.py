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
class ModelShape:
    """Sizes of a decoder-only transformer.

    ``mlp_mats``: 3 for gated feed-forward, else 2. ``moe_ffn``: hidden width of one expert.
    ``first_k_dense``: leading layers without experts; ``moe_every``: every how many layers has
    experts. ``sliding_window`` tokens (None: full), ``full_attn_layers`` of ``layers`` see all.
    MLA ranks are zero for other attentions. ``index_topk``: cached tokens that an index chooses for attention
    (sparse attention), 0 without one. ``total_params`` and ``active_params`` are counts.
    ``kv_elements_per_token``: cached numbers per token over all layers, 2·L·kv_heads·head_dim, or
    L·(kv_lora_rank + qk_rope_dim) for MLA; less where some layers keep no cache.
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
    first_k_dense: int = 0
    moe_every: int = 1
    tie_embeddings: bool = False
    context: int = 131072
    sliding_window: int | None = None
    full_attn_layers: int | None = None
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_dim: int = 0
    qk_nope_dim: int = 0
    v_head_dim: int = 0
    index_topk: int = 0
    source: str = ""

    @property
    def is_moe(self) -> bool:
        """Whether some layers route tokens to experts."""
        return self.experts > 0

    def with_counted_params(self) -> ModelShape:
        """The shape with parameters and cached elements counted from its matrices.

        Norms and biases (under 0.1 %) are left out. Embedding counts once when tied, else twice.
        """
        attention = self._attention_params()
        dense_ffn = self.mlp_mats * self.hidden * self.ffn
        expert = self.mlp_mats * self.hidden * self.moe_ffn
        moe_layers = 0
        if self.is_moe:
            moe_layers = (self.layers - self.first_k_dense) // self.moe_every
        dense_layers = self.layers - moe_layers
        router = self.hidden * self.experts
        embedding = self.vocab * self.hidden * (1 if self.tie_embeddings else 2)
        shared = self.layers * attention + dense_layers * dense_ffn + embedding
        shared += moe_layers * (self.shared_experts * expert + router)
        kept = 2 * self.kv_heads * self.head_dim
        if self.attention is Attention.MLA:
            kept = self.kv_lora_rank + self.qk_rope_dim
        return replace(
            self,
            kv_elements_per_token=self.layers * kept,
            total_params=float(shared + moe_layers * self.experts * expert),
            active_params=float(shared + moe_layers * self.active_experts * expert),
        )

    def _attention_params(self) -> int:
        if self.attention is not Attention.MLA:
            width = self.head_dim * (2 * self.heads + 2 * self.kv_heads)
            return self.hidden * width
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

"""The constants of serving by group, as ``groups`` has those of training: rates, classes of engines, queues,
cold starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.planning.model_shape import GpuSpec
from optimizer.performance.constants.groups import Table

ON_AMD = {"vllm": "rocm", "vllm_v0": "rocm_v0", "eager": "rocm_v0"}


@dataclass(frozen=True, slots=True)
class ServingRates:
    """Rates and overheads of prefill and decode, and the engine's limits.

    All-reduces by kind of link: starts ``reduce_start_s``·log2(tp)^``reduce_growth``, ``reduce_share`` of a
    link, ``one_shot_share`` of any for messages to all ranks at once. By architecture: ``hbm_reach`` of the
    bandwidth and ``product_reach`` of the matrix rate that kernels reach (all of it on ``one_die_gpus``),
    ``generic_kernel_share`` of it without the GPU's own instructions, ``fused_experts`` 1 where an expert
    layer is one launch, ``narrow_experts`` of what experts in 8 bits and less reach elsewhere,
    ``non_native_slowdown`` on every time of engines whose kernels there are not the vendor's
    (``Engine.non_native_backend``); by vendor ``state_buffers``, 1 where ``Engine.state_buffers`` are kept.
    Kernels a layer: ``layer_s`` of all, ``quantise_layer_s`` more by the format that inputs are cast to,
    ``latent_layer_s`` with a latent cache (MLA), ``indexer_layer_s`` with an index of it, ``state_layer_s``
    with states, ``mixed_layer_s`` with hyper-connections, ``moe_layer_s`` with experts, times
    ``moe_kernels`` by their format. Weights stored narrower than the GPU multiplies: ``widened_share`` of
    the wide rate, ``widened_tile`` of the usual ``tokens_half``. ``small_share``: bytes of small kernels
    over those of a forward pass of training. ``halved_gpus``: factor by which integers of a card exceed what
    its 16-bit products in FP32 suggest.
    """

    hbm_share_weights: float
    hbm_share_kv: float
    product_share: float
    small_share: float
    moe_share: float
    tokens_half: float
    width_half: float
    decode_attention_share: float
    roofline_norm: float
    host_norm: float
    layer_s: float
    quantise_layer_s: Table
    latent_layer_s: float
    moe_layer_s: float
    moe_kernels: Table
    moe_dispatch_s: float
    ranks_wait: float
    step_s: float
    sequence_s: float
    reduce_start_s: Table
    reduce_growth: Table
    hbm_reach: Table
    product_reach: Table
    one_die_gpus: Table
    indexer_layer_s: float
    state_layer_s: float
    mixed_layer_s: float
    reduce_share: Table
    one_shot_share: float
    pipeline_hop_s: float
    vendor_slowdown: Table
    weight_bytes: Table
    read_share: Table
    embedding_bytes: float
    kv_bytes: float
    batch_most: float
    large_gib: float
    never_large: Table
    prefill_tokens_most: float
    load_most: float
    batch_load_most: float
    mxfp4_kernels: Table
    without_int4: Table
    front_end_requests_per_s: float
    offline_requests_per_s: float
    memory_share_most: float
    int8_factor: float
    halved_gpus: Table
    generic_kernel_share: Table
    quantised_compute: Table
    widened_share: float
    widened_tile: float
    fused_experts: Table
    narrow_experts: Table
    non_native_slowdown: Table
    state_buffers: Table
    drain_share: float


@dataclass(frozen=True, slots=True)
class Engine:
    """A class of serving engines, as factors on the times of the shared physics.

    ``overhead`` on launches and host time, ``step`` on the host time of a step alone, ``sequence`` on the
    bookkeeping of a sequence, ``decode_roofline_factor`` on decode's roofline, ``prefill`` on prompts and
    ``attention`` on their attention, ``moe`` on an expert layer's kernels where the GPU has no fused ones,
    ``widened`` on the rate of products whose 4-bit weights are unpacked, ``unpacked_bytes_per_s`` at most of
    them in reading; ``tuned`` 1: products reach on the newest cards what they do on others; prompts are
    worked off in pieces of ``chunk_tokens``; messages of up to ``one_shot_tokens`` are all-reduced in one
    shot, ``reduce_starts`` on the starts of all-reduces; ``generic_kernels`` 1: kernels use no instruction
    of a GPU's own; ``non_native_backend`` 1: on some architectures they are not the vendor's. ``stream_s``:
    host time of handing a token to a client in the engine's own process, 0 where engines run in a process
    apart. ``reduce_host_s``: host time of starting an all-reduce in a step with prompts, outside recorded
    graphs, ``prompt_moe`` on that of a layer with experts. ``client_overhead_s``: from the client's request
    to the first step; ``polled*_steps``: decode steps between two looks at the queue where a benchmark sets
    it so, for few and for many clients. ``gather_steps``: decode steps that a prompt waits until the other
    attention ranks have some too. ``batch_most``: sequences in flight at most when latency does not matter,
    ``batch_share_small`` of them on cards under ``ServingRates.large_gib`` and those ``never_large``,
    ``batch_most_compressed`` over all ranks where caches are compressed; ``burst_s``: compilation and tuning
    that a run's first prompts wait for; ``prompts_first``: 1 where waiting prompts stop decoding until none
    is left, ``prefill_stall_share``: share of a lone prompt's time for which it does; ``kept_output``: share
    of an answer that holds cache from its start; ``windows_whole``: 1 where layers with windows cache whole
    contexts too. ``memory_share``: share of the card that the engine takes, ``cache_share``: what of it the
    cache gets once weights and workspace are in: ``workspace_gib``, ``rank_workspace_gib`` for each
    attention rank on large cards and ``sampling_bytes`` for each word of the vocabulary and sequence in
    flight at most. States of sequences (Mamba, linear attention) get ``state_share`` of the cache's room,
    each ``state_copies`` times and ``state_buffers`` more where steps overlap; where that share is 0 they
    share a pool with keys and values.
    """

    overhead: float
    step: float
    sequence: float
    decode_roofline_factor: float
    prefill: float
    moe: float
    widened: float
    unpacked_bytes_per_s: float
    tuned: float
    attention: float
    chunk_tokens: float
    one_shot_tokens: float
    reduce_starts: float
    generic_kernels: float
    non_native_backend: float
    stream_s: float
    reduce_host_s: float
    prompt_moe: float
    client_overhead_s: float
    polled_steps: float
    polled_by_many_steps: float
    gather_steps: float
    prompts_first: float
    prefill_stall_share: float
    burst_s: float
    batch_most: float
    batch_most_compressed: float
    batch_share_small: float
    kept_output: float
    windows_whole: float
    memory_share: float
    cache_share: float
    workspace_gib: float
    rank_workspace_gib: float
    sampling_bytes: float
    state_share: float
    state_copies: float
    state_buffers: float


@dataclass(frozen=True, slots=True)
class Queueing:
    """Lengths of real traffic, and what prompts cost beyond the shared physics.

    ``*_cv``: coefficients of variation of prompt and answer lengths. ``lone_share*``: what a prompt that
    joins decoding alone takes of the time that its empty tiles cost it on an idle replica.
    ``prompt_*layer_s``: host time of launching a layer of a step with prompts, which runs outside recorded
    graphs; the GPU hides it where it works longer.
    ``*_jitter``: variation of the times of equal requests on an idle replica. ``min_cycle_cv``: that of a
    closed loop's cycles with answers of one length.
    """

    input_cv: float
    output_cv: float
    lone_share: float
    lone_share_moe: float
    prompt_layer_s: float
    prompt_moe_layer_s: float
    prompt_state_layer_s: float
    ttft_jitter: float
    itl_jitter: float
    min_cycle_cv: float
    prefill_load_most: float


@dataclass(frozen=True, slots=True)
class ColdStart:
    """From node to first token.

    Loader and host rates are per GPU, storage and page cache per node, phases per layer of a rank.
    """

    storage_bytes_per_s: float
    page_cache_bytes_per_s: float
    loader_bytes_per_s: Table
    host_bytes_per_s: float
    process_s: float
    profile_s: float
    trace_layer_s: float
    compile_layer_s: float
    compile_cached_s: float
    capture_layer_s: float
    distributed_s: float
    usual_layers: float


def engine_on(spec: GpuSpec | None, engine: str) -> str:
    """The class of an engine on a GPU."""
    return ON_AMD.get(engine, engine) if spec is not None and spec.vendor == "AMD" else engine

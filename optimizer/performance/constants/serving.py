"""The constants of serving by group: rates, classes of engines, queues, cold starts."""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.workloads.model_shape import GpuSpec
from optimizer.performance.constants.groups import Table

ON_AMD = {"vllm": "rocm", "vllm_v0": "rocm_v0", "eager": "rocm_v0"}


@dataclass(frozen=True, slots=True)
class ServingRates:
    """Rates and overheads of prefill and decode, and limits of engines.

    - All-reduce, by kind of link: start time ``reduce_start_s``·log2(tp)^``reduce_growth``; ``reduce_share``
      of the link rate; ``one_shot_share`` of any link for messages to all ranks at once.
    - Kernels, by architecture: ``hbm_reach`` of the bandwidth and ``product_reach`` of the matrix rate (1 on
      ``one_die_gpus``); ``generic_kernel_share`` of that rate without the GPU's own instructions;
      ``fused_experts`` 1 if an expert layer is one launch; ``narrow_experts``: relative efficiency of experts
      in 8 bits or fewer; ``non_native_slowdown``: factor on every time of engines with third-party kernels
      there (``Engine.non_native_backend``). By vendor: ``state_buffers`` 1 if ``Engine.state_buffers`` are
      allocated.
    - Launches per layer: ``layer_s`` for all; ``quantise_layer_s`` more, by the format to which inputs are
      cast; ``latent_layer_s`` with a latent cache (MLA), ``indexer_layer_s`` with an index of it,
      ``state_layer_s`` with recurrent states, ``mixed_layer_s`` with hyper-connections, ``moe_layer_s`` with
      experts, times ``moe_kernels`` by their format.
    - Weights stored narrower than the GPU multiplies: ``widened_share`` of the wide rate, ``widened_tile`` of
      the usual ``tokens_half``.
    - ``small_share``: bytes of small kernels relative to a forward pass of training. ``halved_gpus``: factor
      by which a card's integer products exceed what its 16-bit products with FP32 accumulation suggest.
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
    """Constants of a class of serving engines, mostly factors on the times of the shared physics.

    Times:

    - ``overhead`` on launches and host time; ``step`` on the host time of a step alone; ``sequence`` on the
      bookkeeping of a sequence; ``decode_roofline_factor`` on the roofline of decode; ``prefill`` on prompts
      and ``attention`` on their attention; ``moe`` on an expert layer's kernels if the GPU has no fused ones;
      ``widened`` on products whose 4-bit weights are unpacked; ``reduce_starts`` on the starts of
      all-reduces; ``prompt_moe`` on the host time of an expert layer in a step with prompts.
    - ``unpacked_bytes_per_s``: limit on reading packed weights. ``tuned`` 1: products on the newest cards are
      as efficient as on others. ``generic_kernels`` 1: kernels use no instructions of a specific GPU.
      ``non_native_backend`` 1: on some architectures the kernels are not the vendor's.
    - ``chunk_tokens``: size of a prefill chunk; ``one_shot_tokens``: largest message that is all-reduced in
      one shot.
    - ``stream_s``: host time to hand a token to a client in the engine's own process; 0 if engines run in
      another process. ``reduce_host_s``: host time to start an all-reduce in a step with prompts, outside
      CUDA graphs. ``client_overhead_s``: from the client's request to the first step. ``burst_s``:
      compilation and tuning that a run's first prompts wait for.

    Scheduling:

    - ``polled_steps``, ``polled_by_many_steps``: decode steps between two polls of the queue where a
      benchmark sets this, for few and for many clients. ``gather_steps``: decode steps that a prompt waits
      for the other attention ranks to have one.
    - ``batch_most``: largest number of sequences in flight if latency does not matter; ``batch_share_small``
      of it on cards below ``ServingRates.large_gib`` and those ``never_large``; ``batch_most_compressed``
      over all ranks with compressed caches.
    - ``prompts_first`` 1: waiting prompts suspend decoding until none is left; ``prefill_stall_share``: share
      of a lone prompt's time for which this happens.

    Memory:

    - ``kept_output``: share of an answer's cache that is reserved at its start. ``windows_whole`` 1: layers
      with windows cache the whole context.
    - ``memory_share``: share of the card that the engine takes; ``cache_share``: share of the rest, after
      weights and workspace, for the cache. The workspace is ``workspace_gib``, ``rank_workspace_gib`` for
      each attention rank on large cards, and ``sampling_bytes`` for each vocabulary entry and possible
      sequence in flight.
    - Recurrent states (Mamba, linear attention) get ``state_share`` of the cache memory; each takes
      ``state_copies`` copies, and ``state_buffers`` more if steps overlap. If the share is 0, states and KV
      cache share one pool.
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
    """Length variation of real traffic, and costs of prompts beyond the shared physics.

    - ``*_cv``: coefficients of variation of prompt and answer lengths.
    - ``lone_share*``: share of its tile-padding cost on an idle replica that a prompt pays when it joins
      decoding alone.
    - ``prompt_*layer_s``: host time to launch a layer of a step with prompts, outside CUDA graphs; hidden if
      the GPU is slower.
    - ``*_jitter``: coefficient of variation of the times of equal requests on an idle replica.
    - ``min_cycle_cv``: coefficient of variation of a closed loop's cycles with answers of equal length.
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
    """Durations and rates from a new node to the first token.

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
    """The class of constants of an engine on a GPU."""
    return ON_AMD.get(engine, engine) if spec is not None and spec.vendor == "AMD" else engine

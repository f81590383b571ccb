"""The constants of the performance core by group: the names that ``config/performance.toml`` must contain.

Units are part of the names; shares are in [0, 1]; a ``Table`` is keyed by architecture, link, fabric, format
or regime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Table = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Compute:
    """Rates of matrix products, attention and memory-bound kernels in training.

    ``gemm_share_*``: share of peak by architecture, on a board with ``reference_w_per_tflops`` (rated watts
    over dense 16-bit TFLOPS). No board exceeds ``units_share``; a p-norm with p = ``power_norm`` combines the
    two limits.
    """

    gemm_share_bf16: Table
    gemm_share_fp8: Table
    gemm_share_fp4: Table
    units_share: float
    power_norm: float
    reference_w_per_tflops: Table
    sustained_share: float
    long_run_share: Table
    width_half: float
    rows_half: float
    attention_share: Table
    attention_share_unfused: float
    attention_backward_factor: float
    head_half: float
    attention_length_half: float
    expert_host_s: float
    fp8_dispatch_share: float
    softmax_bytes_unfused: float
    elementwise_bytes_hidden: float
    elementwise_bytes_ffn: float
    fp8_cast_bytes_hidden: float
    adapter_bytes_hidden: float
    hbm_share: float
    moe_imbalance: float
    moe_permute_bytes_hidden: float
    state_bytes_width: float
    moe_host_factor: float
    optimizer_bytes_per_param: float
    pure_adamw_bytes_per_param: float
    dora_bytes_per_param: float
    dora_bytes_width: float
    length_variation: float
    step_fixed_s: float
    straggler_per_doubling: float
    vm_slowdown: Table
    interleave_most: float
    ramp_waits: float
    ramp_stalls: float
    search_shortfall: float
    search_shortfall_moe: float


@dataclass(frozen=True, slots=True)
class Software:
    """Constants of a class of training stacks, which affect the step time more than second-order hardware
    effects.

    - ``routed_share``: remaining share of the time of dispatch, permutation and expert launches; 1 in stacks
      that do not fuse them.
    - ``far_rank_s``: wait per layer, micro-batch and rank of a tensor group that spans nodes.
    - ``ring_node_s``, ``ring_rank_s``: wait of a layer's gradient or weight exchange per first rank of a
      node, and per other rank; ``pipeline_rings``: rings per layer in pipelines; see
      ``data_parallel._rings_s``.
    - ``stall_nodes``, ``stall_ranks``: see ``step._stalled``.
    - ``activation_bytes_hidden``, ``activation_bytes_ffn_*``: bytes per token and layer, per unit of hidden
      and feed-forward width, without attention's own tensors; ``selective_kept``: the share kept with
      selective recomputation.
    - ``logits_kept``: share of ``Memory.logits_bytes``; ``gathered_bytes_hidden``: bytes kept unsliced
      without pipelines; ``accumulation_bytes_per_param``: in BF16 only; ``cache_share``: what the allocator
      holds beyond the allocated bytes.
    - Flags: ``sequence_parallel``; ``balanced_head`` (stages have equal cost, head included);
      ``saves_eight_bit`` (inputs of 8-bit products are kept in 8 bits); ``widens_quantised`` (hidden states
      are in FP32 where frozen weights are quantised); ``reports_device`` (published peaks
      are those of the driver).
    """

    slowdown: float
    host_s_per_layer: float
    tensor_floor_s: float
    far_rank_s: float
    pipeline_rank_floor_s: float
    ring_rank_s: float
    ring_node_s: float
    pipeline_rings: float
    balanced_head: float
    head_leads: float
    selective_again: float
    selective_kept: float
    saves_eight_bit: float
    full_again: float
    logit_bytes_moved: float
    logits_kept: float
    attention_flop_per_s_most: float
    stall_s: float
    stall_nodes: float
    stall_ranks: float
    flash_attention: float
    tp_exposed: float
    dp_exposed: float
    pp_exposed: float
    routed_share: float
    activation_bytes_hidden: float
    activation_bytes_ffn_gated: float
    activation_bytes_ffn_plain: float
    weight_grad_bytes_per_param: float
    accumulation_bytes_per_param: float
    optimizer_bytes_per_param: float
    sequence_parallel: float
    gathered_bytes_hidden: float
    cache_share: float
    reports_device: float
    widens_quantised: float


@dataclass(frozen=True, slots=True)
class Network:
    """Links inside a node, fabrics between nodes, and how much of their traffic is not hidden by compute."""

    link_share: Table
    link_start_s: Table
    link_ramp_s: Table
    switch_share: Table
    fabric_share: Table
    fabric_start_s: Table
    fabric_hop_s: Table
    fabric_ramp_s: Table
    overlap_of_tiers: float
    mesh_vendors: Table
    link_domain: Table
    usual_fabric_gbit_s: Table
    unknown_pcie_bytes_per_s: float
    host_link_share: float
    coherent_host_bytes_per_s: Table
    backward_overlap: float
    zero3_serial: float
    all_to_all_share: float
    all_to_all_fabric_factor: float
    dispatch_drag: float
    context_exposed: float
    gradient_bytes_per_param: float
    parameter_bytes_per_param: float
    fp8_parameter_bytes: float


@dataclass(frozen=True, slots=True)
class Host:
    """What a node needs besides its GPUs, in GB of 10⁹ bytes: the container image, memory of each GPU's
    process, the file of weights that it reads, and the number of checkpoints on disk. ``adam_bytes_per_s``:
    states that the cores of a node read and write in an optimizer step.
    """

    image_gb: float
    process_gb: float
    shard_gb: float
    checkpoints_kept: float
    adam_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a training rank, and the usable share of a card."""

    fixed_bytes: float
    context_bytes: float
    communicator_bytes: float
    recompute_bytes_hidden: float
    recompute_fill: float
    stall_fill: float
    score_bytes: float
    logits_bytes: float
    routed_bytes_hidden: float
    state_saved_bytes_width: float
    fp8_saved_bytes_hidden: float
    fp8_saved_bytes_routed: float
    fp8_saved_bytes_ffn: float
    fp8_weight_bytes_per_param: float
    stepping_bytes_per_param: float
    gib_per_nominal_gb: float
    gddr_gib_per_nominal_gb: float
    gddr_gpus: Table
    nominal_tolerance: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """Checkpoints, failures and restarts."""

    checkpoint_bytes_per_param: float
    snapshot_bytes_per_s_per_gpu: float
    snapshot_fixed_s: float
    storage_bytes_per_s_per_node: float
    storage_bytes_per_s_most: float
    blocking_write_share: float
    failures_per_node_hour: float
    software_failures_per_node_hour: float
    software_failures_per_hour_most: float
    detect_and_reschedule_s: float
    warm_up_s: float
    startup_s: float
    interval_least_s: float


@dataclass(frozen=True, slots=True)
class Intervals:
    """Relative half-widths r of 80 % intervals from value/(1 + r) to value·(1 + r), beside those of
    ``spread.py``; ``training_memory``, by regime, is the room that plans leave.
    """

    training_memory: Table
    goodput: float
    kv: float
    cold_start: float
    measured: float

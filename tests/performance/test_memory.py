"""Training memory against published formulas and peaks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker.catalogue import load_gpus
from broker.domain.workloads.model_shape import Attention, ModelShape
from broker.domain.workloads.training_method import Adapter, TrainingMethod, adapter_params
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.tables.training_rows import fit_probability
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_priors
from optimizer.performance.constants.spread import Sides
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.shapes import build_shape
from optimizer.performance.training.activations import activation_bytes, can_start, layer_bytes, stage_layers
from optimizer.performance.training.layouts import AS_NEEDED, stack_layouts
from optimizer.performance.training.memory import (
    buffer_bytes,
    rank_memory,
    rank_params,
    state_bytes,
)
from optimizer.performance.training.scenario import Run, Scenario, trained_model
from tests.performance.builders import rows_of, sku

PRIORS = load_priors()
NONE, SELECTIVE, FULL = 0.0, 1.0, 2.0


def gpt(**changes: Any) -> ModelShape:
    """GPT-3, changed, its parameters counted."""
    sizes: dict[str, Any] = {
        "name": "GPT-3",
        "attention": Attention.MHA,
        "layers": 96,
        "hidden": 12288,
        "heads": 96,
        "kv_heads": 96,
        "head_dim": 128,
        "ffn": 4 * 12288,
        "vocab": 51200,
        "total_params": 0.0,
        "active_params": 0.0,
        "kv_elements_per_token": 0,
        "mlp_mats": 2,
        "tie_embeddings": True,
    }
    return ModelShape(**(sizes | changes)).with_counted_params()


GPT3 = gpt()
MT_NLG = gpt(layers=105, hidden=20480, heads=128, kv_heads=128, head_dim=160, ffn=4 * 20480)
S = 2048.0


def scenario(
    model: ModelShape = GPT3,
    software: str = "megatron_2022",
    tp: float = 8.0,
    pp: float = 1.0,
    ep: float = 1.0,
    recompute: float = NONE,
    sharding: float = 1.0,
    fmt: str = "fp16",
    **changes: float,
) -> Scenario:
    layouts = stack_layouts([(tp, pp, 1.0, ep, 1.0, recompute, sharding, 0.0)])
    hw = build_hardware([sku("A100-SXM-80GB")], load_gpus(), PRIORS)
    stack = replace(PRIORS.software[software], **changes)
    run = Run(as_array(S), as_array(64), fmt)
    return Scenario(build_shape(model), run, layouts, hw, stack, PRIORS)


def with_method(one: Scenario, model: ModelShape, method: TrainingMethod) -> Scenario:
    """The scenario trained in another way."""
    trained = trained_model(model, method)
    run = replace(one.run, method=method)
    return replace(one, run=run, adapters=trained.adapters, forward=trained.forward)


def kept_bytes(one: Scenario, micro: float, chunks: float, room: float = np.inf) -> float:
    """Activations of the fullest stage."""
    return float(activation_bytes(one, as_array(micro), as_array(chunks), as_array(room))[0][0])


@pytest.mark.parametrize("model", [GPT3, MT_NLG])
@pytest.mark.parametrize("t", [1.0, 2.0, 8.0])
def test_activations_of_a_layer_are_korthikantis(model: ModelShape, t: float) -> None:
    """Table 2: sbh(10 + 24/t + 5as/ht) with tensor slices alone, sbh/t·(34 + 5as/h) with sequence slices too,
    sbh/t·34 with selective recompute."""
    sbh, scores = S * model.hidden, 5.0 * model.heads * S / model.hidden
    found = layer_bytes(scenario(model, tp=t, sequence_parallel=0.0))[0]
    assert found == pytest.approx(sbh * (10.0 + (24.0 + scores) / t))
    assert layer_bytes(scenario(model, tp=t))[0] == pytest.approx(sbh / t * (34.0 + scores))
    selective = layer_bytes(scenario(model, tp=t, recompute=SELECTIVE))[0]
    assert selective == pytest.approx(sbh / t * 34.0)


@pytest.mark.parametrize(("model", "saved"), [(GPT3, 0.70), (MT_NLG, 0.65)])
def test_selective_recompute_saves_what_the_paper_says(model: ModelShape, saved: float) -> None:
    whole, selective = (layer_bytes(scenario(model, recompute=r))[0] for r in (NONE, SELECTIVE))
    assert 1.0 - selective / whole == pytest.approx(saved, abs=0.01)


@pytest.mark.parametrize(("p", "v"), [(8.0, 1.0), (8.0, 4.0), (16.0, 3.0)])
def test_the_first_stage_holds_the_pipelines_micro_batches(p: float, v: float) -> None:
    """Equation 5 and its interleaved form: sbhL/t·34·(1 + (p−1)/(pv))."""
    kept = kept_bytes(scenario(pp=p, recompute=SELECTIVE), 64, v)
    more = 1.0 + (p - 1.0) / (p * v) if v > 1.0 else 1.0
    assert kept == pytest.approx(S * GPT3.hidden * GPT3.layers / 8.0 * 34.0 * more)
    few = kept_bytes(scenario(pp=p, recompute=SELECTIVE), 2, 1.0)
    assert few < kept


def test_full_recompute_keeps_the_inputs_and_rebuilds_a_layer() -> None:
    """2sbh a layer, on every tensor rank unless the sequence is sliced."""
    bare = scenario(pp=8.0, recompute=FULL, sequence_parallel=0.0)
    kept = kept_bytes(bare, 64, 1.0) - layer_bytes(bare)[0]
    assert kept == pytest.approx(2.0 * S * GPT3.hidden * GPT3.layers)
    sliced = scenario(pp=8.0, recompute=FULL)
    kept = kept_bytes(sliced, 64, 1.0) - layer_bytes(sliced)[0]
    assert kept == pytest.approx(2.0 * S * GPT3.hidden * GPT3.layers / 8.0)


def test_as_many_layers_are_rebuilt_as_memory_asks() -> None:
    """Between keeping all and rebuilding all, the share that just fills the room; never more than that."""
    needed = scenario(pp=8.0, recompute=AS_NEEDED)
    everything = kept_bytes(scenario(pp=8.0), 64, 1.0)
    least = kept_bytes(scenario(pp=8.0, recompute=FULL), 64, 1.0)
    for share in (0.3, 0.6, 0.9):
        room = least + share * (everything - least)
        held, again, _ = activation_bytes(needed, as_array(64), as_array(1.0), as_array(room))
        assert held[0] == pytest.approx(room)
        assert 0.0 < again[0] < 1.0
    held, again, _ = activation_bytes(needed, as_array(64), as_array(1.0), as_array(least / 2))
    assert (held[0], again[0]) == (pytest.approx(least), 1.0)
    assert activation_bytes(needed, as_array(64), as_array(1.0), as_array(2 * everything))[1][0] == 0.0


def test_the_last_stage_leads_where_the_vocabulary_is_large() -> None:
    """Two stages: the last has one micro-batch less and the logits."""
    wide = gpt(layers=4, vocab=2_000_000)
    one = scenario(wide, "tuned", pp=2.0, fmt="bf16")
    kept = kept_bytes(one, 64, 1.0)
    logits = PRIORS.memory.logits_bytes * 2_000_000 * S / 8.0
    assert kept == pytest.approx(2.0 * layer_bytes(one)[0] + logits)


def test_states_are_sharded_from_the_optimizer_to_the_weights() -> None:
    """16 B a parameter whole; ZeRO-1 shares 12 of it, ZeRO-2 gradients too, ZeRO-3 all but the gathered."""
    held = [
        state_bytes(scenario(software="tuned", tp=1.0, sharding=z, fmt="bf16"), as_array(64.0))[0]
        for z in (0.0, 1.0, 2.0, 3.0)
    ]
    params = GPT3.total_params
    assert held[0] == pytest.approx(16.0 * params, rel=1e-6)
    assert held[1] == pytest.approx((4.0 + 12.0 / 64.0) * params, rel=1e-6)
    layer = (params - GPT3.vocab * GPT3.hidden) / GPT3.layers
    assert held[2] == pytest.approx((2.0 + 14.0 / 64.0) * params + 2.0 * layer, rel=1e-3)
    assert held[3] == pytest.approx(16.0 / 64.0 * params + 6.0 * layer, rel=1e-3)


def test_weights_are_gathered_a_layer_at_a_time_without_embedding_and_head() -> None:
    """Untied: 2 B of weights of two layers, and 2 B of gradients of one."""
    model = gpt(tie_embeddings=False)
    run = scenario(model, "tuned", tp=1.0, sharding=3.0, fmt="bf16")
    layer = (model.total_params - 2.0 * GPT3.vocab * GPT3.hidden) / GPT3.layers
    found = state_bytes(run, as_array(64.0))[0]
    assert found == pytest.approx(16.0 / 64.0 * model.total_params + 6.0 * layer, rel=1e-4)


def test_hybrid_sharding_shares_among_fewer() -> None:
    """Shards of a node of 8: what 8 ranks alone would hold, however many nodes."""
    run = scenario(software="fsdp", tp=1.0, sharding=3.0, fmt="bf16")
    hybrid = state_bytes(run, as_array(512.0), as_array(8.0))[0]
    assert hybrid == pytest.approx(state_bytes(run, as_array(8.0))[0])
    assert hybrid > 5.0 * state_bytes(run, as_array(512.0))[0]


def test_adapters_add_a_tenth_to_weights_that_are_frozen() -> None:
    full = scenario(software="tuned", tp=8.0, fmt="bf16")
    frozen = with_method(full, GPT3, TrainingMethod(adapter=Adapter(rank=128)))
    weights = state_bytes(full, as_array(1.0))[0] / 8.0
    assert 1.02 < state_bytes(frozen, as_array(1.0))[0] / weights < 1.15


def test_gradients_are_summed_in_full_width_as_megatron_s_users_run_it() -> None:
    """6 B a parameter beside the optimizer's, of which NVIDIA's recipes save two."""
    used, tuned = (
        state_bytes(scenario(software=name, fmt="bf16"), as_array(1.0))[0]
        for name in ("megatron_lm", "tuned")
    )
    assert used / tuned == pytest.approx(18.0 / 16.0)


def test_selective_recompute_of_sharded_stacks_keeps_every_second_product() -> None:
    """torchtitan's policy; Megatron's drops attention's scores alone, which FlashAttention never kept."""
    for software, share in (("fsdp", 0.4), ("tuned", 1.0)):
        kept, whole = (
            kept_bytes(scenario(software=software, tp=1.0, recompute=r, fmt="bf16"), 1.0, 1.0)
            for r in (SELECTIVE, NONE)
        )
        logits = PRIORS.memory.logits_bytes * GPT3.vocab * S
        assert (kept - logits) / (whole - logits) == pytest.approx(share)


def test_experts_divide_over_expert_ranks_and_keep_what_was_sent() -> None:
    moe = gpt(experts=64, active_experts=8, moe_ffn=3072, mlp_mats=3)
    one, eight = (
        state_bytes(scenario(moe, "tuned", tp=1.0, ep=e, sharding=0.0, fmt="bf16"), as_array(8.0))[0]
        for e in (1.0, 8.0)
    )
    shapes = build_shape(moe)
    assert one - eight == pytest.approx(16.0 * 7.0 / 8.0 * float(shapes.expert_params))
    plain = gpt(ffn=8 * 3072, mlp_mats=3)
    routed, dense = (layer_bytes(scenario(m, "tuned", tp=1.0, fmt="bf16"))[0] for m in (moe, plain))
    assert routed - dense == pytest.approx(2.0 * 8.0 * GPT3.hidden * S)


@pytest.mark.parametrize(
    ("tp", "pp", "ep", "ranks"),
    [(1, 1, 1, 1), (1, 1, 8, 8), (4, 1, 8, 8), (8, 1, 8, 8), (8, 1, 4, 8), (8, 1, 1, 8), (2, 4, 8, 32)],
)
def test_experts_divide_over_the_larger_of_tensor_and_expert_ranks(
    tp: float, pp: float, ep: float, ranks: float
) -> None:
    """Expert ranks are made of the tensor ranks and of data-parallel ones: the two do not multiply."""
    moe = gpt(experts=64, active_experts=8, moe_ffn=3072, mlp_mats=3)
    one = scenario(moe, "tuned", tp=float(tp), pp=float(pp), ep=float(ep))
    experts = float(rank_params(one.shapes, one.layouts)[1][0])
    assert experts == pytest.approx(float(one.shapes.expert_params) / ranks)


def test_eight_bit_products_keep_smaller_inputs() -> None:
    wide, narrow = (layer_bytes(scenario(software="tuned", fmt=f))[0] for f in ("bf16", "fp8"))
    assert 0.75 < narrow / wide < 0.95
    wide, cast = (layer_bytes(scenario(software="fsdp", fmt=f))[0] for f in ("bf16", "fp8"))
    assert cast == wide, "torchtitan's 8B peaks at 77.0 GiB on 8 H100 in 16 bits and at 76.8 in 8"


def test_a_balanced_stack_gives_the_last_stage_less() -> None:
    """Nanotron, 1.34B: the head weighs 4 of 16 layers, 16 stages leave some empty; 1F1B needs m ≥ p − 1."""
    small = gpt(
        layers=16, hidden=2048, heads=32, kv_heads=32, head_dim=64, ffn=8192, vocab=131072, mlp_mats=3
    )
    first, last = stage_layers(scenario(small, "eager", pp=4.0, fmt="bf16"))
    assert (first[0], last[0]) == (5.0, 1.0)
    assert stage_layers(scenario(small, "tuned", pp=4.0))[0][0] == 4.0
    assert can_start(scenario(small, "eager", pp=4.0), as_array(3.0))[0]
    assert not can_start(scenario(small, "eager", pp=4.0), as_array(2.0))[0]
    assert not can_start(scenario(small, "eager", pp=16.0), as_array(64.0))[0]
    assert can_start(scenario(small, "tuned", pp=16.0), as_array(2.0))[0]


def test_buffers_grow_with_kinds_of_communicators() -> None:
    one, four = (
        buffer_bytes(stack_layouts([row]), as_array(dp), PRIORS.memory)[0]
        for row, dp in (((1, 1, 1, 1, 1, 0, 1, 0), 1.0), ((8, 4, 2, 1, 1, 0, 1, 0), 4.0))
    )
    assert four - one == pytest.approx(4.0 * PRIORS.memory.communicator_bytes)
    assert 0.5e9 < one < four < 4e9


def on_card(one: Scenario, card_bytes: float) -> Scenario:
    return replace(one, hw=replace(one.hw, memory_bytes=as_array([card_bytes])))


def held_bytes(one: Scenario) -> float:
    return float(rank_memory(one, as_array(64.0), as_array(8), as_array(1)).held[0])


def test_layers_are_rebuilt_until_the_card_is_as_full_as_may_be() -> None:
    """Where some layers are rebuilt, and not all, what is held is ``recompute_fill`` of what a card may hold,
    the allocator's cache and the communicators' buffers included."""
    most, least = (
        held_bytes(scenario(software="tuned", pp=8.0, recompute=r, fmt="bf16")) for r in (0.0, 2.0)
    )
    card = (most + least) / 2.0
    one = replace(scenario(software="tuned", pp=8.0, recompute=AS_NEEDED, fmt="bf16"), memory_margin=1.25)
    found = rank_memory(on_card(one, 1.25 * card), as_array(64.0), as_array(8), as_array(1))
    assert 0.0 < found.again[0] < 1.0
    assert found.held[0] == pytest.approx(PRIORS.memory.recompute_fill * card)


def test_a_run_that_fills_its_card_to_the_byte_fits() -> None:
    one = scenario(software="tuned", pp=8.0, fmt="bf16")
    held = held_bytes(one)
    for card, fits in ((held, True), (np.nextafter(held, 0.0), False)):
        assert rank_memory(on_card(one, card), as_array(64.0), as_array(8), as_array(1)).fits[0] == fits


def test_one_stage_keeps_the_embedding_and_the_head() -> None:
    """Untied, both are as large: 51,200 words of 12,288 numbers. A last stage of two keeps the head alone."""
    table, one = 51_200.0 * 12_288.0, gpt(tie_embeddings=False)
    rest = float(build_shape(one).dense_params) - 2.0 * table
    for pp, expected in ((1.0, rest + 2.0 * table), (2.0, rest / 2.0 + table)):
        run = scenario(one, tp=1.0, pp=pp)
        assert rank_params(run.shapes, run.layouts)[0][0] == pytest.approx(expected)


def test_eight_bit_weights_are_kept_beside_the_others() -> None:
    """One byte a parameter, of a stack that keeps them."""
    keeps = PRIORS.with_values({"memory.fp8_weight_bytes_per_param": 1.0})
    wide, narrow = (
        replace(scenario(software="tuned", tp=1.0, sharding=0.0, fmt=fmt), calibration=keeps)
        for fmt in ("fp16", "fp8")
    )
    more = state_bytes(narrow, as_array(1.0))[0] - state_bytes(wide, as_array(1.0))[0]
    assert more == pytest.approx(GPT3.total_params)


@pytest.mark.parametrize(
    ("sharding", "weights", "adapters"),
    [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0 / 64.0), (3.0, 1.0 / 64.0, 1.0 / 64.0)],
)
def test_adapters_are_sharded_like_an_optimizer(sharding: float, weights: float, adapters: float) -> None:
    """Frozen weights of 2 B stay whole but under ZeRO-3, which gathers two layers of them at a time."""
    full = scenario(software="tuned", tp=1.0, sharding=sharding, fmt="bf16")
    adapter = Adapter(rank=64)
    frozen = with_method(full, GPT3, TrainingMethod(adapter=adapter))
    found = state_bytes(frozen, as_array(64.0))[0]
    params = GPT3.total_params
    layer = (params - GPT3.vocab * GPT3.hidden) / GPT3.layers
    trained = 16.0 * adapter_params(GPT3, adapter) / params
    expected = (2.0 * weights + trained * adapters) * params + (4.0 * layer if sharding == 3.0 else 0.0)
    assert found == pytest.approx(expected, rel=1e-3)


def test_optimizers_of_experts_are_shared_by_those_that_hold_the_same() -> None:
    """Eight data-parallel ranks of one expert group of eight: no other rank has the same experts."""
    moe = gpt(experts=64, active_experts=8, moe_ffn=3072, mlp_mats=3)
    one = scenario(moe, "tuned", tp=1.0, ep=8.0, sharding=1.0, fmt="bf16")
    dense, experts = float(one.shapes.dense_params), float(one.shapes.expert_params)
    expected = 4.0 * (dense + experts / 8.0) + 12.0 * (dense / 8.0 + experts / 8.0)
    assert state_bytes(one, as_array(8.0))[0] == pytest.approx(expected)


def test_a_lone_rank_has_no_communicator() -> None:
    alone = buffer_bytes(stack_layouts([(1, 1, 1, 1, 1, 0, 1, 0)]), as_array(1.0), PRIORS.memory)[0]
    assert alone == PRIORS.memory.context_bytes


def test_held_is_more_than_allocated() -> None:
    found = rank_memory(
        scenario(software="tuned", pp=8.0, fmt="bf16"), as_array(8.0), as_array(8), as_array(1)
    )
    assert 1.03 < found.held[0] / found.peak[0] < 1.2
    old = scenario(software="deepspeed_2022", pp=8.0)
    read = rank_memory(old, as_array(8.0), as_array(8), as_array(1))
    assert read.held[0] == read.peak[0]


def test_probability_of_fitting_is_even_at_the_card_and_a_tenth_at_the_intervals_end() -> None:
    sides = Sides(math.log(1.3), math.log(1.2))
    assert fit_probability(80e9, 80e9, sides) == pytest.approx(0.5)
    assert fit_probability(80e9 * 1.3, 80e9, sides) == pytest.approx(0.1, abs=1e-3)
    assert fit_probability(80e9 / 1.2, 80e9, sides) == pytest.approx(0.9, abs=1e-3)


def test_blooms_peaks_are_the_drivers() -> None:
    """Logged by Megatron-DeepSpeed runs (nvidia-smi, GiB): FP16, and BF16 with FP32 gradient sums."""
    common = {
        "kind": "training",
        "seq_len": "2048",
        "vocab": "250880",
        "gated_mlp": "0",
        "gpu": "A100-SXM-80GB",
        "recompute": "full",
        "zero_fsdp": "ZeRO-1",
        "framework": "Megatron-DeepSpeed",
        "gpus_total": "384",
        "gpus_per_node": "8",
    }
    runs = [
        (72, 14336, 112, "FP16", 8, 12, 4, 1, 29.0),
        (72, 14336, 112, "FP16", 8, 12, 4, 8, 69.0),
        (72, 14336, 112, "FP16", 8, 4, 12, 4, 59.0),
        (106, 12288, 96, "BF16", 4, 12, 8, 2, 67.0),
        (70, 14336, 112, "BF16", 8, 12, 4, 2, 40.0),
    ]
    names = ("layers", "hidden", "heads", "precision", "tp", "pp", "dp", "micro_batch")
    table = [
        common
        | {n: str(v) for n, v in zip(names, run, strict=False)}
        | {"global_batch": "2016", "ffn_hidden": str(4 * run[1])}
        for run in runs
    ]
    found = [float(row["pred_mem_gib"]) for row in predict_rows(table, PRIORS, load_gpus(), {})]
    off = np.asarray(found) / np.asarray([run[-1] for run in runs]) - 1.0
    assert np.abs(off).max() < 0.15
    assert np.abs(off).mean() < 0.10


def test_grid_peaks_and_what_ran_by_priors_alone() -> None:
    rows = rows_of("training_grid.csv")
    found = predict_rows(rows, PRIORS, load_gpus(), {})
    right = [(row["status"] == "ok") == (got["fits"] == "true") for row, got in zip(rows, found, strict=True)]
    assert np.mean(right) >= 0.93
    off = [
        abs(float(got["pred_mem_gib"]) / float(row["mem_gb"]) - 1.0)
        for row, got in zip(rows, found, strict=True)
        if row["mem_gb"] and got["pred_mem_gib"]
    ]
    assert np.median(off) < 0.10

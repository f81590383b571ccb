"""Layers that keep a state, indices of the cache, latent experts: what they take and what they save."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Parallelism
from broker.domain.workloads.model_shape import CacheIndex, ModelShape
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.table_constants import load_table_constants
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import GIB, build_hardware
from optimizer.performance.serving.served_model import (
    ServedModel,
    cache_bytes_per_token,
    cache_room,
    cache_tokens,
    concurrency,
    held_bytes,
)
from optimizer.performance.serving.steps import decode_step
from optimizer.performance.shapes import build_shape, read_context, seen_context
from optimizer.performance.training.activations import layer_bytes
from optimizer.performance.training.compute import layer_forward
from optimizer.performance.training.scenario import Run, Scenario
from optimizer.performance.training.step import step
from tests.performance.builders import decode_s, layouts_of, served, sku

SHORT, LONG = as_array([1000.0]), as_array([100_000.0])


def made(model: str, shape: ModelShape, **more: object) -> ServedModel:
    return replace(served(model, **more), shapes=build_shape(shape))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "tp", "cache_bytes", "cache_gib", "tokens", "sequences"),
    [
        pytest.param("Qwen3.5-35B-A3B", 1, 2.0, 16.03, 4096.0, 113.57, id="Qwen3.5 on an RTX PRO 6000"),
        pytest.param("Qwen3-Next-80B-A3B", 2, 2.0, 44.59, 262144.0, 14.77, id="Qwen3-Next on two H200"),
        pytest.param("Qwen3.6-35B-A3B", 1, 1.0, 5.98, 131072.0, 4.35, id="Qwen3.6 on an RTX 5090"),
    ],
)
def test_a_sequence_takes_what_vllm_printed(
    model: str, tp: int, cache_bytes: float, cache_gib: float, tokens: float, sequences: float
) -> None:
    """Room for keys, values and states over the sequences that fit (``reported_kv_capacity.csv``); vLLM
    rounds both up to pages of one size."""
    one = float(
        held_bytes(served(model, "H200-SXM-141GB", tp=tp, cache_bytes=cache_bytes), as_array([tokens]))[0]
    )
    assert one == pytest.approx(cache_gib * GIB / sequences, rel=0.05)


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "cache_bytes", "cache_gib", "tokens", "tolerance"),
    [
        pytest.param("GLM-5", "H200-SXM-141GB", 8, 2.0, 32.06, 343_744, 0.001, id="GLM-5.1, 78 indices"),
        pytest.param("GLM-5.2", "GB200-186GB", 4, 1.0, 50.62, 1_139_456, 0.01, id="GLM-5.2, 22 indices"),
    ],
)
def test_a_cached_token_of_an_index_takes_what_vllm_printed(
    model: str, gpu: str, tp: int, cache_bytes: float, cache_gib: float, tokens: int, tolerance: float
) -> None:
    """A latent vector in 16 or 8 bits in every layer and, beside it, keys of the index."""
    one = float(cache_bytes_per_token(served(model, gpu, tp=tp, cache_bytes=cache_bytes))[0])
    assert one == pytest.approx(cache_gib * GIB / tokens, rel=tolerance)


def test_states_leave_room_for_fewer_sequences() -> None:
    whole = load_models()["Qwen3.5-27B"]
    without = replace(whole, states=replace(whole.states, state_bytes=0))
    lengths = as_array([200.0]), as_array([100.0]), as_array([100.0])
    with_states = float(concurrency(served("Qwen3.5-27B"), *lengths)[0])
    assert with_states < 0.5 * float(concurrency(made("Qwen3.5-27B", without), *lengths)[0])
    assert cache_tokens(served("Qwen3.5-27B")) == cache_tokens(made("Qwen3.5-27B", without))


def test_an_engine_that_keeps_states_apart_runs_out_of_them_first() -> None:
    """SGLang: 0.47 of the room, three states for each running sequence and two more as buffers."""
    model = replace(served("Qwen3.5-27B", "H200-SXM-141GB"), engine_class="sglang")
    lengths = as_array([1024.0]), as_array([512.0]), as_array([512.0])
    states = 5.0 * float(model.shapes.state_bytes)
    assert concurrency(model, *lengths)[0] == pytest.approx(
        0.47 * float(cache_room(model)[0]) / states, rel=0.01
    )
    plain = replace(served("Llama-3.1-8B"), engine_class="sglang")
    one_pool = float(cache_room(plain)[0]) / float(held_bytes(plain, as_array([1280.0]))[0])
    assert concurrency(plain, *lengths)[0] == pytest.approx(one_pool, rel=0.01)


@pytest.mark.parametrize(
    ("release", "gpu", "copies"),
    [
        pytest.param("0.5.16", "B200-SXM-180GB", 5.0, id="buffers by default"),
        pytest.param("", "B200-SXM-180GB", 5.0, id="the newest where no release is told"),
        pytest.param("0.5.9", "B200-SXM-180GB", 3.0, id="before them, by version"),
        pytest.param("main 2026-03", "H200-SXM-141GB", 3.0, id="before them, by month"),
        pytest.param("0.5.19", "MI355X-288GB", 3.0, id="no kernels for them on AMD"),
    ],
)
def test_buffers_of_states_by_release_and_vendor(release: str, gpu: str, copies: float) -> None:
    kept = as_array([float(load_table_constants().buffers_states("", "SGLang", release))])
    model = replace(served("Qwen3.6-27B", gpu), engine_class="sglang", buffered=kept)
    plain = replace(model, engine_class="vllm")
    added = held_bytes(model, SHORT) - held_bytes(plain, SHORT)
    assert float(added[0] / model.shapes.state_bytes) == pytest.approx(copies - 1.0)


def test_a_row_tells_its_release_to_the_pool_of_states() -> None:
    """1,024 clients of 8,192 tokens (SGLang's cookbook, Qwen3.6): an older release runs more of them at once
    and gives each its tokens later."""
    row = {"kind": "serving", "engine": "SGLang", "model": "Qwen3.6-27B", "gpu": "H200-SXM-141GB"}
    row |= {"gpus": "1", "isl": "8192", "osl": "1024", "concurrency_or_batch": "1024"}
    row |= {"regime": "closed_loop", "weight_precision": "fp8"}
    new, old = (
        predict_rows([row | {"engine_version": v}], load_calibration(), load_gpus(), load_models())[0]
        for v in ("0.5.16", "0.5.12")
    )
    assert float(old["pred_tpot_ms_p50"]) > 1.2 * float(new["pred_tpot_ms_p50"])
    assert float(old["pred_ttft_ms_p50"]) < float(new["pred_ttft_ms_p50"])


def test_attention_ranks_take_memory_from_each_other_s_caches_in_sglang() -> None:
    """4.5 MiB for each of eight ranks and 512 sequences in recorded graphs: 18 GiB, more than half of what
    GLM-5.2's weights leave of an H200 (26 of 8,716 tokens in flight by default, `gpustack-glm52-h200`)."""
    eight = replace(served("GLM-5.2", "H200-SXM-141GB", dp=8, ep=8, precision="fp8"), engine_class="sglang")
    alone = replace(eight, replica=replace(eight.replica, dp=as_array([1.0]), ep=as_array([1.0])))
    calibration = load_calibration()
    none = calibration.with_values({"engines.sglang.rank_workspace_gib": 0.0})
    assert cache_room(replace(eight, calibration=none))[0] - cache_room(eight)[0] == pytest.approx(18.0 * GIB)
    assert cache_room(replace(alone, calibration=none))[0] == cache_room(alone)[0]
    small = replace(served("Qwen3-30B-A3B", "RTX-4090", dp=8, ep=8), engine_class="sglang")
    assert cache_room(replace(small, calibration=none))[0] == cache_room(small)[0]
    vllm = replace(eight, engine_class="vllm")
    assert cache_room(replace(vllm, calibration=none))[0] == cache_room(vllm)[0]


def test_states_are_read_and_written_once_a_sequence_and_step() -> None:
    """2·B bytes a sequence over the bandwidth, whatever the context."""
    plain = served("Qwen3-Next-80B-A3B", "H200-SXM-141GB")
    wide = load_models()["Qwen3-Next-80B-A3B"]
    heavy = replace(wide, states=replace(wide.states, state_bytes=2 * wide.states.state_bytes))
    more = made("Qwen3-Next-80B-A3B", heavy, gpu="H200-SXM-141GB")
    batch = as_array([64.0])
    rates = plain.calibration.serving
    added = (
        64 * 2 * wide.states.count * wide.states.state_bytes / (plain.hw.hbm_bytes_per_s * rates.hbm_share_kv)
    )
    for context in (SHORT, LONG):
        difference = decode_step(more, batch, context).cache - decode_step(plain, batch, context).cache
        assert float(difference[0]) == pytest.approx(float(added[0]), rel=1e-9)


def test_context_costs_a_hybrid_less_than_a_transformer() -> None:
    hybrid, plain = served("Nemotron-H-8B"), served("Llama-3.1-8B")
    growth = [decode_s(model, 32.0, LONG) / decode_s(model, 32.0, SHORT) for model in (hybrid, plain)]
    assert growth[0] < 0.6 * growth[1]


def test_an_index_reads_what_it_chose() -> None:
    """The cache is kept whole; beyond 2,048 tokens a step reads the index and those."""
    sparse = load_models()["DeepSeek-V3.2"]
    dense = replace(sparse, index=CacheIndex())
    pair = (
        served("DeepSeek-V3.2", "H200-SXM-141GB", tp=8),
        made("DeepSeek-V3.2", dense, gpu="H200-SXM-141GB", tp=8),
    )
    batch = as_array([16.0])
    long, short = ([decode_step(m, batch, c).cache[0] for m in pair] for c in (LONG, SHORT))
    assert long[0] < 0.2 * long[1]
    assert short[0] > short[1]
    assert cache_bytes_per_token(pair[0]) > cache_bytes_per_token(pair[1])


@pytest.mark.parametrize("model", ["Gemma-3-27B", "Gemma-4-31B", "DeepSeek-V3.2", "DeepSeek-V4-Pro"])
def test_what_is_seen_grows_with_context_and_never_exceeds_it(model: str) -> None:
    shapes = build_shape(load_models()[model])
    contexts = np.linspace(1.0, 200_000.0, 400)
    for seen in (read_context(shapes, contexts), seen_context(shapes, contexts)):
        assert np.all(np.diff(seen) >= 0.0)
        assert np.all((seen > 0.0) & (seen <= contexts))


def test_two_sizes_of_windows_share_cache_and_attention_apart() -> None:
    """Gemma 4 31B: 50 of 60 layers have 2/3 of the queries' width but 10/11 of the cache."""
    shapes = build_shape(load_models()["Gemma-4-31B"])
    assert shapes.windowed_cache == pytest.approx(50 * 16 * 256 / (50 * 16 * 256 + 10 * 4 * 512))
    assert shapes.windowed_width == pytest.approx(50 * 256 / (50 * 256 + 10 * 512))


def scenario_of(model: ModelShape, tp: int = 1, dp: int = 1, ep: int = 1) -> Scenario:
    calibration = load_calibration()
    hw = build_hardware([sku("H100-SXM-80GB")], load_gpus(), calibration)
    layouts = layouts_of(Parallelism(tp=tp, pp=1, dp=dp, ep=ep))
    run = Run(as_array(8192), as_array(512), "bf16")
    return Scenario(build_shape(model), run, layouts, hw, calibration.software["tuned"], calibration)


def test_layers_with_states_move_bytes_and_are_kept_for_the_backward_pass() -> None:
    """Bytes over their width a token: read and written once forward, and saved for the way back."""
    shape = load_models()["Nemotron-H-8B"]
    bare = replace(shape, states=replace(shape.states, width=0))
    mixed, plain = scenario_of(shape, tp=2), scenario_of(bare, tp=2)
    compute, memory = mixed.compute, mixed.calibration.memory
    width = shape.states.count * shape.states.width / shape.layers
    moved = layer_forward(mixed).elementwise - layer_forward(plain).elementwise
    each = compute.state_bytes_width * width * mixed.rank_tokens / 2.0
    assert moved == pytest.approx(each / (mixed.hw.hbm_bytes_per_s * compute.hbm_share))
    kept = layer_bytes(mixed) - layer_bytes(plain)
    assert kept == pytest.approx(memory.state_saved_bytes_width * width * mixed.rank_tokens / 2.0)


def test_latent_experts_dispatch_narrower_tokens() -> None:
    """Nemotron 3 Super routes tokens of 1,024 numbers, not 4,096."""
    latent = load_models()["Nemotron-3-Super"]
    wide = replace(latent, moe_hidden=0)
    found = [
        float(step(scenario_of(model, dp=64, ep=64), as_array(64)).expert[0]) for model in (latent, wide)
    ]
    assert 3.0 < found[1] / found[0] < 4.5


def test_a_hybrid_counts_the_layers_that_a_row_leaves_out() -> None:
    """Rows of measured steps name 52 layers and no experts; the known model of that name has both."""
    row = {"kind": "training", "gpu": "H100-SXM-80GB", "gpus_total": "16", "seq_len": "8192"}
    row |= {"global_batch": "1024", "model": "Nemotron-3-Nano-30B-A3B", "layers": "52", "hidden": "2688"}
    told = predict_rows([row], load_calibration(), load_gpus(), load_models())[0]
    named = {key: value for key, value in row.items() if key not in {"layers", "hidden"}}
    known = predict_rows([named], load_calibration(), load_gpus(), load_models())[0]
    assert {**told, "note": ""} == {**known, "note": ""}
    assert "layers of Nemotron-3-Nano-30B-A3B" in told["note"]

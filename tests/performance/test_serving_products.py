"""Products of a served model: their rates by format, engine and card, and what few tokens leave empty."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from broker.catalogue import load_gpus
from optimizer.calibration.tables.serving_words import products_of
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import build_hardware
from optimizer.performance.serving.products import expert_product_rate, product_rate
from optimizer.performance.serving.served_model import Format, concurrency
from optimizer.performance.serving.steps import decode_step, prefill
from tests.performance import builders
from tests.performance.builders import sku

CONTEXT = as_array(2000.0)

served = partial(builders.served, precision="fp8", cache_bytes=1.0)


def test_experts_fill_by_their_own_tokens() -> None:
    """The same tokens over more experts leave more of each tile empty: a token of a small batch costs several
    times one of a large batch, the more the more experts."""
    gains = []
    for name in ("Mixtral-8x7B", "Qwen3-235B-A22B"):
        model = served(name)
        few, many = (float(decode_step(model, as_array([b]), CONTEXT).compute[0]) / b for b in (64.0, 4096.0))
        gains.append(few / many)
    assert 1.0 < gains[0] < gains[1]


def test_tuned_submissions_lag_on_no_card() -> None:
    """Engines' kernels reach less of what was measured on the newest cards, benchmark submissions as much."""
    for gpu, lag in (("H100-SXM-80GB", False), ("B200-SXM-180GB", True)):
        engine = replace(served("Llama-2-70B", gpu), engine_class="tensorrt_llm")
        tuned = replace(served("Llama-2-70B", gpu), engine_class="submission")
        assert bool(product_rate(tuned)[0] > 1.05 * product_rate(engine)[0]) is lag


def test_mxfp4_experts_multiply_in_8_bits_where_the_gpu_has_fp4_and_are_widened_elsewhere() -> None:
    mixed = Format("bf16", "fp4", as_array([2.0]), "bf16")
    old, new = (
        replace(served("gpt-oss-120b", gpu), number_format=mixed)
        for gpu in ("H100-SXM-80GB", "B200-SXM-180GB")
    )
    share = old.calibration.serving.widened_share * old.calibration.serving.moe_share
    assert expert_product_rate(old) == pytest.approx(product_rate(old) * share)
    assert expert_product_rate(new) > 1.5 * product_rate(new)


def test_widened_weights_lose_little_in_small_batches_and_much_in_full_ones() -> None:
    """Marlin and Triton kernels read packed weights at small tiles: products of few tokens are no dearer than
    plain ones, those of thousands a third."""
    plain = served("Llama-3.1-70B", "A100-SXM-80GB", tp=4, precision="bf16")
    packed = replace(plain, number_format=Format("int4", "int4", as_array([2.0]), "bf16"))
    few, many = (
        decode_step(packed, as_array([b]), CONTEXT).compute[0]
        / decode_step(plain, as_array([b]), CONTEXT).compute[0]
        for b in (8.0, 8192.0)
    )
    assert few < 0.85
    assert many > 1.15


def test_whole_experts_are_wider_than_slices() -> None:
    sliced, whole = served("Qwen3-235B-A22B", tp=8), served("Qwen3-235B-A22B", tp=8, ep=8)
    tokens = as_array([2048.0])
    assert prefill(whole, tokens).work[0] < 0.8 * prefill(sliced, tokens).work[0]
    dense = served("Llama-3.1-8B", tp=8), served("Llama-3.1-8B", tp=8, ep=8)
    assert prefill(dense[0], tokens).work[0] == pytest.approx(prefill(dense[1], tokens).work[0])


def test_rates_start_from_what_was_measured() -> None:
    """MI300X reaches half of its peak in products, an H100 four fifths."""
    amd, nvidia = served("Llama-3.1-70B", "MI300X-192GB"), served("Llama-3.1-70B")
    share = [float((product_rate(one) / one.hw.peak["bf16"])[0]) for one in (amd, nvidia)]
    assert share[0] < 0.8 * share[1]


def test_integer_products_run_twice_as_fast_where_both_sides_are_integers() -> None:
    both, stored, none = (
        float(prefill(served("Llama-3.1-8B", "A100-SXM-80GB", precision=form), as_array([2048.0])).work[0])
        for form in ("int8", "w8a16", "bf16")
    )
    assert both < 0.75 * none < stored


def test_local_engines_multiply_integers() -> None:
    assert products_of("int4", "local") == products_of("w8a16", "local") == "int8"
    assert products_of("int4", "vllm") == "bf16"
    assert products_of("fp16", "local") == "fp16"


def test_integers_of_geforce_cards_are_not_halved() -> None:
    cards = ["RTX-4090", "RTX-6000-Ada", "H100-SXM-80GB"]
    hw = build_hardware([sku(gpu, 1) for gpu in cards], load_gpus(), load_calibration())
    over = (hw.peak["int8"] / hw.peak["fp16"]).tolist()
    assert over == pytest.approx([4.0, 2.0, 2.0])
    assert (hw.gemm["int8"] / hw.peak["int8"]).tolist() == pytest.approx([0.95] * 3)


def test_slices_of_experts_lose_tiles_and_whole_ones_do_not() -> None:
    """Eight attention ranks that cut every expert in eight multiply slices of 192: wide ones are whole."""
    whole, cut = (served("Qwen3-235B-A22B", dp=8, ep=ep) for ep in (8, 1))
    batch = as_array([2048.0])
    products = [float(decode_step(one, batch, CONTEXT).compute[0]) for one in (whole, cut)]
    assert products[1] > 1.3 * products[0]


@pytest.mark.parametrize(("name", "least"), [("Llama-4-Maverick", 5.0), ("DeepSeek-V3", 1.2)])
def test_a_token_travels_to_every_rank_that_holds_a_slice_of_its_experts(name: str, least: float) -> None:
    """One expert of a token lives on one rank of eight; cut in eight, all of them see the token."""
    whole, cut = (served(name, "H200-SXM-141GB", dp=8, ep=ep) for ep in (8, 1))
    links = [float(decode_step(one, as_array([4096.0]), CONTEXT).links[0]) for one in (whole, cut)]
    assert links[1] > least * links[0]


def test_a_lone_prompt_has_the_experts_of_all_attention_ranks_and_its_own_attention() -> None:
    one, eight = (prefill(served("DeepSeek-V3", dp=dp, ep=dp), as_array([2048.0])) for dp in (1, 8))
    assert one.latency[0] > eight.latency[0] > one.latency[0] / 4.0
    assert one.rank_wait[0] == 0.0
    assert 0.5 * eight.latency[0] < eight.work[0] + eight.rank_wait[0] <= eight.latency[0]


@pytest.mark.parametrize("batch", [1.0, 32.0, 256.0])
def test_beams_decode_as_so_many_sequences(batch: float) -> None:
    one = served("GPT-J-6B")
    four = replace(one, beams=as_array([4.0]))
    asked, as_four = as_array([batch]), as_array([4.0 * batch])
    assert decode_step(four, asked, CONTEXT).total[0] == decode_step(one, as_four, CONTEXT).total[0]
    room = [concurrency(m, CONTEXT, as_array([256.0]), as_array([256.0]))[0] for m in (one, four)]
    assert room[0] / 4.0 < room[1] < room[0], "beams share their prompt's cache"

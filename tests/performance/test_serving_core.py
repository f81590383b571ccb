"""The serving core's terms one by one: steps, experts, links, cache room."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from broker.catalogue import load_gpus
from optimizer.calibration.regimes.closed_loops import closed_loop
from optimizer.calibration.regimes.finite_runs import run_share
from optimizer.calibration.regimes.load import LoadSpec, limit_of
from optimizer.calibration.regimes.regimes import offline
from optimizer.calibration.tables.cells import Unreadable
from optimizer.calibration.tables.serving_rows import predict_serving
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.serving.queueing import Lengths, mean_context
from optimizer.performance.serving.served_model import ServedModel, cache_tokens, concurrency, expert_reach
from optimizer.performance.serving.steps import decode_step, prefill
from tests.performance import builders
from tests.performance.builders import read, values_of

CONTEXT = as_array(2000.0)

served = partial(builders.served, precision="fp8", cache_bytes=1.0)
total = partial(builders.decode_s, context=CONTEXT)


def test_attention_ranks_keep_the_books_of_their_own_sequences() -> None:
    """Schedulers of attention-parallel ranks work side by side: 2,048 sequences on 32 are 64 for each."""
    one, many = (
        served("DeepSeek-V3", "GB200-186GB", dp=8, ep=8),
        served("DeepSeek-V3", "GB200-186GB", dp=32, ep=32),
    )
    steps = []
    for model, batch in ((one, 512.0), (many, 2048.0)):
        rates = replace(model.calibration.serving, sequence_s=0.001)
        changed = replace(model, calibration=replace(model.calibration, serving=rates))
        steps.append(total(changed, batch))
    assert steps[0] > 0.064
    assert steps[1] == pytest.approx(steps[0], rel=0.2)


def test_a_latent_cache_has_kernels_of_its_own() -> None:
    model = served("DeepSeek-V3", tp=8, ep=8)
    assert model.shapes.latent_layers == model.shapes.layers
    assert served("Qwen3-235B-A22B").shapes.latent_layers == 0
    free = replace(model.calibration.serving, latent_layer_s=0.0)
    without = replace(model, calibration=replace(model.calibration, serving=free))
    extra = model.calibration.serving.latent_layer_s * float(model.shapes.layers)
    assert total(model, 1.0) - total(without, 1.0) == pytest.approx(extra, rel=0.2)


@pytest.mark.parametrize(("gpu", "fused"), [("H200-SXM-141GB", False), ("B200-SXM-180GB", True)])
def test_expert_layers_are_one_launch_on_blackwell_alone(gpu: str, fused: bool) -> None:
    """What TensorRT-LLM's expert layers cost more falls on GPUs without the fused kernels."""
    model = replace(served("DeepSeek-V3", gpu, tp=8, ep=8), engine_class="tensorrt_llm")
    engines = {**model.calibration.engines, "tensorrt_llm": replace(model.engine, moe=3.0 * model.engine.moe)}
    slower = replace(model, calibration=replace(model.calibration, engines=engines))
    assert (total(slower, 1.0) == pytest.approx(total(model, 1.0))) is fused


def test_decode_pools_do_nothing_but_decode() -> None:
    """No prompt interrupts them: faster than a closed loop of as many, as fast as a fixed batch's steps."""
    asked = {
        "model": "Llama-3.1-8B",
        "gpu": "H100-SXM-80GB",
        "gpus": "1",
        "tp": "1",
        "isl": "4000",
        "osl": "500",
    }
    pool, loop, fixed = (
        values_of(read(**asked, regime=regime, concurrency_or_batch="32"))
        for regime in ("decode_pool", "closed_loop", "static_batch")
    )
    assert pool["pred_tpot_ms_p50"] == pytest.approx(fixed["pred_tpot_ms_p50"], rel=1e-3)
    assert pool["pred_tpot_ms_p50"] < 0.9 * loop["pred_tpot_ms_p50"]
    assert pool["pred_output_tokens_per_s_total"] == pytest.approx(32e3 / pool["pred_tpot_ms_p50"], rel=1e-2)
    assert np.isnan(pool["pred_ttft_ms_p50"])


def test_dispatch_between_data_parallel_ranks_travels_over_the_links() -> None:
    batch = as_array([512.0])
    fast, slow = (
        decode_step(served("Qwen3-30B-A3B", gpu, dp=8, ep=8), batch, CONTEXT).links
        for gpu in ("H200-SXM-141GB", "RTX-PRO-6000-Server")
    )
    assert 0 < fast[0] < 0.2 * slow[0]
    alone = decode_step(served("Qwen3-30B-A3B"), batch, CONTEXT)
    assert alone.links[0] == 0


def test_tensorrt_llm_fills_what_the_weights_leave() -> None:
    """70B in FP8 fits one H100 with room for tens of requests there, for next to none in vLLM's share."""
    tight = served("Llama-3.1-70B")
    tokens = {
        name: float(cache_tokens(replace(tight, engine_class=name))[0]) for name in ("vllm", "tensorrt_llm")
    }
    assert tokens["tensorrt_llm"] > 3 * tokens["vllm"]


def test_tensorrt_llm_caches_whole_contexts_for_layers_with_windows_too() -> None:
    """gpt-oss: every other layer sees 128 tokens, so long contexts take twice the cache of vLLM's groups."""
    model = served("gpt-oss-120b", "H100-SXM-80GB", tp=2)

    def held(engine: str, tokens: float) -> float:
        one, context, none = replace(model, engine_class=engine), as_array([tokens]), as_array([0.0])
        return float((cache_tokens(one) / concurrency(one, context, none, none))[0])

    assert held("tensorrt_llm", 8192.0) == pytest.approx(8192.0)
    assert held("vllm", 8192.0) == pytest.approx((8192.0 + 128.0) / 2.0)
    assert held("tensorrt_llm", 64.0) == held("vllm", 64.0) == pytest.approx(64.0)


def test_narrow_experts_reach_less_on_cdna3() -> None:
    """gpt-oss in vLLM 0.17 on one MI300X takes 31 to 58 ms at 64 to 256 in flight; wide experts and dense
    models are as elsewhere."""
    narrow, wide = (
        served("Qwen3-30B-A3B", "MI300X-192GB", precision=precision) for precision in ("fp8", "bf16")
    )
    dense = served("Llama-3-8B", "MI300X-192GB", precision="fp8")
    share = load_calibration().serving.narrow_experts["CDNA3"]
    assert float(expert_reach(narrow)[0]) == share < 1.0
    assert float(expert_reach(wide)[0]) == float(expert_reach(served("Qwen3-30B-A3B"))[0]) == 1.0
    whole = replace(narrow, hw=replace(narrow.hw, narrow_experts=as_array([1.0])))
    assert 1.1 < total(narrow, 64.0) / total(whole, 64.0) < 1.0 / share
    assert total(dense, 64.0) == total(
        replace(dense, hw=replace(dense.hw, narrow_experts=as_array([1.0]))), 64.0
    )


def test_layers_split_over_gpus_take_turns() -> None:
    assert (read(engine="vLLM").tp, read(engine="vLLM").pp) == (4, 1)
    assert (read(engine="llama.cpp").tp, read(engine="llama.cpp").pp) == (1, 4)


def test_attention_is_data_parallel_where_the_notes_say_so() -> None:
    notes = "MoE rows run with EP/attention-DP where the doc says so"
    cells = {"regime": "offline_max", "engine": "TensorRT-LLM", "notes": notes}
    spread = read(model="Mixtral-8x7B", **cells)
    assert (spread.tp, spread.dp, spread.ep) == (1, 4, 4)
    dense = read(**cells)
    assert (dense.tp, dense.dp, dense.ep) == (4, 1, 1)
    with pytest.raises(Unreadable):
        read(weight_precision="ternary")


def test_more_tokens_never_take_less_time() -> None:
    for model in (served("DeepSeek-V3", "H200-SXM-141GB", tp=8), served("gpt-oss-120b", tp=2)):
        batches = as_array([1.0, 2.0, 8.0, 64.0, 512.0])
        steps = [total(model, float(batch)) for batch in batches]
        assert np.all(np.diff(steps) > 0)


def test_a_finite_run_loses_its_end() -> None:
    model = served("Llama-3.1-8B")
    none, ever = as_array([0.0]), as_array([np.inf])

    def share(requests: float, batch: float = 0.0, cv: float = 0.0, longest: float = np.inf) -> float:
        lengths = Lengths(as_array([100.0]), as_array([1000.0]), as_array([cv]), as_array([cv]))
        asked = LoadSpec(as_array([batch]), none, as_array([requests]), as_array([10.0]), none, ever)
        asked = replace(asked, longest=longest)
        rate = offline(model, lengths, asked).tokens_per_s
        return float(run_share(model, lengths, asked, rate)[0])

    assert share(np.inf) == 1.0
    assert share(200.0) == pytest.approx(1.0), "equal answers that start together end together"
    assert share(200.0, cv=0.9) < share(200.0, cv=0.9, longest=1.5) < 1.0
    assert share(300.0, cv=0.9, batch=100.0) < share(30000.0, cv=0.9, batch=100.0) < 1.0
    assert share(150.0, batch=100.0) < share(195.0, batch=100.0) < 1.0, "the last wave is smaller"


def test_what_a_run_loses_is_what_playing_it_loses() -> None:
    """320 requests at once, exponential answers: the run lasts until the longest ends."""
    model = served("Llama-3.1-8B", tp=4)
    lengths = Lengths(as_array([200.0]), as_array([200.0]), as_array([0.0]), as_array([1.0]))
    context = mean_context(model, lengths)
    full = 320.0 / float(decode_step(model, as_array([320.0]), context).total[0])
    played = []
    for seed in range(8):
        answers = np.maximum(np.rint(np.random.default_rng(seed).exponential(200.0, 320)), 1.0)
        left = as_array([np.sum(answers > step) for step in range(int(answers.max()))])
        steps = decode_step(model, left, np.broadcast_to(context, left.shape)).total
        played.append(answers.sum() / steps.sum() / full)
    none, ever = as_array([0.0]), as_array([np.inf])
    asked = LoadSpec(as_array([320.0]), none, as_array([320.0]), as_array([1.0]), none, ever)
    assert float(run_share(model, lengths, asked, as_array([full]))[0]) == pytest.approx(
        np.mean(played), rel=0.15
    )


def test_formats_gain_what_was_measured_not_their_ratio_of_bits() -> None:
    """Decode of one request: FP8 under 2 times and 4-bit weights well under 4 times as fast as 16 bit."""
    steps = {form: total(served("Llama-3.1-70B", tp=4, precision=form), 1.0) for form in ("bf16", "fp8")}
    assert 1.25 < steps["bf16"] / steps["fp8"] < 1.9
    packed = total(served("Llama-3.1-8B", "A100-SXM-80GB", precision="int4"), 1.0)
    assert 1.5 < total(served("Llama-3.1-8B", "A100-SXM-80GB", precision="bf16"), 1.0) / packed < 3.0


def test_prompts_before_answers_bring_waves() -> None:
    """Clients with answers of one length stay together where prompts stop decoding: half a round of waiting,
    which no longer slows the answers."""
    model = served("Qwen3-32B", tp=2)
    even, uneven = (
        Lengths(as_array([2048.0]), as_array([128.0]), as_array([cv]), as_array([cv])) for cv in (0.0, 0.5)
    )
    clients, none, ever = as_array([64.0]), as_array([0.0]), as_array([np.inf])
    asked = LoadSpec(clients, none, ever, as_array([10.0]), none, ever)
    mixing, waves = (
        closed_loop(replace(model, engine_class=name), even, asked) for name in ("vllm", "sglang")
    )
    apart = closed_loop(replace(model, engine_class="sglang"), uneven, asked)
    round_s = 64.0 * float(prefill(model, as_array([2048.0])).work[0])
    assert 0.35 * round_s < float(waves.ttft.mean[0]) < 0.75 * round_s
    assert max(float(mixing.ttft.mean[0]), float(apart.ttft.mean[0])) < 0.7 * float(waves.ttft.mean[0])
    assert float(waves.tpot.mean[0]) < 0.85 * float(mixing.tpot.mean[0])
    assert float(waves.tokens_per_s[0]) == pytest.approx(float(mixing.tokens_per_s[0]), rel=0.12)


def test_prompts_that_come_over_the_whole_cycle_leave_no_queue() -> None:
    """SGLang's cookbook: 64 clients with lengths drawn from nothing to twice the mean, Llama-3.1-70B on eight
    A100: first tokens after 0.6 s, though prompts take half of the time and halt all answers."""
    model = replace(served("Llama-3.1-70B", "A100-SXM-80GB", tp=8, precision="bf16"), engine_class="sglang")
    lengths = Lengths(as_array([3981.0]), as_array([531.0]), as_array([0.577]), as_array([0.577]))
    none, ever = as_array([0.0]), as_array([np.inf])
    found = closed_loop(model, lengths, LoadSpec(as_array([64.0]), none, ever, as_array([5.0]), none, ever))
    alone = float(prefill(model, as_array([3981.0])).latency[0])
    assert alone < float(found.ttft.mean[0]) < 5.0 * alone


def test_old_schedulers_pay_for_every_sequence() -> None:
    model = served("Qwen2.5-0.5B", "A100-SXM-80GB", tp=1)
    old, new = (replace(model, engine_class=name) for name in ("vllm_v0", "vllm"))
    assert total(old, 200.0) > 2.0 * total(new, 200.0)
    assert total(old, 1.0) < 1.6 * total(new, 1.0)


def test_pieces_of_a_prompt_each_read_the_weights() -> None:
    """llama.cpp works in batches of 512 tokens: twice the prompt takes twice as long, and attention more."""
    model = replace(served("Llama-3-8B", "L40S", tp=1, precision="int4"), engine_class="local")
    times = [float(prefill(model, as_array([n])).latency[0]) for n in (512.0, 1024.0, 8192.0)]
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.1)
    assert times[2] / times[0] > 17.0


def test_a_first_token_in_process_waits_for_no_server() -> None:
    cells = {"engine": "TensorRT-LLM", "gpus": "1", "tp": "1", "isl": "128", "osl": "1"}
    rows = [read(**cells, regime=regime) for regime in ("single_stream_ttft", "single_stream")]
    alone, asked = (
        found.values["pred_ttft_ms_p50"] for found in predict_serving(rows, load_calibration(), load_gpus())
    )
    assert 1.0 < alone < asked - 8.0


def test_engines_take_more_of_a_card_where_the_cache_runs_out() -> None:
    """DeepSeek in FP8 leaves 4 B200 next to nothing of the usual 88 %, and ran all the same [aic]."""
    model = replace(served("DeepSeek-R1", "B200-SXM-180GB", tp=4), engine_class="sglang")
    lengths = Lengths(as_array([8192.0]), as_array([1024.0]))
    none, ever = as_array([0.0]), as_array([np.inf])
    asked = LoadSpec(as_array([16.0]), none, ever, as_array([10.0]), none, ever)
    assert limit_of(model, lengths)[0] < 2.0
    assert closed_loop(model, lengths, asked).ttft.mean[0] < 5.0


def links_s(model: ServedModel, batch: float) -> float:
    return float(decode_step(model, as_array([batch]), CONTEXT).links[0])


def test_few_tokens_are_reduced_in_one_shot() -> None:
    """Whole messages to every rank, (tp − 1) of each; halves of them, 2(tp − 1)/tp, once they are long."""
    model = replace(served("Llama-3.1-70B", tp=8), engine_class="tensorrt_llm")
    few = model.engine.one_shot_tokens
    started = links_s(model, 1.0)
    slope = (links_s(model, few) - started) / (few - 1.0)
    assert links_s(model, 2.0 * few) == pytest.approx(links_s(model, few), rel=1e-6)
    assert (links_s(model, 4096.0) - links_s(model, 2048.0)) / 2048.0 < 0.5 * slope
    grown = [links_s(model, batch) for batch in (1.0, 32.0, few, 512.0, 2048.0)]
    assert grown == sorted(grown)


def test_starts_hardly_grow_behind_a_switch_and_do_over_pcie() -> None:
    def growth(gpu: str) -> float:
        return links_s(served("Llama-3.1-70B", gpu, tp=8), 1.0) / links_s(
            served("Llama-3.1-70B", gpu, tp=2), 1.0
        )

    assert growth("H100-SXM-80GB") < 2.0 < growth("L40S")


def test_only_ranks_with_whole_experts_dispatch() -> None:
    sliced, whole = served("DeepSeek-V3", tp=8), served("DeepSeek-V3", tp=8, ep=8)
    overhead = [float(decode_step(m, as_array([1.0]), CONTEXT).overhead[0]) for m in (sliced, whole)]
    assert overhead[0] < overhead[1]


def test_sparse_attention_pays_its_index() -> None:
    assert total(served("DeepSeek-V3.2", tp=8), 4.0) > 1.1 * total(served("DeepSeek-V3", tp=8), 4.0)


def test_clients_inside_the_process_slow_an_older_engine() -> None:
    cells = {
        "model": "Llama-3-8B",
        "gpu": "A100-SXM-80GB",
        "gpus": "1",
        "tp": "1",
        "regime": "closed_loop",
        "concurrency_or_batch": "64",
        "isl": "256",
        "osl": "256",
        "engine": "vLLM",
    }

    def between(source: str, release: str) -> float:
        row = read(**cells, source=source, engine_version=release)
        row = replace(row, client=replace(row.client, input_cv=0.0, output_cv=0.0, rounds=1.0))
        found = predict_serving([row], load_calibration(), load_gpus())[0]
        return found.values["pred_tpot_ms_p50"]

    assert between("accelmark", "0.7.3") > 1.2 * between("a table", "0.7.3")
    assert between("accelmark", "0.11") == pytest.approx(between("a table", "0.11"))


def test_tables_of_nominal_lengths_are_asked_at_their_mean() -> None:
    cells = {
        "model": "Llama-3.1-70B",
        "gpu": "H100-SXM-80GB",
        "gpus": "4",
        "tp": "4",
        "regime": "closed_loop",
        "concurrency_or_batch": "32",
        "engine": "vLLM",
    }
    nominal = read(**cells, isl="1000", osl="1000", source="inferencemax-aic")
    mean = read(**cells, isl="900", osl="900", source="inferencemax-aic")
    mean = replace(mean, client=replace(mean.client, mean_share=1.0))
    found, wanted = predict_serving([nominal, mean], load_calibration(), load_gpus())
    assert nominal.client.mean_share == 0.9
    assert found.values == pytest.approx(wanted.values)


def test_an_engine_of_heavier_expert_layers_is_slower_by_their_count_alone() -> None:
    calibration = load_calibration()
    heavier = calibration.with_values({"engines.vllm.moe": 2.0 * calibration.value("engines.vllm.moe")})
    for model, layers in (("Llama-3.1-8B", 0), ("Mixtral-8x7B", 32)):
        cells = {"model": model, "gpu": "H200-SXM-141GB", "gpus": "1", "tp": "1", "engine": "vLLM"}
        row = read(**cells, regime="static_batch", concurrency_or_batch="4", isl="128", osl="128")
        before, after = (
            predict_serving([row], constants, load_gpus())[0] for constants in (calibration, heavier)
        )
        more = after.values["pred_tpot_ms_p50"] - before.values["pred_tpot_ms_p50"]
        vm = 1.0 + calibration.compute.vm_slowdown["unknown"]
        once = calibration.serving.moe_layer_s * calibration.engines["vllm"].overhead * vm
        assert more == pytest.approx(1e3 * layers * once, rel=1e-6, abs=1e-9)

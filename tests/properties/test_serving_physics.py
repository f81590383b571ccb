"""Serving: what holds whatever the constants. Monotone in every resource and in load, exact in the limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.catalogue import load_gpus, load_models
from broker.domain.market.sku import IntraNode, LinkKind
from broker.domain.planning.workload import Batch, Precision, Serving, Slo
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.serving.served_model import (
    cache_bytes_per_token,
    weight_bytes,
)
from tests.performance.builders import batch, estimator, served, serving, sku
from tests.properties.asking import (
    BETWEEN,
    BETWEEN_P95,
    CARDS,
    DENSE,
    FEW,
    FIRST,
    FIRST_P95,
    SLACK,
    TOKENS,
    answers,
    asked,
    never_falls,
    never_rises,
    served_row,
)

GPUS, MODELS = st.sampled_from(CARDS), st.sampled_from([*DENSE, "Mixtral-8x7B", "DeepSeek-V3"])
REGIMES = st.sampled_from(["closed_loop", "static_batch", "open_loop", "single_stream"])
FORMATS = st.sampled_from(["bf16", "fp8", "int4"])
FACTOR = st.floats(1.0, 8.0)
FASTER = {
    "FLOPs": ("bf16_tflops", "fp16_tflops", "fp8_tflops"),
    "HBM": ("hbm_gbyte_s",),
    "links": ("scaleup_gbyte_s_per_dir", "pcie_gbyte_s_per_dir"),
}


def eight(**changes: object) -> dict[str, str]:
    """Eight cards a copy, so that every model of the tests has room."""
    return served_row(**({"gpus": 8, "tp": 8, "request_rate": 0.5} | changes))


@FEW
@given(gpu=GPUS, model=MODELS, regime=REGIMES, dense=FORMATS, rate=st.sampled_from(list(FASTER)), by=FACTOR)
def test_a_faster_card_never_serves_slower(
    gpu: str, model: str, regime: str, dense: str, rate: str, by: float
) -> None:
    """First tokens of a closed loop aside: its clients come back sooner, and meet more prompts."""
    spec = load_gpus()[gpu]
    quicker = {name: getattr(spec, name) and getattr(spec, name) * by for name in FASTER[rate]}
    row = eight(gpu=gpu, model=model, regime=regime, weight_precision=dense)
    for metric in (BETWEEN,) if regime == "closed_loop" else (FIRST, BETWEEN):
        (now,), (then,) = asked(metric, row), asked(metric, row, gpus={gpu: replace(spec, **quicker)})
        assert then <= now * SLACK
    (now,), (then,) = asked(TOKENS, row), asked(TOKENS, row, gpus={gpu: replace(spec, **quicker)})
    assert now <= then * SLACK


@FEW
@given(gpu=GPUS, model=MODELS, regime=REGIMES, dense=FORMATS)
def test_longer_prompts_and_contexts_take_longer(gpu: str, model: str, regime: str, dense: str) -> None:
    lengths = (1, 64, 500, 2000, 8000, 30000)
    rows = [eight(gpu=gpu, model=model, regime=regime, weight_precision=dense, isl=n) for n in lengths]
    assert never_falls(asked(FIRST, *rows))
    assert never_falls(asked(BETWEEN, *rows))


@FEW
@given(gpu=GPUS, model=MODELS, regime=st.sampled_from(["static_batch", "single_stream"]))
def test_longer_answers_slow_their_last_tokens_and_take_longer(gpu: str, model: str, regime: str) -> None:
    lengths = as_array([16, 128, 1024, 8192])
    rows = [eight(gpu=gpu, model=model, regime=regime, osl=int(n)) for n in lengths]
    between = asked(BETWEEN, *rows)
    assert never_falls(between)
    assert never_falls(asked(FIRST, *rows) + lengths * between)


@FEW
@given(gpu=GPUS, model=MODELS, regime=st.sampled_from(["static_batch", "closed_loop"]))
def test_more_at_once_wait_longer_and_get_more_done(gpu: str, model: str, regime: str) -> None:
    """Both up to what the cache holds; below one in flight nothing changes."""
    rows = [eight(gpu=gpu, model=model, regime=regime, concurrency_or_batch=n) for n in (1, 2, 5, 16, 64)]
    for metric in (BETWEEN, BETWEEN_P95, FIRST, FIRST_P95, TOKENS):
        assert never_falls(asked(metric, *rows))


@FEW
@given(gpu=GPUS, model=MODELS, tokens_in=st.sampled_from([100, 1000, 8000]), out=st.sampled_from([10, 300]))
def test_latencies_never_fall_with_the_rate(gpu: str, model: str, tokens_in: int, out: int) -> None:
    """A run is played in moments: right to a per cent. Beyond capacity prompts wait in line, and no longer
    beside answers."""
    rates = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    rows = [
        eight(gpu=gpu, model=model, regime="open_loop", request_rate=r, isl=tokens_in, osl=out) for r in rates
    ]
    for metric in (FIRST, FIRST_P95, TOKENS):
        assert never_falls(asked(metric, *rows), slack=1.015)
    followed = [row for row, found in zip(rows, answers(rows), strict=True) if found.stable]
    for metric in (BETWEEN, BETWEEN_P95):
        assert never_falls(asked(metric, *followed), slack=1.015)


@FEW
@given(
    gpu=GPUS,
    model=MODELS,
    first_ms=st.floats(60, 3000),
    between_ms=st.floats(8, 150),
    looser=st.floats(1, 5),
    which=st.sampled_from(["first", "between", "both"]),
)
def test_a_looser_objective_never_serves_less(
    gpu: str, model: str, first_ms: float, between_ms: float, looser: float, which: str
) -> None:
    tight = Slo(first_ms, between_ms)
    loose = Slo(
        first_ms * (looser if which != "between" else 1), between_ms * (looser if which != "first" else 1)
    )
    works = [serving(model, slo=slo) for slo in (tight, loose)]
    rates = estimator().serving(works, [sku(gpu)]).requests_per_s
    assert (rates[1] * SLACK >= rates[0]).all()


@FEW
@given(
    gpu=GPUS,
    model=MODELS,
    tokens_in=st.integers(50, 8000),
    out=st.integers(10, 1000),
    more=st.integers(0, 4000),
)
def test_longer_requests_are_never_served_more_often(
    gpu: str, model: str, tokens_in: int, out: int, more: int
) -> None:
    forms = (Precision.BF16, Precision.INT4)
    lengths = ((tokens_in, out), (tokens_in + more, out), (tokens_in, out + more))
    works = [serving(model, *pair, precisions=forms) for pair in lengths]
    jobs = [batch(model, input_tokens=a, output_tokens=b, precisions=forms) for a, b in lengths]
    for table in (estimator().serving(works, [sku(gpu)]), estimator().serving(jobs, [sku(gpu)])):
        rates = table.requests_per_s
        assert (rates[1:] <= rates[:1] * SLACK).all()


@pytest.mark.parametrize(
    "family",
    [
        ("Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen2.5-72B"),
        ("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B", "Llama-3.1-70B", "Llama-3.1-405B"),
        ("Mixtral-8x7B", "Mixtral-8x22B"),
    ],
)
@pytest.mark.parametrize("regime", ["closed_loop", "static_batch", "single_stream", "open_loop"])
def test_a_larger_model_serves_slower(family: tuple[str, ...], regime: str) -> None:
    rows = [eight(model=model, gpu="B200-SXM-180GB", regime=regime) for model in family]
    assert never_falls(asked(BETWEEN, *rows))
    assert never_falls(asked(FIRST, *rows))


def test_a_larger_model_starts_slower_and_serves_less() -> None:
    works = [serving(m) for m in ("Llama-3.2-1B", "Llama-3.1-8B", "Llama-3.1-70B", "Llama-3.1-405B")]
    table = estimator().serving(works, [sku("B200-SXM-180GB")])
    single = [c for c, config in enumerate(table.configs) if config.pp == 1]
    assert (np.diff(table.requests_per_s[:, 0, single], axis=0) <= 0).all()
    assert (np.diff(table.cold_start_s[:, 0, single], axis=0) > 0).all()


@FEW
@given(model=st.sampled_from(["Llama-3.1-70B", "Qwen2.5-72B", "Mixtral-8x22B"]), dense=FORMATS)
def test_more_cards_behind_a_switch_answer_sooner(model: str, dense: str) -> None:
    rows = [eight(model=model, weight_precision=dense, tp=n, gpus=n, gpu="B200-SXM-180GB") for n in (2, 4, 8)]
    assert never_rises(asked(BETWEEN, *rows))
    assert never_rises(asked(FIRST, *rows))
    room = [float(p) for p in asked(TOKENS, *(row | {"regime": "offline_max"} for row in rows))]
    assert room == sorted(room)


@FEW
@given(model=MODELS, gpu=GPUS, gbyte_s=st.floats(1, 2000))
def test_one_card_does_not_feel_its_links(model: str, gpu: str, gbyte_s: float) -> None:
    kinds = [sku(gpu, intra_node=IntraNode(LinkKind.NVLINK, g)) for g in (gbyte_s, 900.0)]
    table = estimator().serving([serving(model, precisions=(Precision.INT4,))], kinds)
    alone = [c for c, config in enumerate(table.configs) if config.gpus_per_replica == 1]
    assert (table.requests_per_s[0, 0, alone] == table.requests_per_s[0, 1, alone]).all()


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("model", DENSE)
def test_one_at_a_time_goes_to_the_bandwidth_roofline(gpu: str, model: str) -> None:
    """The slower the memory, the nearer to weights/HBM, of which engines reach 60-100 %; never faster."""
    shape, spec = load_models()[model], load_gpus()[gpu]
    lookup = 0 if shape.tie_embeddings else shape.vocab * shape.hidden
    for slower, most in ((1, np.inf), (100, 1.7)):
        slow = {gpu: replace(spec, hbm_gbyte_s=spec.hbm_gbyte_s / slower)}
        row = eight(gpu=gpu, model=model, regime="single_stream", isl=16, osl=16)
        for tp in (1, 8):
            least = 2e3 * (shape.total_params - lookup) / tp / (slow[gpu].hbm_gbyte_s * 1e9)
            found = asked(BETWEEN, row | {"tp": str(tp), "gpus": str(tp)}, gpus=slow)[0]
            assert 0.98 * least < found < most * least


def test_one_at_a_time_is_weights_over_bandwidth_and_launches() -> None:
    """An 8B on one H100: 15 GB at 3.35 TB/s are 4.5 ms; launches and host add less than half."""
    found = asked(BETWEEN, served_row(regime="single_stream", isl=128, osl=128))[0]
    assert 4.5 < found < 4.5 / 0.75 + 2.5


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-3.1-70B"])
def test_a_huge_batch_goes_to_the_compute_roofline(gpu: str, model: str) -> None:
    """2 N FLOPs a token over the dense peak, of which engines reach 0.27 (MI300X in SGLang) at least; linear
    in the batch, as is the bookkeeping of sequences, which is no product and left out. The engine is told to
    take them all: else they run in waves of as many as it takes."""
    products_alone = load_calibration().with_values({"serving.sequence_s": 0.0})
    shape, spec = load_models()[model], load_gpus()[gpu]
    sizes = (1e4, 2e4)
    told = f"max-running-requests {sizes[1]:.0f}"
    rows = [
        eight(
            gpu=gpu,
            model=model,
            engine="SGLang",
            notes=told,
            regime="static_batch",
            isl=1,
            osl=1,
            concurrency_or_batch=n,
        )
        for n in sizes
    ]
    alone = [row | {"tp": "1", "gpus": "1"} for row in rows]
    kept, twice = asked(BETWEEN, *alone)
    one, two = asked(BETWEEN, *alone, calibration=products_alone)
    assert twice / kept == pytest.approx(2, rel=0.02)
    assert two / one == pytest.approx(2, rel=0.02)
    matrices = shape.total_params - shape.vocab * shape.hidden
    least = 2e3 * matrices * sizes[0] / ((spec.bf16_tflops or np.nan) * 1e12)
    assert least < one < min(kept, least / 0.27)


@FEW
@given(model=MODELS, gpu=GPUS, tokens=st.integers(1, 30000), tp=st.sampled_from([1, 2, 8]), dense=FORMATS)
def test_no_prompt_beats_the_datasheet(model: str, gpu: str, tokens: int, tp: int, dense: str) -> None:
    spec, shape = load_gpus()[gpu], load_models()[model]
    peak = (spec.fp8_tflops if dense == "fp8" else None) or spec.bf16_tflops or np.nan
    lookups = 2 * shape.vocab * shape.hidden
    flops = 2 * (shape.active_params - lookups) * tokens
    row = served_row(
        gpu=gpu, gpus=tp, tp=tp, model=model, regime="single_stream", isl=tokens, weight_precision=dense
    )
    assert asked(FIRST, row)[0] > 1e3 * flops / (tp * peak * 1e12)


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("model", DENSE)
def test_the_shortest_prompt_still_reads_every_weight(gpu: str, model: str) -> None:
    shape, spec = load_models()[model], load_gpus()[gpu]
    lookup = 0 if shape.tie_embeddings else shape.vocab * shape.hidden
    least = 2e3 * (shape.total_params - lookup) / (spec.hbm_gbyte_s / 100 * 1e9)
    slow = {gpu: replace(spec, hbm_gbyte_s=spec.hbm_gbyte_s / 100)}
    row = served_row(gpu=gpu, model=model, regime="single_stream", isl=1)
    assert asked(FIRST, row, gpus=slow)[0] > 0.98 * least


@FEW
@given(model=MODELS, gpu=GPUS, in_flight=st.sampled_from([2, 8, 32]), tokens_in=st.sampled_from([100, 2000]))
def test_little_holds_between_closed_and_open_loops(
    model: str, gpu: str, in_flight: int, tokens_in: int
) -> None:
    """Arrivals at the rate that a closed loop gives keep as many in flight, so tokens come as far apart."""
    closed = eight(gpu=gpu, model=model, isl=tokens_in, concurrency_or_batch=in_flight)
    tokens = asked(TOKENS, closed)[0]
    opened = closed | {"regime": "open_loop", "request_rate": str(tokens / 256)}
    assert asked(TOKENS, opened)[0] == pytest.approx(tokens, rel=0.02)
    assert asked(BETWEEN, opened)[0] == pytest.approx(asked(BETWEEN, closed)[0], rel=0.25)


@FEW
@given(
    model=MODELS,
    gpu=GPUS,
    regime=REGIMES,
    in_flight=st.sampled_from([1, 7, 64, 500]),
    rate=st.floats(0.01, 50),
)
def test_percentiles_are_in_order(model: str, gpu: str, regime: str, in_flight: int, rate: float) -> None:
    row = eight(gpu=gpu, model=model, regime=regime, concurrency_or_batch=in_flight, request_rate=rate)
    assert never_falls(np.append(asked(FIRST, row), asked(FIRST_P95, row)))
    assert never_falls(np.append(asked(BETWEEN, row), asked(BETWEEN_P95, row)))
    found = answers([row])[0]
    assert all(min(sides.below, sides.above) > 0 for sides in found.spread.values())
    assert all(value > 0 for value in found.values.values() if np.isfinite(value))


@FEW
@given(tp=st.sampled_from([1, 2, 4, 8]))
def test_a_shared_cache_takes_less_than_a_copied_one(tp: int) -> None:
    """Eight key-value heads share out to eight ranks; a latent cache (MLA) is copied to each of them."""
    shared = [cache_bytes_per_token(served("Llama-3.1-70B", tp=n))[()].item() for n in (1, tp)]
    assert shared[1] == pytest.approx(shared[0] / tp)
    copied = [cache_bytes_per_token(served("DeepSeek-V3", tp=n, precision="fp8"))[()].item() for n in (1, tp)]
    assert copied[1] == copied[0]
    assert copied[0] < shared[0]


@pytest.mark.parametrize("model", list(load_models()))
def test_weights_shrink_with_their_format(model: str) -> None:
    sizes = [
        sum(float(part) for part in weight_bytes(served(model, precision=form)))
        for form in ("bf16", "fp8", "int4")
    ]
    assert sizes[0] == pytest.approx(2 * load_models()[model].total_params, rel=0.06)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] > 0.25 * sizes[0]


@FEW
@given(order=st.permutations(range(4)), model=MODELS)
def test_rates_do_not_depend_on_the_order_of_the_market(order: list[int], model: str) -> None:
    kinds = [sku("H100-SXM-80GB"), sku("L40S", 4, fabric=None), sku("A100-SXM-40GB"), sku("MI300X-192GB")]
    works: list[Serving | Batch] = [
        serving(model),
        batch("Qwen3-32B", precisions=(Precision.BF16, Precision.FP8)),
    ]
    straight = estimator().serving(works, kinds)
    turned = estimator().serving(works, [kinds[i] for i in order])
    assert turned.requests_per_s == pytest.approx(straight.requests_per_s[:, order], rel=1e-12)
    alone = estimator().serving(works[:1], kinds[:1])
    among = straight.requests_per_s[0, 0, [straight.configs.index(c) for c in alone.configs]]
    assert alone.requests_per_s[0, 0] == pytest.approx(among, rel=1e-9)

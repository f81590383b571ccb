"""Serving by rule of thumb (``test_rules_of_thumb``): what practitioners know must come out of the core."""

from __future__ import annotations

import numpy as np
import pytest

from broker.catalogue import load_gpus
from broker.domain.planning.workload import Precision, Slo
from tests.performance.builders import INFINIBAND, batch, estimator, serving, sku
from tests.performance.pairs import (
    across_gpus,
    of,
    off,
    same_load,
    served,
    speedups,
)

H100, A100 = "H100-SXM-80GB", "A100-SXM-80GB"
BOTH = (Precision.BF16, Precision.FP8)


def test_a_7b_serves_well_on_one_24_to_48_gb_card() -> None:
    """A chat turn, first token in a second, 16 tokens a second and more; L4 (300 GB/s) wants 8 or 4 bit."""
    chat = [serving(m, 500, 200) for m in ("Qwen2.5-7B", "Llama-2-7B", "Llama-3.1-8B")]
    small = (Precision.FP8, Precision.INT4)
    cards = [sku(gpu, 1, fabric=None) for gpu in ("A10G", "RTX-4090", "RTX-A6000", "L40S")]
    assert (estimator().serving(chat, cards).requests_per_s.max(axis=2) > 1.0).all()
    packed = [serving(m, 500, 200, precisions=small) for m in ("Qwen2.5-7B", "Llama-3.1-8B")]
    table = estimator().serving(packed, [sku("L4", 1, fabric=None), sku("T4", 1, fabric=None)])
    assert (table.requests_per_s[:, 0].max(axis=1) > 0.5).all()


def test_a_70b_wants_80_gb_or_more_or_a_tensor_group() -> None:
    """16 bit is 141 GB: one card of 180 GB and more, two of 80, four of 48. 8 bit: one of 80, just."""
    relaxed = Slo(2000, 80)
    works = [serving("Llama-3.1-70B", precisions=(form,), slo=relaxed) for form in BOTH]
    names = ("A10G", "L40S", "A100-SXM-40GB", A100, H100, "H200-SXM-141GB", "MI300X-192GB", "B200-SXM-180GB")
    table = estimator().serving(works, [sku(gpu) for gpu in names])
    fits = {
        (config.precision, config.tp, gpu): bool(table.fits[w, s, c])
        for w, form in enumerate(BOTH)
        for s, gpu in enumerate(names)
        for c, config in enumerate(table.configs)
        if config.pp == 1 and config.precision is form
    }
    alone = {form: [gpu for gpu in names if fits[form, 1, gpu]] for form in BOTH}
    assert alone[Precision.BF16] == ["MI300X-192GB", "B200-SXM-180GB"]
    assert alone[Precision.FP8] == [H100, "H200-SXM-141GB", "MI300X-192GB", "B200-SXM-180GB"]
    assert fits[Precision.BF16, 2, A100]
    assert fits[Precision.BF16, 2, H100]
    assert not fits[Precision.BF16, 2, "A100-SXM-40GB"]
    assert fits[Precision.BF16, 4, "L40S"]


@pytest.mark.parametrize("model", ["Mistral-Large-123B", "Falcon-180B", "Llama-3.1-405B", "GPT-3-175B"])
def test_over_70b_needs_several_gpus(model: str) -> None:
    """In 16 bit on any card of up to 192 GB, and somewhere on eight."""
    names = [gpu for gpu, spec in load_gpus().items() if spec.memory_gb <= 192]
    work = serving(model, precisions=(Precision.BF16,), slo=Slo(5000, 200))
    table = estimator().serving([work], [sku(gpu) for gpu in names])
    alone = [c for c, config in enumerate(table.configs) if config.gpus_per_replica == 1]
    group = [c for c, config in enumerate(table.configs) if config.gpus_per_replica > 1]
    assert not table.fits[0][:, alone].any()
    assert table.fits[0][:, group].any()


def test_a100_to_h100_serving_as_measured() -> None:
    """TensorRT-LLM's tables in 16 bit, 132 pairs: 1.6-2.5x."""
    pairs = speedups(served(), of("16", A100, source="trtllm-max"), of("16", H100), across_gpus)
    assert len(pairs) > 100
    assert off(pairs) < 0.15
    assert np.quantile(pairs[:, 1], 0.05) > 1.3
    assert np.quantile(pairs[:, 1], 0.95) < 3.0


def test_a100_to_h100_serving_depends_on_workload_and_format() -> None:
    """About 1.3x where bandwidth or launches decide, about 3x where prompts and 8 bit do."""
    shapes = ((100, 1000), (1500, 300), (8000, 100))
    works = [
        batch(m, input_tokens=i, output_tokens=o, precisions=BOTH)
        for m in ("Llama-3.1-8B", "Llama-3.1-70B")
        for i, o in shapes
    ]
    table = estimator().serving(works, [sku(A100), sku(H100)])
    plain = [c for c, k in enumerate(table.configs) if (k.precision, k.tp, k.pp) == (BOTH[0], 8, 1)]
    eight = [c for c, k in enumerate(table.configs) if (k.precision, k.tp, k.pp) == (BOTH[1], 8, 1)]
    rates = table.requests_per_s
    same = (rates[:, 1, plain] / rates[:, 0, plain])[:, 0]
    packed = (rates[:, 1, eight] / rates[:, 0, plain])[:, 0]
    assert ((same > 1.2) & (same < 3.3)).all()
    assert (packed > same).all()
    assert packed.max() > 2.7
    assert same.min() < 2.2


@pytest.mark.parametrize(
    ("older", "newer", "least", "most"),
    [("H100-SXM", "H200", 1.0, 1.35), ("H100-SXM", "B200", 1.4, 2.2), ("H200", "B200", 1.1, 1.9)],
)
def test_newer_cards_answer_sooner_as_measured(older: str, newer: str, least: float, most: float) -> None:
    """Time between tokens in one benchmark, engine and concurrency, 8-bit weights (InferenceMAX)."""
    source = {"source": "inferencemax-aic"}
    pairs = speedups(served(), of("fp8", older, **source), of("fp8", newer, **source), across_gpus)
    assert len(pairs) >= 40
    assert off(pairs) < 0.15
    assert least < np.median(pairs[:, 1]) < most


@pytest.mark.parametrize(
    ("source", "regime", "before", "after", "count"),
    [
        ("trtllm-max", "offline_max", "16", "fp8", 100),
        ("accelmark", "offline_burst", "16", "fp8", 10),
        ("inferencemax-aic", "closed_loop", "fp8", "fp4", 100),
    ],
)
def test_smaller_formats_raise_throughput_by_what_was_measured(
    source: str, regime: str, before: str, after: str, count: int
) -> None:
    where = {"source": source, "regime": regime}
    pairs = speedups(served(), of(before, **where), of(after, **where), same_load)
    assert len(pairs) >= count
    assert off(pairs) < 0.15
    assert np.median(pairs[:, 1]) == pytest.approx(np.median(pairs[:, 0]), rel=0.10)


def test_int4_speeds_up_one_stream_by_what_was_measured() -> None:
    """MLC on consumer and data-centre cards: 1.2-2.3x, no 4x, in the median 1.53; single pairs scatter."""
    where = {"source": "mlc-bench"}
    pairs = speedups(served(), of("16", **where), of("int4", **where), same_load)
    assert len(pairs) >= 30
    assert np.median(pairs[:, 1]) == pytest.approx(np.median(pairs[:, 0]), rel=0.15)
    assert off(pairs) < 0.25
    assert pairs[:, 1].max() < 3.0


def test_int8_raises_throughput_by_what_was_measured() -> None:
    where = {"source": "accelmark", "regime": "offline_burst"}
    pairs = speedups(served(), of("16", **where), of("int8", **where), same_load)
    assert off(pairs) < 0.15


@pytest.mark.parametrize("after", ["int4", "int8"])
def test_packed_weights_change_open_loops_by_what_was_measured(after: str) -> None:
    """Servers of three engines on ten GPUs: 4 bits 0.96 of 16 in the median, 8-bit products 1.16."""
    where = {"source": "accelmark", "regime": "open_loop"}
    pairs = speedups(served(), of("16", **where), of(after, **where), same_load)
    assert len(pairs) >= 40
    assert np.median(pairs[:, 1]) == pytest.approx(np.median(pairs[:, 0]), rel=0.15)
    assert off(pairs) < 0.20


@pytest.mark.xfail(
    reason="offline runs in 4 bits keep 0.67 of the 16-bit rate in three engines that serve with the same"
    " weights as fast as with 16 bits: kernels that servers do not use"
)
def test_int4_loses_offline_batches_by_what_was_measured() -> None:
    where = {"source": "accelmark", "regime": "offline_burst"}
    pairs = speedups(served(), of("16", **where), of("int4", **where), same_load)
    assert len(pairs) >= 15
    assert np.median(pairs[:, 1]) == pytest.approx(np.median(pairs[:, 0]), rel=0.10)


def test_pcie_boxes_stop_scaling_where_nvlink_goes_on() -> None:
    """70B from 4 to 8 cards: L40S 1,161 to 1,188 tokens/s, H100 6,933 to 10,730 [TensorRT-LLM]."""
    work = serving("Llama-3.1-70B", 128, 128, precisions=(Precision.FP8,), slo=Slo(5000, 200))
    table = estimator().serving([work], [sku("L40S", fabric=None), sku(H100, fabric=INFINIBAND)])
    rates = {
        config.tp: table.requests_per_s[0, :, c] for c, config in enumerate(table.configs) if config.pp == 1
    }
    gain = rates[8] / rates[4]
    assert gain[0] < 1.35 < gain[1] < 2.0

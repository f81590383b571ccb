"""Dimensions: time comes only from rates and from times, and an answer only from its own question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.catalogue import load_gpus
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.performance.constants.calibrated import Calibration, load_calibration
from optimizer.performance.hardware.sku_arrays import GIB, build_hardware
from tests.performance.builders import rows_of, sku
from tests.properties.asking import (
    BETWEEN,
    FEW,
    FIRST,
    SLACK,
    STEP,
    TOKENS,
    Row,
    answers,
    asked,
    run_row,
    served_row,
)

RATES_OF_A_CARD = ("tflops", "gbyte_s", "tdp_w")
TIMES = ("_s", "_s_per_layer")
STEPS = [
    run_row(),
    run_row(tp=2, pp=4, recompute="full", model="Qwen3-32B"),
    run_row(tp=1, dp=32, zero_fsdp="FSDP", precision="FP8", framework="FSDP compiled"),
    run_row(model="Mixtral-8x7B", tp=2, dp=16, ep=8),
    run_row(seq_len=65536, cp=4, dp=1, framework="nanotron"),
    run_row(gpu="MI300X-192GB", framework="Megatron-DeepSpeed"),
]
SERVED = [
    served_row(regime="single_stream"),
    served_row(regime="static_batch", model="Mixtral-8x7B", tp=4, gpus=4, engine="SGLang"),
    served_row(weight_precision="int4", gpu="L40S", isl=8000),
    served_row(model="DeepSeek-V3", weight_precision="fp8", tp=8, gpus=8, concurrency_or_batch=64),
    served_row(regime="open_loop", request_rate=2, engine="TensorRT-LLM"),
    served_row(regime="offline_max", gpu="MI300X-192GB", model="Llama-3.1-70B"),
]


def sped_up(part: Any, by: float, name: str = "") -> Any:
    """Constants in a world whose clock runs ``by`` times as fast: what is called a rate grows, a time
    shrinks, everything else has no seconds in it."""
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{f.name: sped_up(getattr(part, f.name), by, f.name) for f in fields(part)})
    if isinstance(part, Mapping):
        per_key = {"engines", "software"}
        return {key: sped_up(value, by, key if name in per_key else name) for key, value in part.items()}
    if not isinstance(part, float):
        return part
    if "_per_s" in name:
        return part * by
    return part / by if name.endswith(TIMES) else part


def faster_cards(by: float) -> dict[str, GpuSpec]:
    return {
        name: replace(
            spec,
            **{
                f.name: getattr(spec, f.name) and getattr(spec, f.name) * by
                for f in fields(spec)
                if any(unit in f.name for unit in RATES_OF_A_CARD)
            },
        )
        for name, spec in load_gpus().items()
    }


def sped_up_row(row: Row, by: float) -> Row:
    rates = ("inter_node_gbps_per_gpu", "intra_node_gbps", "request_rate")
    return row | {name: str(float(row[name]) * by) for name in rates if row.get(name)}


@FEW
@given(by=st.sampled_from([0.5, 2.0, 16.0]))
def test_twice_the_rates_and_half_the_overheads_halve_every_time(by: float) -> None:
    calibration: Calibration = sped_up(load_calibration(), by)
    cards = faster_cards(by)
    for rows, metrics in ((STEPS, (STEP,)), (SERVED, (FIRST, BETWEEN))):
        quick = [sped_up_row(row, by) for row in rows]
        now, then = answers(rows), answers(quick, cards, calibration)
        for metric in metrics:
            for before, after in zip(now, then, strict=True):
                told = before.values[metric]
                assert after.values[metric] == pytest.approx(told / by, rel=1e-6, nan_ok=True)
    tokens = asked(TOKENS, *SERVED)
    assert asked(TOKENS, *(sped_up_row(row, by) for row in SERVED), gpus=cards, calibration=calibration) == (
        pytest.approx(tokens * by, rel=1e-6)
    )


def test_memory_in_gb_of_the_brochure_is_gib_of_the_driver_and_bandwidth_is_not() -> None:
    """HBM of "80 GB" is 80 GiB less what firmware keeps; 3.35 TB/s are 3.35e12 bytes."""
    hw = build_hardware([sku("H100-SXM-80GB")], load_gpus(), load_calibration())
    assert 80e9 < hw.memory_bytes[0] <= 80 * GIB
    assert hw.hbm_bytes_per_s[0] == load_gpus()["H100-SXM-80GB"].hbm_gbyte_s * 1e9
    assert hw.peak["bf16"][0] == pytest.approx(989e12, rel=0.01)


def test_the_same_rate_in_gbit_and_gbyte() -> None:
    """400 Gbit/s a card are the 3200 Gbit/s of its node; a link's two directions are halved."""
    node = build_hardware([sku("H100-SXM-80GB")], load_gpus(), load_calibration())
    share = load_calibration().network.fabric_share["infiniband"]
    assert node.fabric_bytes_per_s[0] == pytest.approx(400e9 / 8 * share)
    stated, implied = run_row(intra_node_gbps=3600), run_row()
    assert asked(STEP, stated)[0] == pytest.approx(asked(STEP, implied)[0], rel=1e-9)


@pytest.mark.parametrize("name", ["training.csv", "training_grid.csv", "serving.csv"])
def test_a_row_alone_and_in_a_table_have_the_same_figures(name: str) -> None:
    """Also in reverse order: nothing of a neighbour leaks through the arrays."""
    table = rows_of(name)
    rows = table[:: max(1, len(table) // 25)]
    among, turned = answers_of(table), answers_of(table[::-1])[::-1]
    alone = [answers_of([row])[0] for row in rows]
    picked = among[:: max(1, len(table) // 25)]
    for one, other in (*zip(alone, picked, strict=True), *zip(among, turned, strict=True)):
        assert one.fits == other.fits
        assert one.note == other.note
        assert dict(one.values) == pytest.approx(dict(other.values), rel=1e-9, nan_ok=True)


def answers_of(rows: list[Row]) -> list[Any]:
    return list(answers(rows))


@pytest.mark.parametrize("name", ["training.csv", "training_grid.csv", "serving.csv"])
def test_published_rows_have_positive_times_in_order(name: str) -> None:
    for found in answers(rows_of(name)):
        assert all(value > 0 for value in found.values.values() if np.isfinite(value))
        for first, later in ((FIRST, "pred_ttft_ms_p95"), (BETWEEN, "pred_tpot_ms_p95")):
            if first in found.values and np.isfinite(found.values[first]):
                assert found.values[first] <= found.values[later] * SLACK
        cells = found.written()
        for metric in found.values:
            if metric in cells:
                assert float(cells[f"{metric}_low"]) <= float(cells[metric]) <= float(cells[f"{metric}_high"])

"""Rows drawn at random, as no table has them: answers are finite, possible, and move the right way."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.own.predictions import predict_rows
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.hardware.sku_arrays import GIB, usable_memory_bytes
from optimizer.performance.training.memory import WEIGHT_BYTES

Row = dict[str, str]
GPUS = ("A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB200-186GB", "MI300X-192GB")
MODELS = (
    "Llama-3.1-8B",
    "Llama-3.1-70B",
    "Llama-3.1-405B",
    "Qwen3-32B",
    "Mixtral-8x7B",
    "DeepSeek-V3",
    "Qwen3-30B-A3B",
)
FRAMEWORKS = ("NeMo", "Megatron-LM", "torchtitan", "DeepSpeed", "nanotron", "MaxText", "")
BLANK, GIVEN = 40, 1500


def drawn(rng: random.Random) -> Row:
    """A run that someone could ask for, its layout left open."""
    gpu, gpus = rng.choice(GPUS), 2 ** rng.randint(3, 11)
    length = 2 ** rng.randint(11, 15)
    sequences = max(1, gpus * 2 ** rng.randint(0, 4) * 4096 // length)
    formats = ["BF16"] + (["FP8"] if not gpu.startswith("A100") else [])
    return {
        "id": "drawn-1",
        "kind": "training",
        "model": rng.choice(MODELS),
        "gpu": gpu,
        "gpus_total": str(gpus),
        "gpus_per_node": "8",
        "seq_len": str(length),
        "global_batch": str(sequences),
        "precision": rng.choice(formats),
        "inter_node_gbps_per_gpu": rng.choice(("50", "200", "400")),
        "fabric": rng.choice(("IB-NDR", "RoCE", "EFA")),
        "framework": rng.choice(FRAMEWORKS),
    }


def laid_out(row: Row, rng: random.Random) -> Row:
    """The same with degrees that divide GPUs, layers and heads."""
    shape, gpus = load_models()[row["model"]], int(row["gpus_total"])
    tensor = rng.choice([t for t in (1, 2, 4, 8) if shape.heads % t == 0])
    stages = rng.choice([p for p in (1, 2, 4, 8, 16) if shape.layers % p == 0 and gpus % (p * tensor) == 0])
    context = rng.choice([c for c in (1, 2) if gpus % (c * tensor * stages) == 0])
    degrees = {"tp": tensor, "pp": stages, "cp": context, "micro_batch": rng.choice((1, 2)), "interleave": 1}
    if shape.is_moe:
        ranks = gpus // stages
        degrees["ep"] = rng.choice([e for e in (1, 4, 8) if shape.experts % e == 0 and e <= ranks])
    recompute = {"recompute": rng.choice(("none", "selective", "full"))}
    return row | {name: str(degree) for name, degree in degrees.items()} | recompute


@cache
def rows(count: int, given: bool) -> tuple[Row, ...]:
    rng = random.Random(count)
    some = [drawn(rng) for _ in range(count)]
    return tuple(laid_out(row, rng) if given else row for row in some)


def predicted(some: list[Row] | tuple[Row, ...], name: str = "pred_step_time_s") -> Array:
    found = predict_rows(some, load_calibration(), load_gpus(), load_models())
    return as_array([float(p[name]) if p[name] else np.nan for p in found])


def fitting(some: tuple[Row, ...]) -> list[Row]:
    found = predict_rows(some, load_calibration(), load_gpus(), load_models())
    return [row for row, p in zip(some, found, strict=True) if p["fits"] == "true"]


def test_the_best_layouts_use_a_possible_share_of_the_gpu() -> None:
    able = fitting(rows(BLANK, False))
    assert len(able) > BLANK / 2
    mfu = predicted(able, "pred_mfu")
    assert ((mfu > 0.03) & (mfu < 0.75)).all()


def test_given_layouts_get_finite_and_possible_answers() -> None:
    some = rows(GIVEN, True)
    able = fitting(some)
    assert len(able) > GIVEN / 4
    steps, mfu = predicted(able), predicted(able, "pred_mfu")
    assert np.isfinite(steps).all()
    assert (steps > 0).all()
    assert ((mfu > 0.0003) & (mfu < 0.75)).all()
    assert np.median(mfu) > 0.1


def test_what_fits_is_less_than_the_card_and_more_than_the_weights() -> None:
    able, gpus, calibration = fitting(rows(GIVEN, True)), load_gpus(), load_calibration()
    held = predicted(able, "pred_mem_gib") * GIB
    for row, size in zip(able, held, strict=True):
        spec, shape = gpus[row["gpu"]], load_models()[row["model"]]
        assert size < usable_memory_bytes(spec.memory_gb, spec, calibration)
        assert size > WEIGHT_BYTES * shape.total_params / int(row["gpus_total"])


@pytest.mark.parametrize(
    ("name", "factor"),
    [("inter_node_gbps_per_gpu", 2.0), ("global_batch", 0.5), ("seq_len", 0.5)],
)
def test_more_fabric_or_less_work_is_never_slower(name: str, factor: float) -> None:
    some = [row for row in rows(GIVEN, True) if int(row["global_batch"]) >= 2 * int(row["gpus_total"])]
    other = [row | {name: f"{float(row[name]) * factor:g}"} for row in some]
    here, there = predicted(some), predicted(other)
    known = np.isfinite(here) & np.isfinite(there)
    assert known.sum() > 200
    assert (there[known] <= here[known] * (1 + 1e-9)).all()

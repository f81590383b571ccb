"""How far measurements lie from predictions: fitted to publishers, and judged by publishers left out."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.constants.spread import BLOCKS, CATEGORIES, SPREAD, TRAINING, Question, load_spread
from tests.bench.calibration.bundled import beside_rows, blind_rows, bundled_rows
from tests.bench.calibration.spread_fit import (
    BLIND,
    FITTED,
    LOOKED_AT,
    Measured,
    SpreadFit,
    measured_numbers,
    publisher_of,
    weighted_quantile,
)
from tests.bench.calibration.spread_store import COMMAND, coverage_table, spread_sha256

METRICS = ("step", "memory", "rate", "itl", "ttft")
WORDS = {name: "usual" for name in CATEGORIES}


def drawn(publishers: int, rows: int) -> list[Measured]:
    """Steps whose errors have a part of their publisher and one of their own, are twice as large above the
    prediction as below, twice as large with experts, and twice as large where nobody looked."""
    rng, found = np.random.default_rng(5), []
    for who in range(publishers):
        kind = BLIND if who % 2 else LOOKED_AT
        shared = rng.standard_normal()
        for row in range(rows):
            experts = row % 2 == 0
            z = math.sqrt(0.5) * (shared + rng.standard_normal())
            size = 0.05 * (2 if z > 0 else 1) * (2 if experts else 1) * (2 if kind == BLIND else 1)
            question = Question(TRAINING, WORDS, {"input": 4096.0}, experts=experts)
            names = ("model", "gpu", f"engine {row}")
            found.append(Measured(size * z, "step", "dense", f"p{who}", f"p{who}", kind, names, question))
    return found


def test_publishers_left_out_lie_in_the_interval_in_four_of_five_cases() -> None:
    fit = SpreadFit(drawn(60, 6))
    spread, held = fit.whole()
    assert 0.74 <= spread.left_out["step"] <= 0.88
    sides, experts = spread.sides["step.dense"], spread.widening[TRAINING].experts
    assert sides.above / sides.below == pytest.approx(2.0, rel=0.35)
    assert experts == pytest.approx(math.log(2.0), abs=0.2)
    assert 0.3 <= fit.together["step"] <= 0.7
    assert spread.common["step"] < 0.2
    line = next(line for line in coverage_table(fit, held).splitlines() if f"| {BLIND} |" in line)
    assert f"| {100 * spread.left_out['step']:.0f} |" in line


def test_what_is_common_to_a_model_on_a_gpu_and_engine_is_found() -> None:
    rng, found = np.random.default_rng(2), []
    question = Question(TRAINING, WORDS, {"input": 4096.0})
    for case in range(60):
        shared = rng.standard_normal()
        for who in range(4):
            z = math.sqrt(0.6) * shared + math.sqrt(0.4) * rng.standard_normal()
            names = (f"model {case}", "gpu", "engine")
            found.append(Measured(0.1 * z, "step", "dense", f"p{who}", f"p{who}", BLIND, names, question))
    assert SpreadFit(found).whole()[0].common["step"] == pytest.approx(0.6, abs=0.2)


def test_a_quantile_counts_weights() -> None:
    assert weighted_quantile(as_array([3.0, 1.0, 2.0]), as_array([1.0, 1.0, 8.0]), 0.8) == 2.0
    assert weighted_quantile(as_array([3.0, 1.0, 2.0]), as_array([1.0, 1.0, 8.0]), 0.95) == 3.0


def test_sources_of_one_house_are_one_publisher() -> None:
    assert publisher_of("nemo-24.07") == publisher_of("trtllm-docs-2026") == "NVIDIA"
    assert publisher_of("somebody") == "somebody"


def test_the_spread_belongs_to_the_bundled_tables() -> None:
    told = tomllib.loads(SPREAD.read_text())
    assert told["data_sha256"] == spread_sha256(), f"run `{COMMAND}` after changing fixtures/performance"
    assert set(METRICS) == set(told["left_out"])
    assert all(0.7 <= share <= 0.9 for share in told["left_out"].values())


@pytest.mark.slow
def test_the_bundled_tables_give_the_stored_spread() -> None:
    tables = {FITTED: bundled_rows(), LOOKED_AT: beside_rows(), BLIND: blind_rows()}
    fit = SpreadFit(measured_numbers(tables, load_calibration(), load_gpus(), load_models()))
    spread, _ = fit.whole()
    stored = load_spread()
    for block in BLOCKS:
        assert spread.sides[block].above == pytest.approx(stored.sides[block].above, abs=0.002)
    assert spread.left_out == pytest.approx(stored.left_out, abs=0.002)

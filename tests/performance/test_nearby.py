from __future__ import annotations

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.own.rows import leave_out
from optimizer.calibration.tables.observations import loop_rates
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.intervals import NO_ROWS, Closeness, provenance_of
from optimizer.performance.own.features import BLOCKS, NUMBERS, STEP, WORDS, Features, stack_features
from optimizer.performance.own.gaussian_process import (
    ROWS_MOST,
    Correction,
    Evidence,
    Kernel,
    correlation,
    inverse_of,
)
from optimizer.performance.own.shift import load_kernels
from tests.bench.calibration.hybrid import evaluate_hybrid
from tests.bench.calibration.kernel_fit import configuration_groups, fit_kernel
from tests.performance.builders import rows_of

KERNEL = Kernel(0.04, 0.001, {"source": 1.0, "gpu": 0.7, "architecture": 0.7, "batch": 0.2})
H100 = {"source": "mine", "gpu": "H100", "architecture": "Hopper"}
H200 = {"source": "mine", "gpu": "H200", "architecture": "Hopper"}
MI300 = {"source": "mine", "gpu": "MI300X", "architecture": "CDNA3"}


def features(*rows: tuple[dict[str, str], float]) -> Features:
    return stack_features([(words, {"batch": batch}) for words, batch in rows])


def correction(*rows: tuple[dict[str, str], float, float], kernel: Kernel = KERNEL) -> Correction:
    known = features(*((words, batch) for words, batch, _ in rows))
    return Correction(Evidence(known, np.asarray([left for *_, left in rows])), kernel)


def test_a_row_shifts_its_own_configuration_most_and_others_less_with_distance() -> None:
    asked = features((H100, 8), (H100, 32), (H200, 8), (MI300, 8), (MI300, 2.0**30))
    found = correction((H100, 8, 0.3))
    shift = found.shift(asked)
    assert shift[0] == pytest.approx(0.3 * 0.04 / 0.041)
    assert list(shift) == sorted(shift, reverse=True)
    assert shift[2] > 1.5 * shift[3]
    assert shift[4] < 1e-3


def test_intervals_shrink_near_rows_and_nowhere_else() -> None:
    shrink = correction((H100, 8, 0.3)).shrink(features((H100, 8), (H200, 8), (MI300, 2.0**30)))
    assert shrink[0] < 0.3 < shrink[1] < 1.0
    assert shrink[2] == pytest.approx(1.0, abs=1e-6)


def test_more_rows_of_the_same_kind_weigh_more() -> None:
    asked = features((H200, 8))
    one = correction((H100, 8, 0.3))
    many = correction((H100, 8, 0.3), (H100, 16, 0.3), (H100, 32, 0.3))
    assert many.shift(asked)[0] > one.shift(asked)[0]
    assert many.shrink(asked)[0] < one.shrink(asked)[0]


def test_a_question_without_a_source_is_one_of_those_known_and_not_all_of_them() -> None:
    other = H100 | {"source": "theirs"}
    found = correction((H100, 8, 0.3), (other, 8, 0.3))
    shift = found.shift(features((H100 | {"source": ""}, 8)))[0]
    assert found.shift(features((H100 | {"source": "nobody"}, 8)))[0] < shift <= 0.3


def test_answers_do_not_depend_on_what_else_is_asked() -> None:
    found = correction((H100, 8, 0.3), (H200, 16, -0.1), (MI300, 4, 0.2))
    asked = features((H100, 9), (H200, 3), (MI300, 77), (H100, 1))
    alone = [float(found.shift(asked.at(slice(i, i + 1)))[0]) for i in range(asked.count)]
    assert found.shift(asked).tolist() == alone


def test_leaving_a_group_out_is_refitting_without_it() -> None:
    rng = np.random.default_rng(7)
    words = [H100, H200, MI300]
    known = features(*((words[i % 3], float(2 ** (i % 5))) for i in range(12)))
    residuals = rng.normal(0.0, 0.2, 12)
    groups = np.asarray([0, 1, 2, 3] * 3)
    covariance = KERNEL.variance * correlation(known, known, KERNEL.lengths)
    mean, variance = leave_out(inverse_of(covariance, KERNEL.noise), residuals, groups)
    for group in range(4):
        out = np.flatnonzero(groups == group)
        kept = np.flatnonzero(groups != group)
        refitted = Correction(Evidence(known.at(kept), residuals[kept]), KERNEL)
        assert mean[out] == pytest.approx(refitted.shift(known.at(out)))
        whole = KERNEL.variance + KERNEL.noise
        assert np.sqrt(variance[out] / whole) == pytest.approx(refitted.shrink(known.at(out)))


def test_thousands_of_rows_are_thinned() -> None:
    many = features(*((H100, 1.0 + i) for i in range(ROWS_MOST + 1)))
    assert Evidence(many, np.zeros(many.count)).thinned().features.count <= ROWS_MOST


def test_a_fitted_kernel_reaches_along_what_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    rows, left = [], []
    for source in ("a", "b", "c", "d"):
        for gpu in ("H100", "A100", "L4", "T4", "MI300X", "B200"):
            error = rng.normal(0.0, 0.3)
            for batch in (1, 2, 4, 8):
                words = {"source": source, "gpu": gpu, "model": "m", "engine": "e"}
                rows.append((words, {"batch": float(batch), "gpus": float(batch)}))
                left.append(error + rng.normal(0.0, 0.01))
    kernel = fit_kernel(STEP, Evidence(stack_features(rows), np.asarray(left)))
    alike = kernel.lengths["batch"] + kernel.lengths["gpus"]
    assert kernel.lengths["gpu"] > 5.0 * alike
    assert kernel.noise < 0.05 * kernel.variance


def test_kernels_are_positive_and_of_known_words() -> None:
    for block in BLOCKS:
        kernel = load_kernels()[block]
        assert kernel.variance > 0
        assert kernel.noise > 0
        assert set(kernel.lengths) <= {*WORDS, *NUMBERS}


def test_rows_nearby_help_where_they_are_left_out_by_configuration() -> None:
    rows = rows_of("training.csv")
    lines = evaluate_hybrid(rows, load_calibration(), load_kernels(), load_gpus(), load_models())
    steps = [line for line in lines if line.metric == "step time"]
    assert sum(line.rows for line in steps) > 20
    assert all(0.0 <= line.coverage <= 1.0 and line.narrower <= 1.0 for line in lines)
    dense = next(line for line in steps if line.regime == "training dense")
    within_noise = dense.noise_floor_percent  # repeats differ by it: neighbours cannot be asked for more
    assert dense.group_percent < max(1.05 * dense.model_percent, within_noise)


def test_configuration_groups_keep_loads_together_and_gpu_counts_apart() -> None:
    rows = [(H100, {"batch": 1.0, "gpus": 1.0}), (H100, {"batch": 64.0, "gpus": 1.0}), (H100, {"gpus": 2.0})]
    groups = configuration_groups(stack_features(rows))
    assert groups[0] == groups[1] != groups[2]


def test_closed_loops_with_latencies_alone_have_a_rate() -> None:
    row = {"id": "r", "kind": "serving", "source": "s", "regime": "closed_loop", "isl": "100", "osl": "50"}
    row |= {"concurrency_or_batch": "10", "ttft_ms_p50": "500", "tpot_ms_p50": "10"}
    (found,) = loop_rates([row])
    assert found.measured == pytest.approx(10 * 50 / (0.5 + 50 * 0.01))
    assert not loop_rates([row | {"output_tokens_per_s_total": "400"}])


@pytest.mark.parametrize(
    ("near", "known", "word"),
    [
        (NO_ROWS, False, "modelled"),
        (NO_ROWS, True, "calibrated"),
        (Closeness(0.7, 0.8), False, "calibrated"),
        (Closeness(0.97, 0.4), False, "measured"),
    ],
)
def test_provenance_says_how_near_the_rows_are(near: Closeness, known: bool, word: str) -> None:
    assert provenance_of(False, known, near).value == word

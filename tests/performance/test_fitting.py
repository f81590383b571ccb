from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.evaluation.held_out import MODEL, SOURCE, fold_name, load_folds
from optimizer.calibration.evaluation.ranking import spearman
from optimizer.calibration.evaluation.report import Report
from optimizer.calibration.table_constants import fit_settings
from optimizer.calibration.tables.observations import Observation, observations
from optimizer.calibration.tables.rows import read_rows
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import FITTED, load_calibration, load_priors
from optimizer.performance.constants.spread import family
from optimizer.performance.own.shift import KERNELS
from tests.bench.calibration.bundled import bundled_rows, data_sha256
from tests.bench.calibration.fit import (
    Parameter,
    Problem,
    fit,
    highest,
    read_parameters,
    refit,
    slopes_at,
    subsampled,
    weights_of,
)
from tests.bench.calibration.fitted_store import COMMAND
from tests.bench.calibration.folds import GROUPS, LEFT_OUT
from tests.performance.builders import bundled_report, rows_of

MANY_ROWS = 40


pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def report() -> Report:
    return bundled_report()


def problem(*parameters: Parameter) -> Problem:
    rows = rows_of("training.csv")
    priors = load_priors()
    read = read_rows(rows, priors, load_gpus(), load_models())
    observed = tuple(o for o in observations(rows) if o.metric == "step time" and o.place in read.training)
    return Problem(read, observed, parameters, priors, load_gpus())


def test_the_constants_belong_to_the_bundled_data() -> None:
    for stored in (FITTED, KERNELS):
        told = tomllib.loads(stored.read_text())
        assert told["data_sha256"] == data_sha256(), f"run `{COMMAND}` after changing fixtures/performance"


def test_fitted_constants_are_in_force_and_within_their_limits() -> None:
    values = tomllib.loads(FITTED.read_text())["values"]
    calibration = load_calibration()
    for group in GROUPS:
        for parameter in read_parameters(group):
            assert calibration.value(parameter.path) == pytest.approx(values[parameter.path])
            assert 0 < values[parameter.path] <= parameter.most * (1 + 1e-9)


def test_every_fitted_source_has_a_fold_without_it() -> None:
    folds, ignored = load_folds(), fit_settings()["not_fitted"]
    assert set(folds) == set(LEFT_OUT)
    pulled = {o.source for o in observations(bundled_rows()) if not o.regime.startswith("open_loop")}
    assert set(folds[SOURCE]) >= pulled - set(ignored) - {"blis-vllm"}


def test_a_known_distortion_is_found_again() -> None:
    slow = Parameter("compute.sustained_share", 5.0, np.inf)
    base = problem(slow)
    found = base.log_errors(as_array([0.0]))
    bent = replace(
        base,
        observed=tuple(
            replace(o, measured=o.measured * float(np.exp(e)) * 1.2)
            for o, e in zip(base.observed, found, strict=True)
        ),
    )
    shift, _ = fit(bent, weights_of(bent))
    assert np.median(np.abs(bent.log_errors(shift))) < 0.05
    assert shift[0] < -0.1


def test_a_firm_prior_stays_where_it_is() -> None:
    firm = problem(Parameter("compute.sustained_share", 1e-4, np.inf))
    assert abs(fit(firm, weights_of(firm))[0][0]) < 1e-3


def test_a_constant_at_its_largest_value_keeps_its_slope_and_does_not_leave_it() -> None:
    capped = problem(Parameter("compute.sustained_share", 5.0, load_priors().compute.sustained_share))
    top = highest(capped)
    assert top == pytest.approx(0.0)
    assert np.nanmedian(slopes_at(capped, top)) < -0.1, "more of the peak means less time"
    faster = replace(capped, observed=tuple(replace(o, measured=o.measured / 2) for o in capped.observed))
    assert fit(faster, weights_of(faster))[0] <= top


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_a_fold_of_many_rows_is_not_the_full_fit(kind: str) -> None:
    values = tomllib.loads(FITTED.read_text())["values"]
    pulled = Counter(fold_name(kind, o) for o in observations(bundled_rows()) if o.fair)
    for name, fold in load_folds()[kind].items():
        moved = max(abs(number / values[path] - 1.0) for path, number in fold.items())
        assert pulled[name] < MANY_ROWS or moved > 1e-3, f"{name} is not held out"


def test_rows_that_weigh_nothing_pull_nothing() -> None:
    base = problem(Parameter("compute.sustained_share", 1.0, np.inf))
    weights = weights_of(base)
    shift, slopes = fit(base, weights)
    alone = refit(base, weights.without(np.ones(len(base.observed), dtype=np.bool_)), shift, slopes)
    assert abs(alone[0]) < abs(shift[0]) or abs(shift[0]) < 1e-9


def test_long_tables_are_thinned_and_weigh_no_more() -> None:
    one = Observation(0, "s", "r", "m", "c", 1.0, "x", "g")
    many = [replace(one, place=place) for place in range(1000)]
    assert 100 <= len(subsampled(many)) <= 250
    assert len(subsampled([*many, replace(one, source="t")])) == len(subsampled(many)) + 1


def test_models_of_a_family_share_a_fold() -> None:
    assert family("Llama-3.1-70B") == family("Llama-2-7B") == "llama"
    assert family("Qwen3.5-397B-A17B") == family("Qwen2.5-7B") == "qwen"
    assert fold_name(MODEL, Observation(0, "s", "r", "m", "c", 1.0, "DeepSeek-R1", "g")) == "deepseek"


def test_rank_correlation() -> None:
    assert spearman(as_array([1, 2, 3, 4]), as_array([10, 20, 30, 400])) == pytest.approx(1.0)
    assert spearman(as_array([1, 2, 3, 4]), as_array([4, 3, 2, 1])) == pytest.approx(-1.0)
    assert spearman(as_array([1, 1, 2, 3]), as_array([5, 5, 7, 9])) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("regime", "metric", "most_percent"),
    [
        ("training dense", "step time", 10.0),
        ("training moe", "step time", 22.0),
        ("training grid", "peak memory", 9.0),
        ("training dense", "peak memory", 10.0),
        ("closed_loop C≤8", "time per output token", 12.0),
        ("closed_loop C≤64", "time per output token", 12.0),
        ("closed_loop C≤64", "time to first token", 38.0),
        ("offline_max", "output tokens/s", 20.0),
        ("static_batch", "output tokens/s", 10.0),
    ],
)
def test_held_out_errors_stay_where_the_documents_say(
    report: Report, regime: str, metric: str, most_percent: float
) -> None:
    (line,) = [line for line in report.held_out if (line.regime, line.metric) == (regime, metric)]
    assert line.by_source_percent <= most_percent
    assert line.coverage >= 0.72, "the 80 % interval"


def test_the_grid_report(report: Report) -> None:
    assert report.grid is not None
    assert report.grid.fit_right / report.grid.fit_told >= 0.95
    assert report.grid.spearman_median >= 0.75


def test_korthikanti_held_out(report: Report) -> None:
    (line,) = [line for line in report.lines if line.source == "korth22" and line.metric == "step time"]
    assert line.rows == 8
    assert line.mean_percent <= 5.0

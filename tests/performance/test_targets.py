from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optimizer.calibration.evaluation.errors import Entry, Evidence, coverage, percent
from optimizer.calibration.evaluation.report import GridReport
from optimizer.calibration.evaluation.targets import figures, load_targets, parse_targets
from optimizer.performance.arrays import as_array
from tests.bench.calibration.side_tables import joined

ITL = "time per output token"


def evidence(*entries: tuple[str, str, str, float]) -> Evidence:
    """Source, regime, metric and error in percent."""
    made = tuple(Entry("Serving", s, regime, regime, metric) for s, regime, metric, _ in entries)
    errors = np.log1p(as_array([error / 100 for *_, error in entries]))
    return Evidence(made, {"fitted": errors / 2, "source": errors}, np.full((len(made), 2), 0.5))


def test_a_figure_stands_beside_each_limit_that_was_measured() -> None:
    found = figures(
        evidence(("a", "static_batch", ITL, 4.0), ("b", "static_batch", ITL, 30.0), ("b", "x", ITL, 90.0)),
        (),
        None,
        load_targets(),
    )
    (line,) = found
    assert (line.held_out, line.rows, line.limit, line.met) == ("source", 2, "≤ 10", False)
    assert line.value == pytest.approx(17.0)


def test_rows_in_no_fit_count_towards_no_target() -> None:
    rows = evidence(("a", "static_batch", ITL, 4.0), ("b", "static_batch", ITL, 90.0))
    beside = replace(rows, entries=(rows.entries[0], replace(rows.entries[1], beside=True)))
    (line,) = figures(beside, (), None, load_targets())
    assert (line.rows, line.met) == (1, True)
    assert beside.fitted.tolist() == [True, False]


def test_a_source_counts_as_the_root_of_its_rows_in_coverage() -> None:
    """Nine rows of one source inside and one of another outside: 3 of 4."""
    errors, spread = as_array([0.1] * 9 + [0.9]), np.full((10, 2), 0.5)
    assert coverage(errors, spread, ["a"] * 9 + ["b"]) == pytest.approx(0.75)
    assert coverage(np.append(errors, np.nan), np.full((11, 2), 0.5), ["a"] * 9 + ["b"] * 2) == pytest.approx(
        0.75
    )
    assert np.isnan(coverage(as_array([np.nan]), as_array([[0.5, 0.5]]), ["a"]))


def test_means_of_sources_are_counted() -> None:
    target = {"name": "m", "regimes": ["r*"], "metric": ITL, "statistic": "source_means", "by_source": 12.0}
    targets = replace(load_targets(), errors=parse_targets({**LIMITS, "target": [target]}).errors)
    rows = evidence(("a", "r1", ITL, 10.0), ("a", "r2", ITL, 12.0), ("b", "r1", ITL, 20.0))
    (line,) = figures(rows, (), None, targets)
    assert (line.value, line.unit, line.met) == (1.0, "of 2", False)


LIMITS = {"coverage": [75, 85], "coverage_rows": 20, "spearman": 0.9, "fit_decisions": 93.0}


@pytest.mark.parametrize("odd", [{}, {"by_source": 5.0, "statistic": "mode"}])
def test_a_target_without_a_limit_or_with_an_odd_statistic_is_refused(odd: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="'t'"):
        parse_targets({**LIMITS, "target": [{"name": "t", "regimes": ["*"], "metric": "*", **odd}]})


def test_the_grid_has_targets_of_its_own() -> None:
    grid = GridReport(
        fit_right=94,
        fit_told=100,
        cells=4,
        spearman_median=0.9,
        spearman_least=0.5,
        spearman_above_09=3,
        steady_above_09=4,
        reachable_above_09=4,
    )
    fit, ranks = figures(evidence(), (), grid, load_targets())
    assert (fit.value, fit.met) == (94.0, True)
    assert (ranks.value, ranks.unit, ranks.met) == (3.0, "of 4", False)


def test_what_nobody_held_out_is_no_figure() -> None:
    cache = Entry("KV cache", "s", "k", "k", "tokens")
    other = Evidence((cache,), {"fitted": as_array([0.1])}, as_array([[0.2, 0.2]]))
    both = joined([evidence(("a", "r", ITL, 4.0)), other])
    assert np.isnan(both.of("source", [1])).all()
    assert np.isnan(both.of("model", [0, 1])).all()
    assert np.isnan(percent(both.of("model", [0]))).all()

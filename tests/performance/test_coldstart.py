from __future__ import annotations

import numpy as np
import pytest

from optimizer.calibration.fitting.cold_starts import cold_starts_table, read_cold_starts
from optimizer.calibration.fitting.table_fit import held_out_by_source, interval_of_others
from optimizer.calibration.tables.bundled import cold_start_rows
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration, load_priors
from optimizer.performance.serving.cold_start import PAGE_CACHE, STREAMER, Start, cold_start_s, weights_s

CONSTANTS = load_calibration().coldstart
ONE, GIB = as_array(1.0), float(2**30)


def test_phases_held_out_by_source() -> None:
    table = cold_starts_table(read_cold_starts(cold_start_rows()))
    assert len(table.rows) == 29
    errors = held_out_by_source(table, load_priors())
    assert np.median(np.abs(np.expm1(errors))) < 0.30
    assert not any("wake" in row.phase for row in table.rows)
    spread = interval_of_others(table.rows, ["cold start"] * len(table.rows), errors, 0.8)
    assert 0.6 < np.mean(np.abs(errors) <= spread) < 0.95


def test_the_narrowest_of_storage_network_loader_and_host_decides() -> None:
    size, eight = as_array(1e12), as_array(8.0)
    plain = float(weights_s(size, ONE, CONSTANTS))
    assert float(weights_s(size, eight, CONSTANTS)) < plain
    assert float(weights_s(size, ONE, CONSTANTS, Start(STREAMER))) < plain
    assert float(weights_s(size, eight, CONSTANTS, Start(network_bytes_per_s=1e9))) == pytest.approx(1000.0)
    assert float(weights_s(size, eight, CONSTANTS, Start(storage_bytes_per_s=2e9))) == pytest.approx(500.0)
    hot = Start(PAGE_CACHE, storage_bytes_per_s=1.0)
    assert float(weights_s(size, eight, CONSTANTS, hot)) == pytest.approx(
        1e12 / CONSTANTS.page_cache_bytes_per_s
    )


def test_what_an_operator_can_do_about_it() -> None:
    size = as_array(16e9)
    usual = float(cold_start_s(size, ONE, CONSTANTS, 32.0))
    assert 60 < usual < 150
    assert float(cold_start_s(size, ONE, CONSTANTS, 32.0, Start(compile_cached=True))) < usual - 10
    pulled = float(cold_start_s(size, ONE, CONSTANTS, 32.0, Start(image_s=90.0)))
    assert pulled == pytest.approx(usual + 90.0)
    assert float(cold_start_s(size, ONE, CONSTANTS, 80.0)) > usual
    assert cold_start_s(as_array([1e9, 2e9]), as_array([1.0, 2.0]), CONSTANTS).shape == (2,)


def test_seventy_billion_in_eight_bit_over_eight_gpus() -> None:
    """vLLM issue 19824 adds up to about 215 s."""
    found = cold_start_s(as_array(70e9), as_array(8.0), CONSTANTS, 80.0, Start(PAGE_CACHE))
    assert float(found) == pytest.approx(215.0, rel=0.30)


def test_mixtures_of_experts_are_not_as_deep_as_dense_models_of_their_size() -> None:
    row = {"source": "a", "phase": "torch.compile", "seconds": "40"}
    dense, experts = read_cold_starts([row | {"model": "Qwen-32B"}, row | {"model": "Qwen-35B-A3B FP8"}])
    assert dense.layers is not None
    assert dense.layers > 50
    assert experts.layers is None

from __future__ import annotations

import pytest

from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.serving.cold_start import PAGE_CACHE, STREAMER, Start, cold_start_s, weights_s

CONSTANTS = load_calibration().coldstart
ONE, GIB = as_array(1.0), float(2**30)


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

"""What a host must hold, worked out by hand from published sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.catalogue import load_models
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Precision
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import serving_needs, training_needs, weights_gb
from tests.placement.market import training

CALIBRATION = load_calibration()
CUDO = Sku("h100", "H100-SXM-80GB", 8, 80.0, memory_gb=137.4, disk_gb=107.4)


def test_a_model_of_487_gb_needs_a_disk_that_holds_it() -> None:
    """Llama-3.1-405B in FP8 beside an image of 30 GB, on a host with 107 GB of disk."""
    needs = serving_needs(load_models()["Llama-3.1-405B"], Precision.FP8, 8, CALIBRATION)
    assert needs.disk_gb == pytest.approx(30 + 487, rel=0.01)
    assert needs.shortage(CUDO) == "107 GB of disk, 517 GB are needed"
    assert needs.shortage(replace(CUDO, disk_gb=530.0)) is None
    assert needs.shortage(replace(CUDO, disk_gb=None, memory_gb=None)) is None


def test_memory_holds_a_process_and_a_file_for_each_gpu() -> None:
    needs = serving_needs(load_models()["Llama-3.1-8B"], Precision.BF16, 4, CALIBRATION)
    assert needs.memory_gb == 4 * (4 + 5)
    assert needs.shortage(replace(CUDO, memory_gb=32.0)) == "32 GB of memory, 36 GB are needed"


def test_a_run_keeps_two_checkpoints_on_disk_and_one_in_memory() -> None:
    """Llama 3.1 8B: 105 GB a checkpoint (NVIDIA), shared by the nodes."""
    run = training(model=load_models()["Llama-3.1-8B"])
    one, four = (training_needs(run, nodes, 8, CALIBRATION) for nodes in (1, 4))
    assert one.disk_gb == pytest.approx(30 + 2 * 105, rel=0.01)
    assert one.memory_gb == pytest.approx(8 * 4 + 105, rel=0.01)
    assert four.disk_gb == pytest.approx(30 + 2 * 105 / 4, rel=0.01)


@pytest.mark.parametrize(
    ("model", "precision", "gb"), [("gpt-oss-120b", "fp4", 65), ("Kimi-K2.5", "int4", 594)]
)
def test_weights_are_as_published(model: str, precision: str, gb: float) -> None:
    assert weights_gb(load_models()[model], Precision(precision), CALIBRATION) == pytest.approx(gb, rel=0.01)

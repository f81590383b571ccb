"""Layouts of plans leave memory for the error of the prediction, and are ones that the stack has."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.confidence import memory_margin
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.sku import Fabric, FabricKind, IntraNode, LinkKind, Sku
from broker.domain.planning.workload import TrainingStack
from optimizer.calibration.tables.training_rows import fit_probability
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.performance.intervals import at_deviation, even
from tests.placement.market import training

ESTIMATOR = Estimator(load_gpus(), load_calibration())
NODE = Sku(
    "hgx", "H100-SXM-80GB", 8, 80.0,
    intra_node=IntraNode(LinkKind.NVLINK, 900.0), fabric=Fabric(FabricKind.INFINIBAND, 3200.0, 16),
)  # fmt: skip
COUNTS = (1, 2, 4, 8, 16)
CARD_BYTES = 80 * 2**30


def test_the_upper_quarter_is_where_three_of_four_cards_hold_the_run() -> None:
    for half_width in (0.06, 0.16, 0.41):
        assert fit_probability(1.0, memory_margin(half_width, 0.5), even(half_width)) == pytest.approx(
            0.75, abs=1e-3
        )


def at_confidence(estimate: Estimate, confidence: float) -> tuple[float, float]:
    """Bytes that a GPU of a run holds: the median, and a quantile of the interval that the plan tells."""
    low, middle, high = (
        metrics["memory_gb_per_gpu"] * 1e9 for metrics in (estimate.low, estimate.value, estimate.high)
    )
    deviations = NormalDist().inv_cdf(confidence)
    return middle, float(at_deviation(middle, low, high, deviations))


@pytest.mark.parametrize("software", list(TrainingStack))
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-3.3-70B"])
def test_every_planned_layout_fits_at_its_upper_quarter(software: TrainingStack, model: str) -> None:
    run = training(model=load_models()[model], software=software, sequence_length=8192)
    table = ESTIMATOR.training([run], [NODE], COUNTS)
    fitting = np.flatnonzero(table.fits[0, 0]).tolist()
    assert fitting
    for n in fitting:
        held, upper = at_confidence(table.estimate(0, 0, n), 0.75)
        assert held < upper <= CARD_BYTES


def test_more_confidence_leaves_more_room() -> None:
    run = training(model=load_models()["Llama-3.3-70B"], sequence_length=8192)
    for confidence in (0.8, 0.95):
        table = ESTIMATOR.training([replace(run, confidence=confidence)], [NODE], COUNTS)
        fitting = np.flatnonzero(table.fits[0, 0]).tolist()
        assert fitting
        for n in fitting:
            assert at_confidence(table.estimate(0, 0, n), confidence)[1] <= CARD_BYTES


def test_zero_shares_states_and_data_alone() -> None:
    run = training(
        model=load_models()["Llama-3.3-70B"], software=TrainingStack.DEEPSPEED, sequence_length=8192
    )
    table = ESTIMATOR.training([run], [NODE], COUNTS)
    for n in np.flatnonzero(table.fits[0, 0]).tolist():
        assert (table.layout(0, 0, n).tp, table.layout(0, 0, n).pp) == (1, 1)
    asked = Parallelism(tp=8, dp=8, recompute="full")
    assert ESTIMATOR.training_at(run, NODE, 8, asked) is None
    assert ESTIMATOR.training_at(replace(run, software=TrainingStack.TUNED), NODE, 8, asked) is not None

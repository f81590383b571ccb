"""How wide intervals are: what adds up, and what narrows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.domain.basics.estimate import Provenance
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.intervals import (
    NEAR,
    SAME,
    Closeness,
    provenance_of,
    training_relative,
    with_interval,
)

CONSTANTS = load_calibration().intervals


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("moe", [False, True])
def test_hours_may_be_off_by_the_step_and_by_what_failures_cost(moe: bool, measured: bool) -> None:
    wide = replace(CONSTANTS, goodput=0.25)
    found = training_relative(moe, True, measured, wide)
    assert found["hours"] == pytest.approx(found["step_s"] + 0.25)
    assert found["goodput"] == 0.25
    assert training_relative(moe, True, measured, replace(CONSTANTS, goodput=0.0))["hours"] == found["step_s"]


def test_a_gpu_that_nobody_measured_is_less_sure() -> None:
    known, unknown = (training_relative(False, seen, False, CONSTANTS) for seen in (True, False))
    assert unknown["step_s"] == pytest.approx(known["step_s"] + CONSTANTS.training_unseen_gpu)


def test_an_interval_is_a_factor_and_shares_end_at_one() -> None:
    found = with_interval({"hours": 10.0, "mfu": 0.9}, {"hours": 0.25, "mfu": 0.5}, Provenance.MODELLED)
    assert found.low == pytest.approx({"hours": 8.0, "mfu": 0.6})
    assert found.high == pytest.approx({"hours": 12.5, "mfu": 1.0})


@pytest.mark.parametrize(
    ("measured", "known_gpu", "nearness", "shrink", "told"),
    [
        (True, False, 0.0, 1.0, Provenance.MEASURED),
        (False, True, SAME, 1.0, Provenance.MEASURED),
        (False, True, SAME - 0.001, 1.0, Provenance.CALIBRATED),
        (False, False, SAME - 0.001, NEAR, Provenance.CALIBRATED),
        (False, False, SAME - 0.001, NEAR + 0.001, Provenance.MODELLED),
    ],
)
def test_what_counts_as_measured_or_calibrated_begins_at_its_limit(
    measured: bool, known_gpu: bool, nearness: float, shrink: float, told: Provenance
) -> None:
    assert provenance_of(measured, known_gpu, Closeness(nearness, shrink)) is told

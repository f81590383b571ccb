"""How wide intervals are: what adds up, and what narrows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.domain.basics.confidence import memory_margin
from broker.domain.basics.estimate import Provenance
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.intervals import (
    NEAR,
    SAME,
    Closeness,
    provenance_of,
    serving_relative,
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


PLAIN = replace(
    CONSTANTS,
    tokens_per_s={"offline": 0.34},
    ttft={"closed": 0.24, "open": 0.44},
    itl={"closed": 0.29},
    serving_unseen_gpu=0.10,
    measured=0.05,
)


@pytest.mark.parametrize(("batch", "first"), [(True, 0.24), (False, 0.44)])
def test_serving_on_a_gpu_that_nobody_measured_is_less_sure(batch: bool, first: float) -> None:
    known, unknown = (serving_relative(batch, seen, False, PLAIN) for seen in (True, False))
    names = ("tokens_per_s", "ttft_p95_ms", "itl_p95_ms")
    assert [known[name] for name in names] == pytest.approx([0.34, first, 0.29])
    assert [unknown[name] for name in names] == pytest.approx([0.44, first + 0.10, 0.39])
    assert serving_relative(batch, False, True, PLAIN)["tokens_per_s"] == 0.05


def test_rows_nearby_narrow_an_interval_in_logs_and_not_below_a_rerun() -> None:
    """Half of a factor of 1.44 in logs is 1.2; a tenth of it would be less than re-runs differ by."""
    half, tenth = (
        serving_relative(False, False, False, PLAIN, near=Closeness(0.9, shrink, shrink))
        for shrink in (0.5, 0.1)
    )
    assert half["tokens_per_s"] == pytest.approx(0.2)
    assert half["ttft_p95_ms"] == pytest.approx(1.54**0.5 - 1.0)
    assert tenth["tokens_per_s"] == 0.05
    wide = replace(PLAIN, measured=0.6)
    assert serving_relative(False, True, False, wide, near=Closeness(0.9, 0.5))["tokens_per_s"] == 0.34


def test_a_step_is_as_sure_as_its_kind_of_stack() -> None:
    kinds = replace(CONSTANTS, training_dense=0.1, training_grid=0.2, training_moe=0.3, training_adapters=0.4)

    def step(moe: bool = False, adapters: bool = False, software: str = "tuned") -> float:
        return training_relative(moe, True, False, kinds, adapters=adapters, software=software)["step_s"]

    assert (step(), step(software="eager"), step(moe=True), step(adapters=True)) == (0.1, 0.2, 0.3, 0.4)


def test_the_upper_quarter_of_memory_lies_half_way_to_the_intervals_end_in_logs() -> None:
    """0.6745 of 1.2816 standard deviations: 1.5^0.5263."""
    assert memory_margin(0.5, 0.5) == pytest.approx(1.2379, abs=1e-4)
    assert memory_margin(0.5, 0.9) == pytest.approx(1.5, abs=1e-4)
    assert memory_margin(0.0, 0.5) == 1.0

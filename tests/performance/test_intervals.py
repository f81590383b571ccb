"""How wide intervals are, what widens and narrows them, and the distribution behind them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from broker.domain.basics.confidence import NINTH_DECILE, memory_margin
from broker.domain.basics.estimate import Provenance
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.constants.spread import (
    CATEGORIES,
    SERVING,
    TRAINING,
    Familiar,
    Question,
    Sides,
    Spread,
    Widening,
    load_spread,
)
from optimizer.performance.intervals import (
    NEAR,
    SAME,
    Closeness,
    at_deviation,
    narrowed,
    provenance_of,
    serving_sides,
    step_regime,
    training_sides,
    with_interval,
)

CONSTANTS = load_calibration().intervals
WORDS = {"gpu": "H100", "stack": "Hopper tuned", "family": "llama", "format": "Hopper bf16"}
KNOWN = Familiar({name: {WORDS[name]: 3} for name in CATEGORIES}, {"input": (10.0, 12.0)})
WIDENING = Widening(experts=0.2, older=0.3, unfamiliar=0.1, beyond=0.05, assumed=0.04)
SPREAD = Spread(
    sides={
        "step": Sides(0.3, 0.4), "step.dense": Sides(0.1, 0.2), "memory": Sides(0.2, 0.3),
        "rate": Sides(0.3, 0.3), "rate.offline": Sides(0.5, 0.6), "rate.crowded": Sides(0.2, 0.1),
        "rate.open": Sides(0.02, 0.01), "ttft": Sides(0.6, 0.9), "ttft.closed": Sides(0.3, 0.7),
        "itl": Sides(0.2, 0.25),
    },
    widening={TRAINING: WIDENING, SERVING: WIDENING},
    familiar={TRAINING: KNOWN, SERVING: KNOWN},
    identities=frozenset({"rate.open"}),
    common={},
    left_out={},
)  # fmt: skip
DENSE = Question(TRAINING, WORDS, {"input": 2048.0})
CHAT = Question(SERVING, WORDS, {"input": 2048.0})
USUAL = math.exp(0.1 * 4 / (1 + 3))


def training(
    question: Question = DENSE, measured: bool = False, goodput: float = CONSTANTS.goodput
) -> dict[str, Sides]:
    constants = replace(CONSTANTS, goodput=goodput)
    return training_sides(question, ("dense", "tuned"), measured, constants, SPREAD)


@pytest.mark.parametrize("measured", [False, True])
def test_hours_may_be_off_by_the_step_and_by_what_failures_cost(measured: bool) -> None:
    found = training(measured=measured, goodput=0.25)
    assert found["hours"].above == pytest.approx(found["step_s"].above + math.log(1.25))
    assert found["goodput"].above == pytest.approx(math.log(1.25))
    assert training(measured=measured, goodput=0.0)["hours"] == found["step_s"]


def test_a_slow_step_is_a_low_rate() -> None:
    found = training()
    assert (found["step_s"].below, found["step_s"].above) == pytest.approx((0.1 * USUAL, 0.2 * USUAL))
    assert found["tokens_per_s"] == found["mfu"] == found["step_s"].inverse


@pytest.mark.parametrize(
    ("question", "factor"),
    [
        (replace(DENSE, experts=True), 0.2),
        (replace(DENSE, older=True), 0.3),
        (replace(DENSE, words=WORDS | {"gpu": "new"}), 0.1 * (1 - 1 / 4)),
        (replace(DENSE, words={}), 0.1 * 4 * (1 - 1 / 4)),
        (replace(DENSE, numbers={"input": 2.0**15}), 0.05 * 3),
        (replace(DENSE, numbers={"input": 2.0**8}), 0.05 * 2),
        (replace(DENSE, assumed=2), 0.08),
        (replace(DENSE, assumed=9), 0.12),
    ],
)
def test_what_nobody_measured_is_less_sure(question: Question, factor: float) -> None:
    assert SPREAD.wider(question) == pytest.approx(USUAL * math.exp(factor))
    assert training(question)["step_s"].above == pytest.approx(0.2 * USUAL * math.exp(factor))


def test_what_follows_from_the_question_never_widens() -> None:
    assert SPREAD.of("rate", "open", replace(CHAT, words={}, experts=True)) == Sides(0.02, 0.01)


def test_a_regime_without_rows_is_as_sure_as_its_block() -> None:
    assert SPREAD.of("step", "moe", DENSE) == Sides(0.3, 0.4).times(USUAL)


@pytest.mark.parametrize(
    ("batch", "rate", "first"),
    [(True, Sides(0.5, 0.6), Sides(0.3, 0.7)), (False, Sides(0.2, 0.1), Sides(0.6, 0.9))],
)
def test_services_and_batches_are_as_sure_as_runs_like_them(batch: bool, rate: Sides, first: Sides) -> None:
    found = serving_sides(CHAT, batch, False, CONSTANTS, SPREAD)
    assert found["tokens_per_s"] == found["requests_per_s_per_replica"] == rate.times(USUAL)
    assert found["usd_per_million_tokens"] == rate.times(USUAL).inverse
    assert found["ttft_p95_ms"] == first.times(USUAL)
    own = serving_sides(CHAT, batch, True, CONSTANTS, SPREAD)
    assert own["tokens_per_s"].above == pytest.approx(math.log1p(CONSTANTS.measured))


def test_rows_nearby_narrow_each_side_and_not_below_a_rerun() -> None:
    assert narrowed(Sides(0.4, 0.2), 0.5, 0.05) == Sides(0.2, 0.1)
    assert narrowed(Sides(0.4, 0.2), 0.1, 0.05) == Sides(0.05, 0.05)
    assert narrowed(Sides(0.4, 0.02), 0.1, 0.05) == Sides(0.05, 0.02)
    assert narrowed(Sides(0.4, 0.02), 1.0, 0.05) == Sides(0.4, 0.02)


def test_an_interval_is_a_factor_and_shares_end_at_one() -> None:
    half, quarter = Sides(math.log(2.0), math.log(1.5)), Sides(math.log(1.25), math.log(1.25))
    found = with_interval({"hours": 10.0, "mfu": 0.9}, {"hours": quarter, "mfu": half}, Provenance.MODELLED)
    assert found.low == pytest.approx({"hours": 8.0, "mfu": 0.45})
    assert found.high == pytest.approx({"hours": 12.5, "mfu": 1.0})


def test_the_interval_gives_every_quantile() -> None:
    value, low, high = np.array([10.0, 200.0]), np.array([8.0, 50.0]), np.array([15.0, 220.0])
    for share, expected in ((0.1, low), (0.5, value), (0.9, high)):
        assert at_deviation(value, low, high, NormalDist().inv_cdf(share)) == pytest.approx(expected)
    deviations = np.linspace(-2.6, 2.6, 100)[:, None]
    assert (np.diff(at_deviation(value, low, high, deviations), axis=0) > 0).all()
    quarter = at_deviation(10.0, 8.0, 15.0, 0.67449)
    assert quarter == pytest.approx(10.0 * 1.5 ** (0.67449 / 1.28155), rel=1e-4)


def test_draws_lie_in_the_interval_in_four_of_five_cases() -> None:
    drawn = at_deviation(10.0, 8.0, 15.0, np.random.default_rng(1).standard_normal(20_000))
    assert float(np.mean((drawn >= 8.0) & (drawn <= 15.0))) == pytest.approx(0.8, abs=0.01)
    assert float(at_deviation(10.0, 8.0, 15.0, NINTH_DECILE)) == pytest.approx(15.0)


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


def test_a_step_is_as_sure_as_its_kind_of_stack() -> None:
    assert step_regime("tuned", False) == "dense"
    assert step_regime("eager", False) == "eager"
    assert step_regime("eager", False, adapters=True) == "adapters"
    assert step_regime("eager", True, adapters=True) == "moe"


def test_the_upper_quarter_of_memory_lies_half_way_to_the_intervals_end_in_logs() -> None:
    """0.6745 of 1.2816 standard deviations: 1.5^0.5263."""
    assert memory_margin(0.5, 0.5) == pytest.approx(1.2379, abs=1e-4)
    assert memory_margin(0.5, 0.9) == pytest.approx(1.5, abs=1e-4)
    assert memory_margin(0.0, 0.5) == 1.0


def test_the_fitted_spread_has_every_block_and_widens_with_what_is_unlike() -> None:
    spread = load_spread()
    assert {"step", "memory", "rate", "itl", "ttft", "ratio"} <= set(spread.sides)
    usual = Question(TRAINING, {}, {"input": 4096.0})
    far = replace(usual, numbers={"input": 4096.0 * 2**12}, assumed=1, experts=True)
    assert spread.wider(far) > spread.wider(usual)
    assert max(max(spread.sides[key].below, spread.sides[key].above) for key in spread.identities) < 0.5

"""Chooses the hyper-parameters of the Gaussian process on the bundled rows.

The residuals are those of constants fitted without the row's source. The score of a kernel is the log
likelihood of left-out rows, three times: without rows of the same configuration group, without those of the
same model and GPU, and (with half the weight) without those of the same source. The second and third
determine how far a correction reaches. The likelihood is a normal with a five-fold wider tail of 5 %; the
search is by coordinate steps in the logs of the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
from numpy.typing import NDArray

from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.held_out import SOURCE, held_out_errors
from optimizer.calibration.own.evidence import MEASURES, features_of, is_evidence, residuals_of
from optimizer.calibration.own.rows import leave_out
from optimizer.calibration.tables.observations import observations
from optimizer.calibration.tables.rows import read_rows
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.own.features import (
    BLOCKS,
    FIRST_TOKEN,
    MEMORY,
    NUMBERS,
    STEP,
    TOKEN_RATE,
    TOKEN_TIME,
    WORDS,
    Features,
)
from optimizer.performance.own.gaussian_process import (
    OUTLIER,
    Evidence,
    Kernel,
    correlation,
    inverse_of,
    narrowed,
)
from optimizer.performance.own.shift import KERNELS, load_kernels
from tests.bench.calibration.bundled import data_sha256
from tests.bench.calibration.fitted_store import COMMAND

MODEL_AND_STACK = WORDS[:7]
SERVED = (*MODEL_AND_STACK, "regime", "size", "gpus", "batch", "input", "output")
TRAINED = (*MODEL_AND_STACK, "size", "gpus", "tensor", "pipeline", "expert", "batch", "input")
USED: Mapping[str, tuple[str, ...]] = {
    TOKEN_TIME: SERVED,
    TOKEN_RATE: SERVED,
    FIRST_TOKEN: SERVED,
    STEP: TRAINED,
    MEMORY: TRAINED,
}
CONFIGURATION = ("source", "gpu", "model", "engine")
PAIR = ("gpu", "model")
GROUPINGS = ((1.0, CONFIGURATION, ("gpus", "tensor", "pipeline")), (1.0, PAIR, ()), (0.5, ("source",), ()))
SAMPLE = 650
ROUNDS = 5
FIRST_STEP = 1.0
GAIN_LEAST = 1e-4
START_VARIANCE, START_NOISE, START_WORD, START_NUMBER = 0.09, 0.01, 0.3, 0.1
LENGTH_LEAST, LENGTH_MOST = 1e-3, 10.0
WIDE_SHARE, WIDE = 0.05, 5.0
OTHER_METRIC = 0.1
SHARE_INSIDE = 0.8
FOLDS = 5
DIGITS = 3
INTERVAL_EXPONENTS = np.linspace(0.0, 2.0, 41)


def groups_of(features: Features, words: Sequence[str], numbers: Sequence[str] = ()) -> NDArray[np.intp]:
    """The group number of each row [N]: rows with equal values of these words and numbers are one group."""
    columns = [features.words[:, WORDS.index(name)] for name in words]
    columns += [features.numbers[:, NUMBERS.index(name)].astype(np.str_) for name in numbers]
    keys = np.stack(columns, axis=1)
    return np.asarray(np.unique(keys, axis=0, return_inverse=True)[1], dtype=np.intp).reshape(-1)


def configuration_groups(features: Features) -> NDArray[np.intp]:
    """Rows of one source, model, GPU, engine class, GPU count, tensor and pipeline degree; they differ only
    in load, lengths, precision and release."""
    return groups_of(features, *GROUPINGS[0][1:])


def fit_kernels(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> dict[str, Kernel]:
    """The kernel of each block, from the residuals of ``rows`` held out by source (stored folds)."""
    read = read_rows(rows, calibration, gpus, models)
    observed = [o for o in observations(rows) if is_evidence(o)]
    errors = held_out_errors(SOURCE, read, observed, calibration, gpus)
    found = {}
    for block in BLOCKS:
        places = [
            i for i, o in enumerate(observed) if MEASURES[o.metric].block == block and np.isfinite(errors[i])
        ]
        mine = [observed[i] for i in places]
        evidence = Evidence(features_of(mine, rows, read, gpus), residuals_of(mine, errors[places]))
        found[block] = with_interval_exponent(fit_kernel(block, evidence), evidence)
    return found


def fit_kernel(block: str, evidence: Evidence) -> Kernel:
    """The kernel of ``block`` that best predicts left-out rows of ``evidence``; the score is a mean over
    parts."""
    search = _Search(block, evidence)
    place, steps = search.start(), np.full(len(USED[block]) + 2, FIRST_STEP)
    score = search.score(place)
    for _ in range(ROUNDS):
        for index in range(place.size):
            moved = [(search.score(trial), trial) for trial in search.trials(place, index, steps[index])]
            best = min(moved, key=lambda pair: pair[0])
            if best[0] < score - GAIN_LEAST:
                score, place = best
            else:
                steps[index] /= 2.0
    return search.kernel(place)


def with_interval_exponent(kernel: Kernel, evidence: Evidence) -> Kernel:
    """The kernel with the interval exponent under which half-widths that contain 80 % of each regime's
    residuals still contain 80 % of all after narrowing, in five folds by configuration group."""
    part = evidence.thinned()
    known = np.clip(part.residuals, -OUTLIER, OUTLIER)
    covariance = kernel.variance * correlation(part.features, part.features, kernel.lengths)
    inverse = inverse_of(covariance, kernel.noise)
    mean, variance = leave_out(inverse, known, configuration_groups(part.features) % FOLDS)
    half = _half_widths(part)
    left = np.abs(part.residuals - mean)
    kernels = [replace(kernel, interval_exponent=float(power)) for power in INTERVAL_EXPONENTS]
    missed = [abs(np.mean(left <= half * narrowed(variance, k)) - SHARE_INSIDE) for k in kernels]
    return kernels[int(np.argmin(missed))]


def _half_widths(evidence: Evidence) -> Array:
    """80th percentile [N] of the absolute residuals of each row's regime."""
    size, half = np.abs(evidence.residuals), np.zeros(evidence.residuals.size)
    regimes = groups_of(evidence.features, ("regime",))
    for regime in np.unique(regimes):
        half[regimes == regime] = np.percentile(size[regimes == regime], 100.0 * SHARE_INSIDE)
    return half


def _parts(evidence: Evidence) -> Iterator[Evidence]:
    """All rows, in disjoint parts of about ``SAMPLE``, because a kernel's cost grows with the cube of its
    rows."""
    count = max(1, evidence.residuals.size // SAMPLE)
    for first in range(count):
        every = slice(first, None, count)
        yield Evidence(evidence.features.at(every), evidence.residuals[every])


@dataclass(frozen=True, slots=True)
class _Grouping:
    weight: float
    groups: NDArray[np.intp]


class _Part:
    """Rows that are predicted from one another."""

    def __init__(self, names: Sequence[str], evidence: Evidence) -> None:
        features = evidence.features
        self._residuals = np.clip(evidence.residuals, -OUTLIER, OUTLIER)
        self._apart = [_apart(features, name) for name in names]
        self._groupings = [_Grouping(w, groups_of(features, *by)) for w, *by in GROUPINGS]

    def score(self, variance: float, noise: float, lengths: Array) -> float:
        """Mean negative log likelihood of left-out rows."""
        distance = np.zeros_like(self._apart[0])
        for length, apart in zip(lengths, self._apart, strict=True):
            distance += np.float32(length) * apart
        inverse = inverse_of(variance * np.exp(-distance.astype(np.float64)), noise)
        total = 0.0
        for grouping in self._groupings:
            mean, spread = leave_out(inverse, self._residuals, grouping.groups)
            total += grouping.weight * _surprise(self._residuals - mean, spread)
        return total / sum(grouping.weight for grouping in self._groupings)


class _Search:
    """The score of hyper-parameters, given as logs: variance, noise, then the lengths in the order of
    ``USED``."""

    def __init__(self, block: str, evidence: Evidence) -> None:
        self._names = USED[block]
        self._parts = [_Part(self._names, part) for part in _parts(evidence)]

    def start(self) -> Array:
        """The start of the search."""
        lengths = [START_WORD if name in WORDS else START_NUMBER for name in self._names]
        return np.log(as_array([START_VARIANCE, START_NOISE, *lengths]))

    def trials(self, place: Array, index: int, step: float) -> list[Array]:
        """One step up and one step down in one parameter."""
        found = []
        for sign in (1.0, -1.0):
            trial = place.copy()
            trial[index] = np.clip(trial[index] + sign * step, np.log(LENGTH_LEAST), np.log(LENGTH_MOST))
            found.append(trial)
        return found

    def kernel(self, place: Array) -> Kernel:
        """The parameters as a kernel."""
        variance, noise, *lengths = (float(number) for number in np.exp(place))
        by_name = dict(zip(self._names, lengths, strict=True))
        return Kernel(variance, noise, by_name | {"metric": OTHER_METRIC})

    def score(self, place: Array) -> float:
        """The mean over the parts."""
        values = np.exp(place)
        scores = [part.score(float(values[0]), float(values[1]), values[2:]) for part in self._parts]
        return float(np.mean(scores))


def _apart(features: Features, name: str) -> NDArray[np.float32]:
    """Distance [N, N] in one word or number."""
    if name in WORDS:
        codes = np.unique(features.words[:, WORDS.index(name)], return_inverse=True)[1].reshape(-1)
        return np.asarray(codes[:, None] != codes[None, :], dtype=np.float32)
    numbers = features.numbers[:, NUMBERS.index(name)]
    return np.asarray(np.abs(numbers[:, None] - numbers[None, :]), dtype=np.float32)


def _surprise(left: Array, variance: Array) -> float:
    squares = left**2 / variance
    narrow = (1.0 - WIDE_SHARE) * np.exp(-0.5 * squares)
    tail = WIDE_SHARE / WIDE * np.exp(-0.5 * squares / WIDE**2)
    return float(-np.mean(np.log((narrow + tail) / np.sqrt(variance) + 1e-12)))


def save_kernels(kernels: Mapping[str, Kernel], on: date) -> None:
    """Writes the file that ``load_kernels`` reads."""
    lines = [
        f"# Written by `{COMMAND}`: how far a measured row shifts predictions. Chosen by",
        "# leave-group-out likelihood on fixtures/performance. Variances of natural logs; lengths: distance",
        "# of two rows that differ in a word, or by one doubling of a number. Not edited by hand.",
        f'data_sha256 = "{data_sha256()}"',
        f"fitted_on = {on.isoformat()}",
        f'command = "{COMMAND}"',
    ]
    for block, kernel in kernels.items():
        lines += ["", f"[kernels.{block}]", f"variance = {_short(kernel.variance)}"]
        lines += [
            f"noise = {_short(kernel.noise)}",
            f"interval_exponent = {_short(kernel.interval_exponent)}",
        ]
        lines += [f"lengths = {_inline(kernel.lengths)}"]
    KERNELS.write_text("\n".join(lines) + "\n")
    load_kernels.cache_clear()


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS - 1}e}")


def _inline(lengths: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f"{name} = {_short(length)}" for name, length in lengths.items()) + " }"

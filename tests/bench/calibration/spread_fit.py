"""Fits how far measurements of others lie from predictions, by leaving whole publishers out.

e = ln(measured / predicted), with constants fitted without the row's source. A publisher is whoever prints
figures, often in several sources (``[publishers]``). The fit has three parts.

1. Sizes: |e| has a Laplace distribution whose scale is exp(m + Σ c·x): m of the regime, and x what a question
   tells (``Widening``), with words counted over other publishers only. Rows that were taken without looking
   at their errors have a further term, so that being new is not mistaken for being unlike.
2. Sides: P10 and P90 of e·exp(−Σ c·x) in a regime, each by itself. The other regimes of the block count as
   much as ``ALSO`` publishers.
3. Factor: rows count as looked at as soon as the model is changed with their errors in view. The sides of a
   block are stretched by the factor within which 80 % of its blind rows lie, each held against sides fitted
   without its publisher.

A publisher with n rows in a regime weighs n / (1 + (n − 1)·r), with r the share of the variance that rows of
one publisher have in common.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from broker.domain.basics.confidence import NINTH_DECILE
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.errors import coverage
from optimizer.calibration.evaluation.held_out import SOURCE, held_out_errors
from optimizer.calibration.table_constants import fit_settings, other_sources
from optimizer.calibration.tables import serving_rows, training_rows
from optimizer.calibration.tables.observations import loop_rates, observations, with_overload
from optimizer.calibration.tables.rows import predictions, read_rows
from optimizer.performance.arrays import Array, Mask, as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.spread import (
    ASSUMED_MOST,
    BLOCKS,
    CATEGORIES,
    NUMBERS,
    SERVING,
    TRAINING,
    Familiar,
    Question,
    Sides,
    Spread,
    Widening,
)

IDENTITIES = frozenset({"rate.open", "rate.objective"})
BLOCKS_OF = {TRAINING: ("step", "memory"), SERVING: ("rate", "itl", "ttft")}  # of which coefficients are made
WIDENING = tuple(field.name for field in fields(Widening))
UNFAMILIAR = WIDENING.index("unfamiliar")
BEFORE = as_array([0.2, 0.2, 0.1, 0.05, 0.05, 0.4, -0.4])  # priors of the coefficients, the last two of kinds
ABOUT = as_array([0.2, 0.2, 0.15, 0.1, 0.1, 0.3, 0.3])
LEAST_OF = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None)
REGIMES_DIFFER = 0.5  # prior standard deviation of ln scale between the regimes of a block
ALSO = 4.0
SHARES = (0.75, 0.8, 0.85)  # around 80 %, because a quantile of few publishers jumps
TENTH = 0.1
LEAST = 0.005
FURTHEST = 0.97
ROWS_MOST = 12  # of a publisher in a regime, for coefficients; sides see every row
FITTED, LOOKED_AT, BLIND = "fitted", "looked at", "blind"
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured number: its error ln(measured / predicted), the block and regime of its interval, and who
    printed it. ``kind``: constants were fitted to its table, or its errors were looked at, or neither.
    ``common``: model, GPU and engine.
    """

    error: float
    block: str
    regime: str
    publisher: str
    source: str
    kind: str
    common: tuple[str, str, str]
    question: Question

    @property
    def key(self) -> str:
        """The key of its sides."""
        return f"{self.block}.{self.regime}"


def publisher_of(source: str) -> str:
    """Who printed a source."""
    prefixes = fit_settings()["publishers"]
    return next((name for name, fronts in prefixes.items() if source.startswith(tuple(fronts))), source)


def measured_numbers(
    tables: Mapping[str, Sequence[Mapping[str, str]]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> list[Measured]:
    """The measured numbers of tables, by kind of table, that have a prediction."""
    rows = [row for part in tables.values() for row in part]
    kinds = [kind for kind, part in tables.items() for _ in part]
    read = read_rows(rows, calibration, gpus, models)
    found = predictions(read, calibration, gpus)
    fair = [o for o in observations(rows) if o.fair and o.source not in other_sources()]
    observed = with_overload(fair, read, found) + loop_rates(rows)
    observed = [o for o in observed if o.place in read.training or o.place in read.serving]
    errors = held_out_errors(SOURCE, read, observed, calibration, gpus)
    numbers = []
    for o, error in zip(observed, errors.tolist(), strict=True):
        if not np.isfinite(error):
            continue
        serving = read.serving.get(o.place)
        if serving is not None:
            keys, question = (
                serving_rows.keys_of(serving, found[o.place].stable),
                serving_rows.question_of(serving, gpus),
            )
        else:
            row = read.training[o.place]
            keys, question = training_rows.keys_of(row), training_rows.question_of(row, gpus)
        words = question.words
        common = (o.model, words["gpu"], words["stack"])
        kind, publisher = kinds[o.place], publisher_of(o.source)
        numbers.append(Measured(-error, *keys[o.column], publisher, o.source, kind, common, question))
    return numbers


class SpreadFit:
    """The fit to measured numbers [M]; every part of it can be made without one publisher."""

    def __init__(self, numbers: Sequence[Measured]) -> None:
        self.numbers = numbers
        self.error = as_array([one.error for one in numbers])
        self.keys = np.asarray([one.key for one in numbers])
        self.blocks = np.asarray([one.block for one in numbers])
        self.publishers = np.asarray([one.publisher for one in numbers])
        self.kinds = np.asarray([one.kind for one in numbers])
        self._names = sorted({one.publisher for one in numbers})
        self.fixed = np.isin(self.keys, sorted(IDENTITIES))
        self._counted = {kind: self._publishers_of(kind) for kind in BLOCKS_OF}
        self._middles = {kind: self._middles_of(kind) for kind in BLOCKS_OF}

    def _of_kind(self, kind: str) -> list[Measured]:
        return [one for one in self.numbers if one.question.kind == kind]

    def _publishers_of(self, kind: str) -> dict[str, dict[str, set[str]]]:
        found: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in CATEGORIES}
        for one in self._of_kind(kind):
            for name in CATEGORIES:
                found[name][one.question.words[name]].add(one.publisher)
        return found

    def _middles_of(self, kind: str) -> dict[str, dict[str, float]]:
        """By number, the median of each publisher's logs to base 2."""
        found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in NUMBERS}
        for one in self._of_kind(kind):
            for name, value in one.question.numbers.items():
                if value > 0.0:
                    found[name][one.publisher].append(float(np.log2(value)))
        return {
            name: {who: float(np.median(logs)) for who, logs in by.items()}
            for name, by in found.items()
            if by
        }

    def familiar(self, kind: str, without: frozenset[str] = frozenset()) -> Familiar:
        """What publishers, but for some, measured."""
        counts = {
            name: {word: left for word, who in words.items() if (left := len(who - without))}
            for name, words in self._counted[kind].items()
        }
        ranges = {}
        for name, middles in self._middles[kind].items():
            logs = [middle for who, middle in middles.items() if who not in without]
            low, high = np.quantile(logs, (TENTH, 1.0 - TENTH))
            ranges[name] = (float(low), float(high))
        return Familiar(counts, ranges)

    @cached_property
    def _told(self) -> Array:
        """What each question tells [M, 7], if only its own publisher does not count among those that measured
        the like."""
        known: dict[tuple[str, str], Familiar] = {}
        found = np.zeros((len(self.numbers), BEFORE.size))
        for place in np.flatnonzero(~self.fixed).tolist():
            one = self.numbers[place]
            kind, who = one.question.kind, one.publisher
            if (kind, who) not in known:
                known[kind, who] = self.familiar(kind, frozenset({who}))
            found[place] = *terms_of(one.question, known[kind, who]), one.kind == BLIND, one.kind == FITTED
        return found

    def terms(self, without: str = "") -> Array:
        """What each question tells [M, 7], its own publisher and ``without`` not counted."""
        found = self._told.copy()
        if without:
            found[:, UNFAMILIAR] += self._rarer[:, self._names.index(without)]
        return found

    @cached_property
    def _rarer(self) -> Array:
        """By how much the words of each row are less familiar [M, P] without each other publisher."""
        own = np.asarray([self._names.index(who) for who in self.publishers.tolist()])
        found = np.zeros((len(self.numbers), len(self._names)))
        for name in CATEGORIES:
            words = [(one.question.kind, one.question.words[name]) for one in self.numbers]
            known = {word: place for place, word in enumerate(dict.fromkeys(words))}
            codes = np.asarray([known[word] for word in words])
            measured = np.zeros((len(known), len(self._names)))
            measured[codes, own] = 1.0
            rows = np.arange(codes.size)
            others = measured[codes]
            others[rows, own] = 0.0
            left = others.sum(axis=1, keepdims=True)
            found += 1.0 / (1.0 + left - others) - 1.0 / (1.0 + left)
        found[self.fixed] = 0.0
        return found

    @cached_property
    def together(self) -> dict[str, float]:
        """By block, the share of the variance that rows of one publisher and regime have in common."""
        return {block: self._together(block) for block in BLOCKS}

    def _together(self, block: str) -> float:
        """From a one-way analysis of variance of standardised errors."""
        groups: dict[tuple[str, str], list[float]] = defaultdict(list)
        for key in dict.fromkeys(self.keys[(self.blocks == block) & ~self.fixed].tolist()):
            mine = np.flatnonzero(self.keys == key)
            scale = float(np.median(np.abs(self.error[mine]))) or LEAST
            for place in mine.tolist():
                value = float(np.clip(self.error[place] / scale, -3.0, 3.0))
                groups[key, self.publishers[place]].append(value)
        many = [as_array(values) for values in groups.values() if len(values) > 1]
        if len(many) < 2:
            return 0.5
        sizes = as_array([values.size for values in many])
        within = float(np.mean([values.var(ddof=1) for values in many]))
        means = as_array([values.mean() for values in many])
        between = max(float(means.var(ddof=1)) - within * float(np.mean(1.0 / sizes)), 0.0)
        return between / (between + within)

    def weights(self, keep: Mask) -> Array:
        """Weights of rows [M]; 0 where not ``keep``."""
        weights = np.zeros(len(self.numbers))
        for block in BLOCKS:
            mine = np.flatnonzero(keep & (self.blocks == block))
            names = np.char.add(np.char.add(self.keys[mine], "|"), self.publishers[mine])
            _, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
            weights[mine] = 1.0 / (1.0 + (counts[inverse] - 1.0) * self.together[block])
        return weights

    def coefficients(self, kind: str, keep: Mask, terms: Array) -> Array:
        """The coefficients c [7] of the terms in the scale of |e|, for training or serving."""
        weights = self.weights(keep)
        some = self._thinned(keep & ~self.fixed & np.isin(self.blocks, BLOCKS_OF[kind]))
        share = self._shares(some, weights)
        names, regime = np.unique(self.keys[some], return_inverse=True)
        size, x = np.maximum(np.abs(self.error[some]), LEAST), terms[some]
        middles = as_array(
            [np.log(np.average(size[regime == i], weights=share[regime == i])) for i in range(names.size)]
        )

        def loss(asked: Array) -> tuple[float, Array]:
            logs = middles[regime] + asked[regime] + x @ asked[names.size :]
            ratio = size * np.exp(-logs)
            slope = share * (1.0 - ratio)
            far = (asked[names.size :] - BEFORE) / ABOUT
            shift = asked[: names.size] / REGIMES_DIFFER
            value = float(share @ (logs + ratio)) + 0.5 * float(far @ far + shift @ shift)
            by_regime = np.bincount(regime, slope, names.size) + shift / REGIMES_DIFFER
            return value, np.concatenate([by_regime, slope @ x + far / ABOUT])

        start = np.concatenate([np.zeros(names.size), BEFORE])
        bounds = [(None, None)] * names.size + [(least, None) for least in LEAST_OF]
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
        return as_array(found.x[names.size :])

    def _thinned(self, keep: Mask) -> Indices:
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place in np.flatnonzero(keep).tolist():
            groups[self.keys[place], self.publishers[place]].append(place)
        parts = (places[:: -(-len(places) // ROWS_MOST)] for places in groups.values())
        return np.asarray(sorted(place for part in parts for place in part), dtype=np.intp)

    def _shares(self, some: Indices, weights: Array) -> Array:
        """The weights of some rows, which stand for all of their publisher and regime."""
        names = np.char.add(np.char.add(self.keys, "|"), self.publishers)
        _, inverse = np.unique(names, return_inverse=True)
        total = np.bincount(inverse, weights)
        few = np.bincount(inverse[some], minlength=total.size)
        return as_array(total[inverse[some]] / few[inverse[some]])

    def sides(self, keep: Mask, plain: Array) -> dict[str, Sides]:
        """Sides by key, and by block, of errors ``plain`` [M] without what widens them."""
        weights, found = self.weights(keep), {}
        for block in BLOCKS:
            mine = keep & (self.blocks == block)
            usual = mine & ~self.fixed
            if not usual.any():
                continue
            found[block] = _sides(plain[usual], weights[usual], _far(weights[usual]))
            for key in sorted(set(self.keys[mine].tolist())):
                own = mine & (self.keys == key)
                others = usual & ~own
                if key in IDENTITIES:
                    found[key] = _sides(plain[own], weights[own], 1.0 - TENTH)
                    continue
                share = _also(own, others, weights)
                found[key] = _sides(plain[share > 0.0], share[share > 0.0], _far(share))
        return found

    def without(self, publisher: str = "") -> Spread:
        """The spread as fitted without a publisher, before the factor of each block."""
        keep, terms = self.publishers != publisher, self.terms(publisher)
        known = {kind: self.coefficients(kind, keep, terms) for kind in BLOCKS_OF}
        trains = np.isin(self.blocks, BLOCKS_OF[TRAINING])
        wider = np.where(trains, terms @ known[TRAINING], terms @ known[SERVING])
        sides = self.sides(keep, self.error * np.exp(-wider))
        return Spread(
            sides={key: one.at_least(LEAST) for key, one in sides.items()},
            widening={kind: Widening(*found[: len(WIDENING)].tolist()) for kind, found in known.items()},
            familiar={kind: self.familiar(kind, frozenset({publisher})) for kind in BLOCKS_OF},
            identities=IDENTITIES,
            common={},
            left_out={},
        )

    def needed(self, spread: Spread, mine: Mask) -> Array:
        """The factors [M] on the sides at which they just hold a row; nan for other rows."""
        found = np.full(len(self.numbers), np.nan)
        for place in np.flatnonzero(mine).tolist():
            one = self.numbers[place]
            sides = spread.of(one.block, one.regime, one.question)
            found[place] = max(one.error / sides.above, -one.error / sides.below)
        return found

    def factors(self, needed: Array, without: str = "") -> dict[str, float]:
        """The factor of each block: the percentile of what blind rows needed (the geometric mean of those at
        ``SHARES``), rows of other blocks counting as much as ``ALSO`` publishers."""
        keep = (self.kinds == BLIND) & np.isfinite(needed) & ~self.fixed & (self.publishers != without)
        weights, found = self.weights(keep), {}
        for block in BLOCKS:
            own, others = keep & (self.blocks == block), keep & (self.blocks != block)
            if not own.any():
                found[block] = 1.0
                continue
            share = _also(own, others, weights)
            used = share > 0.0
            ends = [weighted_quantile(needed[used], share[used], level) for level in SHARES]
            found[block] = float(np.exp(np.mean(np.log(np.maximum(ends, LEAST)))))
        return found

    def common(self, spread: Spread) -> dict[str, float]:
        """By block, the correlation between publishers of errors of one model, GPU and engine."""
        scores = np.zeros(len(self.numbers))
        for place, one in enumerate(self.numbers):
            sides = spread.of(one.block, one.regime, one.question)
            side = sides.above if one.error > 0.0 else sides.below
            scores[place] = np.clip(NINTH_DECILE * one.error / side, -3.0, 3.0)
        return {block: self._common(block, scores) for block in BLOCKS if block != "ratio"}

    def _common(self, block: str, scores: Array) -> float:
        cells: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for place in np.flatnonzero((self.blocks == block) & ~self.fixed).tolist():
            one = self.numbers[place]
            cells[one.common][one.publisher].append(float(scores[place]))
        products, squares = [], []
        for by in cells.values():
            means = as_array([np.mean(values) for values in by.values()])
            squares += [float(np.mean(np.square(values))) for values in by.values()]
            if means.size > 1:
                pairs = (means.sum() ** 2 - means @ means) / (means.size * (means.size - 1.0))
                products.append((pairs, means.size - 1.0))
        if not products:
            return 0.0
        covariance = float(np.average([p for p, _ in products], weights=[n for _, n in products]))
        return float(np.clip(covariance / np.mean(squares), 0.0, 1.0))

    def whole(self) -> tuple[Spread, Array]:
        """The spread with its factors; and sides [M, 2] of each row, fitted without its publisher."""
        left, needed = {}, np.full(len(self.numbers), np.nan)
        for who in sorted(set(self.publishers.tolist())):
            left[who] = self.without(who)
            mine = self.publishers == who
            needed[mine] = self.needed(left[who], mine)[mine]
        held = np.full((len(self.numbers), 2), np.nan)
        for who, spread in left.items():
            stretched = self.stretched(spread, self.factors(needed, who))
            for place in np.flatnonzero(self.publishers == who).tolist():
                one = self.numbers[place]
                sides = stretched.of(one.block, one.regime, one.question)
                held[place] = sides.below, sides.above
        found = self.stretched(self.without(), self.factors(needed))
        return replace(found, common=self.common(found), left_out=self._left_out(held)), held

    def _left_out(self, held: Array) -> dict[str, float]:
        """By block, the share of blind rows inside ``held`` [M, 2]; a publisher counts as the root of its
        rows."""
        blind = self.kinds == BLIND
        return {
            block: coverage(-self.error[mine], held[mine], self.publishers[mine].tolist())
            for block in BLOCKS
            if (mine := blind & (self.blocks == block)).any()
        }

    @staticmethod
    def stretched(spread: Spread, factors: Mapping[str, float]) -> Spread:
        """The spread with the factor of each block on its sides."""
        sides = {
            key: one if key in IDENTITIES else one.times(factors[key.split(".")[0]])
            for key, one in spread.sides.items()
        }
        return replace(spread, sides=sides)


def terms_of(question: Question, known: Familiar) -> tuple[float, ...]:
    """What a question tells, in the order of ``Widening``."""
    return (
        float(question.experts),
        float(question.older),
        known.unfamiliar(question.words),
        known.beyond(question.numbers),
        float(min(question.assumed, ASSUMED_MOST)),
    )


def _also(own: Mask, others: Mask, weights: Array) -> Array:
    """The weights of ``own`` rows, and of ``others`` that count as much as ``ALSO`` publishers."""
    total = float(weights[others].sum())
    factor = ALSO / total if total else 0.0
    return weights * own + weights * others * factor


def _far(weights: Array) -> float:
    """The quantile of the few rows there are whose expected share in further ones is 90 %."""
    return min((1.0 - TENTH) * (1.0 + 1.0 / max(float(weights.sum()), 1.0)), FURTHEST)


def _sides(values: Array, weights: Array, far: float) -> Sides:
    """The quantiles at ``far`` and 1 − ``far``, as distances from 0."""
    below = -weighted_quantile(values, weights, 1.0 - far)
    return Sides(max(below, LEAST), max(weighted_quantile(values, weights, far), LEAST))


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """The least value that, with all smaller ones, has the share of the weights."""
    order = np.argsort(values)
    held = np.cumsum(weights[order]) / np.sum(weights)
    return float(values[order][min(int(np.searchsorted(held, share)), values.size - 1)])

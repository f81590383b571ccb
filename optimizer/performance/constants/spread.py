"""How far measurements of others lie from predictions, as fitted to publishers that were left out.

``config/performance_spread.toml`` is written by ``python -m tests.bench.calibration spread``. ``Sides``
are the distances, in natural logs, from a prediction to the P10 and the P90 of what somebody else measures.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from broker.data_folder import data_folder

SPREAD = data_folder("config") / "performance_spread.toml"
TRAINING, SERVING = "training", "serving"
CATEGORIES = ("gpu", "stack", "family", "format")
NUMBERS = ("input", "output", "batch", "gpus", "size")
BLOCKS = ("step", "memory", "rate", "itl", "ttft", "ratio")
ASSUMED_MOST = 3


def family(model: str) -> str:
    """Name of a family of models that differ in size or version: the name up to its first digit or dash."""
    word = model.lower().split("-")[0]
    return word.rstrip("0123456789.") or word


@dataclass(frozen=True, slots=True)
class Sides:
    """Natural logs of the median over P10 (``below``) and of P90 over the median (``above``), both ≥ 0."""

    below: float
    above: float

    def times(self, factor: float) -> Sides:
        """Both sides, longer by a factor."""
        return Sides(self.below * factor, self.above * factor)

    @property
    def over(self) -> float:
        """P90 divided by the median, less 1."""
        return math.expm1(self.above)

    @property
    def under(self) -> float:
        """The median divided by P10, less 1."""
        return math.expm1(self.below)

    @property
    def inverse(self) -> Sides:
        """The sides of a rate, given those of its time."""
        return Sides(self.above, self.below)

    def at_least(self, least: float) -> Sides:
        """Both sides, none shorter than ``least``."""
        return Sides(max(self.below, least), max(self.above, least))


@dataclass(frozen=True, slots=True)
class Question:
    """What a prediction is asked for, as far as it says how familiar that is.

    ``words``: ``gpu``, ``stack`` (architecture and software), ``family`` of models, ``format`` (architecture
    and number format). ``numbers``: tokens in and out, sequences together, GPUs, billions of active
    parameters. ``assumed``: settings that nobody stated. ``experts`` and ``older``: models with experts, and
    releases of engines before their present scheduler, in serving.
    """

    kind: str
    words: Mapping[str, str]
    numbers: Mapping[str, float] = field(default_factory=dict)
    assumed: int = 0
    experts: bool = False
    older: bool = False


def question_words(
    gpu: str, architecture: str, model: str, software: str, number_format: str
) -> dict[str, str]:
    """The ``words`` of a question."""
    return {
        "gpu": gpu,
        "stack": f"{architecture} {software}",
        "family": family(model),
        "format": f"{architecture} {number_format}",
    }


@dataclass(frozen=True, slots=True)
class Widening:
    """Natural logs of the factors by which intervals widen: with experts, with older engines, for each of
    the four words that no publisher measured (half if one did), for each doubling beyond the numbers that
    publishers measured, and for each setting that is assumed.
    """

    experts: float
    older: float
    unfamiliar: float
    beyond: float
    assumed: float


@dataclass(frozen=True, slots=True)
class Familiar:
    """What publishers measured of one kind of work: how many of them each word, and the range (P10 to P90
    over publishers) of the logs to base 2 of each number.
    """

    publishers: Mapping[str, Mapping[str, int]]
    ranges: Mapping[str, tuple[float, float]]

    def unfamiliar(self, words: Mapping[str, str]) -> float:
        """Σ 1 / (1 + n) over the words, each measured by n publishers: 0 (well known) to 4 (never seen)."""
        return sum(1.0 / (1.0 + self.publishers[name].get(words.get(name, ""), 0)) for name in CATEGORIES)

    def beyond(self, numbers: Mapping[str, float]) -> float:
        """Doublings by which the numbers lie outside the ranges, added up."""
        total = 0.0
        for name, (low, high) in self.ranges.items():
            if numbers.get(name, 0.0) > 0.0:
                value = math.log2(numbers[name])
                total += max(0.0, low - value, value - high)
        return total


@dataclass(frozen=True, slots=True)
class Spread:
    """Sides by key (``block.regime``, or the block alone for regimes without rows), and what widens them.

    ``identities``: keys that follow from the question itself, such as tokens/s below saturation, and never
    widen. ``common``: by block, the share of the variance that measurements of one model, GPU and engine
    have in common. ``left_out``: by block, the share of rows inside intervals that were made without their
    publishers, of rows that were taken without looking at their errors.
    """

    sides: Mapping[str, Sides]
    widening: Mapping[str, Widening]
    familiar: Mapping[str, Familiar]
    identities: frozenset[str]
    common: Mapping[str, float]
    left_out: Mapping[str, float]

    def of(self, block: str, regime: str, question: Question) -> Sides:
        """The sides of a prediction of ``block`` in ``regime``."""
        key = f"{block}.{regime}"
        sides = self.sides.get(key, self.sides[block])
        return sides if key in self.identities else sides.times(self.wider(question))

    def wider(self, question: Question) -> float:
        """The factor of a question on the sides of its regime."""
        known, widen = self.familiar[question.kind], self.widening[question.kind]
        return math.exp(
            widen.experts * question.experts
            + widen.older * question.older
            + widen.unfamiliar * known.unfamiliar(question.words)
            + widen.beyond * known.beyond(question.numbers)
            + widen.assumed * min(question.assumed, ASSUMED_MOST)
        )


def parse_spread(data: Mapping[str, Any]) -> Spread:
    """The tables of a parsed TOML document."""
    return Spread(
        sides={key: Sides(*pair) for key, pair in data["sides"].items()},
        widening={kind: Widening(**data["widening"][kind]) for kind in (TRAINING, SERVING)},
        familiar={
            kind: Familiar(
                {name: dict(data["publishers"][kind][name]) for name in CATEGORIES},
                {name: (low, high) for name, (low, high) in data["ranges"][kind].items()},
            )
            for kind in (TRAINING, SERVING)
        },
        identities=frozenset(data["identities"]),
        common=dict(data["common"]),
        left_out=dict(data["left_out"]),
    )


@cache
def load_spread() -> Spread:
    """The tables of ``config/performance_spread.toml``."""
    return parse_spread(tomllib.loads(SPREAD.read_text()))

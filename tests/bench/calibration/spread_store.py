"""Writes the spread of errors, and prints how often intervals hold publishers that they were not made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from statistics import NormalDist

import numpy as np

from api.cli.plain_table import PlainTable, markdown_lines
from broker.domain.basics.confidence import NINTH_DECILE
from optimizer.calibration.evaluation.errors import coverage, inside
from optimizer.performance.arrays import Array, Mask
from optimizer.performance.constants.spread import BLOCKS, CATEGORIES, SPREAD, Spread, load_spread
from tests.bench.calibration.bundled import BESIDE, BLIND, TABLES, data_sha256
from tests.bench.calibration.spread_fit import BLIND as TAKEN_BLIND
from tests.bench.calibration.spread_fit import FITTED, LOOKED_AT, WIDENING, SpreadFit

CONFIDENCES = (0.5, 0.8, 0.9, 0.95)
COMMAND = "python -m tests.bench.calibration spread"
DIGITS = 3
HEADERS = ("interval", "rows of", "publishers", "rows", "equal", "roots", "all rows", "below", "width")
NAMES = {
    "step": "step time",
    "memory": "peak memory",
    "rate": "output tokens/s",
    "itl": "time per output token",
    "ttft": "time to first token",
    "ratio": "percentile over median",
}


def spread_sha256() -> str:
    """SHA-256 of the tables that the spread is fitted to."""
    return data_sha256((*TABLES, *BESIDE, *BLIND))


def save_spread(spread: Spread, fit: SpreadFit, on: date) -> None:
    """``config/performance_spread.toml``."""
    lines = [
        f"# Written by `{COMMAND}`: how far measurements lie from predictions, in logs,",
        "# fitted by leaving publishers out. See docs/performance-calibration.md. Not edited by hand.",
        f'data_sha256 = "{spread_sha256()}"',
        f"fitted_on = {on.isoformat()}",
        f'command = "{COMMAND}"',
        f"identities = {sorted(spread.identities)}".replace("'", '"'),
        "",
        "[sides]             # from the prediction to P10, and to P90, where nothing widens them",
        *(
            f'"{key}" = [{_short(one.below)}, {_short(one.above)}]'
            for key, one in sorted(spread.sides.items())
        ),
    ]
    for kind, widening in spread.widening.items():
        lines += ["", f"[widening.{kind}]", *_numbers({name: getattr(widening, name) for name in WIDENING})]
    lines += [
        "",
        "[common]            # share of variance in common to publishers, of one model, GPU and engine",
    ]
    lines += _numbers(spread.common)
    lines += ["", "[of_a_publisher]    # share of variance in common to rows of one publisher and regime"]
    lines += _numbers(fit.together)
    lines += ["", "[left_out]          # share of rows inside intervals made without their publishers"]
    lines += _numbers(spread.left_out)
    for kind, known in spread.familiar.items():
        for name in CATEGORIES:
            lines += ["", f"[publishers.{kind}.{name}]", *_counts(known.publishers[name])]
        pairs = (f"{name} = [{_short(low)}, {_short(high)}]" for name, (low, high) in known.ranges.items())
        lines += ["", f"[ranges.{kind}]", *pairs]
    SPREAD.write_text("\n".join(lines) + "\n")
    load_spread.cache_clear()


def _numbers(values: Mapping[str, float]) -> Iterator[str]:
    return (f"{name} = {_short(value)}" for name, value in values.items())


def _counts(counts: Mapping[str, int]) -> Iterator[str]:
    return (f'"{word}" = {count}' for word, count in sorted(counts.items()))


def _short(value: float) -> float:
    return round(float(value), DIGITS)


def coverage_table(fit: SpreadFit, held: Array) -> str:
    """Markdown: by block and kind of row, and by regime, the percentage of rows inside intervals made without
    their publisher.

    It counts publishers alike, by the root of their rows, or every row; ``below``: the percentage of rows
    beneath the interval; ``width``: the median of the mean side, in natural logs.
    """
    every = np.ones(len(fit.numbers), dtype=np.bool_)
    of_blocks = [
        (NAMES[block], kind, (fit.blocks == block) & (fit.kinds == kind))
        for block in BLOCKS
        for kind in (FITTED, LOOKED_AT, TAKEN_BLIND)
    ]
    of_regimes = [(key, "all", every & (fit.keys == key)) for key in sorted(set(fit.keys.tolist()))]
    parts = (_lines(fit, held, of_blocks), _lines(fit, held, of_regimes))
    return (
        "\n\n".join("\n".join(markdown_lines(PlainTable(HEADERS, tuple(part), 2))) for part in parts) + "\n"
    )


def promise_table(fit: SpreadFit, held: Array) -> str:
    """Markdown: by block and kind of row, the percentage of rows within what is held with each confidence:
    times and memory at most, tokens/s at least the quantile. Publishers count by the root of their rows, and
    identities not at all.
    """
    headers = ("held", "rows of", "rows", *(f"at {confidence}" for confidence in CONFIDENCES))
    lines = []
    for block in BLOCKS[:-1]:
        for kind in (FITTED, LOOKED_AT, TAKEN_BLIND):
            mine = (fit.blocks == block) & (fit.kinds == kind) & ~fit.fixed
            if not mine.any():
                continue
            worse, side = (-fit.error, held[:, 0]) if block == "rate" else (fit.error, held[:, 1])
            shares = []
            for confidence in CONFIDENCES:
                most = side * (NormalDist().inv_cdf(confidence) / NINTH_DECILE)
                _, of = np.unique(fit.publishers[mine], return_inverse=True)
                rows = np.bincount(of)
                within = np.bincount(of, (worse <= most)[mine]) / rows
                shares.append(f"{100.0 * float(np.average(within, weights=np.sqrt(rows))):.0f}")
            lines.append((NAMES[block], kind, str(int(mine.sum())), *shares))
    return "\n".join(markdown_lines(PlainTable(headers, tuple(lines), 2))) + "\n"


def _lines(fit: SpreadFit, held: Array, parts: Iterable[tuple[str, str, Mask]]) -> Iterator[tuple[str, ...]]:
    for name, kind, mine in parts:
        if mine.any():
            yield name, kind, *_shares(fit.error[mine], held[mine], fit.publishers[mine].tolist())


def _shares(errors: Array, held: Array, publishers: Sequence[str]) -> tuple[str, ...]:
    below, within = errors < -held[:, 0], inside(-errors, held)
    names, inverse, rows = np.unique(publishers, return_inverse=True, return_counts=True)
    shares = np.bincount(inverse, within) / rows
    coverages = shares.mean(), coverage(-errors, held, publishers), within.mean()
    percents = (f"{100.0 * float(share):.0f}" for share in (*coverages, below.mean()))
    return str(names.size), str(errors.size), *percents, f"{float(np.median(held.mean(axis=1))):.2f}"

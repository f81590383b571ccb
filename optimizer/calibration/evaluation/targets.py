"""Targets of ``config/performance_targets.toml``, and the figures that are compared with them."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.calibration.evaluation.errors import COLUMNS, Entry, Evidence, noise_floor_percent, percent
from optimizer.calibration.evaluation.report import (
    APART,
    GRID,
    SERVING,
    TRAINING,
    Figure,
    GridReport,
    HeldOutLine,
)
from optimizer.performance.arrays import Array
from optimizer.performance.constants.calibrated import CONFIG

Members = NDArray[np.intp]
TARGETS = CONFIG.with_name("performance_targets.toml")
MEDIAN, SOURCE_MEANS = "median", "source_means"
BLOCKS = {TRAINING: ("step", "memory"), SERVING: ("rate", "itl", "ttft")}
MADE_OF_ROWS = frozenset({TRAINING, GRID, SERVING})
STATISTICS: Mapping[str, Callable[[Array], float]] = {MEDIAN: np.median, "mean": np.mean, "max": np.max}


@dataclass(frozen=True, slots=True)
class Target:
    """Limits in percent, by column, of one statistic over the entries that match the patterns."""

    name: str
    regimes: tuple[str, ...]
    metric: str
    statistic: str
    sources: tuple[str, ...]
    limits: Mapping[str, float]

    def names(self, entry: Entry) -> bool:
        """Whether the entry counts for the target."""
        regime = any(fnmatchcase(text, p) for p in self.regimes for text in (entry.group, entry.regime))
        source = not self.sources or entry.source in self.sources
        return regime and source and fnmatchcase(entry.metric, self.metric)


@dataclass(frozen=True, slots=True)
class Targets:
    """All targets: of errors, of interval coverage (percent, for a minimum number of
    rows) and of the grid.
    """

    errors: tuple[Target, ...]
    coverage: tuple[float, float]
    coverage_rows: int
    spearman: float
    fit_decisions: float

    def limits_of(self, entry: Entry) -> dict[str, float]:
        """Limits of the entry's medians by column."""
        found = [t for t in self.errors if t.statistic == MEDIAN and not t.sources and t.names(entry)]
        return dict(found[0].limits) if found else {}


@cache
def load_targets() -> Targets:
    """The targets of the project."""
    return parse_targets(tomllib.loads(TARGETS.read_text()))


def parse_targets(data: Mapping[str, Any]) -> Targets:
    """Targets of a parsed document. Raises ValueError for a target without a limit or with an unknown
    statistic.
    """
    errors = tuple(_target(entry) for entry in data["target"])
    low, high = data["coverage"]
    return Targets(errors, (low, high), data["coverage_rows"], data["spearman"], data["fit_decisions"])


def _target(entry: Mapping[str, Any]) -> Target:
    limits = {name: float(entry[name]) for name in COLUMNS if name in entry}
    statistic = entry.get("statistic", MEDIAN)
    if not limits or statistic not in {*STATISTICS, SOURCE_MEANS}:
        raise ValueError(f"target {entry['name']!r}: no limit, or unknown statistic {statistic!r}")
    sources = tuple(entry.get("sources", ()))
    return Target(entry["name"], tuple(entry["regimes"]), entry["metric"], statistic, sources, limits)


def figures(
    evidence: Evidence,
    held_out: tuple[HeldOutLine, ...],
    grid: GridReport | None,
    targets: Targets,
    left_out: Mapping[str, float] | None = None,
) -> tuple[Figure, ...]:
    """Every target with measured rows, in the order of the sections' first entries.

    ``left_out``: ``Spread.left_out`` if the rows are those that intervals were made of, which would judge
    themselves.
    """
    apart = left_out or {}
    judged = [line for line in held_out if not apart or line.section not in MADE_OF_ROWS]
    found = [*_errors(evidence, targets), *_grid(grid, targets)]
    found += [*_left_out(apart, targets), *_coverage(judged, targets)]
    order = list(dict.fromkeys(figure.section for figure in found))
    return tuple(sorted(found, key=lambda figure: order.index(figure.section)))


def _errors(evidence: Evidence, targets: Targets) -> Iterator[Figure]:
    for target in targets.errors:
        members = np.flatnonzero([target.names(entry) and not entry.beside for entry in evidence.entries])
        for column, limit in target.limits.items() if members.size else ():
            errors = evidence.of(COLUMNS[column], members)
            known = int(np.isfinite(errors).sum())
            if known:
                yield _figure(target, column, limit, evidence, members, errors)


def _figure(
    target: Target, column: str, limit: float, evidence: Evidence, members: Members, errors: Array
) -> Figure:
    first = evidence.entries[int(members[0])]
    rows, floor = int(np.isfinite(errors).sum()), noise_floor_percent(first.metric, first.group)
    held, unit, shown = COLUMNS[column], "%", f"≤ {limit:g}"
    if target.statistic == SOURCE_MEANS:
        means = _source_means(evidence, members, errors)
        value, unit = float(sum(mean <= limit for mean in means)), f"of {len(means)}"
        met, shown = value == len(means), f"all ≤ {limit:g}"
    else:
        value = float(STATISTICS[target.statistic](percent(errors)))
        met = value <= limit
    return Figure(
        first.section, target.name, held, target.statistic, rows, value, shown, unit, bool(met), floor
    )


def _source_means(evidence: Evidence, members: Members, errors: Array) -> list[float]:
    by_source: dict[str, list[float]] = defaultdict(list)
    for index, error in zip(members.tolist(), errors.tolist(), strict=True):
        by_source[evidence.entries[index].source].append(error)
    means = [float(np.mean(percent(np.asarray(found)))) for found in by_source.values()]
    return [mean for mean in means if np.isfinite(mean)]


def _grid(grid: GridReport | None, targets: Targets) -> Iterator[Figure]:
    if grid is None:
        return
    share = 100.0 * grid.fit_right / max(grid.fit_told, 1)
    limit = f"≥ {targets.fit_decisions:g}"
    met = share >= targets.fit_decisions
    yield Figure(
        GRID, "decisions that a run fits", "source", "share", grid.fit_told, share, limit, "%", met, 0.0
    )
    name = f"cells ranked at {targets.spearman:g} or more"
    if grid.cells:
        met = grid.spearman_above_09 == grid.cells
        value, unit = float(grid.spearman_above_09), f"of {grid.cells}"
        yield Figure(GRID, name, "source", "count", grid.cells, value, "all", unit, met, 0.0)


def _left_out(left_out: Mapping[str, float], targets: Targets) -> Iterator[Figure]:
    """Of publishers that intervals were not made of, the metrics whose intervals hold as many as they
    should."""
    for section, blocks in BLOCKS.items():
        shares = [100.0 * left_out[block] for block in blocks if block in left_out]
        if shares:
            yield _held(section, "publishers left out", shares, targets)


def _coverage(held_out: Sequence[HeldOutLine], targets: Targets) -> Iterator[Figure]:
    by_section: dict[str, list[float]] = defaultdict(list)
    for line in held_out:
        beside = line.beside.rows if line.beside is not None else 0
        judged = line.rows + beside >= targets.coverage_rows and not line.regime.startswith(APART)
        if judged and np.isfinite(line.coverage):
            by_section[line.section].append(100.0 * line.coverage)
    for section, shares in by_section.items():
        yield _held(section, "", shares, targets)


def _held(section: str, of: str, shares: Sequence[float], targets: Targets) -> Figure:
    low, high = targets.coverage
    value = float(sum(low <= share <= high for share in shares))
    name = f"intervals that hold {low:g}-{high:g} %{f' of {of}' if of else ''}"
    met, unit = value == len(shares), f"of {len(shares)}"
    return Figure(section, name, "source", "count", len(shares), value, "all", unit, met, 0.0)

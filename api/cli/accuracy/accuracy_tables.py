"""The tables of the accuracy report, by section: figures beside targets, regimes, sources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from api.cli.plain_table import PlainTable
from optimizer.calibration.evaluation.report import (
    APART,
    COLLECTIVES,
    GRID,
    TRAINING,
    BesideErrors,
    ErrorLine,
    Figure,
    GridReport,
    HeldOutLine,
    Report,
)

OK, MISSED, UNJUDGED = "✓", "✗", " "
SHORT = {
    "time per output token": "ITL",
    "time to first token": "TTFT",
    "output tokens/s": "tokens/s",
}
SHORT_REGIMES = {
    "closed_loop": "closed",
    "offline_burst": "burst",
    "offline_max": "offline",
    "open_loop_slo": "objective",
    "open_loop": "open",
    "overload open_loop": "overload",
    "overload percentile ratio": "over, tail",
    "percentile ratio": "tail",
    "single_stream_ttft": "one, first",
    "single_stream": "one",
    "static_batch": "static",
}
LEGEND = (
    "Absolute errors in percent; ✓ or ✗ beside a figure: its target met or missed.",
    "fitted: all rows fitted; source, model, GPU: predicted without the row's own;",
    "in no fit: rows that no fit takes (sources with a *). floor: what two",
    "measurements of the same differ by. in 80 %: share inside the 80 % interval, in",
    "tables by regime of both kinds of rows, a source counting as the root of its",
    "rows.",
    "ITL: time per output token; TTFT: time to first token.",
    "closed C≤8: closed loops of up to 8 requests; objective: rates at an objective;",
    "one: one request at a time; overload: open loops that end and ask for more than",
    "the replica gives; apart: sources that measured something else.",
)
HELD_OUT_WORDS = {"fitted": "nothing", "gpu": "GPU"}
HELD_OUT_COLUMNS = ("fitted", "by_source", "by_model", "by_gpu")


@dataclass(frozen=True, slots=True)
class Section:
    """One heading with its tables. ``sources`` is the longest: it is printed last, and left out of
    documents."""

    title: str
    tables: tuple[PlainTable, ...]
    notes: tuple[str, ...]
    sources: PlainTable


def sections(report: Report) -> list[Section]:
    """The sections in the order of the report's lines. A new regime or metric adds its own rows."""
    titles = dict.fromkeys(line.section for line in report.held_out)
    return [_section(title, report) for title in titles]


def _section(title: str, report: Report) -> Section:
    figures = [figure for figure in report.figures if figure.section == title]
    lines = [line for line in report.held_out if line.section == title]
    notes = tuple(_grid_notes(report.grid)) if title == GRID and report.grid is not None else ()
    fitted = [line for line in lines if line.rows]
    beside = [(line, line.beside) for line in lines if line.beside is not None]
    tables = [_figure_table(figures)] if figures else []
    tables += [_held_out_table(fitted)] if fitted else []
    tables += [_beside_table(beside)] if beside else []
    sources = source_table(line for line in report.lines if line.section == title)
    return Section(title, tuple(tables), notes, sources)


def _figure_table(figures: Iterable[Figure]) -> PlainTable:
    rows = tuple(
        (
            figure.name,
            HELD_OUT_WORDS.get(figure.held_out, figure.held_out),
            figure.statistic.replace("_", " "),
            str(figure.rows),
            f"{_figure(figure.value, whole=figure.unit != '%')} {figure.unit}",
            figure.limit,
            _floor(figure.noise_floor_percent),
            "–" if figure.met is None else "ok" if figure.met else "missed",
        )
        for figure in figures
    )
    return PlainTable(("figure", "held out", "of", "rows", "is", "target", "floor", ""), rows, 3)


def _held_out_table(lines: Iterable[HeldOutLine]) -> PlainTable:
    headers = ("regime", "metric", "rows", "fitted", "source", "model", "GPU", "floor", "in 80 %", "targets")
    return PlainTable(headers, tuple(_held_out_row(line) for line in lines), 2)


def _held_out_row(line: HeldOutLine) -> tuple[str, ...]:
    values = (line.fitted_percent, line.by_source_percent, line.by_model_percent, line.by_gpu_percent)
    marked = (
        _figure(value) + _mark(value, line.targets.get(name))
        for name, value in zip(HELD_OUT_COLUMNS, values, strict=True)
    )
    limits = "/".join(f"{line.targets[name]:g}" for name in HELD_OUT_COLUMNS if name in line.targets)
    return (
        short_regime(line.regime),
        short_metric(line.metric),
        str(line.rows),
        *marked,
        _floor(line.noise_floor_percent),
        _share(line.coverage),
        limits,
    )


def _beside_table(lines: Iterable[tuple[HeldOutLine, BesideErrors]]) -> PlainTable:
    headers = ("in no fit", "metric", "rows", "sources", "median", "bias", "in 80 %")
    rows = tuple(
        (
            short_regime(line.regime),
            short_metric(line.metric),
            str(beside.rows),
            str(beside.sources),
            _figure(beside.median_percent),
            f"{beside.bias:.2f}",
            _share(beside.coverage),
        )
        for line, beside in lines
    )
    return PlainTable(headers, rows, 2)


def source_table(lines: Iterable[ErrorLine]) -> PlainTable:
    """A row for every source of a section, predicted by constants that were fitted without that source."""
    headers = ("source", "regime", "metric", "rows", "median", "mean", "90 %", "bias", "in 80 %", "unread")
    rows = tuple(
        (
            f"{line.source} *" if line.beside else line.source,
            short_regime(line.regime),
            short_metric(line.metric),
            str(line.rows),
            _figure(line.median_percent),
            _figure(line.mean_percent),
            _figure(line.p90_percent),
            "–" if math.isnan(line.bias) else f"{line.bias:.2f}",
            _share(line.coverage),
            str(line.unpredicted) if line.unpredicted else "",
        )
        for line in lines
    )
    return PlainTable(headers, rows, 3)


def _grid_notes(grid: GridReport) -> Iterator[str]:
    yield (
        f"Rank correlation of predicted and measured rates within {grid.cells} cells of model and GPU count: "
        f"median {grid.spearman_median:.2f}, least {grid.spearman_least:.2f}. Without the "
        f"pipelines that stalled {grid.steady_above_09} rank at 0.9; with them, a model that was exact on "
        f"every other run would rank {grid.reachable_above_09}."
    )


def short_regime(regime: str) -> str:
    """A regime's name for a narrow column, without its section."""
    if regime.startswith(f"{APART} "):
        return f"{APART}, {short_regime(regime.removeprefix(f'{APART} '))}"
    name = regime.removeprefix(f"{TRAINING.lower()} ").removeprefix(f"{COLLECTIVES.lower()} ")
    kind, _, rest = name.partition(" C")
    short = SHORT_REGIMES.get(name) or SHORT_REGIMES.get(kind)
    return name if short is None else f"{short} C{rest}" if rest else short


def short_metric(metric: str) -> str:
    """A metric's name for a narrow column."""
    for name, short in SHORT.items():
        metric = metric.replace(name, short)
    return metric


def _figure(value: float, whole: bool = False) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.0f}" if whole or value >= 100 else f"{value:.1f}"


def _mark(value: float, limit: float | None) -> str:
    if limit is None or math.isnan(value):
        return UNJUDGED
    return OK if value <= limit else MISSED


def _floor(value: float) -> str:
    return f"{value:.1f}" if value else "–"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f}"

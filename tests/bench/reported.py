"""Rows that no fit saw, by kind or by source: ``python -m tests.bench.reported [--sources]``.

Published tables (``published_*.csv``), reports of benchmark tools (``reported_*.csv``), rows that were taken
without looking at their errors (``blind_*.csv``) and own measurements (``measured_*.csv``) of
``fixtures/performance``: median of absolute errors, median of predicted over told,
share inside the 80 % interval.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.performance.outside import (
    Figure,
    cache_figures,
    collective_figures,
    serving_figures,
    training_figures,
)

SERVING = ("published_serving", "published_open_loops", "reported_serving", "blind_serving")
TRAINING = (
    "published_training",
    "published_methods",
    "reported_training",
    "blind_training",
    "measured_one_gpu",
)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reported", description=__doc__)
    parser.add_argument("--sources", action="store_true", help="a line a source")
    by_source: bool = parser.parse_args().sources
    groups: dict[tuple[str, str, str], list[Figure]] = defaultdict(list)
    for table, figure in _figures():
        kind = figure.row.get("regime", "") or figure.row.get("workload", "")
        groups[table, figure.row["source"] if by_source else kind, figure.metric].append(figure)
    shown = Table("table", "source" if by_source else "regime", "metric", "rows", "off", "bias", "in 80 %")
    for key, figures in sorted(groups.items()):
        shown.add_row(*key, *_cells(figures))
    Console(width=140).print(shown)
    return 0


def _figures() -> Iterator[tuple[str, Figure]]:
    found: list[tuple[str, Iterable[Figure]]] = [(name, serving_figures(name)) for name in SERVING]
    found += [(name, training_figures(name)) for name in TRAINING]
    found.append(("reported_kv_capacity", cache_figures("reported_kv_capacity")))
    found.append(("reported_collectives", collective_figures("reported_collectives")))
    for name, figures in found:
        for figure in figures:
            yield name, figure


def _cells(figures: list[Figure]) -> list[str]:
    ratios = np.asarray([figure.ratio for figure in figures])
    told = [figure.inside for figure in figures if figure.inside is not None]
    inside = f"{100 * np.mean(told):.0f}" if told else ""
    return [
        str(len(figures)),
        f"{100 * np.median(np.abs(ratios - 1.0)):.1f} %",
        f"{np.median(ratios):.2f}",
        inside,
    ]


if __name__ == "__main__":
    sys.exit(main())

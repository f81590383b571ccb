"""The report of all bundled tables, which ``broker perf evaluate`` prints."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from api.cli.accuracy.accuracy_tables import Section, sections
from api.cli.plain_table import markdown_lines
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.evaluate import evidence_of_rows, grid_report, report_of
from optimizer.calibration.evaluation.report import STORED, Report
from optimizer.calibration.tables.rows import read_rows
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.spread import load_spread
from tests.bench.calibration.bundled import beside_rows, bundled_rows
from tests.bench.calibration.side_tables import joined, side_evidence


def evaluate_bundled(
    calibration: Calibration,
    priors: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> Report:
    """Errors of all bundled tables. ``priors``: the constants before any fit."""
    fitted = bundled_rows()
    rows = fitted + beside_rows()
    read = read_rows(rows, calibration, gpus, models)
    evidence = evidence_of_rows(rows, len(fitted), read, calibration, gpus)
    parts = [evidence, *side_evidence(calibration, priors, gpus, models)]
    grid = grid_report(rows, read, calibration, gpus)
    return report_of(joined(parts), grid, load_spread().left_out)


def save_report(report: Report) -> None:
    """Writes the report for ``broker perf evaluate``."""
    STORED.write_bytes(gzip.compress(json.dumps(asdict(report)).encode(), mtime=0))


def markdown_report(report: Report) -> str:
    """The tables as the document shows them: all except those by source."""
    return "\n".join(line for section in sections(report) for line in _markdown(section))


def _markdown(section: Section) -> Iterator[str]:
    yield from (f"### {section.title}", "")
    for table in section.tables:
        yield from (*markdown_lines(table), "")
    for note in section.notes:
        yield from (note, "")

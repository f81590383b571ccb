"""The accuracy report: in a terminal, as Markdown, and as the document holds it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from api.cli.accuracy.accuracy_view import markdown_constants, print_report
from api.cli.accuracy.perf import stored_report
from api.cli.plain_table import PlainTable, markdown_lines, text_lines
from optimizer.calibration.evaluation.report import HeldOutLine, Report
from optimizer.calibration.sourced_constants import sourced_constants
from tests.bench.calibration.bundled_report import markdown_report
from tests.bench.calibration.fit import read_parameters
from tests.performance.builders import bundled_report

pytestmark = pytest.mark.xdist_group("report")

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance-accuracy.md"


@pytest.fixture(scope="module")
def report() -> Report:
    return stored_report()


def printed(report: Report, width: int) -> list[str]:
    out = io.StringIO()
    print_report(Console(file=out, width=width, no_color=True), report)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_the_terminal(report: Report, width: int) -> None:
    lines = printed(report, width)
    assert max(map(len, lines)) <= width
    itl, beside = (line for line in lines if line.startswith("closed C≤8 ") and " ITL " in line)
    assert itl.endswith("10/15/18")
    assert re.search(r"ITL +\d+ +\d+ +[\d.]+ +[\d.]+ +\d+$", beside), "rows, sources, median, bias, share"


def test_every_section_is_there_in_its_order(report: Report) -> None:
    lines = printed(report, 100)
    titles = ["Training", "Grid", "Serving", "Collectives", "KV cache"]
    places = [lines.index(title) for title in titles]
    assert places == sorted(places)
    assert any(line.endswith(("ok", "missed")) for line in lines)


def test_a_new_regime_and_metric_show_by_themselves(report: Report) -> None:
    new = HeldOutLine(
        "Serving", "hybrid", "TTFT p99/p50", 7, 1.0, 2.0, 3.0, 4.0, 0.8, 0.0, {"by_source": 1.5}
    )
    lines = printed(replace(report, held_out=(*report.held_out, new)), 80)
    (line,) = [line for line in lines if line.startswith("hybrid")]
    assert re.search(r"TTFT p99/p50 +7 +1\.0 +2\.0✗ +3\.0 +4\.0 +– +80 +1\.5$", line)


def test_names_are_cut_and_figures_never() -> None:
    table = PlainTable(("name", "n"), (("a" * 50, "12345"), ("b", "1")), 1)
    lines = text_lines(table, 30)
    assert lines[2].endswith("… 12345")
    assert max(map(len, lines)) == 30
    assert markdown_lines(table)[1] == "| --- | ---: |"


def tables_of(text: str) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Each table's header, and the names of its rows: cells without a figure in them."""
    found: list[tuple[str, list[tuple[str, ...]]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        header, rule, *rows = block.splitlines()
        words = rule.split("|")[1:-1].count(" --- ")
        names = [tuple(cell.strip() for cell in row.split("|")[1 : 1 + words]) for row in rows]
        found.append((header, names))
    return found


def test_the_document_holds_the_tables_that_the_command_prints(report: Report) -> None:
    part = DOCUMENT.read_text().split("\n## Errors", 1)[1].split("\n## ", 1)[0]
    assert tables_of(part + "\n") == tables_of(markdown_report(report)), "make errors prints them"


def numbers_of(part: Any, place: str = "") -> dict[str, Any]:
    """Every word and number of a report by its place."""
    if isinstance(part, dict):
        parts: Iterable[tuple[Any, Any]] = part.items()
    elif isinstance(part, list | tuple):
        parts = enumerate(part)
    else:
        return {place: part}
    return {
        at: number for name, value in parts for at, number in numbers_of(value, f"{place}/{name}").items()
    }


@pytest.mark.slow
def test_the_stored_report_is_the_one_that_the_tables_give(report: Report) -> None:
    stored, made = numbers_of(asdict(report)), numbers_of(asdict(bundled_report()))
    again = "python -m tests.bench.calibration report writes it again"
    assert stored.keys() == made.keys(), again
    numbers = {at: value for at, value in made.items() if isinstance(value, float)}
    words = {at: value for at, value in made.items() if at not in numbers}
    assert {at: stored[at] for at in words} == words, again
    assert {at: stored[at] for at in numbers} == pytest.approx(numbers, rel=1e-3, abs=1e-3, nan_ok=True), (
        again
    )


def test_every_constant_is_listed_with_its_prior_its_fit_and_its_source() -> None:
    found = sourced_constants()
    named = {f"{constant.group}.{constant.name}": constant for constant in found}
    moved = {p.path for group in ("training", "serving") for p in read_parameters(group)}
    shown = {
        path if not isinstance(constant.fitted, Mapping) else f"{path}.{entry}"
        for path, constant in named.items()
        if constant.fitted is not None
        for entry in (constant.fitted if isinstance(constant.fitted, Mapping) else ("",))
    }
    assert moved <= shown
    assert named["engines.vllm.workspace_gib"].fitted is None
    assert all(constant.source for constant in found)
    lines = [line for line in markdown_constants(found).splitlines() if line.startswith("- ")]
    assert [line.split("`")[1] for line in lines] == [constant.name for constant in found]

"""``broker focus-check``: whether a FOCUS file keeps the specification's rules."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from api.cli.output import Json, print_json, stdout
from api.export.reading import open_table
from broker.domain.focus.check import check_focus, version_of
from broker.domain.focus.columns import FocusVersion
from broker.domain.focus.rules import Finding

app = typer.Typer(add_completion=False)
MOST_SHOWN = 1000
EXIT_WITH_FINDINGS = 1


@app.command()
def focus_check(
    file: Annotated[Path, typer.Argument(help="A FOCUS Cost and Usage file, CSV or Parquet.")],
    version: Annotated[
        FocusVersion | None, typer.Option("--focus-version", help="As the header says, unless given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a FOCUS file against twelve groups of rules. Exit code 1 and one line for each violation.

    Example: broker focus-check focus.csv
    """
    shown: list[Finding] = []
    counts: Counter[str] = Counter()
    with open_table(file) as (header, rows):
        chosen = version or version_of(header)
        findings = check_focus(header, rows, chosen)
        shown.extend(islice(findings, MOST_SHOWN))
        counts.update(str(finding.group) for finding in shown)
        counts.update(str(finding.group) for finding in findings)
    if as_json:
        print_json(
            {
                "version": str(chosen),
                "findings": sum(counts.values()),
                "groups": dict(counts),
                "items": [_form(f) for f in shown],
            }
        )
    else:
        console = stdout()
        for finding in shown:
            console.print(str(finding), soft_wrap=True)
        console.print(f"{sum(counts.values())} findings, FOCUS {chosen}")
    if counts:
        raise typer.Exit(EXIT_WITH_FINDINGS)


def _form(finding: Finding) -> dict[str, object]:
    return {
        "group": str(finding.group),
        "row": finding.row,
        "column": finding.column,
        "found": finding.found,
        "expected": finding.expected,
    }

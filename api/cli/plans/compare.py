"""``broker compare``: plans side by side, from files or of the running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import Json, print_json, read_text, stdout
from api.cli.plans.comparison_view import print_comparison
from api.client import connect
from api.schemas.plans.comparison import ComparisonDocument, compare_plans, comparison_to_document
from api.schemas.plans.plan import read_plan
from broker.domain.basics.errors import FieldProblem, InputError

app = typer.Typer(add_completion=False)


@app.command()
def compare(
    plans: Annotated[
        list[str],
        typer.Argument(help="Files of plans, or ids of plans of the server; the first is the base."),
    ],
    as_json: Json = False,
) -> None:
    """Plans side by side: cost, end, GPUs, places, and what moves from the first to each other one.

    The id of a comparison (`compare-…`) alone shows that comparison again.

    Example: broker compare plan-today.json plan-later.json
    """
    found = _compared(plans)
    if as_json:
        print_json(comparison_to_document(found))
    else:
        print_comparison(stdout(), found)


def _compared(names: list[str]) -> ComparisonDocument:
    files = [name for name in names if Path(name).is_file()]
    if files and len(files) < len(names):
        other = next(name for name in names if name not in files)
        raise InputError("command line", (FieldProblem("PLANS", f"{other!r}, no file", "files alone"),))
    is_comparison = len(names) == 1 and names[0].startswith("compare-")
    if len(names) < 2 and not is_comparison:
        raise InputError("command line", (FieldProblem("PLANS", f"{names[0]!r} alone", "two plans or more"),))
    if files:
        return compare_plans([(name, read_plan(read_text(Path(name)), name)) for name in names])
    with connect(load_settings()) as client:
        return client.find_comparison(names[0]) if is_comparison else client.compare_plans(names)

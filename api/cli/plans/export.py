"""``broker export``: a plan as files that other tools take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from api.cli.output import Json, print_json, read_text, stderr, stdout, write_text
from api.clocks import SystemClock
from api.export.dstack import dstack_files
from api.export.skypilot import skypilot_files
from api.export.targets import Target
from api.export.vllm import vllm_files
from api.schemas.plans.plan import read_plan
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_hugging_face_names
from broker.domain.basics.errors import FieldProblem, InputError

app = typer.Typer(add_completion=False)
EXPORTS = {Target.SKYPILOT: skypilot_files, Target.DSTACK: dstack_files, Target.VLLM: vllm_files}


@app.command()
def export(
    plan: Annotated[Path, typer.Argument(help="Plan document, as broker plan --output writes it.")],
    to: Annotated[Target, typer.Option(help="The tool.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder for the files; else they are printed, one after the other.")
    ] = None,
    workloads: Annotated[
        Path | None, typer.Option(help="The workloads of the plan: their models are then filled in.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a plan as SkyPilot tasks, dstack fleets with their runs, or vLLM configurations.

    Example: broker export plan.json --to skypilot --output tasks
    """
    read = read_plan(read_text(plan), str(plan))
    files = EXPORTS[to](read, _models(workloads), str(plan))
    if output is not None:
        _write(output, files)
        stderr().print(f"{len(files)} files written to {output}", markup=False, soft_wrap=True)
    if as_json:
        print_json({"to": str(to), "files": files})
    elif output is None:
        for name, text in files.items():
            stdout().print(f"# {name}\n{text}", markup=False, soft_wrap=True)


def _models(workloads: Path | None) -> dict[str, str]:
    """Hugging Face model names by workload, where the model table has one."""
    if workloads is None:
        return {}
    request = read_workloads(
        read_text(workloads), source=str(workloads), base=workloads.parent, now=SystemClock().now()
    )
    known = load_hugging_face_names()
    return {w.name: known[w.model.name] for w in request.workloads if w.model.name in known}


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = FieldProblem("--output", str(error.strerror), "a folder that can be written")
        raise InputError(str(folder), (problem,)) from None
    for name, text in files.items():
        write_text(folder / name, text)

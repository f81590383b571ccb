"""``broker export``: a plan as files that other tools take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.output import Json, print_json, read_text, stderr, stdout, write_text
from api.export.dstack import dstack_files
from api.export.ical import ical_files
from api.export.kueue import kueue_files
from api.export.servers import SERVED
from api.export.skypilot import skypilot_files
from api.export.slurm import slurm_files
from api.export.targets import Skipped, Target
from api.export.vllm import vllm_files
from api.schemas.plans.plan import read_plan
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_hugging_face_names
from broker.domain.basics.errors import FieldProblem, InputError

app = typer.Typer(add_completion=False)
EXPORTS = {
    Target.SKYPILOT: skypilot_files,
    Target.DSTACK: dstack_files,
    Target.VLLM: vllm_files,
    Target.KUEUE: kueue_files,
    Target.SLURM: slurm_files,
    Target.ICAL: ical_files,
}
NO_MODEL = "the files name no model; give --workloads FILE, or set the model in each"


@app.command()
def export(
    plan: Annotated[Path, typer.Argument(help="Plan document, as broker plan --output writes it.")],
    to: Annotated[Target, typer.Option(help="The tool.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder for the files; else they are printed, one after the other.")
    ] = None,
    workloads: Annotated[
        Path | None,
        typer.Option(help="The workloads of the plan, for their models; else those that the plan holds."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a plan as SkyPilot tasks, dstack fleets with their runs, vLLM configurations, Kueue queues with
    their workloads, Slurm scripts, or a calendar of its windows.

    What the tool does not know is left out and named on stderr, and under `skipped` in the JSON. Exit code 2
    when nothing is left.

    Example: broker export plan.json --to skypilot --output tasks
    """
    text = read_text(plan)
    read = read_plan(text, str(plan))
    models = _models(workloads, plan, json.loads(text), read.as_of)
    exported = EXPORTS[to](read, models, str(plan))
    files = exported.files
    if output is not None:
        _write(output, files)
        stderr().print(f"{len(files)} files written to {output}", markup=False, soft_wrap=True)
    for one in exported.skipped:
        stderr().print(f"skipped {_told(one)}", markup=False, soft_wrap=True)
    notes = (
        [NO_MODEL]
        if to is not Target.ICAL and not models and any(one.kind in SERVED for one in read.placements)
        else []
    )
    for note in notes:
        stderr().print(f"note: {note}", markup=False, soft_wrap=True)
    if as_json:
        print_json(
            {
                "to": str(to),
                "files": dict(files),
                "skipped": [_skipped(one) for one in exported.skipped],
                "notes": notes,
            }
        )
    elif output is None:
        for name, text in files.items():
            stdout().print(f"# {name}\n{text}", markup=False, soft_wrap=True)


def _told(one: Skipped) -> str:
    return f"{one.workload}: {'; '.join(str(problem) for problem in one.problems)}"


def _skipped(one: Skipped) -> dict[str, Any]:
    problems = [{"pointer": p.pointer, "found": p.found, "expected": p.expected} for p in one.problems]
    return {"workload": one.workload, "problems": problems}


def _models(
    workloads: Path | None, plan: Path, document: Mapping[str, Any], as_of: datetime
) -> dict[str, str]:
    """Hugging Face model names by workload, where the model table has one.

    They are those of the file, else of the document that the plan holds; none where there is neither. The
    document is read as of the plan's market: its horizon may be over by now.
    """
    if workloads is not None:
        text, source, base = read_text(workloads), workloads, workloads.parent
    elif document.get("workloads"):
        text, source, base = json.dumps(document["workloads"]), plan, plan.parent
    else:
        return {}
    request = read_workloads(text, source=str(source), base=base, now=as_of)
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

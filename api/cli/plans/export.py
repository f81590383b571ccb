"""``broker export``: a plan as files that other tools take."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from api.cli.configuration import load_settings
from api.cli.output import Json, print_json, read_text, say, stdout, write_text
from api.client import connect
from api.export.dstack import dstack_files
from api.export.ical import ical_files
from api.export.kueue import kueue_files
from api.export.servers import SERVED
from api.export.skypilot import skypilot_files
from api.export.slurm import slurm_files
from api.export.targets import Skipped, Target
from api.export.vllm import vllm_files
from api.export.workload_facts import NO_FACTS, Facts, WorkloadFacts, facts_of, written_models
from api.schemas.plans.plan import read_plan
from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import FieldProblem, InputError
from broker.ports.planning import BusinessStatus

app = typer.Typer(add_completion=False)
EXPORTS = {
    Target.SKYPILOT: skypilot_files,
    Target.DSTACK: dstack_files,
    Target.VLLM: vllm_files,
    Target.KUEUE: kueue_files,
    Target.SLURM: slurm_files,
    Target.ICAL: ical_files,
}
NO_MODEL = "some files name no model; give --workloads FILE or --model, or set the model in each"


@app.command()
def export(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN", help="Plan document, as broker plan --output writes it, or the id of a plan."
        ),
    ],
    to: Annotated[Target, typer.Option(help="The tool.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder for the files; else they are printed, one after the other.")
    ] = None,
    workloads: Annotated[
        Path | None,
        typer.Option(help="The workloads of the plan, for their models; else those that the plan holds."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORKLOAD=REPOSITORY",
            help="The checkpoint that a workload serves, in the plan's number format; may be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a plan as SkyPilot tasks, dstack fleets with their runs, vLLM configurations, Kueue queues with
    their workloads, Slurm scripts, or a calendar of its windows.

    The files of a reserved plan run on its own machines (`broker hosts`). Those of another one for SkyPilot
    and dstack buy capacity themselves, which their first line says.

    What the tool does not know is named on stderr, and under `skipped` in the JSON. A file that would break a
    rule of the document (a place, a host, a number format) is not written. Exit code 2 when nothing is left.

    Example: broker export plan.json --to skypilot --output tasks

    Example: broker export plan-01jd… --to slurm
    """
    file = Path(plan)
    if plan.startswith("plan-") and not file.exists():
        with connect(load_settings()) as client:
            made = client.wait_for_plan(plan)
        read, document = made.plan, made.document
    else:
        text = read_text(file)
        read, document = read_plan(text, plan), json.loads(text)
    chosen = _chosen(model or (), {one.workload for one in read.placements})
    facts = _facts(workloads, file, document, read.as_of, chosen)
    exported = EXPORTS[to](read, facts, plan, reserved=document.get("standing") == BusinessStatus.RESERVED)
    files = exported.files
    if output is not None:
        _write(output, files)
        say(f"{len(files)} files written to {output}")
    for one in exported.skipped:
        say(f"skipped {_told(one)}")
    for row in exported.unsaid:
        say(f"{row.workload}: the files do not say its {row.what}: {row.why}")
    served = {one.workload for one in read.placements if one.kind in SERVED}
    unnamed = to is not Target.ICAL and any(not facts.get(name, NO_FACTS).model for name in served)
    notes = [NO_MODEL] if unnamed else []
    for note in notes:
        say(f"note: {note}")
    if as_json:
        print_json(
            {
                "to": str(to),
                "files": dict(files),
                "skipped": [*map(_skipped, exported.skipped), *map(asdict, exported.unsaid)],
                "notes": notes,
            }
        )
    elif output is None:
        for name, text in files.items():
            stdout().print(f"# {name}\n{text}", soft_wrap=True)


def _told(one: Skipped) -> str:
    return f"{one.workload}: {'; '.join(str(problem) for problem in one.problems)}"


def _skipped(one: Skipped) -> dict[str, Any]:
    problems = [{"pointer": p.pointer, "found": p.found, "expected": p.expected} for p in one.problems]
    why = "; ".join(str(problem) for problem in one.problems)
    return {"workload": one.workload, "what": "the placement", "why": why, "problems": problems}


def _chosen(given: Sequence[str], workloads: Collection[str]) -> dict[str, str]:
    """Checkpoints by workload, of the options ``WORKLOAD=REPOSITORY``. Raises InputError."""
    chosen = {}
    for text in given:
        name, _, repository = (part.strip() for part in text.partition("="))
        if name not in workloads or not repository:
            expected = f"WORKLOAD=REPOSITORY with a workload of the plan: {', '.join(sorted(workloads))}"
            raise InputError("command line", (FieldProblem("--model", repr(text), expected),))
        chosen[name] = repository
    return chosen


def _facts(
    workloads: Path | None,
    plan: Path,
    document: Mapping[str, Any],
    as_of: datetime,
    chosen: Mapping[str, str],
) -> Facts:
    """What the document says of each workload; only what was ``chosen`` where there is no document.

    It is that of the file, else the one that the plan holds, read as of the plan's market: its horizon may be
    over by now.
    """
    if workloads is not None:
        text, source, base = read_text(workloads), workloads, workloads.parent
    elif document.get("workloads"):
        text, source, base = json.dumps(document["workloads"]), plan, plan.parent
    else:
        return {name: WorkloadFacts(model=model, is_chosen=True) for name, model in chosen.items()}
    request = read_workloads(text, source=str(source), base=base, now=as_of)
    return facts_of(request, written_models(yaml.safe_load(text)), chosen)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = FieldProblem("--output", str(error.strerror), "a folder that can be written")
        raise InputError(str(folder), (problem,)) from None
    for name, text in files.items():
        write_text(folder / name, text)

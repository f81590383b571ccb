"""``broker export``: a plan as files that other tools take."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from api.cli.configuration import load_settings
from api.cli.holding.hosts import held_by
from api.cli.output import Json, print_json, read_text, say, stdout, write_text
from api.client import connect
from api.export.dstack import dstack_files
from api.export.held_part import HeldPart, held_part
from api.export.ical import ical_files
from api.export.kueue import kueue_files
from api.export.servers import SERVED
from api.export.skypilot import skypilot_files
from api.export.slurm import slurm_files
from api.export.targets import Exported, Skipped, Target
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

NOT_ASKED = "the file does not say what is held now; give the plan's id in place of it to export only that"


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

    The files of a reserved plan run on the machines that are held now (`broker hosts`); what has none yet is
    named, and exported once it has. Those of another plan for SkyPilot and dstack buy capacity themselves,
    which their first line says.

    What the tool does not know is named on stderr, and under `skipped` in the JSON. A file that would break a
    rule of the document (a place, a host, a number format) is not written. Exit code 2 when nothing is left.

    Example: broker export plan.json --to skypilot --output tasks

    Example: broker export plan-01jd… --to slurm
    """
    found = _read(plan, to)
    read = found.part.plan
    chosen = _chosen(model or (), {one.workload for one in read.placements})
    facts = _facts(workloads, Path(plan), found.document, read.as_of, chosen)
    if found.calendar:
        exported = Exported({f"{read.plan_id}.ics": found.calendar})
    else:
        exported = EXPORTS[to](read, facts, plan, reserved=found.is_reserved)
    skipped = (*found.part.skipped, *exported.skipped)
    files = exported.files
    if output is not None:
        _write(output, files)
        say(f"{len(files)} files written to {output}")
    for one in skipped:
        say(f"skipped {_told(one)}")
    for row in exported.unsaid:
        say(f"{row.workload}: the files do not say its {row.what}: {row.why}")
    served = {one.workload for one in read.placements if one.kind in SERVED}
    unnamed = to is not Target.ICAL and any(not facts.get(name, NO_FACTS).model for name in served)
    notes = [*found.part.notes, *([NO_MODEL] if unnamed else [])]
    for note in notes:
        say(f"note: {note}")
    if as_json:
        print_json(
            {
                "to": str(to),
                "files": dict(files),
                "skipped": [*map(_skipped, skipped), *map(asdict, exported.unsaid)],
                "notes": notes,
            }
        )
    elif output is None:
        for name, text in files.items():
            stdout().print(f"# {name}\n{text}", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Found:
    """The ``part`` of a plan that is exported, its document, and the server's ``calendar``."""

    part: HeldPart
    document: Mapping[str, Any]
    calendar: str = ""

    @property
    def is_reserved(self) -> bool:
        return self.document.get("standing") == BusinessStatus.RESERVED


def _read(plan: str, to: Target) -> _Found:
    """A plan of a file, or of the server with what is held of it now.

    Raises InputError for a file that is no plan, and for a reserved plan without a machine.
    """
    file = Path(plan)
    if not plan.startswith("plan-") or file.exists():
        text = read_text(file)
        made = _Found(HeldPart(read_plan(text, plan), (), ()), json.loads(text))
        notes = (NOT_ASKED,) if made.is_reserved else ()
        return replace(made, part=replace(made.part, notes=notes))
    with connect(load_settings()) as client:
        answer = client.wait_for_plan(plan)
        found = _Found(HeldPart(answer.plan, (), ()), answer.document)
        if to is Target.ICAL:
            return replace(found, calendar=client.find_calendar(plan))
        if found.is_reserved:
            part = held_part(answer.plan, held_by(client, plan), datetime.now(UTC))
            if not part.plan.placements:
                raise InputError(plan, tuple(problem for one in part.skipped for problem in one.problems))
            found = replace(found, part=part)
    return found


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

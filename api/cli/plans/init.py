"""``broker init``: writes a workloads document from flags, answers, or what a team already has."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.output import Json, print_json, read_text, require_writable, say, write_text
from api.given_settings import load_environment
from api.schemas.imports.starting_points import StartingPoint, read_starting_point
from api.schemas.workloads.document_edit import EditedDocument, empty_document, field_of
from api.schemas.workloads.form_fields import (
    DOCUMENT_FIELDS,
    NEW_WORKLOADS,
    WORKLOAD_FIELDS,
    Entry,
    FormField,
    kind_of_workload,
    pointer_to,
    shown,
    value_at,
)
from api.schemas.workloads.workloads import read_workloads
from api.schemas.workloads.written_values import exact_time, meaning, start_of
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.planning.workload import WorkloadKind

app = typer.Typer(add_completion=False)

ESTIMATES = "api.cli.plans.first_estimate"
SOURCE = "answers"
STDOUT = Path("-")


@app.command()
def init(
    output: Annotated[Path, typer.Argument(help="The file to write; - for stdout.")] = Path("workloads.yaml"),
    kind: Annotated[
        WorkloadKind | None,
        typer.Option(help="Kind of workload; default: that of --from, else training. It is binding."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A config.json, a SkyPilot task, a dstack, axolotl or torchtune configuration, a Kubernetes "
            "manifest, or a file with the command of a server or of a training run; - for stdin.",
        ),
    ] = None,
    team: Annotated[str, typer.Option(help="The team that asks.")] = "research",
    model: Annotated[str | None, typer.Option(help="The model, as `GET /v1/models` names it.")] = None,
    put: Annotated[
        list[str] | None, typer.Option("--set", help="A field, as FIELD=VALUE; may be repeated.")
    ] = None,
    market: Annotated[Path | None, typer.Option(help="A market file, for a first estimate.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a workloads document: asks for the main fields, or takes them from flags and from --from.

    In a terminal it asks, with what is known as the default; elsewhere, and with --yes, it asks nothing and
    says which fields have examples. It names each part of --from that is not used. It tells a first estimate
    over the market of --market, else of the server that BROKER_URL names.

    Example: broker init chat.yaml --from serve.sh --set traffic.peak_requests_per_s=12 --yes
    """
    if output != STDOUT:
        require_writable(output)
        if output.exists() and not force:
            problem = FieldProblem("", "a file that exists", "another name, or --force to write over it")
            raise InputError(str(output), (problem,))
    document = EditedDocument(empty_document(team), SOURCE)
    begun = (
        None
        if start is None
        else read_starting_point(read_text(start), str(start), _model_file(start, output), kind)
    )
    document.add(begun.workload if begun is not None else NEW_WORKLOADS[kind or WorkloadKind.TRAINING])
    fields = list(_fields(document))
    given = [*(put or ()), *([f"model={model}"] if model is not None else ())]
    estimates: Any = (
        import_module(ESTIMATES) if market is not None or "BROKER_URL" in load_environment() else None
    )
    offers = None if market is None else estimates.open_market(market)
    now = datetime.now(UTC) if offers is None else offers.as_of
    touched = {_take(document, fields, words, now) for words in given}
    if not yes and sys.stdin.isatty() and start != STDOUT:
        _ask(document, fields, now)
        touched = {at for at, _ in fields}
    base = Path() if output == STDOUT else output.parent
    request = read_workloads(document.text, source=SOURCE, base=base, now=now)
    if output != STDOUT:
        write_text(output, document.text)
    told = () if estimates is None else estimates.estimate(request, document.text, offers)
    missing = _missing(begun, [one.label for at, one in fields if at not in touched])
    if as_json:
        print_json(
            {
                "file": None if output == STDOUT else str(output),
                "document": document.text,
                "source": None if begun is None else begun.found,
                "missing": missing,
                "left_out": [asdict(one) for one in begun.left_out] if begun is not None else [],
                "estimates": [{"workload": one.workload, "says": one.says} for one in told],
            }
        )
        return
    if output == STDOUT:
        sys.stdout.write(document.text)
    else:
        say(f"wrote {output}")
    _tell(begun, missing)
    for one in told:
        say(f"{one.workload}: {one.says}")
    if output != STDOUT:
        say(f"next: broker plan {output}, or broker plans --new {output}")


def _model_file(start: Path, output: Path) -> str | None:
    """The name of a config.json beside the document, where it stands there."""
    is_beside = (
        start != STDOUT and start.suffix == ".json" and start.parent.resolve() == output.parent.resolve()
    )
    return start.name if is_beside else None


def _fields(document: EditedDocument) -> Iterator[tuple[str, FormField]]:
    kind = kind_of_workload(document.workloads[0])
    assert kind is not None
    yield from ((pointer_to(one, None), one) for one in DOCUMENT_FIELDS)
    yield from ((pointer_to(one, 0), one) for one in WORKLOAD_FIELDS[kind])


def _take(
    document: EditedDocument, fields: Sequence[tuple[str, FormField]], words: str, now: datetime
) -> str:
    """Sets one field of ``FIELD=VALUE``; returns its pointer."""
    name, equals, value = words.partition("=")
    path = name.strip().replace(".", "/")
    at = next((at for at, one in fields if one.path == path), None)
    if not equals or at is None:
        known = ", ".join(one.path.replace("/", ".") for _, one in fields)
        raise InputError("--set", (FieldProblem("", repr(words), f"FIELD=VALUE with one of {known}"),))
    _put(document, at, dict(fields)[at], value, now)
    return at


def _put(document: EditedDocument, at: str, one: FormField, written: str, now: datetime) -> None:
    """Sets a field, and says what was understood where it was written in words."""
    document.put(one, _workload_of(at), exact_time(one, written, now))
    says = meaning(one, _value_of(document, at, one), written, now, start_of(document.data, now))
    if says:
        say(f"  {one.label}: {says}")


def _value_of(document: EditedDocument, at: str, one: FormField) -> object:
    index = _workload_of(at)
    return value_at(document.data if index is None else document.workloads[index], one.steps)


def _workload_of(pointer: str) -> int | None:
    return 0 if pointer.startswith("/workloads/") else None


def _ask(document: EditedDocument, fields: Sequence[tuple[str, FormField]], now: datetime) -> None:
    """Asks for the main fields, and again for those that are wrong, until none is."""
    wanted = [(at, one) for at, one in fields if not one.folded]
    while wanted:
        for at, one in wanted:
            _ask_for(document, at, one, now)
        try:
            read_workloads(document.text, source=SOURCE, base=Path(), now=now)
        except InputError as error:
            wrong = {}
            for problem in error.problems:
                say(f"{problem.pointer}: expected {problem.expected}")
                wrong[field_of(problem.pointer, list(fields))] = True
            wanted = [(at, one) for at, one in fields if at in wrong]
            if not wanted:
                raise
        else:
            return


def _ask_for(document: EditedDocument, at: str, one: FormField, now: datetime) -> None:
    known = shown(_value_of(document, at, one))
    hint = f" ({one.hint})" if one.hint and not known else ""
    choices = f" [{', '.join(one.choices)}]" if one.entry is Entry.CHOICE else ""
    answer = typer.prompt(f"{one.label}{hint}{choices}", default=known, show_default=bool(known), err=True)
    _put(document, at, one, str(answer), now)


def _missing(begun: StartingPoint | None, untouched: Sequence[str]) -> list[str]:
    """Fields that have examples, because neither the source nor the command states them."""
    return [] if begun is None else [label for label in begun.missing if label in untouched]


def _tell(begun: StartingPoint | None, missing: Sequence[str]) -> None:
    """Says what the source did not tell, and what of it is not used."""
    if begun is None:
        return
    if missing:
        say(f"{begun.found} does not say these, which have examples in their place: {', '.join(missing)}")
    for one in begun.left_out:
        say(f"left out: {one}")

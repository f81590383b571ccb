"""Reference pages that are made from the code when the site is built: those of ``api/reference_texts.py``,
commands and operations of the API.

MkDocs calls ``on_files``. The pages exist in the site alone, so that they cannot differ from the
program. What settings and events mean stands in ``config/settings.toml`` and
``config/events.toml``; a test fails where they name other ones than the code.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from api.app import create_app
from api.bootstrap import build_product
from api.cli.commands_page import commands_page
from api.http.reference import Field, Operation, Reference, build_reference
from api.reference_texts import REFERENCE_TEXTS, cell, table
from broker.catalogue import load_events
from broker.domain.basics.webhook import FAMILIES
from broker.domain.holding.reservation import ReservationState
from broker.domain.moving.reoptimization import ProposalState
from broker.ports.planning import PlanState
from broker.settings import Settings

ROOT = Path(__file__).parents[2]
STATES: Mapping[str, type[StrEnum]] = {
    "plan": PlanState,
    "reoptimization": ProposalState,
    "reservation": ReservationState,
}
"""Families that have an event for each state that an object comes to."""
PRODUCERS = ("broker/domain", "broker/services")
_EVENT = re.compile(rf"({'|'.join(FAMILIES)})\.[a-z_]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference."""
    for name, content in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def pages() -> dict[str, str]:
    """Every page of the reference by its name."""
    require_same("events", set(load_events()), event_names())
    written = {name: write() for name, write in REFERENCE_TEXTS.items()}
    return {"commands": commands_page(), "api": operations_page(), **written}


def api_document() -> Mapping[str, Any]:
    """The OpenAPI document of a server."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "broker.db"
        database.touch()  # it is never opened
        settings = Settings(database_url=f"sqlite:///{database}", solver_executor="thread")
        return create_app(build_product(settings, {}, exclusive=False), scheduled=False).openapi()


def operations_page() -> str:
    """The reference that a server shows at ``/docs/api``: operations, documents and errors."""
    reference = build_reference(api_document())
    lines = ["# HTTP API", "", "A server shows this at `/docs/api`, and the document at `/openapi.json`.", ""]
    for group in reference.groups:
        lines += [f"## {group.name.capitalize()}", "", f"{group.says}.", ""]
        for one in group.operations:
            lines += _operation(one, reference)
    lines += [
        "## Errors",
        "",
        *table(
            ("code", "status", "means", "what to do"),
            ((f"`{one.code}`", str(one.status), one.title, one.advice) for one in reference.problems),
        ),
        "",
        "## Documents",
        "",
    ]
    for schema in reference.schemas.values():
        lines += [f"### {schema.name}", "", cell(schema.says), ""]
        lines += [f"One of {', '.join(f'`{word}`' for word in schema.words)}.", ""] if schema.words else []
        lines += _fields("field", schema.fields) if schema.fields else []
    return "\n".join(lines)


def _operation(one: Operation, reference: Reference) -> list[str]:
    lines = [f"### `{one.method} {one.path}`", "", f"{one.summary} {one.says}", ""]
    if one.parameters:
        lines += _fields("parameter", one.parameters)
    if one.body:
        lines += [f"Body: {' or '.join(f'`{name}`' for name in one.body)}.", ""]
        lines += _fields("field", reference.fields_of(one.body))
    for answer in one.answers:
        what = " or ".join(f"`{name}`" for name in answer.schemas or answer.kinds)
        lines += [f"Answer {answer.status}: {answer.says}{f', {what}' if what else ''}.", ""]
    problems = dict.fromkeys(f"{problem.status} `{problem.code}`" for problem in one.problems)
    lines += [f"Errors: {', '.join(problems)}.", ""]
    return [*lines, "```bash", one.curl, "```", "", "```python", one.python, "```", ""]


def _fields(kind: str, fields: Sequence[Field]) -> list[str]:
    rows = (
        (
            f"`{one.name}`",
            ", ".join(part for part in (one.place, one.kind, "needed" if one.is_needed else "") if part),
            one.says,
            f"`{one.example}`" if one.example else "",
        )
        for one in fields
    )
    return [*table((kind, "type", "means", "example"), rows), ""]


def event_names() -> set[str]:
    """Every name of an event that the code writes: as text, or as a family and the state of an object."""
    found = {f"{family}.{state}" for family, states in STATES.items() for state in states}
    for folder in PRODUCERS:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and _EVENT.fullmatch(node.value)
                ):
                    found.add(node.value)
    return found


def require_same(what: str, told: set[str], known: set[str]) -> None:
    """ValueError where meanings are told of other names than the code has."""
    if told != known:
        raise ValueError(
            f"config/{what}.toml: write what {sorted(known - told)} mean, and take out "
            f"{sorted(told - known)}, which the code does not have"
        )

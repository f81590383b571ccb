"""Reference pages that are made from the code when the site is built.

Commands, operations of the API, settings, events, fields of the workloads document, and constants of the
performance core. MkDocs calls ``on_files``. The pages exist in the site alone, so that they cannot differ
from the program. What settings and events mean stands in ``config/settings.toml`` and
``config/events.toml``; a test fails where they name other ones than the code.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.core import TyperGroup, TyperOption

from api.app import create_app
from api.bootstrap import build_product
from api.cli.accuracy.accuracy_view import markdown_constants
from api.cli.application import app
from api.http.reference import Field, Operation, Reference, build_reference
from api.schemas.base.field_descriptions import description_of
from api.schemas.workloads.document_form import WorkloadsForm
from api.setting_list import own_settings, settings_of
from broker.catalogue import load_events
from broker.domain.basics.webhook import FAMILIES
from broker.domain.holding.reservation import ReservationState
from broker.domain.moving.reoptimization import ProposalState
from broker.ports.planning import PlanState
from broker.settings import Settings
from optimizer.calibration.sourced_constants import sourced_constants
from providers.registry import SPECS

ROOT = Path(__file__).parents[2]
STATES: Mapping[str, type[StrEnum]] = {
    "plan": PlanState,
    "reoptimization": ProposalState,
    "reservation": ReservationState,
}
"""Families that have an event for each state that an object comes to."""
PRODUCERS = ("broker/domain", "broker/services")
_EVENT = re.compile(rf"({'|'.join(FAMILIES)})\.[a-z_]+")
_CONSTANT = re.compile(r"- `([^`]+)` (.*?): (.*)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference."""
    for name, content in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def pages() -> dict[str, str]:
    """Every page of the reference by its name."""
    return {
        "commands": commands_page(),
        "api": operations_page(),
        "settings": settings_page(),
        "events": events_page(),
        "workloads": workloads_page(),
        "constants": constants_page(),
    }


def commands_page() -> str:
    """Every command with its help and options."""
    root = typer.main.get_command(app)
    lines = ["# Commands", "", str(root.help), ""]
    for name, command in _commands(root, typer.Context(root, info_name="broker"), "broker"):
        lines += [f"## `{name}`", "", command.help or "", ""]
        options = [option for option in command.params if isinstance(option, TyperOption)]
        if options:
            lines += _table(("option", "says"), ((_spelled(one), one.help) for one in options))
        lines.append("")
    return "\n".join(lines)


def _commands(group: Any, context: typer.Context, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(group, TyperGroup):
        yield name, group
        return
    for word in group.list_commands(context):
        _, inner, _ = group.resolve_command(context, [word])
        if inner is not None and not inner.hidden:
            below = typer.Context(inner, parent=context, info_name=word)
            yield from _commands(inner, below, f"{name} {word}")


def _spelled(option: TyperOption) -> str:
    return ", ".join(f"`{word}`" for word in option.opts)


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
        *_table(
            ("code", "status", "means", "what to do"),
            ((f"`{one.code}`", str(one.status), one.title, one.advice) for one in reference.problems),
        ),
        "",
        "## Documents",
        "",
    ]
    for schema in reference.schemas.values():
        lines += [f"### {schema.name}", "", _cell(schema.says), ""]
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
    return [*_table((kind, "type", "means", "example"), rows), ""]


def settings_page() -> str:
    """Every setting of the broker and of each provider, with its default and its meaning."""
    lines = [
        "# Settings",
        "",
        "A setting is an environment variable, or a name in `broker.toml` without the prefix `BROKER_` and",
        "in small letters. The environment wins. A setting that is given but empty is refused.",
        "`broker settings` prints what is given.",
        "",
        *_table(
            ("variable", "kind", "default", "limits", "means"),
            (
                (f"`{one.variable}`", one.kind, _code(one.default), one.limits, one.says)
                for one in own_settings()
            ),
        ),
    ]
    for spec in sorted(SPECS.values(), key=lambda one: one.title.lower()):
        rows = ((f"`{one.variable}`", one.kind, _code(one.default), one.says) for one in settings_of(spec))
        lines += ["", f"## {spec.title}", "", *_table(("variable", "kind", "default", "means"), rows)]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def events_page() -> str:
    """Every event, by family, with what it tells of; and the events of a plan that is being made."""
    told = load_events()
    require_same("events", set(told), event_names())
    lines = [
        "# Events",
        "",
        "Each change is an entry of the audit trail (`GET /v1/audit`) and an event for webhooks. A webhook",
        "names patterns, such as `plan.*`. [Webhooks](../finance.md#webhooks) describes the message, its",
        "signature and how it is repeated.",
        "",
    ]
    for family in FAMILIES:
        names = sorted(name for name in told if name.startswith(f"{family}."))
        lines += [f"## `{family}`", "", *_table(("event", "means"), ((f"`{n}`", told[n]) for n in names)), ""]
    lines += [
        "## The stream of a plan",
        "",
        "`GET /v1/plans/{plan_id}/events` streams server-sent events while a plan is made. Each has",
        "a `state`:",
        f"{', '.join(f'`{state}`' for state in PlanState)}.",
        "While the search runs an event has `stage`, `seconds`, `incumbent_usd`, `bound_usd` and `gap`. The",
        "last one has `status` and `cost_usd`, or `problem`.",
        "",
    ]
    return "\n".join(lines)


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


def workloads_page() -> str:
    """Every form of the workloads document with its fields, from its JSON schema."""
    schema = WorkloadsForm.model_json_schema()
    lines = [
        "# Fields of the workloads document",
        "",
        "[The workloads document](../workloads.md) explains the fields. This page lists them with their",
        "types and limits.",
        "",
    ]
    forms = {"WorkloadsForm": schema, **schema["$defs"]}
    for name, form in forms.items():
        if "properties" not in form:
            continue
        needed = form.get("required", ())
        rows = (
            (
                f"`{field}`",
                _kind(part),
                "needed" if field in needed else _json_default(part),
                part.get("description") or description_of(f"Workloads.{name}", field),
            )
            for field, part in form["properties"].items()
        )
        lines += [f"## {_noun(name)}", "", _cell(form.get("description")), ""]
        lines += [*_table(("field", "type and limits", "default", "means"), rows), ""]
    words = {name: form["enum"] for name, form in forms.items() if "enum" in form}
    for name, values in words.items():
        lines += [f"## {_noun(name)}", "", "One of " + ", ".join(f"`{value}`" for value in values) + ".", ""]
    return "\n".join(lines)


def _noun(form: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", form.removesuffix("Form")).capitalize()


def _kind(part: Mapping[str, Any]) -> str:
    for joint in ("anyOf", "oneOf"):
        if joint in part:
            return " or ".join(_kind(one) for one in part[joint])
    if "$ref" in part:
        noun = _noun(part["$ref"].rsplit("/", 1)[1])
        return f"[{noun}](#{noun.lower().replace(' ', '-')})"
    if "enum" in part or "const" in part:
        return ", ".join(f"`{value}`" for value in part.get("enum", (part.get("const"),)))
    if part.get("type") == "array":
        return f"list of {_kind(part['items'])}"
    if "additionalProperties" in part:
        return f"by name: {_kind(part['additionalProperties'])}"
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    limits = [f"{sign} {_plain(part[word])}" for word, sign in signs if word in part]
    if "maxLength" in part:
        limits.append(f"{part['maxLength']} characters at most")
    return ", ".join([part.get("type", "anything"), *limits])


def _plain(figure: float) -> str:
    return f"{figure:,.10g}"


def _json_default(part: Mapping[str, Any]) -> str:
    value = part.get("default")
    if value is None or value in ([], {}):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def constants_page() -> str:
    """Every constant of the performance core: prior, fitted value, source."""
    lines = [
        "# Constants of the performance core",
        "",
        "`broker perf constants` prints the same. *Prior → fitted*: an arrow where the fit moved the prior.",
        "Sources in brackets are named at the head of `config/performance.toml`; `[prior]` marks an estimate",
        "that no publication gives.",
        "[Equations](../performance-reference.md) shows what each is used for.",
        "",
    ]
    rows: list[tuple[str, str, str]] = []
    for line in [*markdown_constants(sourced_constants()).splitlines(), "## "]:
        found = _CONSTANT.fullmatch(line)
        if found is not None:
            name, value, source = found.groups()
            rows.append((f"`{name}`", value, source))
        elif line.startswith("## "):
            if rows:
                lines += [*_table(("constant", "prior → fitted", "source"), rows), ""]
            rows = []
            lines += [line, ""] if line.strip() != "##" else []
    return "\n".join(lines)


def require_same(what: str, told: set[str], known: set[str]) -> None:
    """ValueError where meanings are told of other names than the code has."""
    if told != known:
        raise ValueError(
            f"config/{what}.toml: write what {sorted(known - told)} mean, and take out "
            f"{sorted(told - known)}, which the code does not have"
        )


def _table(header: tuple[str, ...], rows: Any) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return lines + [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]


def _cell(text: str | None) -> str:
    return " ".join((text or "").replace("|", "\\|").split())

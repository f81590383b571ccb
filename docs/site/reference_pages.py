"""Reference pages that are made from the code when the site is built: commands, and operations of the API.

MkDocs calls ``on_files``. The pages exist in the site alone, so that they cannot differ from the program.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.core import TyperGroup, TyperOption

from api.app import create_app
from api.bootstrap import build_product
from api.cli.main import app
from broker.settings import Settings

METHODS = ("get", "post", "put", "patch", "delete")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference."""
    for name, content in (("commands", commands_page()), ("api", operations_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def commands_page() -> str:
    """Every command with its help and options."""
    root = typer.main.get_command(app)
    lines = ["# Commands", "", str(root.help), ""]
    for name, command in _commands(root, typer.Context(root, info_name="broker"), "broker"):
        lines += [f"## `{name}`", "", command.help or "", ""]
        options = [option for option in command.params if isinstance(option, TyperOption)]
        if options:
            lines += ["| option | says |", "|---|---|"]
            lines += [f"| {_spelled(option)} | {_cell(option.help)} |" for option in options]
        lines.append("")
    return "\n".join(lines)


def _commands(group: Any, context: typer.Context, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(group, TyperGroup):
        yield name, group
        return
    for word in group.list_commands(context):
        inner = group.get_command(context, word)
        if inner is not None and not inner.hidden:
            below = typer.Context(inner, parent=context, info_name=word)
            yield from _commands(inner, below, f"{name} {word}")


def _spelled(option: TyperOption) -> str:
    return ", ".join(f"`{word}`" for word in option.opts)


def operations_page() -> str:
    """Every operation of the HTTP API with its parameters and answers."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/broker.db", solver_executor="thread")
        document = create_app(build_product(settings, {}), scheduled=False).openapi()
    lines = ["# HTTP API", "", "A server shows the whole document at `/openapi.json`.", ""]
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                lines += _operation(method, path, operations[method])
    return "\n".join(lines)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> list[str]:
    lines = [
        f"## `{method.upper()} {path}`",
        "",
        operation.get("description") or operation.get("summary", ""),
        "",
    ]
    parameters = operation.get("parameters", ())
    if parameters:
        lines += ["| parameter | in | says |", "|---|---|---|"]
        lines += [
            f"| `{one['name']}` | {one['in']} | {_cell(one.get('description'))} |" for one in parameters
        ]
        lines.append("")
    answers = [f"{status} {_cell(one.get('description'))}" for status, one in operation["responses"].items()]
    return [*lines, f"Answers: {'; '.join(answers)}.", ""]


def _cell(text: str | None) -> str:
    return " ".join((text or "").replace("|", "\\|").split())

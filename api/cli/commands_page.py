"""Every command with its help and options, as a page of the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from api.cli.application import app
from api.reference_texts import table


def commands_page() -> str:
    """Every command with its help and options."""
    root = typer.main.get_command(app)
    lines = ["# Commands", "", str(root.help), ""]
    for name, command in _commands(root, typer.Context(root, info_name="broker"), "broker"):
        lines += [f"## `{name}`", "", command.help or "", ""]
        options = [option for option in command.params if isinstance(option, TyperOption)]
        if options:
            lines += table(("option", "says"), ((_spelled(one), one.help) for one in options))
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


COMMANDS_PAGE: Mapping[str, Callable[[], str]] = MappingProxyType({"commands": commands_page})
"""It, by its name in the reference."""

"""A command group that imports a command's module when the command is used, not before."""

from __future__ import annotations

import gc
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from api.cli.commands import CommandEntry
from api.cli.errors import exit_code_of, tell
from broker.domain.basics.errors import BrokerError
from broker.domain.basics.near_words import near_words

Command = TypeVar("Command")


def _flowing(command: Command) -> Command:
    """``command``, with help whose paragraphs break where the screen ends, not where the source does."""
    text = getattr(command, "help", None)
    if text:
        paragraphs = inspect.cleandoc(text).split("\n\n")
        command.help = "\n\n".join(" ".join(one.split("\n")) for one in paragraphs)  # type: ignore[attr-defined]
    for inner in getattr(command, "commands", {}).values():
        _flowing(inner)
    return command


@contextmanager
def without_collections() -> Iterator[None]:
    """Switches garbage collection off inside, and exempts what was loaded from later collections.

    Collections over the two thousand modules of a server took a fifth of its start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


CHOICE = re.compile(r"(?:Value error, )?'(?P<word>[^']*)' is not one of (?P<known>'.*')\.")


NUMBERS = (
    (re.compile(r"Input should be greater than or equal to (\S+)"), r"a number of at least \1"),
    (re.compile(r"Input should be less than or equal to (\S+)"), r"a number of at most \1"),
    (re.compile(r"Input should be greater than (\S+)"), r"a number above \1"),
    (re.compile(r"Input should be less than (\S+)"), r"a number below \1"),
    (re.compile(r"Input should be a valid integer"), "a whole number"),
    (re.compile(r"Input should be a valid number"), "a number"),
)


def _in_plain_words(error: typer.BadParameter) -> str:
    """What is told of a value that an option does not take: the value, and what it takes."""
    for pattern, words in NUMBERS:
        if found := pattern.match(error.message):
            problems: list[Any] = getattr(error.__cause__, "errors", list)()
            value = f"'{problems[0]['input']}'" if problems else "it"
            return f"{value} is not {found.expand(words)}."
    return _with_near_choice(error.message)


def _with_near_choice(told: str) -> str:
    """What is told of a word that an option does not take, with the nearest that it takes."""
    found = CHOICE.fullmatch(told)
    if found is None:
        return told
    known = re.findall(r"'([^']*)'", found["known"])
    near = near_words(found["word"], known, 2)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"'{found['word']}' is not one of {', '.join(known)}.{meant}"


class LazyGroup(TyperGroup):
    """Takes the names and summaries of its commands from a table. Turns a BrokerError into an exit code."""

    entries: ClassVar[Mapping[str, CommandEntry]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the table's order."""
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command if it was imported, else a placeholder with its summary."""
        entry = self.entries.get(cmd_name)
        if entry is None or cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)
        return TyperCommand(cmd_name, help=entry.summary, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Imports the command that ``args`` begin with."""
        entry = self.entries.get(args[0]) if args else None
        if (
            args
            and entry is None
            and not args[0].startswith("-")
            and (near := near_words(args[0], self.entries))
        ):
            ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(near)}?")
        if entry is not None and args[0] not in self.commands:
            with without_collections():
                module = importlib.import_module(entry.module)
            self.add_command(_flowing(typer.main.get_command(module.app)), args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. An expected error is printed without a traceback."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _in_plain_words(error)
            raise
        except BrokerError as error:
            tell(error)
            raise typer.Exit(exit_code_of(error)) from error

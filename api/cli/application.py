"""The ``broker`` command with all its commands, and the options of all of them."""

from __future__ import annotations

import logging
import os
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from api.cli.commands import COMMANDS, CommandEntry
from api.cli.errors import ExitCode
from api.cli.lazy import LazyGroup
from broker import logs


class BrokerGroup(LazyGroup):
    """All commands."""

    entries: ClassVar[Mapping[str, CommandEntry]] = COMMANDS


app = typer.Typer(
    cls=BrokerGroup,
    name="broker",
    help="Plans, reserves and accounts for GPU capacity over many providers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _wishes_json() -> bool:
    """Whether the environment or the file asks for JSON logs. Nothing else is read, so that commands start
    fast."""
    said = {name.upper(): value for name, value in os.environ.items()}.get("BROKER_LOG_FORMAT")
    with suppress(OSError, ValueError):  # what is wrong with the file is told by the commands that need it
        said = said or tomllib.loads(Path("broker.toml").read_text(encoding="utf-8")).get("log_format")
    return said == "json"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"broker {version('gpu-capacity-broker')}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Logs on stderr; -vv: all.")
    ] = 0,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logs.begin(level=level, as_json=_wishes_json())


def run() -> None:
    """Runs the command that the process was started with. An unexpected error is logged, with exit code 1."""
    logs.begin(as_json=_wishes_json())
    logs.catch_the_rest()
    try:
        app()
    except Exception as error:  # the boundary of the process
        logging.getLogger(__name__).critical("unexpected error", exc_info=error)
        sys.exit(ExitCode.UNEXPECTED)

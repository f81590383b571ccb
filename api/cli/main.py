"""The ``broker`` command: one table of its commands, and the options of all of them."""

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

from api.cli.completion import ASKED_BY, complete_value
from api.cli.errors import ExitCode
from api.cli.lazy import CommandEntry, LazyGroup
from broker import logs

RUN, PLAN, HOLD, LOOK = "Run", "Plan", "Hold and pay", "Look inside"


class BrokerGroup(LazyGroup):
    """All commands."""

    entries: ClassVar[Mapping[str, CommandEntry]] = {
        "up": CommandEntry(
            "api.cli.installation.up", "Everything at once: market, plan of the examples, server.", RUN
        ),
        "serve": CommandEntry("api.cli.installation.serve", "API, pages and scheduler.", RUN),
        "sandbox": CommandEntry(
            "api.cli.installation.sandbox", "The sandbox market as a server of its own.", RUN
        ),
        "poll": CommandEntry("api.cli.market.poll", "Poll providers now.", RUN),
        "offers": CommandEntry("api.cli.market.offers", "Offers now, cheapest first.", PLAN),
        "prices": CommandEntry("api.cli.market.prices", "Prices over time, and forecasts.", LOOK),
        "quarantine": CommandEntry("api.cli.market.quarantine", "Offers with implausible prices.", LOOK),
        "init": CommandEntry("api.cli.plans.init", "Write a workloads document.", PLAN),
        "plan": CommandEntry("api.cli.plans.plan", "Plan workloads.", PLAN),
        "divide": CommandEntry("api.cli.plans.divide", "Divide services by size of request.", PLAN),
        "cost-diff": CommandEntry("api.cli.plans.cost_diff", "What a change of a document costs.", PLAN),
        "check": CommandEntry("api.cli.plans.check", "Verify a plan independently.", PLAN),
        "backtest": CommandEntry(
            "api.cli.plans.backtest", "Re-optimization policies over recorded prices.", PLAN
        ),
        "compare": CommandEntry("api.cli.plans.compare", "Plans side by side.", PLAN),
        "export": CommandEntry(
            "api.cli.plans.export", "A plan for SkyPilot, dstack, vLLM, Kueue, Slurm.", PLAN
        ),
        "plans": CommandEntry(
            "api.cli.plans.plans", "Plans of the running server: ask for one, read one.", HOLD
        ),
        "what-if": CommandEntry(
            "api.cli.plans.what_if", "Plan changes of a plan, and compare them with it.", HOLD
        ),
        "reserve": CommandEntry("api.cli.holding.reserve", "Reserve a plan on the running server.", HOLD),
        "reservations": CommandEntry("api.cli.holding.reservations", "What is reserved.", HOLD),
        "extend": CommandEntry("api.cli.holding.extend", "Hold a reservation longer.", HOLD),
        "reoptimizations": CommandEntry(
            "api.cli.plans.reoptimizations", "Proposals as prices change; accept or reject one.", HOLD
        ),
        "release": CommandEntry("api.cli.holding.release", "Release a reservation.", HOLD),
        "spend": CommandEntry("api.cli.finance.spend", "Projected and actual spend.", HOLD),
        "budgets": CommandEntry("api.cli.finance.budgets", "Budgets, and how much of them is used.", HOLD),
        "approvals": CommandEntry(
            "api.cli.finance.approvals", "Plans that need approval: approve or reject one.", HOLD
        ),
        "focus-check": CommandEntry("api.cli.finance.focus_check", "Check a FOCUS file.", HOLD),
        "keys": CommandEntry("api.cli.installation.keys", "API keys: list, make, revoke.", RUN),
        "mcp": CommandEntry("api.cli.installation.mcp", "The running server as tools of an assistant.", RUN),
        "perf": CommandEntry("api.cli.accuracy.perf", "The performance core alone.", LOOK),
        "providers": CommandEntry("api.cli.market.providers", "Adapters and recorded payloads.", LOOK),
    }


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


def _complete(values: str) -> None:
    """Prints the completion, or tells fish by the exit code whether there is any."""
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        sys.exit(0 if values else 1)
    typer.echo(values)


def main() -> None:
    """The entry point of the ``broker`` script. An unexpected error is logged, with exit code 1."""
    if os.environ.get(ASKED_BY) and (values := complete_value()) is not None:
        _complete(values)
        return
    logs.begin(as_json=_wishes_json())
    logs.catch_the_rest()
    try:
        app()
    except Exception as error:  # the boundary of the process
        logging.getLogger(__name__).critical("unexpected error", exc_info=error)
        sys.exit(ExitCode.UNEXPECTED)

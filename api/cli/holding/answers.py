"""What is said before an order, and the question whether to place it."""

from __future__ import annotations

import sys

import typer

from api.cli.errors import ExitCode
from api.cli.output import say
from broker.domain.basics.errors import FieldProblem, InputError


def tell(cost: str, market: str) -> None:
    """Says before the order what it costs, and whether that is money."""
    for words in (cost, market):
        if words:
            say(words)


def require_answer(*, yes: bool) -> None:
    """Raises InputError where an order was not confirmed and nobody can be asked."""
    if not yes and not _is_terminal():
        expected = "--yes, as there is no terminal to ask in; nothing was ordered"
        raise InputError("command line", (FieldProblem("--yes", "nothing", expected),))


def ask(question: str = "Order it?", *, needed: bool) -> None:
    """Asks in a terminal whether to order; raises Exit after a no."""
    if needed and _is_terminal() and not typer.confirm(question, err=True):
        say("Nothing was ordered.")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _is_terminal() -> bool:
    return sys.stdin.isatty()

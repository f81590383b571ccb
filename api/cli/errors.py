"""The table of exit codes by kind of error, and how an error is printed."""

from __future__ import annotations

import re
from enum import IntEnum

from rich.text import Text

from api.cli.output import say
from broker.domain.basics.errors import (
    ApprovalRequired,
    BrokerError,
    Conflict,
    CredentialsRejected,
    InputError,
    LeaseNotFound,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    OverBudget,
    OverCap,
    ProviderError,
    StillAtWork,
    StoreTooNew,
)
from broker.redaction import redacted


class ExitCode(IntEnum):
    """Exit codes of the ``broker`` command."""

    DONE = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    CREDENTIALS = 3
    NOT_FOUND = 4
    CONFLICT = 5
    UNPLACED = 6
    MONEY = 7
    PROVIDER = 8
    TIMED_OUT = 9
    INTERRUPTED = 130


class TimedOut(BrokerError):
    """The command stopped waiting before the work ended. The work goes on."""


EXIT_CODES: tuple[tuple[type[BrokerError], ExitCode], ...] = (
    (InputError, ExitCode.BAD_INPUT),
    (NotAuthenticated, ExitCode.CREDENTIALS),
    (NotPermitted, ExitCode.CREDENTIALS),
    (CredentialsRejected, ExitCode.CREDENTIALS),
    (NotFound, ExitCode.NOT_FOUND),
    (LeaseNotFound, ExitCode.NOT_FOUND),
    (StillAtWork, ExitCode.TIMED_OUT),
    (OverCap, ExitCode.MONEY),
    (Conflict, ExitCode.CONFLICT),
    (StoreTooNew, ExitCode.CONFLICT),
    (OverBudget, ExitCode.MONEY),
    (ApprovalRequired, ExitCode.MONEY),
    (ProviderError, ExitCode.PROVIDER),
    (TimedOut, ExitCode.TIMED_OUT),
)
"""The first class that matches wins; what is not listed is unexpected."""


KEY_HINT = "hint: export BROKER_KEY=…, a key as `broker up` prints it or `broker keys --new` makes it"


NOT_FOUND = re.compile(r"(?P<kind>[\w -]+) '[^']*' not found")
LISTED_BY = {
    "plan": "broker plans",
    "reservation": "broker reservations",
    "re-optimization": "broker reoptimizations",
    "offer": "broker offers --orderable",
    "key": "broker keys",
    "SSH key": "broker ssh-keys",
}
"""The commands that list what an id may name."""


def exit_code_of(error: BrokerError) -> ExitCode:
    """The exit code of ``error``."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), ExitCode.UNEXPECTED)


def tell(error: BrokerError) -> None:
    """Writes ``error`` to stderr, one line for each problem, without a traceback."""
    for line in redacted(str(error)).splitlines() or [type(error).__name__]:
        say(Text.assemble(("error: ", "bold red"), line))
    if isinstance(error, NotAuthenticated):
        say(Text(KEY_HINT))
    found = NOT_FOUND.match(str(error))
    if found and (command := LISTED_BY.get(found["kind"])):
        say(Text(f"hint: `{command}` lists those that there are"))

"""``broker doctor``: whether the installation is ready, and what each configured seller would do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.installation.diagnosis import diagnose
from api.cli.installation.server_diagnosis import diagnose_server, with_server
from api.cli.market_source import named_server
from api.cli.output import Json, print_json, stdout
from api.cli.tables import print_section
from api.figures import day_and_time
from api.given_settings import load_environment
from api.schemas.market.diagnosis import (
    DIAGNOSIS,
    Check,
    Credentials,
    Diagnosis,
    Finding,
    SellerDiagnosis,
)
from api.sections import Cell, section_of

app = typer.Typer(add_completion=False)

TONES = {Finding.FINE: "good", Finding.WARNING: "warn", Finding.FAILED: "bad"}
NO_SELLER = (
    "No seller is configured in this environment. A running broker may have others, as `broker up` starts a "
    "sandbox of its own: BROKER_URL and BROKER_KEY ask it."
)
BAD = frozenset({Credentials.REJECTED, Credentials.UNANSWERED, Credentials.INCOMPLETE})
MOST_CALLS = 4


@app.command()
def doctor(
    team: Annotated[
        str | None, typer.Option(help="Whose SSH keys count for orders; default: those of any team.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no seller; read settings and database only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the installation and every configured seller. It buys and changes nothing.

    Each real seller is asked what is held, which shows whether it accepts the credentials. Where no seller
    is configured on this machine, the server that BROKER_URL names is asked about its own.

    Exit code 3 when credentials are incomplete or rejected, 8 when a seller does not answer.

    Example: broker doctor --team research
    """
    settings, server = load_settings(), named_server()
    found = asyncio.run(diagnose(settings, load_environment(), team, asks=not offline))
    if server is not None and not found.sellers:
        with server:
            found = with_server(found, diagnose_server(server, settings.url, team))
    if as_json:
        print_json(DIAGNOSIS.write(found))
    else:
        _show(found)
    raise typer.Exit(found.exit_code)


def _show(found: Diagnosis) -> None:
    checks: dict[str, Callable[[Check], str | Cell]] = {
        "=check": lambda one: one.name,
        "=result": lambda one: Cell(str(one.finding), tone=TONES[one.finding]),
        "what was found": lambda one: one.says,
    }
    print_section(section_of(found.checks, checks))
    columns: dict[str, Callable[[SellerDiagnosis], str | Cell]] = {
        "=seller": lambda one: Cell(one.provider, (str(one.mode or "price list"),)),
        "=credentials,\nverified": _verified,
        "its probe calls": lambda one: _lines(one.calls),
        "orders": _orders,
    }
    stdout().print()
    print_section(section_of(found.sellers, columns, empty=NO_SELLER))


def _verified(one: SellerDiagnosis) -> Cell:
    tone = "bad" if one.credentials in BAD else ""
    return Cell(str(one.credentials), (_at("probe", one.verified_at), _at("poll", one.polled_at)), tone)


def _at(what: str, at: datetime | None) -> str:
    return f"{what} {'never' if at is None else day_and_time(at)}"


def _lines(calls: Sequence[str]) -> Cell:
    """The first few calls, and the number of the others."""
    more = [f"and {len(calls) - MOST_CALLS} more"] if len(calls) > MOST_CALLS else []
    first, *rest = [*calls[:MOST_CALLS], *more]
    return Cell(first, rest)


def _orders(one: SellerDiagnosis) -> Cell:
    if one.mode is None:
        return Cell("none: it is a price list", [one.problem] if one.problem else ())
    allowed = "allowed" if one.orders_allowed else "not allowed (BROKER_ORDERS)"
    lacks = [f"lacks {lack}" for lack in one.missing]
    network = [f"network: {one.network}"] if one.network else []
    return Cell(allowed, [*([one.problem] if one.problem else []), *network, *lacks])

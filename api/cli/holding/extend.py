"""``broker extend``: gives a reservation a later end."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.errors import TimedOut
from api.cli.holding.answers import ask, tell
from api.cli.holding.reservation_view import print_reservations
from api.cli.output import Json, print_json, stdout
from api.cli.times import TIME_HELP, read_time
from api.client import BrokerClient, ServerTimedOut, connect
from api.figures import day_and_time
from api.promise_words import extension_words
from api.schemas.base.times import format_time
from broker.domain.basics.errors import NotPermitted

app = typer.Typer(add_completion=False)


@app.command()
def extend(
    reservation_id: Annotated[str, typer.Argument(help="Id of a reservation on the server.")],
    end: Annotated[str, typer.Option(help=f"The new end. {TIME_HELP}.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Extend without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Hold a reservation until a later end, at the price of its order. Doing so twice is no error.

    It says first what that adds, and asks in a terminal.

    Exit codes: 2 the end is not later, 3 the key may not, 4 no such reservation, 5 it cannot be extended, 7
    a budget of its team would be exceeded.

    Example: BROKER_KEY=… broker extend rsv-01jd… --end 2026-11-30T12:00:00Z
    """
    wished = format_time(read_time("--end", end))
    with connect(load_settings()) as client:
        try:
            _tell(client, reservation_id, wished)
            ask("Extend it?", needed=not yes)
            row = client.extend(reservation_id, wished)
        except ServerTimedOut as error:
            raise TimedOut(f"{error}; ask again: extending twice is no error") from error
    if as_json:
        print_json(row.model_dump(mode="json"))
    else:
        print_reservations(stdout(), [row])


def _tell(client: BrokerClient, reservation_id: str, end: str) -> None:
    """Says what the extension adds; nothing for a key that may extend and not read."""
    try:
        quote = client.quote_extension(reservation_id, end)
    except NotPermitted:
        return
    before, until = (f"{day_and_time(at)} UTC" for at in (quote.end_before, quote.end))
    tell(extension_words(quote.added_usd, quote.usd_per_hour, before, until), quote.market)

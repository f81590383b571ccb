"""``broker hosts``: the machines that are held now, for the tools that use them."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import say
from api.client import BrokerClient, connect
from api.export.hosts import HostsFormat, hosts_of, hosts_text
from api.figures import plural
from api.schemas.holding.reservation import ReservationForm
from broker.domain.basics.errors import NotFound
from broker.domain.holding.reservation import OPEN_STATES

app = typer.Typer(add_completion=False)


@app.command()
def hosts(
    held: Annotated[str, typer.Argument(metavar="PLAN_ID|RESERVATION_ID", help="A plan, or a reservation.")],
    form: Annotated[
        HostsFormat, typer.Option("--format", help="The tool whose form it takes.")
    ] = HostsFormat.JSON,
) -> None:
    """List the machines that are held now, in rank order, as JSON or in the form of a tool.

    Between machines the private addresses are used, where the seller says them. What has no address yet is
    named on standard error.

    Exit codes: 3 the key may not, 4 no such plan or reservation, or no machine that can be entered yet.

    Example: broker hosts plan-01jd… --format ssh-config >> ~/.ssh/config

    Example: broker hosts rsv-01jd… --format torchrun
    """
    with connect(load_settings()) as client:
        rows = held_by(client, held)
    found = hosts_of(rows)
    for row in rows:
        for unit in row.units:
            if row.state in OPEN_STATES and unit.access is None and unit.access_reason:
                say(f"{row.reservation_id} unit {unit.ordinal}: {unit.access_reason}")
    if not found:
        raise NotFound("machine", held, "machines of an active reservation whose seller has told an address")
    said = {host.reservation_id for host in found}
    say(f"{plural(len(found), 'machine')} of {plural(len(said), 'reservation')}")
    typer.echo(hosts_text(found, form), nl=False)  # as it is: a console would expand tabs


def held_by(client: BrokerClient, held: str) -> list[ReservationForm]:
    """The reservations of a plan, or one reservation. Raises NotFound."""
    if held.startswith("rsv-"):
        return [client.find_reservation(held)]
    client.find_plan(held)
    return list(client.list_reservations(held))

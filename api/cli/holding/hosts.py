"""``broker hosts``: the machines that are held now, for the tools that use them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from api.cli.configuration import load_settings
from api.cli.output import say
from api.client import BrokerClient, MadePlan, connect
from api.export.hosts import HostsFormat, hosts_of, hosts_text
from api.figures import day_and_time, plural
from api.promise_words import many_words
from api.schemas.holding.reservation import ReservationForm, UnitForm
from broker.domain.basics.errors import NotFound
from broker.domain.holding.capacity_promise import CapacityPromise
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
    for line in _without_address(rows):
        say(line)
    if not found:
        raise NotFound("machine", held, "none of its reservations is active and has an address yet")
    said = {host.reservation_id for host in found}
    say(f"{plural(len(found), 'machine')} of {plural(len(said), 'reservation')}")
    typer.echo(hosts_text(found, form), nl=False)  # as it is: a console would expand tabs


def _without_address(rows: Iterable[ReservationForm]) -> Iterator[str]:
    """A line for each reason why units have no address: the first of them, and how many more there are."""
    units: defaultdict[str, list[tuple[ReservationForm, UnitForm]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.start):
        for unit in row.units:
            if row.state in OPEN_STATES and unit.access is None and unit.access_reason:
                units[unit.access_reason].append((row, unit))
    for reason, members in units.items():
        (first, unit), more = members[0], len(members) - 1
        others = f" and {more:,} more" if more else ""
        is_later = all(row.promise is CapacityPromise.AT_START for row, _ in members)
        when = f", {'the first ' if more else ''}on {day_and_time(first.start)} UTC" if is_later else ""
        told = many_words(CapacityPromise.AT_START.words, len(members)) + when if is_later else reason
        yield f"{first.reservation_id} unit {unit.ordinal}{others}: {told}"


def held_by(client: BrokerClient, held: str) -> list[ReservationForm]:
    """One reservation, or those of a plan with what is still open of the plans that it replaced. Raises
    NotFound.
    """
    if held.startswith("rsv-"):
        return [client.find_reservation(held)]
    plan, rows = client.find_plan(held), list(client.list_reservations(held))
    while isinstance(plan, MadePlan) and plan.stands.supersedes is not None:
        plan = client.find_plan(plan.stands.supersedes)
        rows += (row for row in client.list_reservations(plan.plan_id) if row.state in OPEN_STATES)
    return rows

"""Reservations as text, and waiting until they have settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.errors import ExitCode
from api.cli.figures import day_and_time, hours, usd
from api.cli.output import stderr
from api.client import BrokerClient
from api.plan_words import who_words
from api.reserved_fleets import ReservedFleet, count_words, grouped_fleets, nodes_words
from api.schemas.holding.reservation import ReservationForm
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.money import price_words
from broker.domain.holding.reservation import OPEN_STATES, ReservationState
from broker.domain.reconciling.shortfalls import Shortfall

UNSETTLED = frozenset({ReservationState.PENDING, ReservationState.UNKNOWN})
PAUSE_S = 0.5
MOST_IDS = 4
"""Names of leases that are told of a fleet."""
STYLES = {
    ReservationState.ACTIVE: "green",
    ReservationState.HELD: "cyan",
    ReservationState.SCHEDULED: "cyan",
    ReservationState.FAILED: "bold red",
    ReservationState.UNKNOWN: "yellow",
    ReservationState.RELEASED: "dim",
}


def print_reservations(console: Console, rows: Sequence[ReservationForm], *, each: bool = False) -> None:
    """A table in the server's order, newest first, with a count by state; one line when there are none.

    The reservations of one fleet share a row unless ``each`` is set.
    """
    if not rows:
        console.print("no reservations")
        return
    now = datetime.now(UTC)
    alone = (line for row in rows for line in grouped_fleets([row], _offer, now))
    lines = tuple(alone) if each else grouped_fleets(rows, _offer, now)
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    table.add_column("reservation, workload,\nprovider's ids", no_wrap=True, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    table.add_column("what, price, when (UTC)", overflow="fold")
    for fleet in lines:
        row = fleet.first
        named = row.reservation_id if len(fleet.rows) == 1 else row.workload or row.reservation_id
        under = [row.workload or "-"] if len(fleet.rows) == 1 else [f"{len(fleet.rows)} steps"]
        under += _ids(fleet)
        table.add_row(
            Text.assemble(named, "\n", ("\n".join(under), "dim")),
            Text(fleet.word, "dim" if row.not_tried else STYLES.get(row.state, "")),
            Text.assemble(
                f"{_size(fleet)} × {_node(row)}{_price(row)}\n",
                (f"{row.provider} {row.region}\n", "dim"),
                _span(fleet.start, fleet.end),
                *((f"\n{line}", "dim") for line in (*_apart(row), *filter(None, [row.reason]))),
            ),
        )
    console.print(table)
    console.print(count_words(lines, "reservation" if each else "fleet"), style="dim")


def _ids(fleet: ReservedFleet[ReservationForm]) -> list[str]:
    """The provider's ids of its leases; of a fleet the first few."""
    ids = [reference for row in fleet.rows for reference in row.provider_references]
    more = len(ids) - MOST_IDS if len(fleet.rows) > 1 else 0
    return [*ids[:MOST_IDS], f"and {more} more: --each"] if more > 0 else ids


def _offer(row: ReservationForm) -> str:
    return row.offer_id


def _size(fleet: ReservedFleet[ReservationForm]) -> str:
    """How many nodes a fleet has now and next, and its smallest and largest size."""
    if len(fleet.rows) == 1:
        return nodes_words(fleet)
    sizes = f"{fleet.least} to {fleet.most}" if fleet.least != fleet.most else str(fleet.most)
    if fleet.state not in OPEN_STATES:
        return sizes
    following = "" if fleet.next is None else f", {fleet.next[1]} from {day_and_time(fleet.next[0])}"
    return f"{fleet.nodes} now{following} ({sizes})"


def print_shortfalls(console: Console, short: Sequence[Shortfall]) -> None:
    """One line for each stretch of time in which nodes are missing."""
    for one in short:
        again = "" if one.next_try_at is None else f"; asked again at {day_and_time(one.next_try_at)}"
        console.print(f"{one}{again}", style="bold yellow", markup=False)


def _node(row: ReservationForm) -> str:
    return row.sku if row.gpu is None else f"{row.gpus_per_node} {row.gpu}"


def _price(row: ReservationForm) -> str:
    """The price of a node-hour, its source, and a warning if it is above the limit."""
    price, limit = row.price_usd_per_node_hour, row.limit_usd_per_node_hour
    if price is None:
        return ""
    basis = f" {row.price_basis}" if row.price_basis is not None else ""
    above = f", above the limit of {price_words(limit)}" if limit is not None and price > limit else ""
    return f", {price_words(price)}/node-h{basis}{above}"


def print_history(console: Console, entries: Sequence[AuditEntry]) -> None:
    """Every step in the order in which it happened: when, what, who, why, and the provider's request id."""
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    table.add_column("when (UTC)", no_wrap=True)
    table.add_column("step, who", overflow="fold")
    table.add_column("why", overflow="fold")
    for entry in entries:
        request = f"\nprovider's request {entry.provider_request_id}" if entry.provider_request_id else ""
        table.add_row(
            f"{day_and_time(entry.at)}:{entry.at:%S}",
            Text.assemble(
                entry.action.removeprefix("reservation."),
                "\n",
                (who_words(entry.actor, entry.actor_name), "dim"),
            ),
            Text.assemble(entry.detail, (request, "dim")),
        )
    console.print(table)


def _span(start: datetime, end: datetime | None) -> str:
    return f"{day_and_time(start)} to {day_and_time(end) if end is not None else 'released'}"


def _apart(row: ReservationForm) -> Iterator[str]:
    """The asked, granted and usable times, where they differ from what was ordered."""
    asked, granted, usable = row.requested, row.granted, row.usable
    if asked is not None and (asked.start, asked.end) != (row.start, row.end):
        yield f"asked {_span(asked.start, asked.end)}"
    if granted is not None and (granted.start, granted.end) != (row.start, row.end):
        yield f"granted {_span(granted.start, granted.end)}"
    if usable is not None and usable.end != (granted.end if granted is not None else row.end):
        yield f"usable until {day_and_time(usable.end)}"
    if row.unwanted_usd:
        yield f"{hours(row.unwanted_hours or 0.0)} ({usd(row.unwanted_usd)}) unwanted"


def wait_until(
    client: BrokerClient,
    rows: Sequence[ReservationForm],
    settled: Callable[[ReservationForm], bool],
    timeout_s: float,
) -> tuple[list[ReservationForm], bool]:
    """Polls until every reservation is ``settled``. Returns the last answers, and whether all settled in
    time."""
    deadline = time.monotonic() + timeout_s
    latest = list(rows)
    while not all(settled(row) for row in latest):
        if time.monotonic() >= deadline:
            return latest, False
        time.sleep(PAUSE_S)
        latest = [row if settled(row) else client.find_reservation(row.reservation_id) for row in latest]
    return latest, True


def exit_code_of_rows(rows: Sequence[ReservationForm], in_time: bool) -> ExitCode:
    """The exit code: 8 when a reservation failed, 9 when time ran out, else 0."""
    if any(row.state is ReservationState.FAILED for row in rows):
        return ExitCode.PROVIDER
    return exit_code_of_waiting(in_time)


def exit_code_of_waiting(in_time: bool) -> ExitCode:
    """The exit code: 0, or 9 with a line that says how to follow the rest."""
    if in_time:
        return ExitCode.DONE
    stderr().print("not settled yet; the server goes on: see `broker reservations`", markup=False)
    return ExitCode.TIMED_OUT

"""Reservations as text, and waiting until they have settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console

from api.cli.errors import ExitCode
from api.cli.output import say
from api.cli.tables import print_section
from api.client import BrokerClient
from api.figures import day_and_time, hours, plural, usd
from api.plan_words import who_words
from api.reserved_fleets import (
    ReservedFleet,
    count_words,
    grouped_fleets,
    size_words,
    start_words,
    steps_words,
)
from api.schemas.holding.reservation import FleetForm, ReservationForm
from api.sections import Cell, Section, tone
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.money import price_words
from broker.domain.holding.reservation import ReservationState
from broker.domain.reconciling.shortfalls import Shortfall

UNSETTLED = frozenset({ReservationState.PENDING, ReservationState.UNKNOWN})
PAUSE_S = 0.5
MOST_IDS = 4
"""Names of leases that are told of a fleet."""


def print_reservations(
    console: Console,
    rows: Sequence[ReservationForm],
    *,
    each: bool = False,
    money: Iterable[FleetForm] = (),
) -> None:
    """A table in the server's order, newest first, with a count by state; one line when there are none.

    The reservations of one fleet share a row unless ``each`` is set. ``money``: what fleets cost.
    """
    if not rows:
        console.print("no reservations")
        return
    now = datetime.now(UTC)
    alone = (line for row in rows for line in grouped_fleets([row], _offer, now))
    lines = tuple(alone) if each else grouped_fleets(rows, _offer, now)
    costs = {frozenset(one.reservation_ids): one for one in money}
    cells = [
        (
            Cell(_named(fleet), _under(fleet)),
            _state(fleet),
            Cell(
                f"{size_words(fleet, day_and_time)} × {_node(fleet.first)}",
                (
                    *filter(None, [steps_words(fleet), _price(fleet.first)]),
                    ", ".join(
                        filter(None, (f"{fleet.first.provider} {fleet.first.region}", fleet.first.mode))
                    ),
                    _span(fleet.start, fleet.end),
                    *_costs(costs.get(frozenset(row.reservation_id for row in fleet.rows))),
                    *_apart(fleet.first),
                    *_starts(fleet.first),
                    *filter(None, [fleet.first.reason]),
                ),
            ),
        )
        for fleet in lines
    ]
    columns = ("=reservation, workload,\nprovider's ids", "state", "what, price, when (UTC)")
    print_section(Section(columns, cells), console)
    console.print(count_words(lines, "reservation" if each else "fleet"), style="dim")


def _state(fleet: ReservedFleet[ReservationForm]) -> Cell:
    """What is promised, in lines that leave the other columns their width."""
    note = fleet.note(day_and_time).replace("from ", "from, ")
    more = [line for line in note.split(", ") if line]
    return Cell(fleet.word.replace("ordered at", "ordered\nat"), more, tone(fleet.word))


def _named(fleet: ReservedFleet[ReservationForm]) -> str:
    row = fleet.first
    return row.reservation_id if len(fleet.rows) == 1 else row.workload or row.reservation_id


def _under(fleet: ReservedFleet[ReservationForm]) -> list[str]:
    """The workload, unless it is named, then the provider's ids of its leases; of a fleet the first few."""
    which = [fleet.first.workload or "-"] if len(fleet.rows) == 1 else []
    ids = [reference for row in fleet.rows for reference in row.provider_references]
    more = len(ids) - MOST_IDS if len(fleet.rows) > 1 else 0
    return [*which, *ids[:MOST_IDS], f"and {more} more: --each"] if more > 0 else [*which, *ids]


def _costs(fleet: FleetForm | None) -> Iterator[str]:
    """What is owed until now and what is to come, unless nothing is known of either."""
    if fleet is not None and (fleet.owed_usd or fleet.expected_usd):
        yield f"{usd(fleet.owed_usd)} so far, {usd(fleet.expected_usd)} to come"


def _offer(row: ReservationForm) -> str:
    return row.offer_id


def print_shortfalls(console: Console, short: Sequence[Shortfall]) -> None:
    """One line for each stretch of time in which nodes are missing."""
    for one in short:
        again = "" if one.next_try_at is None else f"; asked again at {day_and_time(one.next_try_at)}"
        console.print(f"{one}{again}", style="bold yellow")


def _node(row: ReservationForm) -> str:
    return row.sku if row.gpu is None else f"{row.gpus_per_node} {row.gpu}"


def _price(row: ReservationForm) -> str:
    """The price of a node-hour, its source, and a warning if it is above the limit."""
    price, limit = row.price_usd_per_node_hour, row.limit_usd_per_node_hour
    if price is None:
        return ""
    basis = f" {row.price_basis}" if row.price_basis is not None else ""
    above = f", above the limit of {price_words(limit)}" if limit is not None and price > limit else ""
    return f"{price_words(price)}/node-h{basis}{above}"


def print_history(console: Console, entries: Sequence[AuditEntry]) -> None:
    """Every step in the order in which it happened: when, what, who, why, and the provider's request id."""
    rows = [
        (
            f"{day_and_time(entry.at)}:{entry.at:%S}",
            Cell(entry.action.removeprefix("reservation."), (who_words(entry.actor, entry.actor_name),)),
            Cell(
                entry.detail,
                [f"provider's request {entry.provider_request_id}"] if entry.provider_request_id else (),
            ),
        )
        for entry in entries
    ]
    print_section(Section(("=when (UTC)", "step, who", "why"), rows), console)


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
    if row.ssh_keys_left_out:
        yield left_out_words(row)
    if row.unwanted_usd:
        yield f"{hours(row.unwanted_hours or 0.0)} ({usd(row.unwanted_usd)}) unwanted"


def left_out_words(row: ReservationForm) -> str:
    """Which public keys open its machines, and which do not, because the seller takes fewer."""
    opened, left = (", ".join(keys) for keys in (row.ssh_keys, row.ssh_keys_left_out))
    count = plural(len(row.ssh_keys), "key")
    return f"{row.provider} opens a machine to {count} of an order: {opened}; not to {left}"


def _starts(row: ReservationForm) -> Iterator[str]:
    """How the starts of its units stand, each with the last line of what it said; equal ones once."""
    units: dict[str, list[str]] = {}
    for unit in row.units:
        if unit.startup is not None:
            said = (unit.startup.error or "").splitlines()[-1:]
            units.setdefault(": ".join([start_words(unit.startup), *said]), []).append(str(unit.ordinal))
    for words, ordinals in units.items():
        one = f" of unit{'s' if len(ordinals) > 1 else ''} {', '.join(ordinals)}"
        yield f"start{one if len(ordinals) < len(row.units) else ''}: {words}"


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
    say("not settled yet; the server goes on: see `broker reservations`")
    return ExitCode.TIMED_OUT

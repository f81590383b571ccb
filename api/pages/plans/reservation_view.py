"""Pure functions from a reservation and its history to what their pages show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

from api.figures import plural
from api.pages.parts.words import moment, seller, usd
from api.release_words import released_words
from api.reserved_fleets import ReservedFleet, most_nodes
from api.sections import Card
from broker.domain.basics.money import ZERO, price_words
from broker.domain.holding.lease_money import is_kept_above_limit, price_basis, rate_usd_per_node_hour
from broker.domain.holding.reservation import OPEN_STATES, Reservation, ReservationState
from broker.domain.spend.charging import credited_usd, final_usd, reservation_charges
from broker.domain.spend.spend import ChargeBasis, projection_end
from broker.services.holding.reserving_requests import PartRelease


def reservation_cards(lines: Sequence[ReservedFleet[Reservation]]) -> tuple[Card, ...]:
    """Cards of the listed fleets: open, usable, starting, and in trouble."""
    rows = [row for line in lines for row in line.rows if row.is_open]
    active = [row for row in rows if row.state is ReservationState.ACTIVE]
    by_state = Counter(line.state for line in lines if not line.first.not_tried)
    is_open = sum(by_state[state] for state in OPEN_STATES)
    ahead = by_state[ReservationState.SCHEDULED] + by_state[ReservationState.HELD]
    trouble = by_state[ReservationState.UNKNOWN] + by_state[ReservationState.FAILED]
    at_once = f"{plural(most_nodes(rows), 'node')} at most at once"
    steps = f"{plural(len(rows), 'reservation')}, " if len(rows) > is_open else ""
    return (
        Card("Open fleets", f"{is_open:,}", f"{steps}{at_once}", lead=True),
        Card(
            "Usable now",
            f"{by_state[ReservationState.ACTIVE]:,}",
            plural(sum(row.nodes for row in active), "node"),
        ),
        Card("Still to begin", f"{ahead:,}", "ordered or scheduled"),
        Card("Failed or unclear", f"{trouble:,}", "of those listed", tone="bad" if trouble else ""),
    )


def line_id(fleet: ReservedFleet[Reservation]) -> str:
    """A name of its line on the page, which stays the same while the fleet is open."""
    first = fleet.first
    parts = [first.plan_id or first.reservation_id, first.workload or "", first.offer.offer_id]
    if first.state not in OPEN_STATES:
        parts.append(min(row.reservation_id for row in fleet.rows))
    return f"fleet-{sha256(json.dumps(parts).encode()).hexdigest()[:12]}"


def latest_change(rows: Sequence[Reservation]) -> str:
    """The last thing that happened to any of ``rows``, in a sentence; empty without rows."""
    happened = [
        (at, row.reservation_id, row, words)
        for row in rows
        for at, words in (
            (row.created_at, "was reserved"),
            (row.active_at, "became usable"),
            (row.tried_at, "was refused by its seller"),
            (row.released_at, "was released"),
        )
        if at is not None
    ]
    if not happened:
        return ""
    at, _, row, words = max(happened, key=lambda one: one[:2])
    what = f"{row.workload or 'An order'}, {plural(row.nodes, 'node')} at {seller(row.offer.provider)},"
    return f"Latest change: {what} {words} at {moment(at)}."


def money_card(reservation: Reservation, now: datetime) -> tuple[Card, ...]:
    """The card with what is owed already and what is expected."""
    charges = reservation_charges((reservation,), {}, now, until=projection_end(None, now))
    owed = sum((c.usd for c in charges if c.basis is ChargeBasis.ACTUAL), ZERO)
    to_come = sum((c.usd for c in charges if c.basis is ChargeBasis.PROJECTED), ZERO)
    price = f"{price_words(rate_usd_per_node_hour(reservation))} a node and hour, {price_basis(reservation)}"
    above = ", above its limit" if is_kept_above_limit(reservation) else ""
    to_its_end = "until its end" if reservation.end else "this month, until released"
    return (
        Card("Owed so far", usd(owed), f"{price}{above}", lead=True),
        Card("Still to come", usd(to_come), to_its_end),
        Card("Capacity", plural(reservation.nodes, "node"), _gpus(reservation)),
    )


def gone_words(reservation: Reservation) -> str:
    """What came back with its release; empty before, and if nothing was bought."""
    total = final_usd(reservation)
    if total is None or not reservation.provider_references:
        return ""
    return released_words(credited_usd(reservation) or ZERO, total)


def failed_words(found: PartRelease) -> str:
    """How many releases were asked for, and which failed, each with the reason."""
    whole = len(found.asked) + len(found.failed)
    each = "; ".join(f"{row.reservation_id}: {error}" for row, error in found.failed)
    return f"release asked for {len(found.asked)} of {plural(whole, 'reservation')}; not for {each}"


def progress_words(open_rows: Sequence[Reservation], releasing: int | None) -> tuple[str, bool]:
    """How far the reserving of a plan is, and whether it is done; with ``releasing``, of how many the release
    was asked for, how far that is.
    """
    states = Counter(row.state for row in open_rows)
    if releasing is not None:
        whole = max(releasing, len(open_rows))
        asked = whole - len(open_rows) + states[ReservationState.RELEASING]
        gone = whole - len(open_rows)
        return f"{asked:,} of {whole:,} released, {gone:,} seen gone at their sellers", gone == whole
    if not open_rows:
        return "Checking prices, stock and budgets", False
    pending = states[ReservationState.PENDING]
    later = sum(row.state is ReservationState.SCHEDULED and not row.provider_references for row in open_rows)
    now = len(open_rows) - later
    bought = f"{now - pending:,} of {plural(now, 'order')} placed" if now else "Nothing is ordered now"
    return f"{bought}; ordered at their start: {later:,}" if later else bought, not pending


def _gpus(reservation: Reservation) -> str:
    sku = reservation.offer.sku
    return f"{reservation.nodes * sku.gpus_per_node} × {sku.gpu}"

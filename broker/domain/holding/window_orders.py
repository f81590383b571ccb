"""Validation of an order for a single offer: node count, times, and the provider's grid."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from broker.domain.basics.errors import Conflict, FieldProblem
from broker.domain.basics.window import Segment, Window, Wish, instant_words
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import Offer, WindowKind, WindowTerms
from broker.domain.market.window_grid import first_start, hours_words, snap_outward


def default_window(
    offer: Offer, start: datetime | None, end: datetime | None, now: datetime
) -> tuple[datetime, datetime | None]:
    """``start`` and ``end`` with defaults: the only segment of the offer's window, else ``now`` as the start.

    A window that begins when capacity appears starts after its lead time, on the grid.
    """
    terms = offer.window
    if terms is not None and start is None and end is None and len(terms.segments) == 1:
        return terms.segments[0].start, terms.segments[0].end
    if terms is not None and terms.waits and start is None:
        return first_start(now + timedelta(hours=terms.lead_hours), terms), end
    return start or now, end


def snapped_outward(intent: Intent) -> Intent:
    """``intent`` over the shortest window on sale that covers it; unchanged if there is none."""
    terms, wish = intent.offer.window, Wish(intent.start, intent.end).window
    found = snap_outward(wish, terms) if terms is not None and wish is not None else None
    return intent if found is None else replace(intent, start=found.window.start, end=found.window.end)


def find_order_problems(intent: Intent, now: datetime, slack: timedelta) -> tuple[FieldProblem, ...]:
    """Every problem of ``intent``. A start up to ``slack`` before ``now`` is accepted."""
    found = []
    if intent.nodes < 1:
        found.append(FieldProblem("/nodes", str(intent.nodes), "at least 1"))
    stock = intent.offer.stock.nodes
    if stock is not None and intent.nodes > stock:
        found.append(FieldProblem("/nodes", str(intent.nodes), f"at most the provider's stock of {stock}"))
    if intent.end is not None and intent.end <= max(intent.start, now):
        found.append(FieldProblem("/end", instant_words(intent.end), "a time after start and after now"))
    elif intent.offer.window is not None:
        found.extend(_window_problems(intent, intent.offer.window, now))
    elif intent.start < now - slack:
        found.append(
            FieldProblem("/start", instant_words(intent.start), f"{instant_words(now)} (now) or later")
        )
    return tuple(found)


def require_extensible(reservation: Reservation) -> None:
    """Raises Conflict, with what to do instead, if ``reservation`` cannot be extended."""
    name = f"reservation {reservation.reservation_id}"
    if not reservation.is_open or reservation.state is ReservationState.RELEASING:
        raise Conflict(
            f"{name} is {reservation.state} and cannot be extended; "
            f"reserve offer {reservation.offer.offer_id} again"
        )
    if reservation.end is None:
        raise Conflict(f"{name} has no end and lasts until it is released; there is nothing to extend")
    if reservation.offer.window is not None:
        raise Conflict(
            f"{name} is a window, which its provider does not extend; make a second reservation of offer "
            f"{reservation.offer.offer_id} from {instant_words(reservation.end)} on"
        )


def _window_problems(intent: Intent, terms: WindowTerms, now: datetime) -> list[FieldProblem]:
    if intent.end is None:
        return [FieldProblem("/end", "nothing", "an end, because this offer is sold in windows")]
    wanted = Window(intent.start, intent.end)
    found = [] if terms.sells(intent.nodes) else [_count_problem(intent.nodes, terms)]
    if terms.kind is WindowKind.LISTED:
        return [*found, *_listed_problems(wanted, intent.nodes, terms)]
    if intent.start < now + timedelta(hours=terms.lead_hours):
        lead = f"a start at least {terms.lead_hours} h after now ({instant_words(now)})"
        expected = lead if terms.lead_hours else f"{instant_words(now)} (now) or later"
        found.append(FieldProblem("/start", instant_words(intent.start), expected))
    if terms.segments and not _is_free(wanted, intent.nodes, terms.segments):
        free = ", ".join(_words(segment) for segment in terms.segments[:5])
        found.append(FieldProblem("/start", instant_words(intent.start), f"a window within {free}"))
    off_grid = _grid_problems(wanted, terms)
    if off_grid:
        off_grid[-1] = replace(off_grid[-1], expected=f"{off_grid[-1].expected}{_way_out(wanted, terms)}")
    return [*found, *off_grid]


def _way_out(wanted: Window, terms: WindowTerms) -> str:
    snapped = snap_outward(wanted, terms)
    if snapped is None:
        return ""
    window = snapped.window
    return (
        f"; the window {instant_words(window.start)} to {instant_words(window.end)} covers the requested time"
    )


def _count_problem(nodes: int, terms: WindowTerms) -> FieldProblem:
    least = terms.least_sold(nodes)
    hint = "" if least is None else f"; the next larger count is {least}"
    return FieldProblem("/nodes", str(nodes), f"{terms.counts_in_words}, as this provider sells{hint}")


def _listed_problems(wanted: Window, nodes: int, terms: WindowTerms) -> list[FieldProblem]:
    sold = [segment for segment in terms.segments if segment.window == wanted]
    if not sold:
        listed = ", ".join(_words(segment) for segment in terms.segments[:5])
        return [FieldProblem("/start", instant_words(wanted.start), f"a whole listed window: {listed}")]
    if nodes > sold[0].nodes:
        return [FieldProblem("/nodes", str(nodes), f"at most {sold[0].nodes} in that window")]
    return []


def _grid_problems(wanted: Window, terms: WindowTerms) -> list[FieldProblem]:
    found = []
    midnight = wanted.start.replace(hour=0, minute=0, second=0, microsecond=0)
    anchor = midnight
    if terms.anchor_utc is not None:
        anchor = midnight.replace(hour=terms.anchor_utc.hour, minute=terms.anchor_utc.minute)
    step = timedelta(hours=terms.step_hours)
    if step and (wanted.start - anchor) % step:
        expected = f"a start on the grid of every {terms.step_hours} h from {anchor:%H:%M} UTC"
        found.append(FieldProblem("/start", instant_words(wanted.start), expected))
    if terms.durations_hours is None:
        if step and wanted.duration % step:
            expected = f"a duration that is a multiple of {terms.step_hours} h"
            found.append(FieldProblem("/end", f"{wanted.hours} h", expected))
    elif wanted.hours not in terms.durations_hours:
        expected = f"a duration of {hours_words(terms.durations_hours)}"
        found.append(FieldProblem("/end", f"{wanted.hours} h", expected))
    return found


def _is_free(wanted: Window, nodes: int, segments: tuple[Segment, ...]) -> bool:
    """Whether adjoining segments with enough nodes cover all of ``wanted``."""
    reached = wanted.start
    for segment in sorted(segments):
        if segment.nodes >= nodes and segment.start <= reached < segment.end:
            reached = segment.end
    return reached >= wanted.end


def _words(segment: Segment) -> str:
    return f"{instant_words(segment.start)} to {instant_words(segment.end)} ({segment.nodes} nodes)"

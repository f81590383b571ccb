"""What a wish for a single offer must be before it is sent: nodes, times, and the seller's grid."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from broker.domain.basics.errors import Conflict, FieldProblem
from broker.domain.basics.window import Segment, Window, Wish
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import Offer, WindowKind, WindowTerms
from broker.domain.market.window_grid import first_start, snap_outward


def default_window(
    offer: Offer, start: datetime | None, end: datetime | None, now: datetime
) -> tuple[datetime, datetime | None]:
    """The wished times with what was left out: now, or the one segment that a listed window sells.

    What begins when capacity appears starts as soon as its longest wait has passed.
    """
    terms = offer.window
    if terms is not None and start is None and end is None and len(terms.segments) == 1:
        return terms.segments[0].start, terms.segments[0].end
    if terms is not None and terms.waits and start is None:
        return first_start(now + timedelta(hours=terms.lead_hours), terms), end
    return start or now, end


def snapped_outward(intent: Intent) -> Intent:
    """``intent`` over the shortest window on sale that covers it; unchanged where there is none."""
    terms, wish = intent.offer.window, Wish(intent.start, intent.end).window
    found = snap_outward(wish, terms) if terms is not None and wish is not None else None
    return intent if found is None else replace(intent, start=found.window.start, end=found.window.end)


def find_order_problems(intent: Intent, now: datetime, slack: timedelta) -> tuple[FieldProblem, ...]:
    """What is wrong with ``intent``; a start up to ``slack`` ago counts as now."""
    found = []
    if intent.nodes < 1:
        found.append(FieldProblem("/nodes", str(intent.nodes), "at least 1"))
    stock = intent.offer.stock.nodes
    if stock is not None and intent.nodes > stock:
        found.append(FieldProblem("/nodes", str(intent.nodes), f"at most {stock}, the provider's stock"))
    if intent.end is not None and intent.end <= max(intent.start, now):
        found.append(FieldProblem("/end", intent.end.isoformat(), "an instant after start and after now"))
    elif intent.offer.window is not None:
        found.extend(_window_problems(intent, intent.offer.window, now))
    elif intent.start < now - slack:
        found.append(FieldProblem("/start", intent.start.isoformat(), f"not before now, {now.isoformat()}"))
    return tuple(found)


def require_extensible(reservation: Reservation) -> None:
    """Conflict, with the way out, for a reservation that cannot last longer."""
    name = f"reservation {reservation.reservation_id}"
    if not reservation.is_open or reservation.state is ReservationState.RELEASING:
        raise Conflict(f"{name} is {reservation.state}: reserve offer {reservation.offer.offer_id} again")
    if reservation.end is None:
        raise Conflict(f"{name} has no end: it lasts until it is released")
    if reservation.offer.window is not None:
        after = f"reserve offer {reservation.offer.offer_id} from {reservation.end.isoformat()} on beside it"
        raise Conflict(f"{name} is a window, which its seller does not lengthen: {after}")


def _window_problems(intent: Intent, terms: WindowTerms, now: datetime) -> list[FieldProblem]:
    if intent.end is None:
        return [FieldProblem("/end", "nothing", "the end of the window: this offer is sold by windows")]
    wanted = Window(intent.start, intent.end)
    found = [] if terms.sells(intent.nodes) else [_count_problem(intent.nodes, terms)]
    if terms.kind is WindowKind.LISTED:
        return [*found, *_listed_problems(wanted, intent.nodes, terms)]
    if intent.start < now + timedelta(hours=terms.lead_hours):
        lead = f"at least {terms.lead_hours} h from now, {now.isoformat()}"
        expected = lead if terms.lead_hours else f"not before now, {now.isoformat()}"
        found.append(FieldProblem("/start", intent.start.isoformat(), expected))
    if terms.segments and not _is_free(wanted, intent.nodes, terms.segments):
        free = ", ".join(_words(segment) for segment in terms.segments[:5])
        found.append(FieldProblem("/start", intent.start.isoformat(), f"a window within {free}"))
    off_grid = _grid_problems(wanted, terms)
    if off_grid:
        off_grid[-1] = replace(off_grid[-1], expected=f"{off_grid[-1].expected}{_way_out(wanted, terms)}")
    return [*found, *off_grid]


def _way_out(wanted: Window, terms: WindowTerms) -> str:
    snapped = snap_outward(wanted, terms)
    if snapped is None:
        return ""
    window = snapped.window
    return f"; {window.start.isoformat()} to {window.end.isoformat()} covers it"


def _count_problem(nodes: int, terms: WindowTerms) -> FieldProblem:
    least = terms.least_sold(nodes)
    hint = "" if least is None else f" (the next is {least})"
    return FieldProblem("/nodes", str(nodes), f"{terms.counts_in_words}{hint}: what this seller sells")


def _listed_problems(wanted: Window, nodes: int, terms: WindowTerms) -> list[FieldProblem]:
    sold = [segment for segment in terms.segments if segment.window == wanted]
    if not sold:
        listed = ", ".join(_words(segment) for segment in terms.segments[:5])
        return [FieldProblem("/start", wanted.start.isoformat(), f"one of the windows as sold: {listed}")]
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
        expected = f"every {terms.step_hours} h from {anchor:%H:%M} UTC"
        found.append(FieldProblem("/start", wanted.start.isoformat(), expected))
    if terms.durations_hours is None:
        if step and wanted.duration % step:
            found.append(FieldProblem("/end", f"{wanted.hours} h", f"a multiple of {terms.step_hours} h"))
    elif wanted.hours not in terms.durations_hours:
        allowed = ", ".join(f"{hours:g}" for hours in terms.durations_hours)
        found.append(FieldProblem("/end", f"{wanted.hours} h", f"a duration of {allowed} h"))
    return found


def _is_free(wanted: Window, nodes: int, segments: tuple[Segment, ...]) -> bool:
    """Whether touching segments with enough nodes cover all of ``wanted``."""
    reached = wanted.start
    for segment in sorted(segments):
        if segment.nodes >= nodes and segment.start <= reached < segment.end:
            reached = segment.end
    return reached >= wanted.end


def _words(segment: Segment) -> str:
    return f"{segment.start.isoformat()} to {segment.end.isoformat()} ({segment.nodes} nodes)"

"""Reserved windows as arrays: where a holding may begin, until when nodes are free, and how many.

A listed window (touching segments of one listing) is bought whole. Windows of kind ``slots``, ``orderbook``
and ``request`` are cut out of free rectangles, from a start on the seller's grid. W rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from broker.domain.basics.window import Segment
from broker.domain.market.offer import Offer, WindowKind, WindowTerms
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem

MICROSECOND, DAY = timedelta(microseconds=1), timedelta(days=1)
Row = tuple[int, int, int, bool, float]
"""Start, end of the free time, nodes, whether it is bought whole, and then the cost of a node."""
DurationTerms = tuple[tuple[float, ...] | None, float]


@dataclass(frozen=True, slots=True, eq=False)
class WindowRows:
    """Rows [W]. ``node_cost_usd``: price of one node for the whole of a listed window, else 0.

    ``duration_terms_of`` indexes ``duration_terms``: the durations on sale in hours, or None and the step
    between durations.
    """

    offer: Ints
    start_s: Ints
    free_until_s: Ints
    nodes: Ints
    whole: Bools
    node_cost_usd: Floats
    teardown_s: Ints
    duration_terms_of: Ints
    duration_terms: tuple[DurationTerms, ...]

    def __len__(self) -> int:
        return len(self.offer)


def window_rows(problem: Problem) -> WindowRows:
    """Every start that a window allows, except of windows that begin when capacity appears."""
    return problem.once(("windows",), lambda: _window_rows(problem))


def _window_rows(problem: Problem) -> WindowRows:
    rows: list[Row] = []
    offers: list[int] = []
    counts: list[int] = []
    for index in np.flatnonzero(problem.table.is_window & problem.allowed).tolist():
        terms = _terms(problem, index)
        if terms.waits:
            continue
        made = _listed_rows if terms.kind is WindowKind.LISTED else _cut_rows
        before = len(rows)
        rows.extend(made(problem, problem.table.offers[index], terms))
        if len(rows) > before:
            offers.append(index)
            counts.append(len(rows) - before)
    each = [_terms(problem, index) for index in offers]
    duration_terms: dict[DurationTerms, int] = {}
    numbers = [
        duration_terms.setdefault((t.durations_hours, t.step_hours), len(duration_terms)) for t in each
    ]
    return WindowRows(
        offer=np.repeat(np.array(offers, dtype=np.int64), counts),
        start_s=np.array([row[0] for row in rows], dtype=np.int64),
        free_until_s=np.array([row[1] for row in rows], dtype=np.int64),
        nodes=np.array([row[2] for row in rows], dtype=np.int64),
        whole=np.array([row[3] for row in rows], dtype=np.bool_),
        node_cost_usd=np.array([row[4] for row in rows], dtype=np.float64),
        teardown_s=np.repeat(np.array([terms.teardown_s for terms in each], dtype=np.int64), counts),
        duration_terms_of=np.repeat(np.array(numbers, dtype=np.int64), counts),
        duration_terms=tuple(duration_terms),
    )


def cut_duration_s(windows: WindowRows, rows: Ints, least_s: Floats) -> Floats:
    """Shortest duration on sale in each of ``rows`` that is at least ``least_s``; inf if there is none."""
    found = np.empty(len(rows))
    for number in np.unique(windows.duration_terms_of[rows]):
        here = windows.duration_terms_of[rows] == number
        found[here] = _shortest(windows.duration_terms[number], least_s[here])
    return found


def longest_cut_s(windows: WindowRows, rows: Ints, room_s: Floats, enough_s: Floats) -> Floats:
    """Shortest duration on sale in each of ``rows`` that is at least ``enough_s``; if that exceeds
    ``room_s``, the longest that fits. 0 if none fits.
    """
    found = np.minimum(cut_duration_s(windows, rows, enough_s), np.inf)
    for number in np.unique(windows.duration_terms_of[rows]):
        here = windows.duration_terms_of[rows] == number
        found[here] = np.where(
            found[here] <= room_s[here], found[here], _longest(windows.duration_terms[number], room_s[here])
        )
    return found


def _longest(terms: DurationTerms, room_s: Floats) -> Floats:
    durations, step_hours = terms
    if durations is None:
        step = step_hours * 3600
        stepped: Floats = np.floor(np.round(room_s / step, 9)) * step
        return stepped
    lengths = np.concatenate(([0.0], np.sort(np.array(durations, dtype=np.float64)) * 3600))
    chosen: Floats = lengths[np.searchsorted(lengths, room_s, side="right") - 1]
    return chosen


def usable_until_s(problem: Problem, offer: int, until_s: float) -> float:
    """The last second at which an offer that is bought until ``until_s`` can be used, before its teardown."""
    terms = problem.table.offers[offer].window
    return until_s if terms is None else until_s - terms.teardown_s


def waiting_offers(problem: Problem) -> Ints:
    """Allowed offers whose windows begin when capacity appears."""

    def found() -> Ints:
        offers = np.flatnonzero(problem.table.is_window & problem.allowed)
        return np.array([o for o in offers if _terms(problem, int(o)).waits], dtype=np.int64)

    return problem.once(("waiting",), found)


def waiting_duration_s(problem: Problem, offer: int, length_s: Floats) -> Floats:
    """Shortest duration on sale that holds ``length_s`` before the teardown; inf if there is none."""
    terms = _terms(problem, offer)
    return _shortest((terms.durations_hours, terms.step_hours), length_s + terms.teardown_s)


def _shortest(terms: DurationTerms, least_s: Floats) -> Floats:
    durations, step_hours = terms
    if durations is None:
        step = step_hours * 3600
        stepped: Floats = np.maximum(np.ceil(np.round(least_s / step, 9)), 1) * step
        return stepped
    lengths = np.append(np.sort(np.array(durations, dtype=np.float64)) * 3600, np.inf)
    chosen: Floats = lengths[np.minimum(np.searchsorted(lengths, least_s), len(lengths) - 1)]
    return chosen


def duration_terms_of(problem: Problem, offer: int) -> tuple[DurationTerms, int]:
    """The durations that a window offer has on sale, and its teardown in seconds."""
    terms = _terms(problem, offer)
    return (terms.durations_hours, terms.step_hours), terms.teardown_s


def waiting_start_s(problem: Problem, offer: int, first_s: int) -> int | None:
    """The first start of a window that begins when capacity appears, for work that may begin at ``first_s``.

    The order is placed the longest wait before; placed earlier, the window could begin and end before the
    work may. None if the horizon ends first, or if the offer begins on a fixed time.
    """
    terms = _terms(problem, offer)
    if not terms.waits:
        return None
    earliest = max(
        first_s + math.ceil(terms.longest_wait / timedelta(seconds=1)),
        problem.as_of_s + math.ceil(terms.lead_hours * 3600),
    )
    return next(iter(_grid(problem, terms, earliest, problem.end_s).tolist()), None)


def listed_spans(
    problem: Problem, offer: int, start_s: int, end_s: int, nodes: int
) -> list[tuple[int, int, int]]:
    """The listed segments that make up a window, each bought whole."""
    spans = []
    for segment in sorted(_terms(problem, offer).segments):
        a, b = _whole_seconds(problem, segment)
        if start_s <= a and b <= end_s and segment.nodes >= nodes:
            spans.append((a, b, nodes))
    return spans


def free_nodes_steps(problem: Problem, offer: int) -> list[tuple[int, int, int]]:
    """The window's own node limit as steps (start_s, end_s, nodes); empty if only the stock limits it."""
    terms = problem.table.offers[offer].window
    if terms is None or (terms.kind is WindowKind.REQUEST and not terms.segments):
        return []
    return [(*_whole_seconds(problem, segment), segment.nodes) for segment in sorted(terms.segments)]


def _terms(problem: Problem, offer: int) -> WindowTerms:
    terms = problem.table.offers[offer].window
    assert terms is not None
    return terms


def _whole_seconds(problem: Problem, segment: Segment) -> tuple[int, int]:
    return math.ceil(problem.seconds(segment.start)), math.floor(problem.seconds(segment.end))


def _rectangles(
    problem: Problem, segments: Sequence[Segment], joined: bool
) -> Iterator[tuple[int, int, int]]:
    """Maximal free rectangles of touching segments, for each node count that occurs."""
    for least in sorted({segment.nodes for segment in segments}):
        start = end = None
        for segment in sorted(s for s in segments if s.nodes >= least):
            a, b = _whole_seconds(problem, segment)
            if start is not None and end == a and joined:
                end = b
                continue
            if start is not None and end is not None:
                yield start, end, least
            start, end = a, b
        if start is not None and end is not None:
            yield start, end, least


def _listed_rows(problem: Problem, offer: Offer, terms: WindowTerms) -> Iterator[Row]:
    whole = sum(s.nodes * s.hours for s in terms.segments)
    upfront = offer.upfront_usd
    per_hour = float(offer.price_usd_per_node_hour) if upfront is None else float(upfront) / whole
    stretches = set(_rectangles(problem, terms.segments, joined=terms.teardown_s == 0))
    stretches |= {(*_whole_seconds(problem, s), s.nodes) for s in terms.segments}
    for start, end, nodes in sorted(stretches):
        if end > problem.t0_s:
            yield start, end, nodes, True, per_hour * (end - start) / 3600


def _cut_rows(problem: Problem, offer: Offer, terms: WindowTerms) -> Iterator[Row]:
    earliest = max(problem.t0_s, problem.as_of_s + math.ceil(terms.lead_hours * 3600))
    for start, end, nodes in sorted(set(_free(problem, offer, terms))):
        for at in _grid(problem, terms, max(start, earliest), min(end, problem.end_s)).tolist():
            yield at, end, nodes, False, 0.0


def _free(problem: Problem, offer: Offer, terms: WindowTerms) -> Iterator[tuple[int, int, int]]:
    if terms.kind is WindowKind.REQUEST and not terms.segments:
        nodes = problem.table.stock_nodes[problem.index_of[offer.sized_id]]
        yield problem.t0_s, 2 * problem.end_s, int(nodes)
        return
    yield from _rectangles(problem, terms.segments, joined=True)


def _grid(problem: Problem, terms: WindowTerms, first_s: int, last_s: int) -> Ints:
    """Starts in [first_s, last_s) on the seller's daily grid (from midnight UTC if the seller has no
    anchor).
    """
    anchor = timedelta(0)
    if terms.anchor_utc is not None:
        anchor = timedelta(hours=terms.anchor_utc.hour, minutes=terms.anchor_utc.minute)
    step = timedelta(hours=terms.step_hours)
    midnight = (_midnight(problem.instant(first_s)) - problem.origin) // MICROSECOND
    days = np.arange(midnight, last_s * 1_000_000, DAY // MICROSECOND)
    of_day = np.arange((anchor % step) // MICROSECOND, DAY // MICROSECOND, step // MICROSECOND)
    starts = (days[:, None] + of_day[None, :]).reshape(-1)
    whole: Ints = starts[starts % 1_000_000 == 0] // 1_000_000
    return whole[(whole >= first_s) & (whole < last_s)]


def _midnight(instant: datetime) -> datetime:
    return instant.replace(hour=0, minute=0, second=0, microsecond=0)

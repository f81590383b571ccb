"""A placement's account of its window: when its work runs, what was bought, what is paid without use."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import CENT
from broker.domain.market.offer import Offer, WindowBilling, WindowTerms
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import Batch, Training, Workload
from optimizer.placement.rules.case import Case, held_hours, run_end, usable_stretches

NEAR = timedelta(seconds=1)
HOURS_TOLERANCE = 1e-3


def violations(case: Case) -> Iterator[str]:
    """Wrong figures for windows, and figures where there is no window."""
    for where, placement, workload, offer in case.known():
        use = placement.window_use
        if use is None:
            continue
        if offer.window is None:
            yield f"{where}: window_use is given, expected none outside a window"
            continue
        yield from _bounds(where, placement, offer.window)
        yield from _work(case, where, placement, workload, offer)


def _bounds(where: str, placement: Placement, terms: WindowTerms) -> Iterator[str]:
    use = placement.window_use
    assert use is not None
    start, end = min(s.start for s in placement.segments), max(s.end for s in placement.segments)
    told = {
        "bought": ((use.bought.start, use.bought.end), (start, end)),
        "usable": ((use.usable.start, use.usable.end), (start, end - timedelta(seconds=terms.teardown_s))),
    }
    for name, (found, expected) in told.items():
        if found != expected:
            yield f"{where}: window_use {name} is {_words(*found)}, expected {_words(*expected)}"
    billed = WindowBilling.AT_ORDER if terms.is_prepaid else WindowBilling.FROM_START
    if use.billed is not billed:
        yield f"{where}: window_use billed is {use.billed}, expected {billed}"


def _work(case: Case, where: str, placement: Placement, workload: Workload, offer: Offer) -> Iterator[str]:
    use = placement.window_use
    assert use is not None
    expected = _wanted(case, placement, workload, offer)
    if expected is None:
        return
    start, end = expected
    if abs(use.wanted.start - start) > NEAR or abs(use.wanted.end - end) > NEAR:
        found = _words(use.wanted.start, use.wanted.end)
        yield f"{where}: window_use wanted is {found}, expected {_words(start, end)}"
    held = [(s, (s.end - s.start).total_seconds()) for s in placement.segments]
    idle = [(s, seconds - _shared_s(s.start, s.end, start, end)) for s, seconds in held]
    hours = sum(seconds for _, seconds in idle) / 3600
    if abs(use.unwanted_hours - hours) > HOURS_TOLERANCE:
        yield f"{where}: window_use unwanted_hours is {use.unwanted_hours}, expected {hours}"
    share = sum(s.nodes * seconds for s, seconds in idle) / sum(s.nodes * seconds for s, seconds in held)
    usd = placement.capacity_usd * Decimal(share)
    if abs(use.unwanted_usd - usd) > 2 * CENT:
        yield f"{where}: window_use unwanted_usd is {use.unwanted_usd}, expected {usd:.2f}"


def _wanted(
    case: Case, placement: Placement, workload: Workload, offer: Offer
) -> tuple[datetime, datetime] | None:
    """First and last instant of the work; None if another rule already reports that there is none."""
    if not isinstance(workload, Training | Batch):
        return None
    not_before = case.not_before(workload, offer)
    stretches = usable_stretches(placement, offer, not_before)
    if not stretches:
        return None
    begin = stretches[0][0]
    if placement.recourse is not None:
        return begin, stretches[-1][1]
    if isinstance(workload, Training):
        end = run_end(placement, offer, not_before)
        return None if end is None else (begin, end)
    sure = placement.estimate.at_confidence.get("hours")
    return begin, begin + timedelta(hours=held_hours(placement, workload, offer) if sure is None else sure)


def _shared_s(start: datetime, end: datetime, first: datetime, last: datetime) -> float:
    return max(0.0, (min(end, last) - max(start, first)).total_seconds())


def _words(start: datetime, end: datetime) -> str:
    return f"{start.isoformat()} to {end.isoformat()}"

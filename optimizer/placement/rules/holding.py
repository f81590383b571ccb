"""What is held is on sale: windows on their grid, other offers within the allowed time, stock shared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from broker.domain.basics.window import Segment
from broker.domain.market.offer import Offer, StockLevel, Tier, WindowKind, WindowTerms, fewest_gpus
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import Serving, Training, Workload
from optimizer.placement.rules.case import Case, reserved

LATE_LIMIT = timedelta(hours=24)


def violations(case: Case) -> Iterator[str]:
    """Violations of windows, time limits and stock."""
    for where, placement, workload, offer in case.known():
        if offer.window is not None:
            yield from _counts(where, placement, offer.window)
        if offer.window is None:
            yield from _inside_time(case, where, placement, workload, offer)
        elif offer.is_sold_whole:
            yield from _listed(where, placement, offer.window)
        else:
            yield from _cut(case, where, placement, offer.window)
            yield from _waits(case, where, placement, workload, offer.window)
    yield from _stock(case)


def _counts(where: str, placement: Placement, terms: WindowTerms) -> Iterator[str]:
    """Each purchase has a node count that the seller sells."""
    node_counts = terms.node_counts
    for segment in placement.segments:
        if segment.nodes % terms.lot_nodes:
            yield f"{where}: {segment.nodes} nodes, sold by {terms.lot_nodes}"
        elif node_counts is not None and segment.nodes not in node_counts:
            yield f"{where}: {segment.nodes} nodes, sold are {', '.join(map(str, node_counts))}"


def _inside_time(
    case: Case, where: str, placement: Placement, workload: Workload, offer: Offer
) -> Iterator[str]:
    first, last = _allowed_time(case, workload)
    start, end = placement.segments[0].start, max(s.end for s in placement.segments)
    if start < first:
        yield f"{where}: held from {start.isoformat()}, allowed from {first.isoformat()}"
    if end > last:
        yield f"{where}: held until {end.isoformat()}, allowed until {last.isoformat()}"
    if offer.tier is Tier.WINDOW:
        yield f"{where}: a window offer without window terms cannot be bought"


def _allowed_time(case: Case, workload: Workload) -> tuple[datetime, datetime]:
    if isinstance(workload, Serving):
        return case.earliest, case.request.horizon.end
    last = workload.deadline
    if isinstance(workload, Training) and workload.late_usd_per_hour is not None:
        last += LATE_LIMIT
    # A segment ends on a whole second, so rounding up may exceed the deadline by less than one second.
    return max(workload.earliest_start, case.earliest), last + timedelta(seconds=1)


def _listed(where: str, placement: Placement, terms: WindowTerms) -> Iterator[str]:
    sold = {(s.start, s.end): s.nodes for s in terms.segments}
    for segment in placement.segments:
        nodes = sold.get((segment.start, segment.end))
        if nodes is None:
            yield f"{where}: {_span(segment)} is not one of the listed segments"
        elif segment.nodes > nodes:
            yield f"{where}: {segment.nodes} nodes of a listed segment of {nodes}"


def _cut(case: Case, where: str, placement: Placement, terms: WindowTerms) -> Iterator[str]:
    lead = case.plan.as_of + timedelta(hours=terms.lead_hours)
    for segment in placement.segments:
        if segment.start < lead:
            yield f"{where}: starts {segment.start.isoformat()}, lead time allows {lead.isoformat()}"
        if not _on_grid(segment.start, terms):
            yield f"{where}: start {segment.start.isoformat()} is off the grid"
        if not _duration_sold(segment, terms):
            yield f"{where}: {segment.hours:g} h is not a duration that is sold"
        if terms.kind is not WindowKind.REQUEST and not _inside_free(segment, terms.segments):
            yield f"{where}: {_span(segment)} with {segment.nodes} nodes is not free"


def _waits(
    case: Case, where: str, placement: Placement, workload: Workload, terms: WindowTerms
) -> Iterator[str]:
    """A window that begins when capacity appears is ordered so late that it cannot begin before the
    work may.
    """
    if not terms.waits or isinstance(workload, Serving):
        return
    may_begin = max(workload.earliest_start, case.earliest)
    for segment in placement.segments:
        if segment.start - may_begin < timedelta(hours=terms.longest_wait_hours):
            yield (
                f"{where}: starts {segment.start.isoformat()}, but capacity may appear "
                f"{terms.longest_wait_hours:g} h sooner, before the work may begin"
            )


def _on_grid(start: datetime, terms: WindowTerms) -> bool:
    anchor = start.replace(hour=0, minute=0, second=0, microsecond=0)
    if terms.anchor_utc is not None:
        anchor = anchor.replace(hour=terms.anchor_utc.hour, minute=terms.anchor_utc.minute)
    step = timedelta(hours=terms.step_hours)
    return (start - anchor) % step == timedelta(0)


def _duration_sold(segment: Segment, terms: WindowTerms) -> bool:
    if terms.durations_hours is not None:
        return any(abs(segment.hours - hours) < 1e-9 for hours in terms.durations_hours)
    return (segment.end - segment.start) % timedelta(hours=terms.step_hours) == timedelta(0)


def _inside_free(segment: Segment, free: Sequence[Segment]) -> bool:
    covered = segment.start
    for rectangle in sorted(free):
        if rectangle.nodes >= segment.nodes and rectangle.start <= covered < rectangle.end:
            covered = rectangle.end
    return covered >= segment.end


def _stock(case: Case) -> Iterator[str]:
    held: defaultdict[str, list[Segment]] = defaultdict(list)
    for _, placement, _, offer in case.with_recourses():
        held[offer.offer_id].extend(reserved(placement, offer))
    yield from _pools(case, held)
    for offer_id, segments in held.items():
        offer = case.offers[offer_id]
        limit = 0 if offer.stock.level is StockLevel.NONE else offer.stock.nodes
        if limit is not None:
            yield from _over(offer_id, segments, limit, "in stock")
        if offer.window is not None and offer.window.kind is not WindowKind.REQUEST:
            for sold in offer.window.segments:
                within = [s for s in segments if s.start < sold.end and sold.start < s.end]
                clipped = [Segment(max(s.start, sold.start), min(s.end, sold.end), s.nodes) for s in within]
                yield from _over(offer_id, clipped, sold.nodes, "in its window")


def _pools(case: Case, held: Mapping[str, Sequence[Segment]]) -> Iterator[str]:
    """Limits of GPUs that several offers share. The fewest GPUs that any of them states count; if none does,
    there is no limit.
    """
    said: defaultdict[str, list[int | None]] = defaultdict(list)
    taken: defaultdict[str, list[Segment]] = defaultdict(list)
    for offer in case.offers.values():
        pool = offer.stock.pool
        if pool is not None:
            said[pool.pool_id].append(pool.gpus)
            size = offer.sku.gpus_per_node
            taken[pool.pool_id] += [replace(s, nodes=s.nodes * size) for s in held.get(offer.offer_id, ())]
    for pool_id, segments in taken.items():
        gpus = fewest_gpus(said[pool_id])
        if gpus is not None:
            yield from _over(pool_id, segments, gpus, "in the pool", "GPUs")


def _over(
    offer_id: str, segments: Sequence[Segment], limit: int, what: str, unit: str = "nodes"
) -> Iterator[str]:
    change: defaultdict[datetime, int] = defaultdict(int)
    for segment in segments:
        change[segment.start] += segment.nodes
        change[segment.end] -= segment.nodes
    nodes = 0
    for instant in sorted(change):
        nodes += change[instant]
        if nodes > limit:
            yield f"offer {offer_id}: {nodes} {unit} held at {instant.isoformat()}, {limit} {what}"
            return


def _span(segment: Segment) -> str:
    return f"{segment.start.isoformat()} to {segment.end.isoformat()}"

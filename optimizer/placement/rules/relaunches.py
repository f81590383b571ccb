"""Nodes that a service orders while it runs are told, with their chance and their expected cost.

What the next best costs more is taken from the search, as the earliest start of a waiting service is: it is a
statement about the whole market. All else is worked out here again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from broker.domain.basics.node_launch import COLD_START
from broker.domain.market.launch_chance import launch_chance_of
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement, relaunches_usd
from broker.domain.planning.workload import Serving
from optimizer.placement.rules.case import Case

SECOND = timedelta(seconds=1)


def violations(case: Case) -> Iterator[str]:
    """Orders that are repeated and not told, or told wrongly; and a wrong sum of their expected cost."""
    for where, placement, workload, offer in case.known():
        again = _ordered_again(case, placement, workload) if isinstance(workload, Serving) else 0
        told = placement.relaunch
        if told is not None and not again:
            yield f"{where}: relaunch is given, but no node of it is ordered while its service runs"
        elif told is None and again:
            yield f"{where}: {again} nodes are ordered while it runs, but relaunch is missing"
        elif told is not None:
            yield from _told(case, where, placement, offer, again)
    whole = relaunches_usd(case.plan.placements)
    if case.plan.relaunch_usd != whole:
        yield f"relaunch_usd is {case.plan.relaunch_usd}, the relaunches sum to {whole}"


def _ordered_again(case: Case, placement: Placement, service: Serving) -> int:
    """Nodes that a service's placement orders later than as the service begins."""
    begin, cold = case.service_start(service), timedelta(seconds=placement.estimate[COLD_START])
    if begin is None:
        return 0
    first = begin if service.starts_after is not None else case.earliest
    count, held, until = 0, 0, None
    for segment in placement.segments:
        before = held if segment.start == until else 0
        at_once = segment.start <= first + SECOND or segment.start + cold <= begin + SECOND
        if segment.nodes > before and not at_once:
            count += segment.nodes - before
        held, until = segment.nodes, segment.end
    return count


def _told(case: Case, where: str, placement: Placement, offer: Offer, again: int) -> Iterator[str]:
    told, chance = placement.relaunch, launch_chance_of(offer)
    assert told is not None
    if told.starts != again:
        yield f"{where}: relaunch starts is {told.starts}, {again} nodes are ordered while it runs"
    if told.chance != chance:
        yield f"{where}: relaunch chance is {told.chance}, expected {chance}"
    if told.offer_id is not None and (told.offer_id not in case.offers or told.offer_id == offer.offer_id):
        yield f"{where}: relaunch offer_id is {told.offer_id!r}, expected another offer of the market"
    if told.more_usd < 0 or told.missing_usd < 0:
        yield f"{where}: relaunch costs {told.more_usd} and {told.missing_usd}, expected at least 0"

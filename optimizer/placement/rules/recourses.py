"""A run that its window or term may be too short for has a recourse, which is there, suffices, and costs what
the plan says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from broker.domain.basics.confidence import MEDIAN
from broker.domain.basics.money import CENT
from broker.domain.market.offer import Offer, is_held_on
from broker.domain.planning.plan import Placement, recourses_usd
from broker.domain.planning.recourse import Recourse
from broker.domain.planning.workload import Training, Workload
from optimizer.placement.rules.case import Case

RELATIVE_TOLERANCE = 1e-9
CHANCE_TOLERANCE = 1.5e-6


def violations(case: Case) -> Iterator[str]:
    """Recourses that may not be, are not there, or are told wrongly; and a wrong sum of them."""
    for where, placement, workload, offer in case.known():
        if placement.recourse is not None:
            yield from _told(case, where, placement, workload, offer, placement.recourse)
    whole = recourses_usd(case.plan.placements)
    if case.plan.recourse_usd != whole:
        yield f"recourse_usd is {case.plan.recourse_usd}, the recourses sum to {whole}"


def _told(
    case: Case, where: str, placement: Placement, workload: Workload, offer: Offer, told: Recourse
) -> Iterator[str]:
    if not isinstance(workload, Training) or not workload.interruptible:
        yield f"{where}: recourse is given, expected none but for an interruptible training run"
        return
    if workload.planned_confidence == MEDIAN or placement.work_share != 1.0 or is_held_on(offer):
        yield f"{where}: recourse is given, expected none but for a whole run with a confidence on what ends"
        return
    found = case.elsewhere(placement, workload, offer)
    other = case.offers.get(told.offer_id)
    if found is None or other is None or not is_held_on(other):
        yield (
            f"{where}: recourse on {told.offer_id!r}, expected an offer by the hour that holds the rest of a "
            "run whose median its window holds"
        )
        return
    gpus = placement.nodes * other.sku.gpus_per_node
    if placement.nodes > other.max_nodes_in_one_run:
        yield f"{where}: recourse on {placement.nodes} nodes, the fabric joins {other.max_nodes_in_one_run}"
    if gpus < workload.gpus.min or (workload.gpus.max is not None and gpus > workload.gpus.max):
        asked = f"{workload.gpus.min} to {workload.gpus.max or 'any'}"
        yield f"{where}: recourse on {gpus} GPUs, asked for {asked}"
    if abs(told.chance - found.rest.chance) > CHANCE_TOLERANCE:
        yield f"{where}: recourse chance is {told.chance}, expected {found.rest.chance}"
    if not math.isclose(told.hours, found.rest.mean_hours, rel_tol=RELATIVE_TOLERANCE):
        yield f"{where}: recourse hours is {told.hours}, expected {found.rest.mean_hours}"
    usd = found.usd(placement.nodes)
    if abs(told.usd - usd) > CENT:
        yield f"{where}: recourse usd is {told.usd}, expected {usd}"

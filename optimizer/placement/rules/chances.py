"""The chance that a workload of a plan is done in time, or meets its objective in every hour.

It counts what the performance core does not know of step times and rates. Errors are common to all parts of
a workload; that of a run or batch is its tightest part's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from broker.domain.basics.confidence import chance_below, quantile_factor
from broker.domain.basics.estimate import Estimate
from broker.domain.market.offer import Offer, is_held_on
from broker.domain.moving.moving_costs import checkpoint_gb
from broker.domain.planning.plan import Plan
from broker.domain.planning.transfer import Place
from broker.domain.planning.workload import Batch, Serving, Training, Workload
from optimizer.placement.rules.case import Case, Known, usable_stretches
from optimizer.placement.rules.serving import chance_of

RATE = "requests_per_s_per_replica"
DIGITS = 4
HOUR = timedelta(hours=1)


def with_chances(plan: Plan, case: Case) -> Plan:
    """The plan with the chance of each workload on each of its placements, to four digits."""
    known = chances(case)
    placements = (replace(one, chance=known.get(one.workload, one.chance)) for one in plan.placements)
    return replace(plan, placements=tuple(placements))


def chances(case: Case) -> Mapping[str, float]:
    """The chance of each placed workload, to four digits; only of those whose estimates have intervals."""
    found: dict[str, float] = {}
    for name, rows in case.placed.items():
        workload = rows[0][2]
        chance = chance_of(case, workload) if isinstance(workload, Serving) else _of_run(case, rows)
        if chance is not None:
            found[name] = round(chance, DIGITS)
    return found


def violations(case: Case) -> Iterator[str]:
    """Chances that differ from those of what is held; a plan of an older version does not tell any."""
    expected = chances(case)
    for where, placement, workload, _ in case.known():
        told, chance = placement.chance, expected.get(workload.name)
        if told is not None and (chance is None or abs(told - chance) > 1.5 * 10**-DIGITS):
            yield f"{where}: chance is {told}, expected {chance}"


def _of_run(case: Case, rows: Sequence[Known]) -> float | None:
    """The chance that every part is done in the time that it has."""
    left = [_available(case, row, after) for row, after in pairwise((*rows, None)) if row is not None]
    each = [
        _chance_of_hours(placement.estimate, workload, hours)
        for (_, placement, workload, _), hours in zip(rows, left, strict=True)
    ]
    return None if any(one is None for one in each) else min(one for one in each if one is not None)


def _available(case: Case, row: Known, after: Known | None) -> float:
    """Hours in which a part may work: until the next part, the deadline, or the end of what it holds."""
    _, placement, workload, offer = row
    assert isinstance(workload, Training | Batch)
    not_before = case.not_before(workload, offer)
    stretches = usable_stretches(placement, offer, not_before)
    if not stretches:
        return 0.0
    end = workload.deadline
    if isinstance(workload, Training) and after is not None:
        end = min(end, _begin_of(case, workload, offer, after))
    found = case.elsewhere(placement, workload, offer)
    if found is not None:
        until = min(end, found.offer.available_until or end)
        left = max(0.0, (until - found.begins_at) / HOUR - found.again_hours)
        return (stretches[0][1] - stretches[0][0]) / HOUR + left / found.work_ratio
    if not is_held_on(offer):
        return sum((min(last, end) - first) / HOUR for first, last in stretches if first < end)
    if offer.available_until is not None:
        end = min(end, offer.available_until)
    return (end - stretches[0][0]) / HOUR


def _begin_of(case: Case, run: Training, left: Offer, after: Known) -> datetime:
    """The latest end of a part with which the next one begins as planned."""
    _, placement, _, offer = after
    stretches = usable_stretches(placement, offer, case.not_before(run, offer))
    copied = case.terms.staging(Place.of(left), Place.of(offer), checkpoint_gb(run))
    return (stretches[0][0] if stretches else placement.segments[0].start) - copied


def _chance_of_hours(estimate: Estimate, workload: Workload, hours: float) -> float | None:
    """The chance that ``hours`` suffice. Only the work is uncertain, not the start-up before it."""
    median = estimate.value.get("hours")
    slower, faster = _sides(estimate, workload)
    if median is None or slower <= 0 or faster <= 0:
        return None
    factor = quantile_factor(slower, workload.planned_confidence)
    sure = estimate.at_confidence.get("hours")
    startup = 0.0 if sure is None or factor <= 1.0 else (median * factor - sure) / (factor - 1.0)
    startup = startup if startup < median else 0.0
    return chance_below((hours - startup) / (median - startup), slower if hours >= median else faster)


def _sides(estimate: Estimate, workload: Workload) -> tuple[float, float]:
    """P90 over the median and the median over P10, each less 1, of the time of a run or of a batch's work."""
    metric = "hours" if isinstance(workload, Training) else RATE
    high, low = estimate.high[metric] / estimate[metric] - 1.0, estimate[metric] / estimate.low[metric] - 1.0
    return (high, low) if metric == "hours" else (low, high)

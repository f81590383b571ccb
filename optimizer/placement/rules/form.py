"""A plan is well-formed: its names are known, its estimates complete. The other rules rely on that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise

from broker.domain.planning.plan import Placement
from broker.domain.planning.recourse import Recourse
from broker.domain.planning.relaunch import Relaunch
from broker.domain.planning.workload import Serving, Training, Workload
from optimizer.placement.rules.case import Case, label

RECOMPUTE = frozenset({"none", "selective", "full"})
TRAINING_METRICS = frozenset(
    {
        "step_s",
        "mfu",
        "tokens_per_s",
        "hours",
        "memory_gb_per_gpu",
        "communication_share",
        "checkpoint_share",
        "goodput",
    }
)
SERVING_METRICS = frozenset(
    {
        "requests_per_s_per_replica",
        "ttft_p95_ms",
        "itl_p95_ms",
        "tokens_per_s",
        "memory_gb_per_gpu",
        "kv_tokens",
        "usd_per_million_tokens",
        "cold_start_s",
    }
)


def violations(case: Case) -> Iterator[str]:
    """Unknown workloads and offers, empty placements, invalid layouts, incomplete estimates."""
    for index, placement in enumerate(case.plan.placements):
        where = label(index, placement)
        if placement.workload not in case.workloads:
            yield f"{where}: unknown workload {placement.workload!r}"
        if placement.offer_id not in case.offers:
            yield f"{where}: offer {placement.offer_id!r} is not in the market"
        if not placement.segments:
            yield f"{where}: holds nothing (no segments)"
        yield from _segments(where, placement)
        yield from _layout(where, placement)
        yield from _amounts(where, placement)
        yield from _recourse(where, placement.recourse)
        yield from _relaunch(where, placement.relaunch)
        if placement.workload in case.workloads:
            yield from _metrics(where, placement, case.workloads[placement.workload])
    for left_out in case.plan.unplaced:
        if left_out.workload not in case.workloads:
            yield f"unplaced: unknown workload {left_out.workload!r}"
    if case.plan.team != case.request.team:
        yield f"team is {case.plan.team!r}, expected {case.request.team!r}"


def _amounts(where: str, placement: Placement) -> Iterator[str]:
    amounts: dict[str, object] = {"disk_gb": placement.disk_gb, "memory_gb": placement.memory_gb}
    for name, gb in amounts.items():
        if gb is not None and not (isinstance(gb, int | float) and math.isfinite(gb) and gb > 0):
            yield f"{where}: {name} is {gb!r}, expected a positive number"
    live: object = placement.live_from
    if live is not None and not (isinstance(live, datetime) and live.tzinfo is not None):
        yield f"{where}: live_from is {live!r}, expected a time in UTC"


def _recourse(where: str, told: object) -> Iterator[str]:
    if told is None:
        return
    if not isinstance(told, Recourse):
        yield f"{where}: recourse is {told!r}, expected chance, offer_id, hours and usd"
    elif not (0 <= told.chance <= 1 and 0 <= told.hours < math.inf and told.usd.is_finite()):
        yield f"{where}: recourse has chance {told.chance}, hours {told.hours} and usd {told.usd}"


def _relaunch(where: str, told: object) -> Iterator[str]:
    if told is None:
        return
    if not isinstance(told, Relaunch):
        yield f"{where}: relaunch is {told!r}, expected starts, chance, offer_id, more_usd and missing_usd"
    elif not (0 <= told.chance <= 1 and told.more_usd.is_finite() and told.missing_usd.is_finite()):
        yield f"{where}: relaunch has chance {told.chance}, {told.more_usd} and {told.missing_usd} USD"


def _layout(where: str, placement: Placement) -> Iterator[str]:
    layout = placement.parallelism
    degrees = (layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.micro_batch)
    if min(degrees) < 1:
        yield f"{where}: parallelism has a degree below 1"
    if layout.recompute not in RECOMPUTE:
        yield f"{where}: recompute is {layout.recompute!r}, expected {', '.join(sorted(RECOMPUTE))}"
    if placement.gpus_per_replica < 1 or placement.replicas < 1:
        yield f"{where}: replicas or gpus_per_replica is below 1"


def _metrics(where: str, placement: Placement, workload: Workload) -> Iterator[str]:
    needed = _needed(workload)
    told = placement.estimate
    progress = "hours" if isinstance(workload, Training) else "requests_per_s_per_replica"
    if told.value.get(progress) == 0:
        yield f"{where}: estimate {progress} is 0, expected more"
    for name, metrics in (("value", told.value), ("low", told.low), ("high", told.high)):
        missing = needed - metrics.keys()
        if missing:
            yield f"{where}: estimate {name} lacks {', '.join(sorted(missing))}"
        yield from _senseless(where, name, metrics)
    yield from _senseless(where, "at_confidence", told.at_confidence)
    others: dict[str, object] = {"expected_hours": told.expected_hours, "chance": placement.chance}
    for name, number in others.items():
        if number is not None and not (isinstance(number, int | float) and math.isfinite(number)):
            yield f"{where}: {name} is {number!r}, expected a number"


def _senseless(where: str, name: str, metrics: Mapping[str, float]) -> Iterator[str]:
    senseless = sorted(m for m, number in metrics.items() if not (math.isfinite(number) and number >= 0))
    if senseless:
        yield f"{where}: estimate {name} of {', '.join(senseless)} is not a number of at least 0"


def _needed(workload: Workload) -> frozenset[str]:
    """The metrics that an estimate must have; answers of a single token have no inter-token latency."""
    if isinstance(workload, Training):
        return TRAINING_METRICS
    told = workload.traffic if isinstance(workload, Serving) else workload
    return SERVING_METRICS - {"itl_p95_ms"} if told.output_tokens <= 1 else SERVING_METRICS


def _segments(where: str, placement: Placement) -> Iterator[str]:
    for before, after in pairwise(placement.segments):
        if after.start < before.end:
            yield f"{where}: segments overlap or are out of order at {after.start.isoformat()}"

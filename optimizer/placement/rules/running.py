"""Runs end in time on nodes that one job may span; estimates equal those of the performance core."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise

from broker.domain.basics.estimate import Estimate
from broker.domain.basics.node_launch import COLD_START, ColdStart, cold_start_of, with_launch
from broker.domain.market.billing import holdings
from broker.domain.market.offer import Offer, is_held_on
from broker.domain.moving.moving_costs import checkpoint_gb
from broker.domain.planning.batch_hours import HOURS, kept_share, with_hours
from broker.domain.planning.plan import Placement
from broker.domain.planning.transfer import Place
from broker.domain.planning.workload import Batch, Serving, Training, Workload, part_of
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import weights_gb
from optimizer.placement.rules.case import (
    Case,
    Known,
    interruptions_per_hour,
    requests_of,
    run_end,
    usable_stretches,
)
from optimizer.placement.rules.holding import LATE_LIMIT

RELATIVE_TOLERANCE = 1e-9
PRICE_TOLERANCE = 1e-5
"""A market that was kept has prices in millionths of a dollar an hour."""
NEAR = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)


def violations(case: Case) -> Iterator[str]:
    """Violations of the rules of training and batch, and of every estimate."""
    for where, placement, workload, offer in case.known():
        if not isinstance(workload, Serving):
            yield from _held(where, placement, workload, offer)
        if isinstance(workload, Training):
            yield from _training(case, where, placement, workload, offer)
        elif isinstance(workload, Batch):
            yield from _batch(case, where, placement, workload, offer)
        yield from _estimate(case, where, placement, workload, offer)
    for rows in case.placed.values():
        yield from _parts(case, rows)


def _parts(case: Case, rows: Sequence[Known]) -> Iterator[str]:
    """The parts of a run or batch sum to the whole; services are whole, and only batches tell requests."""
    where, _, workload, _ = rows[0]
    if isinstance(workload, Batch):
        yield from _batch_parts(workload, rows)
        return
    for label, placement, _, _ in rows:
        if placement.requests is not None or placement.first_request is not None:
            yield f"{label}: requests and first_request are given, expected none but for a batch"
    if isinstance(workload, Training):
        yield from _run_parts(case, workload, rows)
    elif any(placement.work_share != 1.0 for _, placement, _, _ in rows):
        yield f"{where}: work_share must be 1 for a service"


def _run_parts(case: Case, workload: Training, rows: Sequence[Known]) -> Iterator[str]:
    """The parts of a run sum to the whole, have equal node counts and follow one another."""
    where, first, _, _ = rows[0]
    shares = math.fsum(placement.work_share for _, placement, _, _ in rows)
    if not math.isclose(shares, 1.0, rel_tol=RELATIVE_TOLERANCE):
        yield f"{where}: the parts of {workload.name} sum to {shares:.9f} of its work, expected 1"
    if any(placement.nodes != first.nodes for _, placement, _, _ in rows):
        yield f"{where}: the parts of a run must have equal node counts"
    for (_, before, _, left), (later, after, _, offer) in pairwise(rows):
        end = run_end(before, left, case.not_before(workload, left))
        stretches = usable_stretches(after, offer, case.not_before(workload, offer))
        places = [Place.of(one) for one in (left, offer)]
        copied = case.terms.staging(places[0], places[1], checkpoint_gb(workload))
        if end is not None and stretches and stretches[0][0] < end + copied - NEAR:
            yield f"{later}: begins before the previous part has ended and its checkpoint has been copied"


def _batch_parts(batch: Batch, rows: Sequence[Known]) -> Iterator[str]:
    """A batch has no more parts than asked, and they answer all of its requests, each its share of them."""
    where = rows[0][0]
    if batch.parts is not None and len(rows) > batch.parts:
        yield f"{where}: {batch.name} is in {len(rows)} parts, at most {batch.parts} are allowed"
    for label, placement, _, _ in rows:
        share = batch.requests * placement.work_share
        if not math.isclose(requests_of(placement, batch), share, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-5):
            yield f"{label}: requests is {placement.requests}, expected {share:.6f}, its share of the work"
    told = [(p.first_request, requests_of(p, batch)) for _, p, _, _ in rows if p.first_request is not None]
    due = 0.0
    for first, count in sorted(told):
        if not math.isclose(first, due, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-5):
            yield f"{where}: a part begins after request {first:.0f}, expected {due:.0f}"
        due += count
    answered = math.fsum(requests_of(placement, batch) for _, placement, _, _ in rows)
    if not math.isclose(answered, batch.requests, rel_tol=RELATIVE_TOLERANCE):
        yield f"{where}: the parts answer {answered:.6f} requests, {batch.requests:.0f} are asked"


def _held(where: str, placement: Placement, work: Training | Batch, offer: Offer) -> Iterator[str]:
    """A run or a part of a batch keeps its nodes without a break: each further start is a part of its own."""
    segments = sorted(placement.segments)
    if len({segment.nodes for segment in segments}) > 1:
        yield f"{where}: the segments of a run or batch must have equal node counts"
    broken = offer.window is None and any(one.end != after.start for one, after in pairwise(segments))
    if broken and work.interruptible:
        yield f"{where}: its nodes are given back in between: each start is a part of its own"


def _training(case: Case, where: str, placement: Placement, run: Training, offer: Offer) -> Iterator[str]:
    if placement.nodes > offer.max_nodes_in_one_run:
        yield f"{where}: {placement.nodes} nodes, the fabric joins {offer.max_nodes_in_one_run}"
    if placement.gpus < run.gpus.min or (run.gpus.max is not None and placement.gpus > run.gpus.max):
        yield f"{where}: {placement.gpus} GPUs, asked for {run.gpus.min} to {run.gpus.max or 'any'}"
    not_before = case.not_before(run, offer)
    stretches = usable_stretches(placement, offer, not_before)
    if len(stretches) > 1 and not run.interruptible:
        yield f"{where}: the run is split over {len(stretches)} windows but is not interruptible"
    end = case.end_of(placement, run, offer)
    if end is None:
        usable = sum(((b - a) / timedelta(hours=1) for a, b in stretches), 0.0)
        needed = placement.estimate.mean_hours if is_held_on(offer) else placement.estimate.sure_hours
        yield f"{where}: the run needs {needed:.3f} h, {usable:.3f} h are usable"
        return
    limit = run.deadline + (LATE_LIMIT if run.late_usd_per_hour is not None else timedelta(0))
    if end > limit + timedelta(microseconds=1):
        yield f"{where}: the run ends {end.isoformat()}, allowed until {limit.isoformat()}"


def _batch(case: Case, where: str, placement: Placement, batch: Batch, offer: Offer) -> Iterator[str]:
    not_before = case.not_before(batch, offer)
    if placement.estimate.at_confidence:
        end = run_end(placement, offer, not_before)
        if end is None or end > batch.deadline + timedelta(seconds=1):
            found = "less is held than it needs" if end is None else f"it ends {end.isoformat()}"
            yield f"{where}: {found}, allowed until {batch.deadline.isoformat()}"
        return
    kept = kept_share(batch, placement.estimate["cold_start_s"], interruptions_per_hour(offer))
    requests, done = requests_of(placement, batch), 0.0
    for start, end in usable_stretches(placement, offer, not_before):
        working_s = kept * (min(end, batch.deadline + timedelta(seconds=1)) - start).total_seconds()
        working_s -= placement.estimate["cold_start_s"]
        done += max(0.0, working_s) * placement.replicas * placement.estimate["requests_per_s_per_replica"]
    if done < requests * (1 - RELATIVE_TOLERANCE):
        yield f"{where}: answers {done:.0f} requests by the deadline, {requests:.0f} are asked"


def _estimate(
    case: Case, where: str, placement: Placement, workload: Workload, offer: Offer
) -> Iterator[str]:
    expected = _expected(case, placement, workload, offer)
    if expected is None:
        yield f"{where}: does not fit this layout on this SKU, or no such layout is compared"
        return
    yield from _cold_start_parts(case, where, placement, workload, offer)
    yield from _live_from(case, where, placement, workload, expected)
    told = placement.estimate
    if told.provenance is not expected.provenance:
        yield f"{where}: provenance is {told.provenance}, expected {expected.provenance}"
    if told.expected_hours is not None or expected.expected_hours is not None:
        hours, mean = told.expected_hours or 0.0, expected.expected_hours or 0.0
        if not math.isclose(hours, mean, rel_tol=RELATIVE_TOLERANCE):
            yield f"{where}: estimate expected_hours is {told.expected_hours}, expected {mean}"
    for name in ("value", "low", "high", "at_confidence"):
        found, wanted = getattr(told, name), getattr(expected, name)
        if set(found) != set(wanted):
            yield f"{where}: estimate {name} has metrics {sorted(found)}, expected {sorted(wanted)}"
            continue
        for metric, number in wanted.items():
            tolerance = PRICE_TOLERANCE if metric.startswith("usd_") else RELATIVE_TOLERANCE
            if not math.isclose(found[metric], number, rel_tol=tolerance, abs_tol=1e-12):
                yield f"{where}: estimate {name} {metric} is {found[metric]}, expected {number}"


def _cold_start_parts(
    case: Case, where: str, placement: Placement, workload: Workload, offer: Offer
) -> Iterator[str]:
    """The phases of a placement's cold start, if it states them."""
    told, expected = placement.cold_start, None
    if told is None:
        return
    if not isinstance(workload, Training):
        engine = _engine(case, placement, workload, offer)
        expected = None if engine is None else _cold_start(placement, workload, offer, engine)
    if expected is None:
        yield f"{where}: states phases of a cold start, but is a run or has no launch time"
        return
    for part in ("launch_s", "image_s", "weights_s", "engine_s"):
        found, wanted = getattr(told, part), getattr(expected, part)
        if not math.isclose(found, wanted, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-9):
            yield f"{where}: {part} of the cold start is {found}, expected {wanted}"
    if told.basis is not expected.basis:
        yield f"{where}: the basis of its launch time is {told.basis}, expected {expected.basis}"


def _live_from(
    case: Case, where: str, placement: Placement, workload: Workload, expected: Estimate
) -> Iterator[str]:
    """A service is live a cold start after its first nodes, or at once where it held them before."""
    told = placement.live_from
    if told is None:
        return
    if not isinstance(workload, Serving):
        yield f"{where}: live_from is {told.isoformat()}, only services have it"
        return
    cold = timedelta(seconds=expected[COLD_START])
    each = (one.window for one in holdings(placement.segments))
    due = min((window.start + cold for window in each if window.start + cold < window.end), default=None)
    at_once = case.may_be_live(workload.name) and placement.segments[0].start <= case.earliest + SECOND
    first = at_once and abs(told - case.earliest) <= SECOND
    if not first and (due is None or abs(told - due) > SECOND):
        expects = "none, as nothing is held so long" if due is None else due.isoformat()
        yield f"{where}: live_from is {told.isoformat()}, expected {expects}"


def _expected(case: Case, placement: Placement, workload: Workload, offer: Offer) -> Estimate | None:
    if isinstance(workload, Training):
        rate, part = interruptions_per_hour(offer), part_of(workload, placement.work_share)
        return case.estimator.training_at(part, offer.sku, placement.nodes, placement.parallelism, rate)
    engine = _engine(case, placement, workload, offer)
    if engine is None:
        return None
    served = with_launch(engine, _cold_start(placement, workload, offer, engine))
    # Plans made before batches told their hours are accepted.
    if isinstance(workload, Serving) or HOURS not in placement.estimate.value:
        return served
    requests, rate = requests_of(placement, workload), interruptions_per_hour(offer)
    return with_hours(served, workload, requests, placement.replicas, rate)


def _engine(case: Case, placement: Placement, workload: Serving | Batch, offer: Offer) -> Estimate | None:
    share = placement.gpus_per_replica / offer.sku.gpus_per_node
    usd_per_replica_hour = float(offer.price_usd_per_node_hour) * share
    return case.estimator.serving_at(
        workload, offer.sku, placement.precision, placement.parallelism, usd_per_replica_hour
    )


def _cold_start(
    placement: Placement, workload: Serving | Batch, offer: Offer, engine: Estimate
) -> ColdStart | None:
    gb = weights_gb(workload.model, placement.precision, load_calibration())
    return cold_start_of(offer.launch, gb, engine[COLD_START])

"""A placement repeats the facts of its offer and workload correctly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.domain.basics.estimate import Parallelism
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import Training, Workload
from optimizer.placement.rules.case import Case


def violations(case: Case) -> Iterator[str]:
    """Copied fields that differ, workloads missing or listed twice, layouts that do not add up."""
    yield from _missing_or_double(case)
    for where, placement, workload, offer in case.known():
        told = {
            "provider": (placement.provider, offer.provider),
            "region": (placement.region, offer.region),
            "zone": (placement.zone, offer.zone),
            "sku": (placement.sku, offer.sku.name),
            "gpu": (placement.gpu, offer.sku.gpu),
            "tier": (placement.tier, offer.tier),
            "kind": (placement.kind, workload.kind),
            "gpus": (placement.gpus, placement.nodes * offer.sku.gpus_per_node),
            # A plan of an older version does not say it.
            "mode": (placement.mode or offer.mode, offer.mode),
        }
        for name, (found, expected) in told.items():
            if found != expected:
                yield f"{where}: {name} is {found}, expected {expected}"
        yield from _nodes(where, placement, workload, offer)
        yield from _precision(where, placement, workload)
        yield from _engine(where, placement, workload)
        yield from _layout(where, placement, workload)


def _nodes(where: str, placement: Placement, workload: Workload, offer: Offer) -> Iterator[str]:
    """All held nodes work, except surplus nodes of a training run for which no smaller count is sold."""
    held, terms = max(segment.nodes for segment in placement.segments), offer.window
    if placement.nodes < held and isinstance(workload, Training) and terms is not None:
        node_counts = terms.node_counts
        smaller = [
            n
            for n in range(placement.nodes, held)
            if n % terms.lot_nodes == 0 and (node_counts is None or n in node_counts)
        ]
        if placement.nodes >= 1 and not smaller:
            return
    if placement.nodes != held:
        yield f"{where}: nodes is {placement.nodes}, expected {held}, as held"


def _missing_or_double(case: Case) -> Iterator[str]:
    placed = Counter(placement.workload for placement in case.plan.placements)
    unplaced = Counter(left_out.workload for left_out in case.plan.unplaced)
    for name, workload in case.workloads.items():
        if not placed[name] and not unplaced[name] and not case.needs_nothing(workload):
            yield f"workload {name!r} is neither placed nor listed as unplaced"
        if placed[name] and unplaced[name]:
            yield f"workload {name!r} is both placed and unplaced"
        if isinstance(workload, Training) and placed[name] > 1 and not workload.interruptible:
            yield f"training {name!r} has {placed[name]} placements, expected one: it is not interruptible"
        if unplaced[name] > 1:
            yield f"workload {name!r} is listed as unplaced {unplaced[name]} times"


def _precision(where: str, placement: Placement, workload: Workload) -> Iterator[str]:
    allowed = (workload.precision,) if isinstance(workload, Training) else workload.precisions
    if placement.precision not in allowed:
        yield f"{where}: precision {placement.precision} is not among {', '.join(allowed)}"


def _engine(where: str, placement: Placement, workload: Workload) -> Iterator[str]:
    """Runs have no engine; plans made before placements named it are accepted."""
    expected = None if isinstance(workload, Training) else workload.engine
    if placement.engine is not None and placement.engine != expected:
        yield f"{where}: engine is {placement.engine}, expected {expected or 'none, as runs have'}"


def _ranks(where: str, layout: Parallelism, routed: bool) -> Iterator[str]:
    """A replica is split by tp and pp; with experts, the GPUs of its tensor group may be attention ranks that
    hold whole experts each.
    """
    ranks = layout.tp if layout.dp > 1 else 1
    if layout != Parallelism(tp=layout.tp, pp=layout.pp, dp=ranks, ep=ranks):
        yield f"{where}: a replica is split by tp and pp, or by dp and ep over its tp GPUs"
    elif ranks > 1 and not (routed and layout.pp == 1):
        yield f"{where}: dp is {layout.dp}, expected 1 without experts or over several nodes"


def _layout(where: str, placement: Placement, workload: Workload) -> Iterator[str]:
    layout = placement.parallelism
    if isinstance(workload, Training):
        ranks = layout.tp * layout.pp * layout.dp * layout.cp
        if ranks != placement.gpus:
            yield f"{where}: tp·pp·dp·cp is {ranks}, expected gpus {placement.gpus}"
        if placement.replicas != 1:
            yield f"{where}: replicas is {placement.replicas}, expected 1 for a run"
        if placement.gpus_per_replica != placement.gpus:
            yield f"{where}: gpus_per_replica is {placement.gpus_per_replica}, expected {placement.gpus}"
        return
    size = placement.gpus_per_replica
    yield from _ranks(where, layout, workload.model.is_moe)
    if layout.tp * layout.pp != size:
        yield f"{where}: tp·pp is {layout.tp * layout.pp}, expected gpus_per_replica {size}"
    if placement.replicas * size > placement.gpus or placement.replicas < 1:
        yield f"{where}: {placement.replicas} replicas of {size} GPUs do not fit {placement.gpus} GPUs"

"""Hypothesis strategies of what documents carry."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from hypothesis import strategies as st

from broker.domain.estimate import Estimate, Parallelism, Provenance
from broker.domain.offer import (
    CancelRule,
    NativePrice,
    Offer,
    Stock,
    StockLevel,
    Tier,
    WindowKind,
    WindowTerms,
)
from broker.domain.plan import (
    Baseline,
    CandidateCounts,
    Obstacle,
    Placement,
    Plan,
    PlanStatus,
    RunnerUp,
    SpendLine,
    Unplaced,
    Why,
)
from broker.domain.sku import Fabric, FabricKind, Form, IntraNode, LinkKind, Sku
from broker.domain.window import Segment
from broker.domain.workload import Precision, WorkloadKind

NAMES = st.text("abcxyz019-_/. ü", min_size=1, max_size=12)
INSTANTS = st.integers(0, 10**9).map(lambda s: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=s))
DOLLARS = st.decimals(0, 10**9, places=6)
CENTS = st.decimals(0, 10**9, places=2)
NUMBERS = st.floats(0, 1e12)
ABOVE_ZERO = st.floats(1e-6, 1e12)


def optional(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """The strategy's values, or None."""
    return st.none() | strategy


SEGMENTS = st.builds(
    lambda start, seconds, nodes: Segment(start, start + timedelta(seconds=seconds), nodes),
    INSTANTS,
    st.integers(1, 10**7),
    st.integers(1, 500),
)
WINDOWS = st.builds(
    WindowTerms,
    kind=st.sampled_from(WindowKind),
    segments=st.lists(SEGMENTS, min_size=1, max_size=3).map(tuple),
    anchor_utc=optional(st.builds(time, st.integers(0, 23), st.integers(0, 59))),
    step_hours=ABOVE_ZERO,
    durations_hours=optional(st.lists(ABOVE_ZERO, max_size=3).map(tuple)),
    lead_hours=NUMBERS,
    cancel=st.sampled_from(CancelRule),
    teardown_s=st.integers(0, 7200),
)
SKUS = st.builds(
    Sku,
    name=NAMES,
    gpu=NAMES,
    gpus_per_node=st.integers(1, 72),
    gpu_memory_gb=ABOVE_ZERO,
    vcpus=optional(NUMBERS),
    memory_gb=optional(NUMBERS),
    disk_gb=optional(NUMBERS),
    form=optional(st.sampled_from(Form)),
    intra_node=optional(st.builds(IntraNode, st.sampled_from(LinkKind), ABOVE_ZERO)),
    fabric=optional(
        st.builds(Fabric, st.sampled_from(FabricKind), ABOVE_ZERO, st.integers(1, 999), optional(NAMES))
    ),
)
OFFERS = st.builds(
    Offer,
    offer_id=NAMES,
    provider=NAMES,
    sku=SKUS,
    region=NAMES,
    tier=st.sampled_from(Tier),
    price_usd_per_node_hour=DOLLARS,
    observed_at=INSTANTS,
    source=NAMES,
    native=st.builds(NativePrice, DOLLARS, NAMES, NAMES),
    zone=optional(NAMES),
    country=optional(NAMES),
    seller=optional(NAMES),
    upfront_usd=optional(DOLLARS),
    min_hours=NUMBERS,
    billing_increment_s=st.integers(0, 10**6),
    window=WINDOWS,
    stock=st.builds(Stock, st.sampled_from(StockLevel), optional(st.integers(0, 999))),
    compliance=st.frozensets(NAMES, max_size=3),
    interruptions_per_hour=optional(NUMBERS),
    reference=st.dictionaries(NAMES, NAMES, max_size=2),
)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    """An estimate whose three mappings have the same keys."""
    names = draw(st.lists(st.sampled_from(["hours", "mfu", "tokens_per_s", "kv_tokens"]), unique=True))
    rows = [{name: draw(NUMBERS) for name in names} for _ in range(3)]
    return Estimate(rows[0], rows[1], rows[2], draw(st.sampled_from(Provenance)))


PLACEMENTS = st.builds(
    Placement,
    workload=NAMES,
    kind=st.sampled_from(WorkloadKind),
    offer_id=NAMES,
    provider=NAMES,
    region=NAMES,
    zone=optional(NAMES),
    sku=NAMES,
    gpu=NAMES,
    tier=st.sampled_from(Tier),
    nodes=st.integers(1, 500),
    gpus=st.integers(1, 4000),
    replicas=st.integers(1, 500),
    gpus_per_replica=st.integers(1, 64),
    parallelism=st.builds(Parallelism, tp=st.integers(1, 8), recompute=st.sampled_from(["none", "full"])),
    precision=st.sampled_from(Precision),
    segments=st.lists(SEGMENTS, max_size=3).map(tuple),
    cost_usd=CENTS,
    paid_unused_usd=CENTS,
    estimate=estimates(),
    why=st.builds(
        Why,
        NAMES,
        st.lists(NAMES, max_size=2).map(tuple),
        optional(st.builds(RunnerUp, NAMES, CENTS, NAMES)),
    ),
)
PLANS = st.builds(
    Plan,
    plan_id=NAMES,
    status=st.sampled_from(PlanStatus),
    team=NAMES,
    created_at=INSTANTS,
    as_of=INSTANTS,
    seed=st.integers(0, 2**31),
    cost_usd=CENTS,
    bound_usd=optional(CENTS),
    gap=optional(st.floats(0, 1)),
    penalty_usd=CENTS,
    solve_seconds=NUMBERS,
    candidates=st.builds(CandidateCounts, st.integers(0, 10**9), st.integers(0, 10**9)),
    placements=st.lists(PLACEMENTS, max_size=2).map(tuple),
    unplaced=st.lists(st.builds(Unplaced, NAMES, st.sampled_from(Obstacle), NAMES), max_size=2).map(tuple),
    baselines=st.lists(st.builds(Baseline, NAMES, optional(CENTS), NAMES), max_size=2).map(tuple),
    spend=st.lists(
        st.builds(SpendLine, INSTANTS, INSTANTS, NAMES, NAMES, st.sampled_from(Tier), CENTS), max_size=2
    ).map(tuple),
)

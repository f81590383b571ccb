"""Hypothesis strategies of the domain's words: any value that the types allow, kept small."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from broker.domain.basics.account import AuditEntry
from broker.domain.basics.estimate import Estimate, Parallelism, Provenance
from broker.domain.basics.window import Segment, Wish
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import (
    CancelRule,
    GpuPool,
    HostKind,
    NativePrice,
    Offer,
    Stock,
    StockLevel,
    Tier,
    WindowBegin,
    WindowBilling,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Fabric, FabricKind, Form, IntraNode, LinkKind, Sku, SoldAmount
from broker.domain.moving.reoptimization import (
    Move,
    MoveState,
    MovingCost,
    PriceMove,
    ProposalState,
    Reoptimization,
    Risk,
    RiskKind,
)
from broker.domain.planning.patch import PatchOperation, PatchVerb
from broker.domain.planning.plan import (
    Alternative,
    Assumption,
    Baseline,
    BindingRule,
    CandidateCounts,
    Fix,
    Obstacle,
    Placement,
    Plan,
    PlanStatus,
    RunnerUp,
    Scarcity,
    SpendLine,
    Unplaced,
    Wait,
    Why,
)
from broker.domain.planning.window_use import WindowUse
from broker.domain.planning.workload import Precision, WorkloadKind
from broker.domain.spend.approvals import Decision, SeenFigures, Verdict
from broker.domain.workloads.reoptimize_policy import ReoptimizeMode
from broker.ports.planning import PlanOptions, PlanRecord, PlanState

EPOCH = datetime(2026, 11, 23, tzinfo=UTC)
PROVIDERS = ("aws", "lambda", "runpod", "sfcompute", "vast", "verda")
GPUS = ("A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "L40S")

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_./:", min_size=1, max_size=16)
instants = st.integers(0, 90 * 86_400_000_000).map(lambda micros: EPOCH + timedelta(microseconds=micros))
seconds = st.integers(0, 90 * 86_400).map(lambda whole: EPOCH + timedelta(seconds=whole))
counts = st.integers(1, 64)
shares = st.floats(0, 1)
positives = st.floats(1e-3, 1e9)
cents = st.integers(0, 10**9).map(lambda whole: Decimal(whole) / 100)
micro_usd = st.integers(1, 10**12).map(lambda whole: Decimal(whole) / 1_000_000)
exact_usd = st.decimals(Decimal("1e-9"), Decimal("1e9"), allow_nan=False, allow_infinity=False)
tags = st.frozensets(st.sampled_from(["soc2", "hipaa", "iso27001", "gdpr"]))

skus: SearchStrategy[Sku] = st.builds(
    Sku,
    name=names,
    gpu=st.sampled_from(GPUS),
    gpus_per_node=st.sampled_from([1, 2, 4, 8]),
    gpu_memory_gb=positives,
    vcpus=st.none() | positives,
    memory_gb=st.none() | positives,
    disk_gb=st.none() | positives,
    form=st.none() | st.sampled_from(Form),
    intra_node=st.none() | st.builds(IntraNode, st.sampled_from(LinkKind), positives),
    fabric=st.none() | st.builds(Fabric, st.sampled_from(FabricKind), positives, counts, st.none() | names),
)
sold_amounts = st.builds(
    SoldAmount,
    default_gb=st.sampled_from([50.0, 107.374182]),
    min_gb=st.sampled_from([0.0, 50.0]),
    max_gb=st.none() | st.sampled_from([107.374182, 4096.0]),
    usd_per_gb_hour=st.sampled_from([Decimal(0), Decimal("0.000121071935")]),
    step_gb=st.sampled_from([1.0, 1.073741824]),
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Whole seconds, one to a thousand hours."""
    start = draw(seconds)
    return Segment(start, start + timedelta(seconds=draw(st.integers(1, 3_600_000))), draw(counts))


@st.composite
def step_functions(draw: st.DrawFn) -> tuple[Segment, ...]:
    """Segments in order that do not overlap; some touch."""
    at, found = draw(seconds), []
    for _ in range(draw(st.integers(1, 4))):
        end = at + timedelta(seconds=draw(st.integers(60, 400_000)))
        found.append(Segment(at, end, draw(counts)))
        at = end + timedelta(seconds=draw(st.sampled_from([0, 0, 3600])))
    return tuple(found)


sure_terms: SearchStrategy[WindowTerms] = st.builds(
    WindowTerms,
    kind=st.sampled_from(WindowKind),
    segments=step_functions(),
    anchor_utc=st.none() | st.just(time(11, 30)),
    step_hours=positives,
    durations_hours=st.none() | st.lists(positives, max_size=3).map(tuple),
    lead_hours=shares,
    cancel=st.sampled_from(CancelRule),
    teardown_s=st.sampled_from([0, 1800]),
    node_counts=st.none() | st.just((1, 2, 4, 8, 16, 32, 64)),
    lot_nodes=st.sampled_from([1, 2, 4]),
    billed=st.sampled_from(WindowBilling),
)
late_terms: SearchStrategy[WindowTerms] = st.builds(
    WindowTerms,
    kind=st.just(WindowKind.REQUEST),
    segments=st.just(()),
    begins=st.just(WindowBegin.WHEN_AVAILABLE),
    longest_wait_hours=positives,
    wait_source=texts,
)
window_terms = sure_terms | late_terms

offers: SearchStrategy[Offer] = st.builds(
    Offer,
    offer_id=names,
    provider=st.sampled_from(PROVIDERS),
    sku=skus,
    region=names,
    tier=st.sampled_from(Tier),
    price_usd_per_node_hour=micro_usd | exact_usd,
    observed_at=instants,
    source=texts,
    native=st.builds(NativePrice, exact_usd, st.just("USD"), names),
    zone=st.none() | names,
    country=st.none() | st.sampled_from(["US", "DE"]),
    seller=st.none() | texts,
    upfront_usd=st.none() | micro_usd,
    min_hours=st.sampled_from([0.0, 1.0, 720.0]),
    billing_increment_s=st.sampled_from([1, 60, 3600]),
    window=st.none() | window_terms,
    stock=st.builds(
        Stock,
        st.sampled_from(StockLevel),
        st.none() | st.integers(0, 64),
        st.none()
        | st.builds(GpuPool, st.sampled_from(["pool-a", "pool-b"]), st.none() | st.integers(0, 512)),
    ),
    compliance=tags,
    interruptions_per_hour=st.none() | shares,
    reference=st.dictionaries(names, texts, max_size=3),
    place=names,
    host=st.none() | st.sampled_from(HostKind),
    reliability=st.none() | shares,
    available_until=st.none() | instants,
    disk=st.none() | sold_amounts,
    memory=st.none() | sold_amounts,
)

parallelisms = st.builds(
    Parallelism, counts, counts, counts, micro_batch=counts, recompute=st.sampled_from(["none", "full"])
)
metrics = st.dictionaries(names, st.floats(allow_nan=False), max_size=4)
estimates = st.builds(Estimate, metrics, metrics, metrics, st.sampled_from(Provenance))
runners_up = st.builds(RunnerUp, names, cents, texts)
rules = st.sampled_from(BindingRule)
alternatives = st.builds(
    Alternative, names, cents, cents.map(lambda usd: 40 - usd), st.none() | positives, rules, texts
)
gate_counts = st.dictionaries(st.sampled_from(Obstacle), counts, max_size=2)
whys = st.builds(
    Why,
    texts,
    st.lists(texts, max_size=2).map(tuple),
    st.none() | runners_up,
    st.none() | rules,
    st.lists(alternatives, max_size=3).map(tuple),
    gate_counts.map(lambda found: tuple(found.items())),
)
fixes = st.builds(
    Fix,
    texts,
    st.lists(
        st.builds(PatchOperation, st.just(PatchVerb.ADD), texts, st.sampled_from(['"x"', "8", "[1.5, null]"]))
        | st.builds(PatchOperation, st.just(PatchVerb.REMOVE), texts),
        max_size=2,
    ).map(tuple),
    cents,
)
scarcities = st.builds(Scarcity, names, counts, cents, st.lists(names, max_size=2).map(tuple), texts)

spans = st.builds(lambda segment: segment.window, segments())
window_uses: SearchStrategy[WindowUse] = st.builds(
    WindowUse,
    wanted=spans,
    bought=spans,
    usable=spans,
    unwanted_hours=positives,
    unwanted_usd=cents,
    billed=st.sampled_from(WindowBilling),
)

placements: SearchStrategy[Placement] = st.builds(
    Placement,
    workload=names,
    kind=st.sampled_from(WorkloadKind),
    offer_id=names,
    provider=st.sampled_from(PROVIDERS),
    region=names,
    zone=st.none() | names,
    sku=names,
    gpu=st.sampled_from(GPUS),
    tier=st.sampled_from(Tier),
    nodes=counts,
    gpus=counts,
    replicas=counts,
    gpus_per_replica=counts,
    parallelism=parallelisms,
    precision=st.sampled_from(Precision),
    segments=step_functions(),
    cost_usd=cents,
    paid_unused_usd=cents,
    estimate=estimates,
    why=whys,
    window_use=st.none() | window_uses,
    live_from=st.none() | instants,
)


@st.composite
def spend_lines(draw: st.DrawFn) -> SpendLine:
    """A line of at least a second."""
    segment = draw(segments())
    provider, tier = draw(st.sampled_from(PROVIDERS)), draw(st.sampled_from(Tier))
    return SpendLine(segment.start, segment.end, draw(names), provider, tier, draw(cents))


plans: SearchStrategy[Plan] = st.builds(
    Plan,
    plan_id=names,
    status=st.sampled_from(PlanStatus),
    team=names,
    created_at=instants,
    as_of=instants,
    seed=st.integers(0, 2**31),
    cost_usd=cents,
    bound_usd=st.none() | exact_usd,
    gap=st.none() | shares,
    penalty_usd=cents,
    solve_seconds=positives,
    candidates=st.builds(CandidateCounts, counts, counts),
    placements=st.lists(placements, max_size=2).map(tuple),
    unplaced=st.lists(
        st.builds(Unplaced, names, st.sampled_from(Obstacle), texts, st.lists(fixes, max_size=3).map(tuple)),
        max_size=2,
    ).map(tuple),
    baselines=st.lists(st.builds(Baseline, names, st.none() | cents, texts), max_size=2).map(tuple),
    spend=st.lists(spend_lines(), max_size=2).map(tuple),
    scarcity=st.lists(scarcities, max_size=2).map(tuple),
    notes=st.lists(texts, max_size=2).map(tuple),
    assumptions=st.lists(st.builds(Assumption, names, counts, texts), max_size=2).map(tuple),
    delay_usd=cents,
    waits=st.lists(st.builds(Wait, names, names, instants, instants, exact_usd, cents), max_size=2).map(
        tuple
    ),
)

figures: SearchStrategy[SeenFigures] = st.builds(
    SeenFigures,
    cost_usd=cents,
    cost_now_usd=st.none() | cents,
    bound_usd=st.none() | exact_usd,
    gap=st.none() | shares,
    projected_p90_usd=st.none() | cents,
    budget_left_usd=st.none() | cents,
    plan_sha256=names,
)
decisions = st.builds(Decision, st.sampled_from(Verdict), names, instants, texts, st.none() | figures)

plan_records: SearchStrategy[PlanRecord] = st.builds(
    PlanRecord,
    plan_id=names,
    team=names,
    state=st.sampled_from(PlanState),
    document=texts,
    options=st.builds(PlanOptions, positives, shares, counts, st.booleans()),
    created_at=instants,
    requested_by=names,
    plan=st.none() | plans,
    problem=st.none() | texts,
    needs_approval=st.booleans(),
    approved_by=st.none() | names,
    approved_at=st.none() | instants,
    supersedes=st.none() | names,
    decisions=st.lists(decisions, max_size=2).map(tuple),
)


@st.composite
def units(draw: st.DrawFn) -> tuple[Unit, ...]:
    """One to three provider calls of a reservation."""
    one = st.builds(
        Unit,
        ordinal=st.just(0),
        tag=names,
        nodes=counts,
        state=st.sampled_from(UnitState),
        reference=st.none() | names,
        ordered_at=st.none() | instants,
        gone_at=st.none() | instants,
    )
    drawn = draw(st.lists(one, min_size=1, max_size=3))
    return tuple(
        Unit(ordinal, u.tag, u.nodes, u.state, u.reference, u.ordered_at, u.gone_at)
        for ordinal, u in enumerate(drawn)
    )


@st.composite
def reservations(draw: st.DrawFn) -> Reservation:
    """A reservation in any state; ends, if it does, after it starts."""
    start = draw(instants)
    length = draw(st.none() | st.integers(1, 2_000_000))
    return Reservation(
        reservation_id=draw(names),
        team=draw(names),
        state=draw(st.sampled_from(ReservationState)),
        offer=draw(offers),
        nodes=draw(counts),
        start=start,
        end=None if length is None else start + timedelta(seconds=length),
        units=draw(units()),
        created_at=draw(instants),
        workload=draw(st.none() | names),
        plan_id=draw(st.none() | names),
        reason=draw(texts),
        requested_by=draw(names),
        active_at=draw(st.none() | instants),
        released_at=draw(st.none() | instants),
        requested=draw(st.none() | st.builds(Wish, instants, st.none() | instants)),
        granted=draw(st.none() | spans),
    )


moves = st.builds(
    Move,
    workload=names,
    from_offers=st.lists(names, max_size=2).map(tuple),
    to_offers=st.lists(names, max_size=2).map(tuple),
    saving_usd=st.integers(-(10**9), 10**9).map(lambda whole: Decimal(whole) / 100),
    why=texts,
    stay_usd=st.none() | cents,
    cost=st.builds(MovingCost, cents, cents, cents),
    prices=st.lists(
        st.builds(PriceMove, names, st.none() | micro_usd, st.none() | micro_usd), max_size=2
    ).map(tuple),
    risks=st.lists(st.builds(Risk, st.sampled_from(RiskKind), texts), max_size=2).map(tuple),
    leaves=st.lists(names, max_size=2).map(tuple),
    state=st.sampled_from(MoveState),
    reason=texts,
)

reoptimizations: SearchStrategy[Reoptimization] = st.builds(
    Reoptimization,
    reoptimization_id=names,
    team=names,
    plan_id=names,
    trigger=names,
    started_at=instants,
    state=st.sampled_from(ProposalState),
    before_usd=st.none() | cents,
    after_usd=st.none() | cents,
    new_plan_id=st.none() | names,
    moves=st.lists(moves, max_size=2).map(tuple),
    reason=texts,
    mode=st.sampled_from(ReoptimizeMode),
    lapses_at=st.none() | instants,
    decided_at=st.none() | instants,
    decided_by=st.none() | names,
    guard_s=st.none() | st.floats(1, 1e6),
)

audit_entries: SearchStrategy[AuditEntry] = st.builds(
    AuditEntry,
    at=instants,
    actor=names,
    action=names,
    object_kind=names,
    object_id=names,
    team=names,
    detail=texts,
    provider_request_id=st.none() | names,
)

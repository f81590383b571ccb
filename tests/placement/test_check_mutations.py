"""The checker accepts every plan of the planner, and rejects it after any one field is damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from broker.catalogue import load_gpus
from broker.domain.basics.window import Segment, Window
from broker.domain.market.offer import GpuPool, HostKind, Offer, Tier, WindowKind
from broker.domain.market.sku import GpuClass, GpuVendor
from broker.domain.planning.plan import Plan, PlanStatus
from broker.domain.planning.workload import (
    NO_LIMIT,
    Batch,
    FleetLimits,
    GpuRange,
    PlanRequest,
    Policy,
    Precision,
    Providers,
    Redundancy,
    Survival,
)
from broker.domain.workloads.gpu_rules import GpuRules
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.ports.planning import PlanOptions
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.rules.check import check_plan
from optimizer.planner import JointPlanner
from tests.fakes.examples import waiting_terms
from tests.placement import market
from tests.placement.test_physics_moves_the_choice import CHAT, MARKET, ONE_A100, RUN, T0, offer

# What nobody can contradict: names and times of the making, words, simpler strategies' costs.
UNCHECKED = {
    "plan_id",
    "created_at",
    "as_of",
    "seed",
    "solve_seconds",
    "candidates",
    "why",
    "baselines",
    "notes",
    "nearest_fix",
    "says",
    "fixes",
    "reason",
    # What the next best costs is a statement of the search about the whole market.
    "more_usd",
    "missing_usd",
}
# The asked gap is not part of a plan, so these two cannot be told apart.
CLAIMS_OF_QUALITY = {PlanStatus.OPTIMAL, PlanStatus.FEASIBLE}
SECOND_ZONE = replace(offer("other/a100-1", ONE_A100.sku, "1.35"), provider="other")
COMMITTED = replace(offer("base/a100-1", ONE_A100.sku, "1.00", Tier.COMMITTED), min_hours=720.0)
OFFERS: tuple[Offer, ...] = (*MARKET, SECOND_ZONE, COMMITTED)
ESTIMATOR = Estimator(load_gpus(), load_calibration())

REQUEST = PlanRequest(
    team="t",
    horizon=Window(T0, T0 + timedelta(days=14)),
    budget_usd=Decimal(100_000),
    workloads=(
        replace(RUN, late_usd_per_hour=Decimal(100)),
        replace(
            CHAT,
            traffic=Traffic(800, 200, TrafficShape.DIURNAL, 40.0, trough_share=0.3, peak_hour_utc=15),
            redundancy=Redundancy(zones=2, spare_replicas=1),
        ),
        Batch(
            name="summaries",
            team="t",
            model=CHAT.model,
            requests=2.0e5,
            input_tokens=2000,
            output_tokens=200,
            earliest_start=T0,
            deadline=T0 + timedelta(days=3),
        ),
        replace(RUN, name="hopeless", deadline=T0 + timedelta(hours=2), unplaced_usd=Decimal(5000)),
    ),
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    made = JointPlanner(ESTIMATOR).plan(REQUEST, OFFERS, T0, PlanOptions(time_limit_s=60))
    assert {p.kind.value for p in made.placements} == {"training", "serving", "batch"}
    assert [u.workload for u in made.unplaced] == ["hopeless"]
    return made


def damaged(value: Any) -> Iterator[Any]:
    """``value`` with one leaf changed, once for each leaf and each way to change it."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name not in UNCHECKED:
                for worse in damaged(getattr(value, field.name)):
                    yield from _replaced(value, field.name, worse)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from ({**value, key: worse} for worse in damaged(inner))
            yield {k: v for k, v in value.items() if k != key}
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from ((*value[:index], worse, *value[index + 1 :]) for worse in damaged(inner))
        yield from ((*value[:i], *value[i + 1 :]) for i in range(len(value)))
        yield from ((*value, inner) for inner in value[:1])
    else:
        yield from _leaf(value)


def _replaced(value: Any, name: str, worse: Any) -> Iterator[Any]:
    try:
        yield replace(value, **{name: worse})
    except ValueError:
        return  # the type itself refuses it


def _leaf(value: Any) -> Iterator[Any]:
    if isinstance(value, bool) or value is None:
        yield "damaged" if value is None else not value
    elif isinstance(value, Enum):
        yield from (o for o in type(value) if o is not value and not {o, value} <= CLAIMS_OF_QUALITY)
    elif isinstance(value, str):
        yield value + "-damaged"
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield from (value * 1.001 + 1e-5, value * 0.999 - 1e-5)
    elif isinstance(value, Decimal):
        yield from (value + Decimal("0.05"), value - Decimal("0.05"))
    elif isinstance(value, datetime):
        yield from (value + timedelta(hours=3), value - timedelta(hours=3))


def test_the_plan_itself_is_accepted(plan: Plan) -> None:
    assert check_plan(plan, REQUEST, OFFERS, ESTIMATOR) == ()


def test_every_single_damage_is_rejected(plan: Plan) -> None:
    cases = list(damaged(plan))
    planner = JointPlanner(ESTIMATOR)
    accepted = [case for case in cases if not planner.check(case, REQUEST, OFFERS)]
    accepted = [
        case for case in accepted if replace(case, spend=plan.spend) != plan or paid(case) != paid(plan)
    ]
    assert len(cases) > 300
    assert "\n".join(_difference(plan, case) for case in accepted) == ""


def paid(plan: Plan) -> list[tuple[object, ...]]:
    """Spend lines by what they pay for: a time moved over hours in which nothing is held damages nothing."""
    lines: list[tuple[object, ...]] = []
    for line in plan.spend:
        window, key = Window(line.start, line.end), (line.workload, line.provider, line.tier)
        parts = [
            (segment.nodes, segment.window.intersection(window))
            for p in plan.placements
            if (p.workload, p.provider, p.tier) == key
            for segment in p.segments
        ]
        held = sum((nodes * part.duration for nodes, part in parts if part), timedelta())
        lines.append((*key, line.usd, held))
    return lines


def _difference(left: Any, right: Any, path: str = "plan") -> str:
    """Where two plans differ, for the message of a failure."""
    if is_dataclass(left) and not isinstance(left, type):
        for field in fields(left):
            a, b = getattr(left, field.name), getattr(right, field.name)
            if a != b:
                return _difference(a, b, f"{path}.{field.name}")
    if isinstance(left, tuple) and len(left) == len(right):
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            if a != b:
                return _difference(a, b, f"{path}[{index}]")
    return f"{path}: {left!r:.80} became {right!r:.80}"


def test_a_market_that_moved_is_noticed(plan: Plan) -> None:
    dearer = tuple(replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour * 2) for o in OFFERS)
    found = check_plan(plan, REQUEST, dearer, ESTIMATOR)
    for index, placement in enumerate(plan.placements):
        where = f"placements[{index}] ({placement.workload} on {placement.offer_id}): "
        assert any(words.startswith((f"{where}capacity_usd", f"{where}cost_usd")) for words in found)
    known = {OFFERS[0].offer_id}
    gone = check_plan(plan, REQUEST, OFFERS[:1], ESTIMATOR)
    assert [words.partition("): ")[2] for words in gone] == [
        f"offer {p.offer_id!r} is not in the market" for p in plan.placements if p.offer_id not in known
    ]


CONSTRAINTS: dict[str, Any] = {
    "region": lambda r: replace(r, policy=replace(r.policy, regions=("mars-*",))),
    "country": lambda r: replace(r, policy=replace(r.policy, countries=("DE",))),
    "geography": lambda r: replace(r, policy=replace(r.policy, geography=("apac",))),
    "hosts": lambda r: replace(r, policy=replace(r.policy, hosts=(HostKind.COMMUNITY,))),
    "GPU": lambda r: replace(r, policy=replace(r.policy, gpus=GpuRules(only=("T4",)))),
    "GPU of a workload": lambda r: _with(r, 1, policy=Policy(gpus=GpuRules(exclude=("*",)))),
    "GPU memory": lambda r: replace(r, policy=replace(r.policy, gpus=GpuRules(min_memory_gb=999))),
    "GPU vendor": lambda r: replace(r, policy=replace(r.policy, gpus=GpuRules(vendor=(GpuVendor.AMD,)))),
    "GPU class": lambda r: _with(r, 0, policy=Policy(gpus=GpuRules(classes=(GpuClass.CONSUMER,)))),
    "reliability": lambda r: _with(r, 1, policy=Policy(min_reliability=0.9)),
    "provider": lambda r: replace(r, policy=replace(r.policy, providers=Providers(only=("nobody",)))),
    "excluded": lambda r: replace(
        r, policy=replace(r.policy, providers=Providers(exclude=("cloud", "other", "base", "metal")))
    ),
    "tier": lambda r: replace(r, policy=replace(r.policy, tiers=(Tier.SPOT,))),
    "compliance": lambda r: replace(r, policy=replace(r.policy, compliance=("hipaa",))),
    "budget": lambda r: replace(r, budget_usd=Decimal("0.01")),
    "deadline": lambda r: _with(r, 0, deadline=T0 + timedelta(hours=1), late_usd_per_hour=None),
    "gpus": lambda r: _with(r, 0, gpus=GpuRange(4096)),
    "tokens": lambda r: _with(r, 0, tokens=9e12),
    "precision": lambda r: _with(r, 1, precisions=(Precision.FP8,)),
    "zones": lambda r: _with(r, 1, redundancy=Redundancy(zones=9)),
    "spares": lambda r: _with(r, 1, redundancy=Redundancy(zones=2, spare_replicas=50)),
    "demand": lambda r: _with(r, 1, traffic=replace(CHAT.traffic, peak_requests_per_s=4000.0)),
    "batch size": lambda r: _with(r, 2, requests=9e9),
    "pools": lambda r: _with(r, 1, fleet=FleetLimits(1, 2)),
    "pools by policy": lambda r: replace(r, policy=replace(r.policy, fleet=FleetLimits(1, 2))),
    "place lost": lambda r: _with(r, 1, redundancy=Redundancy(2, 1, Survival.ZONE, 1.0)),
    "context": lambda r: _with(r, 1, traffic=replace(CHAT.traffic, input_tokens=140_000)),
}


def _with(request: PlanRequest, index: int, **changes: Any) -> PlanRequest:
    rows = list(request.workloads)
    rows[index] = replace(rows[index], **changes)
    return replace(request, workloads=tuple(rows))


REFUSALS = {
    "region": "matches none of mars-*",
    "country": "country US is not among DE",
    "geography": "country US is not in apac",
    "hosts": "host datacenter is not among community",
    "GPU": "is not among T4",
    "GPU of a workload": "is excluded",
    "GPU memory": "GB is below 999 GB",
    "GPU vendor": "vendor nvidia of GPU",
    "GPU class": "class datacenter of GPU",
    "reliability": "reliability unknown is below 0.9",
    "provider": "is not among nobody",
    "excluded": "is excluded",
    "tier": "is not among spot",
    "compliance": "compliance tag hipaa is missing",
    "budget": "over the budget of 0.01",
    "deadline": "the run ends",
    "gpus": "GPUs, asked for 4096 to any",
    "tokens": "estimate value hours is",
    "precision": "precision bf16 is not among fp8",
    "zones": ", 9 are asked",
    "spares": "requests/s are left after spares",
    "demand": "chat: at",
    "batch size": "9000000000 are asked",
    "pools": "stands on 2 pools, 1 are allowed",
    "pools by policy": "stands on 2 pools, 1 are allowed",
    "place lost": "that each carry 100% of the demand",
    "context": "does not fit this layout",
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_every_constraint_alone_rejects_the_plan(plan: Plan, name: str) -> None:
    found = check_plan(plan, CONSTRAINTS[name](REQUEST), OFFERS, ESTIMATOR)
    assert any(REFUSALS[name] in words for words in found), found


def test_stock_and_fabric_alone_reject_the_plan(plan: Plan) -> None:
    for placement in plan.placements:
        short = tuple(
            replace(o, stock=replace(o.stock, nodes=placement.nodes - 1))
            if o.offer_id == placement.offer_id
            else o
            for o in OFFERS
        )
        found = check_plan(plan, REQUEST, short, ESTIMATOR)
        assert any(f"{placement.offer_id}: {placement.nodes} nodes held" in words for words in found), found
    unjoined = tuple(replace(o, sku=replace(o.sku, fabric=None)) for o in OFFERS)
    found = check_plan(plan, REQUEST, unjoined, ESTIMATOR)
    assert any("nodes, the fabric joins 1" in words for words in found)


def test_community_hosts_alone_reject_the_plan(plan: Plan) -> None:
    lent = tuple(replace(o, host=HostKind.COMMUNITY) for o in OFFERS)
    found = check_plan(plan, REQUEST, lent, ESTIMATOR)
    assert any("host community is not among datacenter" in words for words in found)
    asked = replace(REQUEST, policy=replace(REQUEST.policy, hosts=tuple(HostKind)))
    assert not check_plan(plan, asked, lent, ESTIMATOR)


@pytest.mark.parametrize("less", [{"disk_gb": 40.0}, {"memory_gb": 3.0}])
def test_hosts_that_are_too_small_alone_reject_the_plan(plan: Plan, less: dict[str, Any]) -> None:
    """Each placement's own host has less than image and weights, or checkpoints, take."""
    for placement in plan.placements:
        small = tuple(
            replace(o, sku=replace(o.sku, **less)) if o.offer_id == placement.offer_id else o for o in OFFERS
        )
        found = check_plan(plan, REQUEST, small, ESTIMATOR)
        what = "disk" if "disk_gb" in less else "memory"
        assert any(f"GB of {what}" in words and placement.offer_id in words for words in found)


def test_gpus_of_a_pool_alone_reject_the_plan(plan: Plan) -> None:
    """Each offer has stock enough; together they are cut from one GPU too few."""
    held = {p.offer_id: p.gpus for p in plan.placements}

    def pooled(gpus: int) -> tuple[Offer, ...]:
        pool = GpuPool("all", gpus)
        return tuple(
            replace(o, stock=replace(o.stock, pool=pool)) if o.offer_id in held else o for o in OFFERS
        )

    counted = replace(plan, assumptions=())
    assert not check_plan(counted, REQUEST, pooled(sum(p.gpus for p in plan.placements)), ESTIMATOR)
    least = max(held.values()) - 1
    assert any("in the pool" in words for words in check_plan(counted, REQUEST, pooled(least), ESTIMATOR))


def test_more_nodes_than_are_assumed_reject_the_plan(plan: Plan) -> None:
    held = {one.offer_id: one.nodes for one in plan.assumptions}
    most = max(held.values())
    assert most > 1
    enough = replace(REQUEST, policy=Policy(assumed_nodes=most))
    assert not check_plan(plan, enough, OFFERS, ESTIMATOR)
    short = replace(REQUEST, policy=Policy(assumed_nodes=most - 1))
    found = check_plan(plan, short, OFFERS, ESTIMATOR)
    assert len(found) == sum(nodes == most for nodes in held.values())
    assert all(f"{most} nodes held, {most - 1} assumed" in words for words in found)


def test_gpus_of_a_pool_that_nobody_counts_alone_reject_the_plan(plan: Plan) -> None:
    """Each offer holds what may be assumed of it; of the GPUs that they share that is too much together."""
    held = {one.offer_id: one.nodes for one in plan.assumptions}
    pool = GpuPool("all", None)
    offers = tuple(replace(o, stock=replace(o.stock, pool=pool)) if o.offer_id in held else o for o in OFFERS)
    asked = replace(REQUEST, policy=Policy(assumed_nodes=max(held.values())))
    (violation,) = check_plan(plan, asked, offers, ESTIMATOR)
    assert "pool all" in violation
    assert "nobody counts them" in violation
    ample = tuple(replace(o, stock=replace(o.stock, held_nodes=99)) for o in offers)
    assert not check_plan(plan, asked, ample, ESTIMATOR)


def test_a_window_that_says_what_is_free_is_counted() -> None:
    asked = market.request(market.training(gpu_hours=24, deadline=market.at(24)))
    terms = market.window(WindowKind.SLOTS, (0, 24, 8), step_hours=24, durations_hours=(24.0,))
    slots = market.offer("slots", "1.00", tier=Tier.WINDOW, window=terms)
    made = market.plan(asked, [slots])
    assert made.assumptions == ()
    on_request = replace(slots, window=replace(terms, kind=WindowKind.REQUEST))
    made = market.plan(asked, [on_request])
    assert [(a.offer_id, a.nodes) for a in made.assumptions] == [("slots", 1)]


def test_counts_that_are_not_sold_are_rejected() -> None:
    def sold(**menu: Any) -> Offer:
        terms = market.window(WindowKind.LISTED, (0, 24, 8), **menu)
        return market.offer("block", "1.00", tier=Tier.WINDOW, window=terms, joined=8)

    request = market.request(market.training(gpu_hours=60, gpus=GpuRange(3, 3), deadline=market.at(24)))
    menu = sold(node_counts=(1, 2, 4, 8))
    made = market.plan(request, [menu])

    def found(plan: Plan, offer: Offer) -> str:
        return "\n".join(market.planner().check(plan, request, [offer]))

    assert made.placements[0].segments[0].nodes == 4
    assert found(made, menu) == ""
    assert "4 nodes, sold are 1, 2, 8" in found(made, sold(node_counts=(1, 2, 8)))
    assert "4 nodes, sold by 3" in found(made, sold(lot_nodes=3))
    assert "nodes is 3, expected 4" in found(made, sold(node_counts=(3, 4)))
    assert "nodes is 3, expected 4" in found(made, sold())
    for count in (3, 8):
        segments = tuple(replace(s, nodes=count) for s in made.placements[0].segments)
        placements = (replace(made.placements[0], segments=segments),)
        assert ("3 nodes, sold are" if count == 3 else "nodes is 3, expected 8") in found(
            replace(made, placements=placements), menu
        )


def test_a_window_that_may_begin_before_the_work_is_rejected() -> None:
    flex = market.offer("flex", "1.00", tier=Tier.WINDOW, window=waiting_terms(2.0))
    request = market.request(market.training(earliest_start=market.at(1)))
    made = market.plan(request, [flex])
    assert not market.planner().check(made, request, [flex])
    terms = replace(waiting_terms(2.25), lead_hours=2.0)
    sooner = replace(flex, window=terms)
    assert any(
        "before the work may begin" in line for line in market.planner().check(made, request, [sooner])
    )


@pytest.mark.parametrize("make", [market.training, market.batch])
def test_what_a_plan_says_of_its_window_is_worked_out_again(make: Any) -> None:
    terms = market.window(WindowKind.LISTED, (0, 24, 2), teardown_s=1800)
    block = market.offer("block", "1.00", tier=Tier.WINDOW, window=terms)
    request = market.request(make(earliest_start=market.at(1)))
    made = market.plan(request, [block])
    (placement,) = made.placements
    use = placement.window_use
    assert use is not None
    assert (use.wanted.start, use.bought) == (market.at(1), terms.segments[0].window)
    assert use.usable.end == use.bought.end - timedelta(minutes=30)
    assert use.unwanted_usd == placement.paid_unused_usd

    def accepted(window_use: Any) -> bool:
        changed = replace(made, placements=(replace(placement, window_use=window_use),))
        return not market.planner().check(changed, request, [block])

    assert accepted(use)
    assert accepted(None)
    assert not any(accepted(worse) for worse in damaged(use))
    outside = [replace(block, tier=Tier.ON_DEMAND, window=None)]
    assert any("window_use is given" in line for line in market.planner().check(made, request, outside))


def test_a_segment_cannot_be_split_to_hide_a_gap(plan: Plan) -> None:
    run = next(p for p in plan.placements if p.workload == "pretrain")
    whole = run.segments[0]
    middle = whole.start + (whole.end - whole.start) / 2
    halves = (
        Segment(whole.start, middle, whole.nodes),
        Segment(middle + timedelta(hours=1), whole.end + timedelta(hours=1), whole.nodes),
    )
    placements = tuple(replace(p, segments=halves) if p is run else p for p in plan.placements)
    found = check_plan(replace(plan, placements=placements), REQUEST, OFFERS, ESTIMATOR)
    assert any("the run is split over 2 windows but is not interruptible" in words for words in found)


def fleet_request(share: float | None = None, **limits: int) -> PlanRequest:
    """A service of 32 requests/s, eight nodes, in two places; ``share`` is what the loss of one may leave."""
    loss = Redundancy(2, 0, Survival.REPLICA) if share is None else Redundancy(2, 0, Survival.ZONE, share)
    free = {"max_pools": NO_LIMIT, "max_gpu_kinds": NO_LIMIT} | limits
    service = replace(market.serving(hourly=[32.0]), redundancy=loss, fleet=FleetLimits(**free))
    return market.request(service, hours=4)


def refused(made: Plan, request: PlanRequest, offers: list[Offer]) -> str:
    return "\n".join(market.planner().check(made, request, offers))


def test_a_fleet_that_leans_on_one_place_is_rejected_where_the_place_may_be_lost() -> None:
    """Seven nodes stand in the cheap place and one in the other, which alone carries 4 of 32."""
    offers = [market.offer("a", "1.00", zone="a"), market.offer("b", "2.00", zone="b", provider="aws")]
    made = market.plan(fleet_request(max_pools=2), offers)
    assert {p.offer_id: p.nodes for p in made.placements} == {"a": 7, "b": 1}
    assert not refused(made, fleet_request(), offers)
    assert not refused(made, fleet_request(0.125), offers)
    assert "stand in 1 zones that each carry 13% of the demand" in refused(made, fleet_request(0.13), offers)


def test_places_that_together_leave_too_little_are_rejected() -> None:
    """Three places hold four, two and two nodes of 4 requests/s. Without the first 16 of 32 are left."""
    offers = [
        market.offer(name, usd, zone=name, nodes=most)
        for name, usd, most in (("a", "1.00", 4), ("b", "2.00", 2), ("c", "3.00", 2))
    ]

    def asked(share: float) -> PlanRequest:
        loss = Redundancy(3, 0, Survival.ZONE, share)
        return market.request(replace(market.serving(hourly=[32.0]), redundancy=loss), hours=4)

    made = market.plan(asked(0.5), offers)
    assert {p.offer_id: p.nodes for p in made.placements} == {"a": 4, "b": 2, "c": 2}
    assert not refused(made, asked(0.5), offers)
    assert "stand in 1 zones that each carry 26% of the demand" in refused(made, asked(0.52), offers)


def test_a_pool_and_a_kind_of_gpu_too_many_are_rejected() -> None:
    offers = [
        market.offer("big", "1.00", nodes=2, zone="a"),
        market.offer("mid", "0.70", gpu="MID", nodes=2, zone="a"),
        market.offer("tiny", "0.40", gpu="TINY", nodes=30, zone="b"),
    ]
    made = market.plan(fleet_request(max_pools=3), offers)
    assert len(made.placements) == 3
    assert not refused(made, fleet_request(max_pools=3, max_gpu_kinds=3), offers)
    assert "stands on 3 pools, 2 are allowed" in refused(made, fleet_request(max_pools=2), offers)
    assert "runs on 3 kinds of GPU, 2 are allowed" in refused(made, fleet_request(max_gpu_kinds=2), offers)


def test_two_sellers_of_one_place_are_two_pools_and_sizes_of_one_are_one() -> None:
    """The same plan is checked over markets in which its two offers are sold otherwise."""
    pair = [
        market.offer("one", "1.00", nodes=4, place="hall"),
        market.offer("two", "2.00", gpus=2, nodes=2, place="hall"),
    ]
    service = replace(market.serving(hourly=[32.0]), fleet=FleetLimits(1, 2))
    request = market.request(service, hours=4)
    made = market.plan(request, pair)
    assert len(made.placements) == 2
    assert not refused(made, request, pair)
    resold = [pair[0], replace(pair[1], provider="runpod")]
    sold = replace(
        made,
        placements=tuple(
            replace(p, provider="runpod") if p.offer_id == "two" else p for p in made.placements
        ),
    )
    assert "stands on 2 pools, 1 are allowed" in refused(sold, request, resold)
    assert "stands on 2 pools" in refused(made, request, [pair[0], replace(pair[1], place="other hall")])


def test_a_host_that_nobody_names_counts_as_a_data_centre_for_operators_of_their_own_alone() -> None:
    request = market.request(market.training())
    for provider, allowed in (("lambda", True), ("vast", False)):
        named = market.offer("node", "1.00", provider=provider)
        made = market.plan(request, [named])
        found = refused(made, request, [replace(named, host=None)])
        assert ("host unknown is not among datacenter" in found) is not allowed


def test_a_reliability_below_the_asked_or_unstated_is_rejected() -> None:
    stated = market.offer("node", "1.00", reliability=0.99)
    request = market.request(market.training(), policy=Policy(min_reliability=0.99))
    made = market.plan(request, [stated])
    assert not refused(made, request, [stated])
    assert "reliability 0.98 is below 0.99" in refused(made, request, [replace(stated, reliability=0.98)])
    assert "reliability unknown is below" in refused(made, request, [replace(stated, reliability=None)])


def test_what_is_counted_on_and_not_told_is_rejected(plan: Plan) -> None:
    assert plan.assumptions
    for told in plan.assumptions:
        silent = replace(plan, assumptions=tuple(one for one in plan.assumptions if one is not told))
        (violation,) = check_plan(silent, REQUEST, OFFERS, ESTIMATOR)
        assert violation.startswith(f"assumptions: nothing is said of {told.offer_id}")


def test_an_offer_that_ends_before_what_is_held_rejects_the_plan(plan: Plan) -> None:
    for placement in plan.placements:
        end = placement.segments[-1].end
        for until, accepted in ((end, True), (end - timedelta(seconds=1), False)):
            offers = tuple(
                replace(o, available_until=until) if o.offer_id == placement.offer_id else o for o in OFFERS
            )
            found = check_plan(plan, REQUEST, offers, ESTIMATOR)
            assert any("the offer ends at" in words for words in found) is not accepted

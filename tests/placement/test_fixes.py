"""Fixes of left-out workloads: what is told was tried, and the patched document places the workload.

Small markets with one right answer first, then drawn documents: each patch is applied to the document, which
is read and planned again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus, load_models
from broker.domain.basics.money import ZERO
from broker.domain.market.offer import HostKind, Offer, Tier
from broker.domain.market.sku import GpuVendor, Sku
from broker.domain.planning.plan import Fix, Obstacle, Plan, Unplaced
from broker.domain.planning.workload import (
    FleetLimits,
    GpuRange,
    PlanRequest,
    Policy,
    Providers,
    Quota,
    Serving,
    Slo,
    TrainingStack,
    Workload,
)
from broker.domain.planning.workload_document import to_document
from broker.domain.workloads.bursts import Burst
from broker.domain.workloads.gpu_rules import GpuRules
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.ports.planning import PlanOptions
from broker.provider_facts import infer_intra_node
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner
from tests.depth import examples
from tests.json_patch import patched
from tests.placement.market import T0, at, batch, offer, plan, request, serving, total, training

LARGE = load_models()["Llama-3.3-70B"]
"""Two GPUs of 80 GB hold it, and not one."""
DEFAULTS: dict[str, Any] = {"compliance": [], "providers": {"only": [], "exclude": []}}


def written(asked: PlanRequest) -> dict[str, Any]:
    """The document of a request, without the policies that say nothing."""
    document = to_document(asked)
    for part in (document, *document["workloads"]):
        if part["policy"] == DEFAULTS:
            del part["policy"]
    return document


def after(asked: PlanRequest, fix: Fix) -> PlanRequest:
    """The request of the patched document."""
    document = patched({**written(asked), "confidence": 0.5}, fix.patch)
    return read_workloads(json.dumps(document), source="patched", base=None, now=T0)


def flat(name: str, requests_per_s: float, **changes: Any) -> Serving:
    """A service with the same demand in every hour."""
    return replace(serving(name, **changes), traffic=Traffic(100, 100, TrafficShape.FLAT, requests_per_s))


def only(found: Plan) -> Unplaced:
    (left,) = found.unplaced
    return left


def check_fixes(asked: PlanRequest, offers: Sequence[Offer], found: Plan) -> None:
    """Every fix places its workload, and the plan costs no more than before with what was said."""
    for left in found.unplaced:
        assert len(left.fixes) <= 3
        assert not left.fixes or left.nearest_fix == left.fixes[0].says
        for fix in left.fixes:
            again = plan(after(asked, fix), offers)
            placed = again.placements_of(left.workload)
            assert placed, fix
            spared = asked.workload(left.workload).unplaced_usd or ZERO
            let_in = {u.workload for u in found.unplaced if asked.workload(u.workload).unplaced_usd is None}
            others = (p.cost_usd for p in again.placements if p.workload in let_in - {left.workload})
            assert total(again) - sum(others, ZERO) <= total(found) - spared + fix.cost_usd, fix
            assert f"${fix.cost_usd:,}" in fix.says


def test_memory_stops_a_model_that_the_allowed_number_of_gpus_does_not_hold() -> None:
    """Nodes of eight are too many GPUs for the run, and those of one too little memory: it needs two."""
    run = training(gpu_hours=8, model=LARGE, gpus=GpuRange(1, 1))
    offers = [offer("one", "1.00"), offer("two", "2.50", gpus=2), offer("eight", "8.00", gpus=8)]
    left = only(plan(request(run), offers))
    assert left.reason is Obstacle.MEMORY
    assert left.nearest_fix == "gpus.max of 2: it then costs $10.00"
    check_fixes(request(run), offers, plan(request(run), offers))


def test_a_service_that_is_too_large_for_the_stock_may_serve_less() -> None:
    """The peak is the most that the two largest pools serve, within a twentieth."""
    offers = [offer(name, "1.00", nodes=4, zone=name) for name in ("a", "b", "c")]
    service = replace(flat("it", 200.0), fleet=FleetLimits(max_pools=2))
    (left,) = plan(request(service, hours=10), offers).unplaced
    assert left.reason is Obstacle.STOCK
    told = left.fixes[0]
    assert told.says.startswith("a peak of ")
    check_fixes(request(service, hours=10), offers, plan(request(service, hours=10), offers))
    (operation,) = told.patch
    assert operation.path == "/workloads/0/traffic/peak_requests_per_s"
    peak = float(operation.value_json or "")
    more = replace(service, traffic=replace(service.traffic, peak_requests_per_s=peak * 1.06))
    assert plan(request(more, hours=10), offers).unplaced


def test_bursts_are_scaled_with_the_rest() -> None:
    offers = [offer("a", "1.00", nodes=4)]
    burst = Burst("03:00", 5, 200.0)
    service = replace(flat("it", 2.0), fleet=FleetLimits(max_pools=1))
    service = replace(service, traffic=replace(service.traffic, bursts=(burst,)))
    asked = request(service, hours=10)
    (left,) = plan(asked, offers).unplaced
    values = {one.path.rsplit("/")[-1]: json.loads(one.value_json or "") for one in left.fixes[0].patch}
    (less,) = values["bursts"]
    assert less["requests_per_s"] / values["peak_requests_per_s"] == pytest.approx(100, rel=0.02)
    check_fixes(asked, offers, plan(asked, offers))


def test_a_curve_by_the_hour_is_scaled_as_a_whole() -> None:
    offers = [offer("a", "1.00", nodes=4)]
    service = replace(serving("it", hourly=(200.0, 50.0) * 5), fleet=FleetLimits(max_pools=1))
    asked = request(service, hours=10)
    (left,) = plan(asked, offers).unplaced
    (operation,) = left.fixes[0].patch
    assert operation.path == "/workloads/0/traffic/hourly"
    high, low, *_ = json.loads(operation.value_json or "")
    assert high / low == pytest.approx(4.0, rel=0.02)
    check_fixes(asked, offers, plan(asked, offers))


def test_size_stops_a_run_where_no_number_of_nodes_has_as_many_gpus() -> None:
    run = training(gpu_hours=8, gpus=GpuRange(1, 4))
    left = only(plan(request(run), [offer("eight", "8.00", gpus=8)]))
    assert (left.reason, left.nearest_fix) == (Obstacle.SIZE, "gpus.max of 8: it then costs $8.00")


def test_fabric_stops_what_would_fit_on_more_nodes_than_are_joined() -> None:
    run = training(gpu_hours=8, gpus=GpuRange(2))
    left = only(plan(request(run), [offer("single", "1.00")]))
    assert (left.reason, left.nearest_fix) == (Obstacle.FABRIC, "gpus.min of 1: it then costs $8.00")


def test_a_later_deadline_is_within_the_horizon_or_makes_it_longer() -> None:
    offers = [offer("slow", "1.00")]
    asked = request(training(gpu_hours=30, deadline=at(20)), hours=48)
    assert only(plan(asked, offers)).nearest_fix == (
        "deadline of 2026-11-24T06:00Z, 10 h later: it then costs $30.00"
    )
    beyond = request(training(gpu_hours=60, deadline=at(20)), hours=48)
    (fix,) = only(plan(beyond, offers)).fixes
    assert fix.says.startswith("deadline of 2026-11-25T12:00Z, 40 h later, and horizon.days of 3")
    check_fixes(beyond, offers, plan(beyond, offers))


def test_no_fix_passes_the_budget_without_raising_it() -> None:
    """With a day more the run costs $30; the budget has $12."""
    run = training(gpu_hours=30, deadline=at(20), unplaced_usd=Decimal(25))
    asked = request(run, budget_usd=Decimal(12))
    offers = [offer("slow", "1.00")]
    (fix,) = only(plan(asked, offers)).fixes
    assert fix.says == (
        "deadline of 2026-11-24T06:00Z, 10 h later and unplaced_usd of 31 and a budget of $30, "
        "$18.00 higher: it then costs $30.00"
    )
    check_fixes(asked, offers, plan(asked, offers))


def test_a_higher_budget_is_enough_for_all_that_it_keeps_out() -> None:
    """A dollar above 20 + 30 would be spent on the third run, which saves as much and costs less."""
    runs = [
        training("first", 10, unplaced_usd=Decimal(100)),
        training("second", 20, unplaced_usd=Decimal(90)),
        training("third", 12, unplaced_usd=Decimal(85)),
    ]
    asked, offers = request(*runs, budget_usd=Decimal(23)), [offer("a", "2.00")]
    found = plan(asked, offers)
    assert {left.reason for left in found.unplaced} == {Obstacle.BUDGET}
    assert len(found.unplaced) == 2
    check_fixes(asked, offers, found)


def test_a_team_that_allows_one_seller_is_offered_fewer_zones_and_no_other_seller() -> None:
    offers = [
        offer("a", "1.00", provider="aws", place="aws/1"),
        offer("b", "0.50", provider="vast", region="Osaka", place="vast/1"),
    ]
    asked = request(flat("chat", 3.0, zones=2, policy=Policy(providers=Providers(only=("aws",)))))
    left = only(plan(asked, offers))
    assert left.reason is Obstacle.REDUNDANCY
    assert [fix.says for fix in left.fixes] == ["redundancy.zones of 1: it then costs $48.00"]


def test_what_the_team_does_not_allow_is_said_to_be_so() -> None:
    asked = request(training(policy=Policy(regions=("eu-west",))))
    offers = [offer("a", "2.00", region="us-east")]
    (fix,) = only(plan(asked, offers)).fixes
    assert "outside the policy" in fix.says
    assert after(asked, fix).workloads[0].policy.regions == ("eu-west", "us-east")


def test_patterns_that_name_a_continent_are_replaced_by_its_countries() -> None:
    asked = request(training(policy=Policy(regions=("eu-moon-*",))))
    offers = [
        offer("jp", "1.00", region="Osaka", country="JP"),
        offer("de", "2.00", region="Frankfurt", country="DE"),
    ]
    (fix, *_) = only(plan(asked, offers)).fixes
    assert fix.says == "geography: [eu] in place of regions: [eu-moon-*]: it then costs $20.00"
    check_fixes(asked, offers, plan(asked, offers))


def test_community_hosts_are_the_last_thing_to_be_asked_for() -> None:
    asked = request(training())
    offers = [offer("v", "0.50", provider="vast", host=HostKind.COMMUNITY)]
    (fix,) = only(plan(asked, offers)).fixes
    assert fix.says.startswith("hosts: [datacenter, community] (outside the policy")
    check_fixes(asked, offers, plan(asked, offers))
    later = request(training(gpu_hours=60, deadline=at(40)), hours=96)
    offers.append(offer("d", "2.00"))
    assert only(plan(later, offers)).nearest_fix.startswith("deadline of")


@pytest.mark.parametrize(
    ("gpu", "team", "own", "says"),
    [
        ("RTX-4090", GpuRules(), GpuRules(), "gpus: {classes: [datacenter, workstation, consumer]}"),
        ("MI300X-192GB", GpuRules(), GpuRules(), "gpus: {vendor: [nvidia, amd]}"),
        ("MI300X-192GB", GpuRules(vendor=(GpuVendor.NVIDIA,)), GpuRules(), "gpus: {vendor: [nvidia, amd]}"),
        ("H100-SXM-80GB", GpuRules(), GpuRules(only=("H200-*",)), "gpus with H100-SXM-80GB"),
        ("H100-SXM-80GB", GpuRules(exclude=("H1*", "L4")), GpuRules(), "gpus with H100-SXM-80GB"),
        ("H100-SXM-80GB", GpuRules(min_memory_gb=141), GpuRules(("H100-*",)), "gpus with H100-SXM-80GB"),
    ],
)
def test_wider_rules_on_gpus_are_proposed(gpu: str, team: GpuRules, own: GpuRules, says: str) -> None:
    asked = request(training(policy=Policy(gpus=own)), policy=Policy(gpus=team))
    offers = [offer("a", "0.50", gpu=gpu)]
    left = only(plan(asked, offers))
    assert left.reason is Obstacle.POLICY
    assert left.fixes[0].says.startswith(f"{says} (outside the policy")
    check_fixes(asked, offers, plan(asked, offers))


@pytest.mark.parametrize("own", [False, True])
def test_a_quota_of_the_document_is_raised_where_it_stands(own: bool) -> None:
    rule = Policy(quotas=(Quota("lambda", nodes=1), Quota("aws", 3)))
    run = training(gpus=GpuRange(2), policy=rule if own else Policy())
    asked = request(run, policy=Policy() if own else rule)
    offers = [offer("a", "1.00", joined=4)]
    left = only(plan(asked, offers))
    assert left.reason is Obstacle.QUOTA
    check_fixes(asked, offers, plan(asked, offers))


offers_drawn = st.builds(
    lambda usd, gpu, gpus, joined, nodes, where, tier: offer(
        "", usd, gpu=gpu, gpus=gpus, joined=joined, nodes=nodes, tier=tier, **where
    ),
    st.sampled_from(["0.50", "1.00", "2.00", "4.50"]),
    st.sampled_from(["BIG", "MID", "TINY"]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([0, 4]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from(
        [
            {"provider": "aws", "region": "us-east-1", "country": "US", "place": "aws/1"},
            {"provider": "aws", "region": "eu-west-1", "country": "IE", "place": "aws/2"},
            {"provider": "lambda", "region": "us-west-1", "country": "US", "place": "lambda/1"},
            {
                "provider": "vast",
                "region": "Osaka",
                "country": "JP",
                "place": "v",
                "host": HostKind.COMMUNITY,
            },
        ]
    ),
    st.sampled_from([Tier.ON_DEMAND, Tier.ON_DEMAND, Tier.SPOT]),
)
policies_drawn = st.sampled_from(
    [
        *[Policy()] * 4,
        Policy(providers=Providers(only=("aws",))),
        Policy(providers=Providers(exclude=("aws",))),
        Policy(regions=("eu-*",)),
        Policy(countries=("US",)),
        Policy(geography=("eu",)),
        Policy(tiers=(Tier.SPOT,)),
        Policy(compliance=("soc2",)),
        Policy(hosts=(HostKind.COMMUNITY,)),
        Policy(quotas=(Quota("aws", 2),)),
    ]
)
prices_drawn = st.sampled_from([None, Decimal(3), Decimal(40), Decimal(500)])
runs_drawn = st.builds(
    lambda hours, model, gpus, deadline, **rest: training(
        gpu_hours=hours, gpus=GpuRange(gpus[0], gpus[1]), deadline=at(deadline), **model, **rest
    ),
    st.sampled_from([4, 20, 90]),
    st.sampled_from([{}, {"model": LARGE}]),
    st.sampled_from([(1, None), (1, 1), (1, 2), (4, 8), (16, None)]),
    st.sampled_from([6, 20, 48]),
    unplaced_usd=prices_drawn,
    policy=policies_drawn,
    interruptible=st.booleans(),
)
services_drawn = st.builds(
    lambda rate, **rest: flat("", rate, **rest),
    st.sampled_from([1.0, 6.0, 30.0]),
    zones=st.sampled_from([1, 1, 2, 3]),
    spare=st.sampled_from([0, 1]),
    unplaced_usd=prices_drawn,
    policy=policies_drawn,
)
batches_drawn = st.builds(
    lambda requests, deadline, **rest: batch(requests=requests, deadline=at(deadline), **rest),
    st.sampled_from([20_000, 400_000]),
    st.sampled_from([6, 30]),
    unplaced_usd=prices_drawn,
    policy=policies_drawn,
)


def named(workloads: Sequence[Workload]) -> list[Workload]:
    return [replace(workload, name=f"w{number}") for number, workload in enumerate(workloads)]


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(
    st.lists(offers_drawn, min_size=1, max_size=4),
    st.lists(st.one_of(runs_drawn, services_drawn, batches_drawn), min_size=1, max_size=3),
    st.sampled_from([None, None, Decimal(10), Decimal(200)]),
    policies_drawn,
)
def test_every_fix_of_a_drawn_document_places_its_workload(
    offers: list[Offer], workloads: list[Workload], budget_usd: Decimal | None, policy: Policy
) -> None:
    market = [replace(one, offer_id=f"o{number}") for number, one in enumerate(offers)]
    asked = request(*named(workloads), budget_usd=budget_usd, policy=policy)
    check_fixes(asked, market, plan(asked, market))


def real_plan(asked: PlanRequest, offers: Sequence[Offer]) -> Plan:
    """A plan with the estimates of the real performance core."""
    core = Estimator(load_gpus(), load_calibration())
    return JointPlanner(core).plan(asked, offers, T0, PlanOptions(baselines=False))


def h100(gpus: int, usd: str) -> Offer:
    """Nodes of H100 with NVLink and no fabric."""
    link = infer_intra_node("H100-SXM-80GB", gpus)
    card = Sku(f"h100-x{gpus}", "H100-SXM-80GB", gpus, 80.0, intra_node=link)
    return replace(offer(f"h100-x{gpus}", usd), sku=card)


def test_the_least_latency_that_can_be_had_is_told_in_numbers() -> None:
    """70 billion parameters in BF16 are 141 GB, which eight H100 of 3.35 TB/s read in 5.3 ms at best."""
    traffic = Traffic(1000, 100, TrafficShape.FLAT, 0.05)
    chat = replace(serving("chat"), model=LARGE, traffic=traffic, slo=Slo(2000.0, 3.0))
    offers = [h100(8, "20.00")]
    asked = request(chat, hours=24)
    left = only(real_plan(asked, offers))
    assert left.reason is Obstacle.LATENCY
    fix = left.fixes[0]
    assert [one.path for one in fix.patch] == ["/workloads/0/slo/itl_p95_ms"]
    assert fix.says.startswith(f"slo.itl_p95_ms of {json.loads(str(fix.patch[0].value_json)):g} (the least")
    patched_request = after(asked, fix)
    (service,) = patched_request.workloads
    assert isinstance(service, Serving)
    assert service.slo.itl_p95_ms > 5.3
    assert real_plan(patched_request, offers).cost_usd == fix.cost_usd
    tighter = replace(chat, slo=Slo(2000.0, 0.9 * service.slo.itl_p95_ms))
    assert only(real_plan(request(tighter, hours=24), offers)).reason is Obstacle.LATENCY


def test_seventy_billion_parameters_are_not_trained_on_two_gpus() -> None:
    """A fabric would join enough single GPUs; the run may have two of them, so memory is what stops it."""
    run = replace(training("sft"), model=LARGE, tokens=1e7, sequence_length=4096, gpus=GpuRange(1, 2))
    offers = [h100(1, "2.00"), h100(2, "4.00"), h100(8, "20.00")]
    asked = request(replace(run, software=TrainingStack.FSDP, global_batch_tokens=131_072.0))
    assert only(real_plan(asked, offers)).reason is Obstacle.MEMORY

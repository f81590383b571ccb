"""A plan says what community hosts would have saved, and only what a plan with them would really save."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import HostKind, Offer
from broker.domain.market.sku import GpuClass, GpuVendor, Sku
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import FleetLimits, PlanRequest, Policy, Providers, Training
from broker.domain.workloads.gpu_rules import GpuRules
from tests.depth import examples
from tests.placement.market import at, offer, plan, request, serving, total, training

HALL = offer("hall", "2.00")


def lent(name: str, usd: str, **changes: Any) -> Offer:
    return offer(name, usd, **{"provider": "vast", "host": HostKind.COMMUNITY, **changes})


def planned(asked: PlanRequest, offers: list[Offer]) -> Plan:
    return plan(asked, offers, baselines=True)


def test_a_run_that_would_cost_half_is_told() -> None:
    found = planned(request(training("run", 10)), [HALL, lent("lent", "1.00")])
    assert found.cost_usd == Decimal(20)
    assert found.notes == (
        "hosts: [datacenter, community] would save $10.00 or more, with everything else as planned, "
        "run at vast",
    )


def test_nothing_is_told_where_nothing_is_saved() -> None:
    run = training("run", 10)
    assert planned(request(run), [HALL, lent("lent", "2.00")]).notes == ()
    assert planned(request(run), [HALL, lent("lent", "1.00", gpu="NONE")]).notes == ()
    none_of_vast = Policy(providers=Providers(exclude=("vast",)))
    assert planned(request(run, policy=none_of_vast), [HALL, lent("lent", "1.00")]).notes == ()
    allowed = Policy(hosts=tuple(HostKind))
    assert planned(request(run, policy=allowed), [HALL, lent("lent", "1.00")]).notes == ()


def test_one_lent_node_is_not_counted_on_twice() -> None:
    runs = (training("a", 10, deadline=at(10)), training("b", 10, deadline=at(10)))
    (note,) = planned(request(*runs), [HALL, lent("lent", "1.00", nodes=1)]).notes
    assert "would save $10.00 or more" in note
    (note,) = planned(request(*runs), [HALL, lent("lent", "1.00", nodes=2)]).notes
    assert "would save $20.00 or more" in note


def test_what_waits_for_a_run_is_placed_anew_with_it() -> None:
    """Eight hours of a service follow a run of ten; both cost a dollar an hour less on lent nodes."""
    asked = request(training("run", 10), serving(hourly=[3.0], starts_after="run"), hours=18)
    (note,) = planned(asked, [HALL, lent("lent", "1.00")]).notes
    assert "would save $18.00 or more" in note
    assert note.endswith("with everything else as planned, run with chat at vast")


def test_the_note_states_no_cost_beside_those_of_the_plan() -> None:
    """What a workload costs is in the plan; the note has savings alone, which sum to the one that it begins
    with."""
    runs = (training("a", 10, deadline=at(10)), training("b", 5, deadline=at(10)))
    (note,) = planned(request(*runs), [HALL, lent("lent", "1.00", nodes=2)]).notes
    assert "would save $15.00 or more" in note
    assert note.endswith("with everything else as planned, a at vast $10.00, b at vast $5.00")


def test_a_service_on_few_pools_is_placed_anew_by_the_same_rules() -> None:
    chat = serving(hourly=[3.0], fleet=FleetLimits(max_pools=1))
    found = planned(request(chat, hours=8), [HALL, lent("lent", "1.00")])
    (note,) = (one for one in found.notes if "are not served" not in one)
    assert "would save $8.00 or more" in note


def test_a_workload_that_may_not_is_left_out() -> None:
    own = training("own", 10, policy=Policy(providers=Providers(exclude=("vast",))))
    (note,) = planned(request(own, training("run", 10)), [HALL, lent("lent", "1.00")]).notes
    assert "own" not in note
    assert "run at vast" in note


prices = st.sampled_from(["0.50", "1.00", "1.90", "2.40"])


@settings(max_examples=examples(10), derandomize=True, deadline=None)
@given(st.lists(st.tuples(prices, st.integers(1, 2)), min_size=1, max_size=2), st.integers(1, 3))
def test_the_saving_is_never_more_than_that_of_a_plan_with_them(
    lots: list[tuple[str, int]], runs: int
) -> None:
    offers = [HALL, *(lent(f"lent{n}", usd, nodes=nodes) for n, (usd, nodes) in enumerate(lots))]
    asked = request(*(training(f"r{n}", 6, deadline=at(7)) for n in range(runs)))
    found = planned(asked, offers)
    best = plan(replace(asked, policy=Policy(hosts=tuple(HostKind))), offers)
    saved = total(found) - total(best)
    told = [note.split("would save $")[1].split(" ")[0] for note in found.notes]
    assert [Decimal(usd) for usd in told] == ([saved] if saved else [])


H100 = offer("h100", "2.00", gpu="H100-SXM-80GB")
AMD = offer("mi300x", "1.00", gpu="MI300X-192GB", provider="hotaisle")
GAMING = offer("gaming", "1.50", gpu="RTX-4090", provider="runpod")


def test_each_wider_choice_of_gpus_is_told_apart() -> None:
    run = training("run", 10)
    assert planned(request(run), [H100, AMD, GAMING]).notes == (
        "gpus: {vendor: [nvidia, amd]} would save $10.00 or more, with everything else as planned, "
        "run on MI300X-192GB at hotaisle",
        "gpus: {classes: [datacenter, workstation, consumer]} would save $5.00 or more, "
        "with everything else as planned, run on RTX-4090 at runpod",
    )


@pytest.mark.parametrize(
    ("team", "own", "says"),
    [
        (GpuRules(only=("H100-*",)), GpuRules(), "gpus without only would save $10.00"),
        (GpuRules(), GpuRules(exclude=("RTX-A6000",)), "gpus without exclude would save $10.00"),
        (GpuRules(min_memory_gb=80), GpuRules(min_memory_gb=60), "gpus without min_memory_gb would save"),
    ],
)
def test_what_a_written_rule_on_gpus_costs_is_told(team: GpuRules, own: GpuRules, says: str) -> None:
    run = training("run", 10, policy=Policy(gpus=own))
    cheap = replace(offer("a6000", "1.00"), sku=Sku("a6000", "RTX-A6000", 1, 48.0))
    (note,) = planned(request(run, policy=Policy(gpus=team)), [H100, cheap]).notes
    assert note.startswith(says)
    assert note.endswith("run on RTX-A6000 at lambda")


def test_names_beyond_the_default_are_no_narrower_rule() -> None:
    """Without the list, the default would exclude the AMD that the list allows."""
    asked = request(training("run", 10), policy=Policy(gpus=GpuRules(only=("MI300X-*",))))
    assert planned(asked, [replace(AMD, price_usd_per_node_hour=Decimal(3)), H100]).notes == ()


KINDS = ("H100-SXM-80GB", "RTX-A6000", "RTX-4090", "MI300X-192GB")
names = st.lists(st.sampled_from((*KINDS, "RTX*", "H100-*")), max_size=2, unique=True).map(tuple)
rules = st.builds(
    GpuRules,
    only=names,
    exclude=names,
    min_memory_gb=st.sampled_from((None, 24.0, 80.0)),
    vendor=st.sampled_from((None, (GpuVendor.NVIDIA,), (GpuVendor.NVIDIA, GpuVendor.AMD))),
    classes=st.sampled_from((None, (GpuClass.DATACENTER,), tuple(GpuClass))),
)


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(rules, rules, st.lists(prices, min_size=4, max_size=4), st.sampled_from(KINDS))
def test_more_gpus_never_cost_more(team: GpuRules, own: GpuRules, usd: list[str], more: str) -> None:
    """A name more in ``only``, one less in ``exclude``, all vendors, all classes, any memory."""
    offers = [offer(gpu, price, gpu=gpu, nodes=1) for gpu, price in zip(KINDS, usd, strict=True)]
    runs = [training(f"r{n}", 6, deadline=at(7), unplaced_usd=Decimal(40)) for n in range(2)]
    cost = total(plan(narrowed(team, own, runs), offers))
    for wider in (
        *([replace(own, only=(*own.only, more))] if own.only else []),
        replace(own, exclude=own.exclude[1:]),
        replace(own, vendor=tuple(GpuVendor)),
        replace(own, classes=tuple(GpuClass)),
        replace(own, min_memory_gb=None),
    ):
        assert total(plan(narrowed(team, wider, runs), offers)) <= cost
    assert total(plan(narrowed(GpuRules(("*",)), GpuRules(), runs), offers)) <= cost


def narrowed(team: GpuRules, own: GpuRules, runs: list[Training]) -> PlanRequest:
    each = (replace(run, policy=Policy(gpus=own)) for run in runs)
    return request(*each, policy=Policy(gpus=team))

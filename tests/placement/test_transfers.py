"""Data on its way: what it costs decides, the plan says it in lines of its own, the check finds every lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.schemas.plans.plan import PLAN
from broker.catalogue import load_moving_terms
from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import BindingRule, Plan, SpendKind
from broker.domain.planning.transfer import Place, TransferKind
from broker.domain.planning.workload import Dataset, PlanRequest, Policy, Providers
from broker.domain.spend.charging import plan_charges
from tests.placement.market import at, offer, plan, planner, request, serving, total, training
from tests.placement.monolith import Monolith

PROFILE = settings(derandomize=True, deadline=None)
TERMS = MovingTerms(egress_usd_per_gb={"aws": Decimal("0.09"), "gcp": Decimal("0.12")}, staging_gbit_s=1e9)
HOURS = 8
Problem = tuple[PlanRequest, list[Offer]]


def moved() -> tuple[Plan, PlanRequest, list[Offer]]:
    """A run at aws whose data lies at gcp, and its service elsewhere."""
    run = training(
        "run",
        4,
        dataset=Dataset(20, "gcp", "eu"),
        policy=Policy(providers=Providers(only=("aws",))),
        deadline=at(20),
    )
    chat = serving("chat", policy=Policy(providers=Providers(exclude=("aws",))), starts_after="run", zones=2)
    offers = [
        offer("run", "1.00", provider="aws"),
        *(offer(name, "1.00", provider="other", region="r", zone=name) for name in ("a", "b")),
    ]
    asked = request(run, chat, hours=30)
    return plan(asked, offers, terms=TERMS), asked, offers


def test_a_copy_is_a_line_of_its_own_by_who_bills_it() -> None:
    found, _, _ = moved()
    run, first, second = found.placements
    assert [(t.what, t.usd) for t in run.transfers] == [(TransferKind.DATASET, Decimal("2.40"))]
    assert [(t.what, t.provider, t.usd) for t in first.transfers] == [
        (TransferKind.WEIGHTS, "aws", Decimal("1.45"))
    ]
    assert not second.transfers, "one copy for one place"
    lines = {(x.workload, x.billed_by): x.usd for x in found.spend if x.kind is SpendKind.EGRESS}
    assert lines == {("run", "gcp"): Decimal("2.40"), ("chat", "aws"): Decimal("1.45")}
    assert sum(x.usd for x in found.spend) == found.cost_usd == sum(p.cost_usd for p in found.placements)
    charges = [c for c in plan_charges(found, "team", "plan") if c.is_egress]
    assert {(c.provider, c.usd, c.basis.value) for c in charges} == {
        ("gcp", Decimal("2.40"), "projected"),
        ("aws", Decimal("1.45"), "projected"),
    }
    assert sum(c.usd for c in plan_charges(found, "team", "plan")) == found.cost_usd
    assert any("are copied from gcp eu: $2.40, billed by gcp" in words for words in run.why.binding)
    document = PLAN.write(found)
    assert document["placements"][0]["transfers"][0]["usd"] == "2.40"


def test_two_operators_in_one_region_of_an_aggregator_get_a_copy_each() -> None:
    """What lies with one operator is not with another, though one seller names one region for both."""
    terms = MovingTerms(egress_usd_per_gb={"aws": Decimal("0.09")}, staging_gbit_s=1e9)
    chat = serving("chat", zones=2, weights=Dataset(100, "aws", "us-east-1"))
    offers = [
        offer(name, "1.00", provider="resale", region="US", place=f"{name}/us")
        for name in ("first", "second")
    ]
    asked = request(chat, hours=8)
    found = plan(asked, offers, terms=terms)
    assert [[t.usd for t in one.transfers] for one in found.placements] == [[Decimal("9.00")]] * 2
    assert sum(x.usd for x in found.spend if x.kind is SpendKind.EGRESS) == Decimal("18.00")
    once = [found.placements[0], replace(found.placements[1], transfers=())]
    lie = planner(terms=terms).check(replace(found, placements=tuple(once)), asked, offers)
    assert any("expected 100 GB of weights from aws at 9.00 USD" in one for one in lie)


def test_the_check_finds_every_lie_about_a_copy() -> None:
    found, asked, offers = moved()
    check = planner(terms=TERMS).check
    assert not check(found, asked, offers)
    run = found.placements[0]
    (copy,) = run.transfers
    lies = [
        replace(copy, gb=19.0),
        replace(copy, provider="aws"),
        replace(copy, region="us"),
        replace(copy, hours=1.0),
        replace(copy, what=TransferKind.WEIGHTS),
        replace(copy, usd=Decimal("2.39")),
    ]
    for transfers in [(), *((lie,) for lie in lies)]:
        said = replace(run, transfers=transfers, cost_usd=run.capacity_usd + sum(t.usd for t in transfers))
        assert check(replace(found, placements=(said, *found.placements[1:])), asked, offers), transfers
    for index, line in enumerate(found.spend):
        if line.kind is SpendKind.EGRESS:
            for wrong in (
                replace(line, kind=SpendKind.CAPACITY),
                replace(line, billed_by="lambda"),
                replace(line, usd=line.usd + 1),
            ):
                spend = (*found.spend[:index], wrong, *found.spend[index + 1 :])
                assert check(replace(found, spend=spend), asked, offers)


def test_what_a_data_set_holds_back_is_named() -> None:
    run = training(dataset=Dataset(30, "aws", "us-east"))
    found = plan(request(run), [offer("a", "1.00"), offer("b", "1.20", provider="aws")], terms=TERMS)
    (placement,) = found.placements
    assert placement.provider == "aws"
    assert placement.why.rule is BindingRule.EGRESS


def test_the_installed_terms_price_egress_and_regions() -> None:
    terms = load_moving_terms()
    east = Place("aws", "us-east-1")
    assert terms.transfer_usd(east, Place("lambda", "us-east-1"), 1000) == Decimal("90.00")
    assert terms.transfer_usd(east, Place("aws", "eu-west-1"), 1000) == Decimal("20.00")
    assert terms.transfer_usd(east, east, 1000) == 0
    assert terms.staging(east, Place("lambda", "x"), 4500).total_seconds() == 3600
    assert terms.is_free(Place("lambda", "x"))
    assert not terms.is_free(east)


DATA = [None, Dataset(20, "aws", "us-east"), Dataset(9, "gcp", "us-east")]
prices = st.sampled_from(["0.40", "0.90", "1.00", "1.37"])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A run with data, a service after it and another run, over sellers with and without egress."""
    offers = [
        offer(
            f"o{i}",
            draw(prices),
            provider=draw(st.sampled_from(["aws", "gcp", "lambda"])),
            nodes=draw(st.sampled_from([1, 2, None])),
            zone=draw(st.sampled_from(["a", "b"])),
        )
        for i in range(3)
    ]
    runs = [
        training(
            name,
            draw(st.sampled_from([2, 3])),
            deadline=at(draw(st.integers(4, HOURS))),
            unplaced_usd=Decimal("40.00"),
            dataset=draw(st.sampled_from(DATA)),
        )
        for name in ("run", "other")
    ]
    demand = draw(st.lists(st.sampled_from([0.5, 4.0, 7.0]), min_size=HOURS, max_size=HOURS))
    zones = draw(st.integers(1, 2))
    chat = serving("chat", demand, zones=zones, unplaced_usd=Decimal("60.00"), starts_after="run")
    budget = draw(st.sampled_from([None, Decimal("12.00")]))
    return request(*runs, chat, hours=HOURS, budget_usd=budget), offers


def compare(asked: PlanRequest, offers: Sequence[Offer]) -> None:
    found = plan(asked, offers, terms=TERMS)
    below, best = Monolith(asked, offers, TERMS, found.waits).totals()
    assert found.bound_usd is not None
    assert found.bound_usd <= best or not found.waits
    assert total(found) >= below - (Decimal("0.10") if found.waits else Decimal("0.01"))
    assert total(found) <= best * Decimal("1.10") + Decimal("0.01")


@settings(PROFILE, max_examples=6)
@given(problems())
def test_data_agrees_with_one_model(problem: Problem) -> None:
    compare(*problem)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(PROFILE, max_examples=200)
@given(problems())
def test_hundreds_of_problems_with_data_agree_with_one_model(problem: Problem) -> None:
    compare(*problem)

"""Unit costs, idle time, savings and energy, on figures that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.catalogue import load_energy_facts
from broker.domain.basics.window import Wish
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.moving.savings import NotCompared, savings_of
from broker.domain.planning.plan import Baseline
from broker.domain.planning.workload import Serving, WorkloadKind
from broker.domain.spend.charging import plan_charges, reservation_charges
from broker.domain.spend.energy import EnergyFacts, GridFigure, energy_of
from broker.domain.spend.spend import ChargeBasis, Commitment, CostView
from broker.domain.spend.unit_costs import Job, Work, day_work_of, unit_costs, work_of
from broker.domain.workloads.bursts import Burst
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_request, a_segment, an_offer, listed_terms


def a_window_reservation(ordered_h: float = -48.0) -> Reservation:
    """A listed day on two nodes, of which ten hours are wanted; ordered two days before."""
    offer = an_offer("block", "1", window=listed_terms(NOON, 24), upfront="480")
    unit = Unit(0, "tag", 2, UnitState.HELD, "ref", NOON + timedelta(hours=ordered_h))
    return Reservation(
        reservation_id="rsv-1",
        team="research",
        state=ReservationState.ACTIVE,
        offer=offer,
        nodes=2,
        start=NOON,
        end=NOON + timedelta(hours=24),
        units=(unit,),
        created_at=NOON - timedelta(hours=48),
        workload="train",
        plan_id="plan-1",
        requested=Wish(NOON + timedelta(hours=1), NOON + timedelta(hours=11)),
    )


def test_the_hours_of_a_window_that_nobody_wanted_are_idle() -> None:
    charges = reservation_charges((a_window_reservation(),), {"train": WorkloadKind.TRAINING}, NOON)
    found = unit_costs(charges, ())
    assert found.total_usd == found.committed_usd == 480
    assert [found.used_gpu_hours, found.idle_gpu_hours] == [160, 224]
    assert found.idle_usd == Decimal("280.00")
    assert found.usd_per_idle_gpu_hour == Decimal("1.25")
    assert found.usd_per_used_gpu_hour == 3
    assert {charge.paid_at for charge in charges} == {NOON - timedelta(hours=48)}
    assert {charge.at(CostView.CASH) for charge in charges} == {NOON - timedelta(hours=48)}
    assert {charge.commitment for charge in charges} == {Commitment.COMMITTED}


def test_what_a_minimum_term_bills_beyond_what_was_held_is_idle() -> None:
    offer = an_offer("term", "10", min_hours=24)
    unit = Unit(0, "tag", 1, UnitState.GONE, "ref", NOON, NOON + timedelta(hours=6))
    row = replace(
        a_window_reservation(),
        offer=offer,
        nodes=1,
        units=(unit,),
        requested=None,
        state=ReservationState.RELEASED,
        released_at=NOON + timedelta(hours=6),
    )
    charges = reservation_charges((row,), {}, NOON + timedelta(days=2))
    found = unit_costs(charges, ())
    assert found.total_usd == 240
    assert [found.used_gpu_hours, found.idle_gpu_hours] == [48, 144]
    assert found.idle_usd == 180


def test_runs_and_tokens() -> None:
    request = a_request()
    offer = an_offer()
    run = a_placement(offer, [a_segment(0, 10)], "train")
    fleet = a_placement(offer, [a_segment(0, 48)], "chat", WorkloadKind.SERVING)
    plan = a_plan(run, fleet)
    work: dict[Job, Work] = {("plan-1", name): one for name, one in work_of(plan, request).items()}
    charges = plan_charges(plan, "research", "plan-1")
    found = unit_costs(charges, day_work_of(charges, work))
    assert [found.runs, found.usd_per_run, found.tokens_trained] == [1, 100, 1e9]
    assert found.usd_per_trillion_tokens_trained == 100_000
    assert found.tokens_served == 48 * 3600 * 200
    assert found.usd_per_million_tokens_served == Decimal(480) / Decimal("34.56")
    service = request.workload("chat")
    assert isinstance(service, Serving)
    more = 3 * service.traffic.peak_requests_per_s
    burst = replace(service.traffic, bursts=(Burst("15:00", 30, more),))
    bursty = replace(request, workloads=(replace(service, traffic=burst),))
    tokens = day_work_of(charges, {("plan-1", "chat"): work_of(plan, bursty)["chat"]})
    assert unit_costs(charges, tokens).tokens_served == pytest.approx((48 + 2) * 3600 * 200)
    half = [c for c in charges if c.window.start < NOON.replace(hour=0) + timedelta(days=1)]
    part = unit_costs(half, day_work_of(half, work))
    assert part.tokens_served == 12 * 3600 * 200
    assert {charge.basis for charge in charges} == {ChargeBasis.PROJECTED}


def test_savings_leave_out_what_could_not_run_and_count_lateness() -> None:
    plan = replace(
        a_plan(a_placement(an_offer(), [a_segment(0, 10)])),
        penalty_usd=Decimal(20),
        baselines=(
            Baseline("single_shape", Decimal(150), "one shape"),
            Baseline("converged", None, "no offer can"),
        ),
    )
    found = savings_of([(plan, a_request()), (plan, a_request())])
    (saving,) = found.savings
    assert [saving.plans, saving.baseline_usd, saving.plan_usd, saving.saved_usd] == [2, 300, 240, 60]
    assert saving.saved_share == pytest.approx(0.2)
    assert [one.name for one in found.not_run] == ["converged", "converged"]


def test_a_plan_that_places_nothing_is_named_once_and_one_without_strategies_with_its_reason() -> None:
    four = tuple(Baseline(name, None, "nothing is placed") for name in ("a", "b", "c", "d"))
    empty = replace(a_plan(), plan_id="plan-empty", baselines=four)
    alone = replace(a_plan(a_placement(an_offer(), [a_segment(0, 10)])), plan_id="plan-alone")
    found = savings_of([(empty, a_request()), (alone, a_request())], [NotCompared("plan-draft", "a draft")])
    assert (found.savings, found.not_run) == ((), ())
    assert [(one.plan_id, one.why) for one in found.not_compared] == [
        ("plan-draft", "a draft"),
        ("plan-empty", "it places nothing"),
        ("plan-alone", "no simpler strategy was tried for it"),
    ]


def test_energy_says_what_it_lacks() -> None:
    charges = reservation_charges((a_window_reservation(),), {}, NOON)
    grid = (GridFigure("fake", "us-*", 400.0, "here", "test"),)
    facts = EnergyFacts({"H100-SXM-80GB": 700.0}, 0.5, 0.1, 1.2, grid=grid)
    found = energy_of(charges, facts)
    assert found.kwh == pytest.approx((160 + 22.4) * 0.7 * 1.5 * 1.2)
    assert found.kg_co2e == pytest.approx(found.kwh * 0.4)
    assert (found.kwh_without_grid, found.gpu_hours_without_power) == (0, 0)
    elsewhere = energy_of(charges, replace(facts, grid=()))
    assert (elsewhere.kg_co2e, elsewhere.kwh_without_grid) == (0, elsewhere.kwh)
    assert energy_of(charges, replace(facts, watts={})).gpu_hours_without_power == 384


def test_the_facts_are_read_with_their_sources() -> None:
    facts = load_energy_facts()
    assert facts.watts["H100-SXM-80GB"] == 700
    paris = facts.grid_of("scaleway", "fr-par-2")
    assert paris is not None
    assert paris.grams_per_kwh == pytest.approx(15.83)
    assert facts.grid_of("aws", "eu-west-1") is None, "no figure is known for Ireland's grid"
    assert all(figure.source and 0 < figure.grams_per_kwh < 1000 for figure in facts.grid)

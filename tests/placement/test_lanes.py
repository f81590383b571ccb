"""Services divided into lanes by the size of requests: least cost, whole loads, spares, and when it pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.schemas.plans.division import division_to_document
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.market.offer import Offer
from broker.domain.market.sku import Sku
from broker.domain.planning.lanes import Division, lane_service
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Batch, PlanRequest, Policy, Precision, Quota, Serving, Starts
from broker.domain.workloads.traffic import RequestSize
from broker.ports.planning import PlanOptions
from optimizer.placement.fleets.lanes import LaneDemand, LaneOptions, find_lanes
from optimizer.placement.runtime.tuning import TUNING
from tests.depth import examples
from tests.placement.fake_estimator import GPUS, FakeEstimator
from tests.placement.market import T0, offer, planner, request, serving, training

OPTIONS = PlanOptions(10.0, 0.0, baselines=False)
SHORT, LONG = RequestSize(0.9, 100, 50), RequestSize(0.1, 8000, 500)
RATES = {("TINY", SHORT.input_tokens): 1.0, ("TINY", LONG.input_tokens): 0.02}


class SizedEstimator(FakeEstimator):
    """BIG serves long requests as short ones, TINY hardly."""

    def serving_at(
        self,
        workload: Serving | Batch,
        sku: Sku,
        precision: Precision,
        layout: Parallelism,
        usd_per_replica_hour: float,
    ) -> Estimate | None:
        found = super().serving_at(workload, sku, precision, layout, usd_per_replica_hour)
        if found is None or not isinstance(workload, Serving):
            return found
        traffic = workload.traffic
        sizes = traffic.mix or (RequestSize(1.0, traffic.input_tokens, traffic.output_tokens),)
        usual = GPUS[sku.gpu].requests_per_s
        busy_s = sum(one.share / RATES.get((sku.gpu, one.input_tokens), usual) for one in sizes)
        rate = layout.tp / busy_s
        return replace(found, value={**found.value, "requests_per_s_per_replica": rate})


def applied(division: Division, request: PlanRequest) -> PlanRequest:
    """``request`` with the divided services replaced by their lanes."""
    lanes = {one.service.name: one.lanes for one in division.divided}
    return replace(
        request,
        workloads=tuple(
            part
            for workload in request.workloads
            for part in (
                [lane_service(workload, lane) for lane in lanes[workload.name]]
                if isinstance(workload, Serving) and workload.name in lanes
                else [workload]
            )
        ),
    )


def mixed(name: str = "chat", hourly: Sequence[float] = (40.0,), **changes: object) -> Serving:
    service = serving(name, hourly, **changes)
    return replace(service, traffic=replace(service.traffic, mix=(SHORT, LONG)))


def market(tiny: str = "0.20") -> list[Offer]:
    return [
        offer("big-a", "2.00", nodes=40, zone="a"),
        offer("big-b", "2.00", nodes=40, zone="b"),
        offer("tiny-a", tiny, gpu="TINY", nodes=90, zone="a"),
        offer("tiny-b", tiny, gpu="TINY", nodes=90, zone="b"),
    ]


def alone(asked: PlanRequest, offers: Sequence[Offer]) -> Plan:
    return planner(SizedEstimator()).plan(asked, offers, T0, OPTIONS)


def menu(rates: Sequence[Sequence[float]], usd: Sequence[float], spare: float = 0.0) -> LaneOptions:
    found = np.array(rates, dtype=np.float64)
    count = len(found)
    return LaneOptions(found, np.array(usd), np.full(count, 200), np.full(count, spare))


def flat(rate: float, shares: Sequence[float]) -> LaneDemand:
    return LaneDemand(np.array([rate]), np.ones(1), np.array(shares))


def usd_of(parts: np.ndarray, of: LaneOptions, demand: LaneDemand) -> float:
    """What whole units cost that carry the load of each lane."""
    total = 0.0
    for row, rates, usd, spare in zip(parts, of.requests_per_s, of.usd_per_hour, of.spare_units, strict=True):
        if not row.any():
            continue
        assert (rates[row > 0] > 0).all()
        busy = sum(p * share / r for p, share, r in zip(row, demand.shares, rates, strict=True) if p)
        for rate, hours in zip(demand.requests_per_s, demand.hours, strict=True):
            total += hours * usd * max(of.least_units, math.ceil(rate * busy * (1 - 1e-9) + spare))
    return total


def least_of_two(of: LaneOptions, demand: LaneDemand) -> float:
    """The cheapest counts of two kinds: one takes the sizes at which it is relatively best."""
    rate = float(demand.requests_per_s[0])
    best = math.inf
    loads = [[rate * s / r for s, r in zip(demand.shares, kind, strict=True)] for kind in of.requests_per_s]
    order = sorted(range(len(demand.shares)), key=lambda s: loads[0][s] / loads[1][s])
    most = [math.ceil(sum(kind)) for kind in loads]
    for first, second in product(range(most[0] + 1), range(most[1] + 1)):
        room, rest = float(first), 0.0
        for size in order:
            taken = min(1.0, room / loads[0][size])
            room -= taken * loads[0][size]
            rest += (1 - taken) * loads[1][size]
        if rest <= second:
            best = min(best, first * of.usd_per_hour[0] + second * of.usd_per_hour[1])
    return best


rates_of = st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3)


@given(
    st.tuples(rates_of, rates_of),
    st.tuples(st.floats(0.3, 4.0), st.floats(0.3, 4.0)),
    st.floats(0.5, 12.0),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
@settings(max_examples=examples(60), deadline=None)
def test_no_counts_of_two_kinds_cost_less_than_the_lanes(
    rates: tuple[list[float], list[float]],
    usd: tuple[float, float],
    asked: float,
    weights: tuple[int, int, int],
) -> None:
    of, demand = menu(rates, usd), flat(asked, [w / sum(weights) for w in weights])
    parts = find_lanes(of, demand, 20.0)
    assert parts is not None
    assert parts.sum(axis=0) == pytest.approx(1.0)
    # The programme asks a hundred-thousandth more of each unit.
    above = flat(asked * (1 + 2e-5), list(demand.shares))
    assert least_of_two(of, demand) - 1e-6 <= usd_of(parts, of, demand) <= least_of_two(of, above) + 1e-6


def test_every_lane_has_its_spares_and_there_are_few() -> None:
    rates = [[4.0 if kind == size else 1.0 for size in range(6)] for kind in range(6)]
    of, demand = menu(rates, [1.0] * 6), flat(600.0, [1 / 6] * 6)
    parts = find_lanes(of, demand, 20.0)
    assert parts is not None
    assert (parts.sum(axis=1) > 0).sum() == TUNING.fleets.most_lanes
    # Spares of so many units in each lane cost more than what is gained by more than one.
    spared = find_lanes(replace(of, spare_units=np.full(6, 190.0)), flat(6.0, [1 / 6] * 6), 20.0)
    assert spared is not None
    assert (spared.sum(axis=1) > 0).sum() == 1


def test_a_size_that_nothing_serves_has_no_lane() -> None:
    assert find_lanes(menu([[1.0, 0.0], [2.0, 0.0]], [1.0, 1.0]), flat(1.0, [0.5, 0.5]), 5.0) is None


def test_lanes_save_what_their_plans_say_and_the_plan_of_the_document_costs_that() -> None:
    asked = request(mixed(), training(), hours=24)
    found = planner(SizedEstimator()).divide(asked, market(), T0, OPTIONS, 0.02)
    (one,) = found.divided
    assert not found.kept
    assert [lane.name for lane in one.lanes] == ["chat-1", "chat-2"]
    assert sum(lane.share for lane in one.lanes) == pytest.approx(1.0)
    assert one.routes[SHORT]["chat-1"] > 0.9
    assert one.routes[LONG] == {"chat-2": 1.0}
    # 36 short requests/s for $0.20 each and 4 long ones for $2.00 / 4 of BIG, in whole GPUs: 36 × 0.2 + 2.
    assert one.divided.cost_usd < Decimal("0.55") * one.whole.cost_usd
    assert one.whole.bound_usd is not None
    assert one.surely_saves_usd == one.whole.bound_usd - one.divided.cost_usd > 0

    divided = applied(found, asked)
    assert [workload.name for workload in divided.workloads] == ["chat-1", "chat-2", "run"]
    services = [workload for workload in divided.workloads if isinstance(workload, Serving)]
    plan = alone(replace(divided, workloads=tuple(services)), market())
    assert plan.cost_usd == one.divided.cost_usd
    assert sum(s.traffic.peak_requests_per_s for s in services) == pytest.approx(40.0)


def test_lanes_hold_zones_and_share_the_price_of_leaving_out() -> None:
    service = mixed(zones=2, spare=1, unplaced_usd=Decimal("1000.01"))
    found = planner(SizedEstimator()).divide(request(service, hours=24), market(), T0, OPTIONS, 0.02)
    (one,) = found.divided
    divided = applied(found, request(service, hours=24))
    prices = [workload.unplaced_usd for workload in divided.workloads]
    assert sum(price for price in prices if price is not None) == pytest.approx(Decimal("1000.01"))
    for lane in one.lanes:
        placements = one.divided.placements_of(lane.name)
        assert len({placement.zone for placement in placements}) == 2


def test_what_saves_too_little_stays_whole_and_says_what_it_would_be() -> None:
    asked = request(mixed(), hours=24)
    found = planner(SizedEstimator()).divide(asked, market(), T0, OPTIONS, 0.9)
    assert not found.divided
    (kept,) = found.kept
    assert kept.service == "chat"
    assert "in 2 lanes it costs $" in kept.why
    assert "less than whole" in kept.why
    assert applied(found, asked) == asked


def test_a_size_that_stands_twice_in_a_mix_goes_one_way() -> None:
    service = mixed()
    half = replace(SHORT, share=SHORT.share / 2)
    twice = replace(service, traffic=replace(service.traffic, mix=(half, half, LONG)))
    (one,) = planner(SizedEstimator()).divide(request(twice, hours=24), market(), T0, OPTIONS, 0.02).divided
    assert sum(lane.share for lane in one.lanes) == pytest.approx(1.0)
    to_short = sum(lane.share * size.share for lane in one.lanes[:1] for size in lane.sizes) / SHORT.share
    assert one.routes[half]["chat-1"] == pytest.approx(to_short)
    assert sum(one.routes[half].values()) == pytest.approx(1.0)


def test_what_has_no_place_whole_may_have_one_in_lanes() -> None:
    """All sizes in the same shares need more of BIG than there is."""
    offers = [replace(one, stock=replace(one.stock, nodes=1)) for one in market()[:2]] + market()[2:]
    (one,) = planner(SizedEstimator()).divide(request(mixed(), hours=24), offers, T0, OPTIONS, 0.5).divided
    assert one.whole.unplaced
    assert not one.divided.unplaced
    (told,) = division_to_document(Division((one,), ()))["divided"]
    assert told["whole_usd"] is told["saves_usd"] is None
    assert Decimal(told["divided_usd"]) == one.divided.cost_usd


def test_one_kind_that_is_best_for_all_sizes_is_not_divided() -> None:
    found = planner(SizedEstimator()).divide(request(mixed(), hours=24), market("9.00"), T0, OPTIONS, 0.0)
    (kept,) = found.kept
    assert kept.why == "at the prices of this market no lanes cost less"


def test_services_of_one_size_are_no_question_and_a_quota_of_its_own_keeps_one_whole() -> None:
    own = Policy(quotas=(Quota("lambda", 64, None),))
    asked = request(serving("plain"), mixed("limited", policy=own), hours=24)
    found = planner(SizedEstimator()).divide(asked, market(), T0, OPTIONS, 0.0)
    assert [one.service for one in found.kept] == ["limited"]
    assert "quota" in found.kept[0].why


def test_a_lane_takes_no_name_that_is_taken() -> None:
    asked = request(mixed(), serving("chat-1"), hours=24)
    (one,) = planner(SizedEstimator()).divide(asked, market(), T0, OPTIONS, 0.02).divided
    assert [lane.name for lane in one.lanes] == ["chat-2", "chat-3"]


def test_a_service_that_waits_for_a_run_is_divided_and_still_waits() -> None:
    run = training(gpu_hours=4)
    service = replace(mixed(), starts=Starts("run"))
    asked = request(run, service, hours=24)
    found = planner(SizedEstimator()).divide(asked, market(), T0, OPTIONS, 0.02)
    lanes = [w for w in applied(found, asked).workloads if isinstance(w, Serving)]
    assert [lane.starts_after for lane in lanes] == ["run", "run"]
    assert not alone(applied(found, asked), market()).unplaced

"""The checker on facts at the edge: what a placement repeats, policies, times, copies and sums."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import cast

import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.basics.window import Segment
from broker.domain.market.offer import HostKind, Tier, WindowKind
from broker.domain.market.sku import GpuClass, GpuVendor
from broker.domain.moving.moving_costs import MovingTerms, finished_weights_gb
from broker.domain.planning.effective_rules import EffectiveRules
from broker.domain.planning.plan import Obstacle, PlanStatus, SpendKind, Unplaced
from broker.domain.planning.transfer import Transfer, TransferKind
from broker.domain.planning.workload import (
    Dataset,
    Policy,
    Providers,
    Serving,
    ServingEngine,
    Starts,
    Training,
)
from broker.domain.workloads.gpu_rules import GpuRules, allowed_gpus
from optimizer.performance.estimator import Estimator
from optimizer.placement.rules import available, identity, totals, transfers
from optimizer.placement.rules.case import Case, run_end, usable_stretches
from optimizer.placement.rules.policy import broken_gpu_rules, broken_host_rules, broken_rules, violations
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import at, batch, offer, plan, request, window
from tests.placement.test_check_edges import ON_DEMAND, held, judge, refusals, sold_by, span
from tests.placement.test_check_rules import Checked, first_changed, run_plan, service_plan, waiting_plan

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def case_of(checked: Checked, terms: MovingTerms | None = None) -> Case:
    found, asked, offers = checked
    return Case.of(found, asked, offers, cast("Estimator", FakeEstimator()), terms or MovingTerms())


@pytest.mark.parametrize(
    ("nodes", "counts", "lot", "held_nodes", "words"),
    [
        (3, None, 1, 3, None),
        (3, None, 1, 4, "nodes is 3, expected 4"),  # three are sold
        (3, (4, 8), 1, 4, None),
        (3, (4, 8), 1, 8, "nodes is 3, expected 8"),  # four are sold
        (3, (1, 2, 8), 1, 8, None),
        (3, None, 4, 4, None),
        (3, None, 4, 8, "nodes is 3, expected 8"),
        (3, None, 2, 4, None),
        (1, (2,), 1, 2, None),
        (0, (2,), 1, 2, "nodes is 0, expected 2"),
        (5, (4, 8), 1, 4, "nodes is 5, expected 4"),
    ],
)
def test_a_run_holds_the_fewest_nodes_that_are_sold(
    nodes: int, counts: tuple[int, ...] | None, lot: int, held_nodes: int, words: str | None
) -> None:
    terms = window(WindowKind.LISTED, (0, 24, 9), node_counts=counts, lot_nodes=lot)
    checked = held(sold_by(terms), [span(0, 24, held_nodes)])
    found, asked, offers = checked
    told = first_changed(found, nodes=nodes)
    said = refusals(identity, (told, asked, offers))
    judge([line for line in said if "nodes is" in line], words)


def test_only_a_window_that_is_sold_so_leaves_nodes_over() -> None:
    found, asked, offers = held(ON_DEMAND, [span(0, 10, 2)])
    said = refusals(identity, (first_changed(found, nodes=1), asked, offers))
    judge([line for line in said if "nodes is" in line], "nodes is 1, expected 2")


def left_out(*names: str) -> tuple[Unplaced, ...]:
    return tuple(Unplaced(name, Obstacle.STOCK, "") for name in names)


@pytest.mark.parametrize(
    ("placed", "unplaced", "words"),
    [
        (1, 0, None),
        (0, 1, None),
        (0, 0, "workload 'run' is neither placed nor listed"),
        (1, 1, "workload 'run' is both placed and unplaced"),
        (0, 2, "workload 'run' is listed as unplaced 2 times"),
        (2, 0, "training 'run' has 2 placements"),
    ],
)
def test_a_workload_is_placed_or_left_out_once(placed: int, unplaced: int, words: str | None) -> None:
    found, asked, offers = run_plan()
    told = replace(found, placements=found.placements * placed, unplaced=left_out("run") * unplaced)
    judge(refusals(identity, (told, asked, offers)), words)


def test_a_service_is_told_as_left_out_even_if_the_run_that_it_follows_is() -> None:
    found, asked, offers = waiting_plan()
    run, _ = found.placements
    neither = replace(found, placements=(), unplaced=left_out("run", "chat"))
    assert refusals(identity, (neither, asked, offers)) == []
    for told in (replace(neither, unplaced=left_out("run")), replace(found, placements=(run,))):
        judge(refusals(identity, (told, asked, offers)), "workload 'chat' is neither placed")


@pytest.mark.parametrize(
    ("layout", "routed", "words"),
    [
        (Parallelism(tp=4), False, None),
        (Parallelism(tp=2, pp=2), False, None),
        (Parallelism(tp=4, dp=4, ep=4), True, None),
        (Parallelism(tp=4, dp=4, ep=4), False, "dp is 4, expected 1"),
        (Parallelism(tp=2, dp=2, ep=2, pp=2), True, "dp is 2, expected 1"),
        (Parallelism(tp=4, dp=2, ep=2), True, "or by dp and ep over its tp GPUs"),
        (Parallelism(tp=4, ep=4), True, "or by dp and ep over its tp GPUs"),
        (Parallelism(tp=4, cp=2), False, "or by dp and ep over its tp GPUs"),
        (Parallelism(tp=2, dp=2, ep=2), False, "dp is 2, expected 1"),
        (Parallelism(tp=2, dp=2, ep=2), True, None),
    ],
)
def test_a_replica_is_split_in_one_of_the_ways_that_engines_know(
    layout: Parallelism, routed: bool, words: str | None
) -> None:
    found, asked, offers = service_plan()
    (service,) = asked.workloads
    model = load_models()["Mixtral-8x7B" if routed else "Llama-3.1-8B"]
    wished = replace(asked, workloads=(replace(service, model=model),))
    size = layout.tp * layout.pp
    placements = tuple(
        replace(one, parallelism=layout, gpus_per_replica=size, replicas=1) for one in found.placements
    )
    said = refusals(identity, (replace(found, placements=placements), wished, offers))
    judge([line for line in said if "on a)" in line and "do not fit" not in line], words)


@pytest.mark.parametrize(
    ("engine", "words"),
    [(None, None), (ServingEngine.VLLM, None), (ServingEngine.SGLANG, "engine is sglang")],
)
def test_a_service_runs_on_the_engine_that_it_asks_for(
    engine: ServingEngine | None, words: str | None
) -> None:
    found, asked, offers = service_plan()
    (service,) = asked.workloads
    assert isinstance(service, Serving)
    assert service.engine is ServingEngine.VLLM
    told = replace(found, placements=tuple(replace(one, engine=engine) for one in found.placements[:1]))
    judge(refusals(identity, (told, asked, offers)), words)
    run, wished, sold = run_plan()
    judge(
        refusals(identity, (first_changed(run, engine=engine), wished, sold)),
        None if engine is None else f"engine is {engine}, expected none, as runs have",
    )


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Policy(regions=("eu-*", "us-*")), None),
        (Policy(regions=("eu-*",)), "region 'us-east' matches none"),
        (Policy(countries=("DE", "US")), None),
        (Policy(countries=("DE",)), "country US"),
        (Policy(geography=("eu", "us")), None),
        (Policy(geography=("eu",)), "country US is not in eu"),
        (Policy(tiers=(Tier.SPOT, Tier.ON_DEMAND)), None),
        (Policy(providers=Providers(only=("aws",))), "provider 'lambda' is not among"),
        (Policy(providers=Providers(exclude=("lambda",))), "is excluded"),
    ],
)
def test_one_allowed_place_is_enough(rules: Policy, words: str | None) -> None:
    judge(list(broken_rules(rules, replace(offer("node", "1.00"), country="US"))), words)


def host_rules(*hosts: HostKind, reliability: float = 0.0) -> EffectiveRules:
    return EffectiveRules(frozenset(hosts), allowed_gpus([]), reliability, 0.0, 9, 9)


@pytest.mark.parametrize(
    ("host", "provider", "rules", "words"),
    [
        (HostKind.DATACENTER, "vast", host_rules(HostKind.DATACENTER), None),
        (HostKind.COMMUNITY, "vast", host_rules(HostKind.DATACENTER), "host community is not among"),
        (HostKind.COMMUNITY, "vast", host_rules(*HostKind), None),
        (None, "vast", host_rules(*HostKind), None),  # nobody says, and anything goes
        (None, "vast", host_rules(HostKind.DATACENTER), "host unknown is not among datacenter"),
        (None, "vast", host_rules(), "host unknown is not among those of team and workload"),
    ],
)
def test_a_host_is_one_of_the_allowed(
    host: HostKind | None, provider: str, rules: EffectiveRules, words: str | None
) -> None:
    judge(list(broken_host_rules(rules, replace(offer("n", "1.00", provider=provider), host=host))), words)


AMD, GAMING, H100 = (
    GpuRules(vendor=(GpuVendor.AMD,)),
    GpuRules(classes=(GpuClass.CONSUMER,)),
    GpuRules(("H1*",)),
)


@pytest.mark.parametrize(
    ("gpu", "team", "own", "words"),
    [
        ("H100-SXM-80GB", GpuRules(), GpuRules(), None),
        ("RTX-A6000", GpuRules(), GpuRules(), None),
        (
            "RTX-4090",
            GpuRules(),
            GpuRules(),
            "class consumer of GPU RTX-4090 is not among datacenter, workstation",
        ),
        ("RTX-4090", GAMING, GpuRules(), None),
        ("RTX-4090", GpuRules(), GpuRules(("RTX-4090",)), None),
        ("MI300X-192GB", GpuRules(), GpuRules(), "vendor amd of GPU MI300X-192GB is not among nvidia"),
        ("MI300X-192GB", GpuRules(), AMD, None),
        (
            "MI300X-192GB",
            AMD,
            GpuRules(vendor=(GpuVendor.NVIDIA,)),
            "is not among those of team and workload",
        ),
        ("MI300X-192GB", AMD, H100, "GPU MI300X-192GB is not among H1*"),
        ("H100-SXM-80GB", H100, GpuRules(exclude=("H100-*",)), "GPU H100-SXM-80GB is excluded"),
        ("H100-SXM-80GB", GpuRules(min_memory_gb=80), GpuRules(), None),
        (
            "H100-SXM-80GB",
            GpuRules(min_memory_gb=40),
            GpuRules(min_memory_gb=80.5),
            "of 80 GB is below 80.5 GB",
        ),
        ("BIG", GpuRules(), GpuRules(), None),  # without a data sheet
        (
            "BIG",
            GpuRules(),
            GpuRules(classes=tuple(GpuClass)),
            "nothing is known of the vendor and class of GPU BIG",
        ),
    ],
)
def test_gpus_are_those_of_team_workload_and_defaults(
    gpu: str, team: GpuRules, own: GpuRules, words: str | None
) -> None:
    """The checker and the gates say the same, each in its own words."""
    one = offer("node", "1.00", gpu=gpu)
    judge(list(broken_gpu_rules((team, own), one)), words)
    assert allowed_gpus((team, own)).allow(one.sku, load_gpus().get(gpu)) == (words is None)


@pytest.mark.parametrize(
    ("stated", "least", "words"),
    [
        (None, 0.0, None),
        (None, 0.9, "reliability unknown is below 0.9"),
        (0.9, 0.9, None),
        (0.899, 0.9, "reliability 0.899 is below 0.9"),
    ],
)
def test_a_seller_states_the_reliability_that_is_asked(
    stated: float | None, least: float, words: str | None
) -> None:
    rules = host_rules(HostKind.DATACENTER, reliability=least)
    judge(list(broken_host_rules(rules, replace(ON_DEMAND, reliability=stated))), words)


@pytest.mark.parametrize(
    ("interruptible", "words"), [(True, None), (False, "tier spot needs an interruptible")]
)
def test_spot_is_for_runs_that_may_be_interrupted(interruptible: bool, words: str | None) -> None:
    checked = held(replace(ON_DEMAND, tier=Tier.SPOT), [span(0, 10)], interruptible=interruptible)
    judge(list(violations(case_of(checked))), words)
    found, asked, offers = service_plan()
    spot = [replace(one, tier=Tier.SPOT) for one in offers]
    assert len(list(violations(case_of((found, asked, spot))))) == len(found.placements)


@pytest.mark.parametrize(("until", "words"), [(10, None), (9.999, "offer ends at"), (6, "offer ends at")])
def test_an_offer_lasts_until_the_last_of_what_is_held(until: float, words: str | None) -> None:
    checked = held(replace(ON_DEMAND, available_until=at(until)), [span(0, 5), span(7, 10)])
    judge(refusals(available, checked), words)


@pytest.mark.parametrize(("start", "as_of", "first"), [(2, 0, 2), (0, 2, 2), (3, 2, 3)])
def test_work_begins_after_its_earliest_start_and_after_the_plan_was_made(
    start: float, as_of: float, first: float
) -> None:
    found, asked, offers = held(ON_DEMAND, [span(0, 12)], earliest_start=at(start))
    case = case_of((replace(found, as_of=at(as_of)), asked, offers))
    assert case.earliest == max(at(0), at(as_of))
    assert case.not_before(cast("Training", asked.workloads[0]), ON_DEMAND) == at(first)
    assert case.run_end("run") == at(min(first + 10, 99)) if first <= 2 else case.run_end("run") is None


@pytest.mark.parametrize(
    ("region", "start", "first"),
    [("us-east", 0, 0), ("far", 0, 2 + 8 / 3.6), ("far", 6, 6), ("far", 4, 2 + 8 / 3.6)],
)
def test_a_run_waits_for_its_data_that_is_copied_from_the_making_of_the_plan_on(
    region: str, start: float, first: float
) -> None:
    """A terabyte takes 8,000 seconds at a gigabit per second; the plan is made at the second hour."""
    data = Dataset(1000, "lambda", region)
    found, asked, offers = held(ON_DEMAND, [span(0, 20)], earliest_start=at(start), dataset=data)
    case = case_of((replace(found, as_of=at(2)), asked, offers), MovingTerms(staging_gbit_s=1.0))
    run = cast("Training", asked.workloads[0])
    expected = max(at(first), at(2), at(start))
    assert abs(case.not_before(run, ON_DEMAND) - expected) <= SECOND


def test_a_run_in_parts_ends_with_the_last_and_not_at_all_if_one_does_not() -> None:
    parts = held(ON_DEMAND, [span(0, 10)], [span(5, 20)])
    assert case_of(parts).run_end("run") == at(15)
    assert case_of(held(ON_DEMAND, [span(5, 20)], [span(0, 10)])).run_end("run") == at(15)
    assert case_of(held(ON_DEMAND, [span(0, 9)], [span(5, 20)])).run_end("run") is None
    assert case_of(parts).run_end("other") is None


@pytest.mark.parametrize(("starts_h", "as_of", "begins"), [(None, 0, 0), (None, 3, 3), (5, 3, 5), (2, 3, 3)])
def test_a_services_traffic_begins_when_it_says_and_not_before_the_plan(
    starts_h: float | None, as_of: float, begins: float
) -> None:
    found, asked, offers = service_plan()
    starts = None if starts_h is None else at(starts_h)
    chat = replace(cast("Serving", asked.workloads[0]), starts=Starts(at=starts))
    case = case_of((replace(found, as_of=at(as_of)), replace(asked, workloads=(chat,)), offers))
    assert case.service_start(chat) == at(begins)


@pytest.mark.parametrize(
    ("segments", "teardown_s", "not_before", "stretches"),
    [
        ([(0, 5), (5, 9)], 0, 0, [(0, 9)]),
        ([(5, 9), (0, 5)], 0, 0, [(0, 9)]),
        ([(0, 5), (6, 9)], 0, 0, [(0, 5), (6, 9)]),
        ([(0, 5), (5, 9)], 1800, 0, [(0, 4.5), (5, 8.5)]),
        ([(0, 5)], 0, 2, [(2, 5)]),
        ([(0, 5)], 0, 5, []),
        ([(0, 5)], 1800, 4.5, []),
        ([(0, 5), (6, 9)], 0, 5.5, [(6, 9)]),
    ],
)
def test_time_is_usable_without_the_sellers_teardown(
    segments: list[tuple[float, float]],
    teardown_s: int,
    not_before: float,
    stretches: list[tuple[float, float]],
) -> None:
    sold = sold_by(window(WindowKind.LISTED, (0, 24, 1), teardown_s=teardown_s))
    (placement,) = held(sold, [Segment(at(a), at(b), 1) for a, b in segments])[0].placements
    found = usable_stretches(placement, sold, at(not_before))
    assert found == [(at(a), at(b)) for a, b in stretches]
    hours = sum(b - a for a, b in stretches)
    exact = replace(placement, estimate=with_hours(placement.estimate, hours))
    longer = replace(placement, estimate=with_hours(placement.estimate, hours + 0.001))
    assert run_end(exact, sold, at(not_before)) == (at(stretches[-1][1]) if stretches else None)
    assert run_end(longer, sold, at(not_before)) is None


def with_hours(estimate: Estimate, hours: float) -> Estimate:
    return replace(estimate, value={**estimate.value, "hours": hours})


@pytest.mark.parametrize(
    ("unused", "words"),
    [
        ("88.89", None),
        ("88.90", None),
        ("88.91", "expected 88.89"),
        ("88.88", None),
        ("88.87", "expected 88.89"),
    ],
)
def test_what_a_batch_pays_without_use_is_right_to_a_cent(unused: str, words: str | None) -> None:
    """Of eight hours at $100 25,600 seconds are used: ten minutes, and 100,000 requests at four a second."""
    sold = offer("node", "100.00", billing_increment_s=3600, min_hours=8.0)
    asked = request(batch())
    made = plan(asked, [sold])
    (placement,) = made.placements
    assert placement.cost_usd == 800
    told = first_changed(made, paid_unused_usd=Decimal(unused))
    judge(refusals(totals, (told, asked, [sold])), words)


@pytest.mark.parametrize(
    ("budget", "words"), [("10.00", None), ("10.01", None), ("9.99", "over the budget of 9.99")]
)
def test_a_plan_may_cost_its_budget(budget: str, words: str | None) -> None:
    found, asked, offers = run_plan()
    judge(refusals(totals, (found, replace(asked, budget_usd=Decimal(budget)), offers)), words)


@pytest.mark.parametrize(
    ("shift", "words"),
    [
        (Decimal("0.02"), None),  # one cent for the placement, and one for the line
        (Decimal("0.03"), "is held in its time"),
        (Decimal("0.005"), "not in whole cents"),
    ],
)
def test_a_line_is_the_cost_of_its_time_to_a_cent_for_each_placement(
    shift: Decimal, words: str | None
) -> None:
    found, asked, offers = run_plan()
    (line,) = found.spend
    first, second = (
        replace(line, end=at(5), usd=Decimal(5) + shift),
        replace(line, start=at(5), usd=Decimal(5) - shift),
    )
    said = refusals(totals, (replace(found, spend=(first, second)), asked, offers))
    assert len(said) == 2 * (words is not None), said
    assert words is None or all(words in one for one in said)


@pytest.mark.parametrize(("late_h", "usd"), [(0, 0), (0.5, 5), (2, 20), (-1, 0)])
def test_each_hour_after_a_soft_deadline_has_its_price(late_h: float, usd: int) -> None:
    """At ten dollars; the run ends at the tenth hour. A hard deadline has none."""
    found, asked, offers = held(
        ON_DEMAND, [span(0, 10)], deadline=at(10 - late_h), late_usd_per_hour=Decimal(10)
    )
    assert totals.expected_penalty_usd(case_of((found, asked, offers))) == usd
    hard = replace(asked, workloads=(replace(cast("Training", asked.workloads[0]), late_usd_per_hour=None),))
    assert totals.expected_penalty_usd(case_of((found, hard, offers))) == 0
    short = held(ON_DEMAND, [span(0, 9)], deadline=at(1), late_usd_per_hour=Decimal(10))
    assert totals.expected_penalty_usd(case_of(short)) == 0, "it does not end at all"


def test_the_price_of_lateness_is_exact_over_long_times() -> None:
    found, asked, offers = held(
        ON_DEMAND, [span(0, 10)], deadline=at(-9990), late_usd_per_hour=Decimal(100_000)
    )
    assert totals.expected_penalty_usd(case_of((found, asked, offers))) == 1_000_000_000


def test_what_must_be_placed_and_is_not_makes_a_plan_infeasible() -> None:
    found, asked, offers = run_plan()
    (run,) = asked.workloads
    other = replace(run, name="other")
    without = replace(found, unplaced=left_out("other"))
    wished = replace(asked, workloads=(run, other))
    judge(refusals(totals, (without, wished, offers)), "but other must be placed")
    said = replace(without, status=PlanStatus.INFEASIBLE)
    assert refusals(totals, (said, wished, offers)) == []
    unbounded = replace(said, bound_usd=None, gap=None)
    assert refusals(totals, (unbounded, wished, offers)) == []
    unknown = replace(found, unplaced=left_out("nobody"))
    assert refusals(totals, (unknown, asked, offers)) == []


@pytest.mark.parametrize(("unused", "words"), [("0.50", None), ("0.00", "expected 0.50")])
def test_the_rest_of_an_hour_that_is_begun_is_unused(unused: str, words: str | None) -> None:
    """Half an hour is held, and an hour at a dollar is billed."""
    found, asked, offers = service_plan()
    sold = replace(offers[0], billing_increment_s=3600)
    first = replace(
        found.placements[0],
        segments=(Segment(at(0), at(0.5), 1),),
        cost_usd=Decimal(1),
        paid_unused_usd=Decimal(unused),
    )
    said = refusals(totals, (replace(found, placements=(first,)), asked, [sold]))
    judge([line for line in said if "paid_unused_usd" in line], words)


def test_a_line_has_a_duration() -> None:
    found, asked, offers = run_plan()
    (line,) = found.spend
    empty = replace(line, start=at(5), end=at(5), usd=Decimal(0))
    judge(refusals(totals, (replace(found, spend=(line, empty)), asked, offers)), "or has no duration")


EGRESS = MovingTerms(egress_usd_per_gb={"gcp": Decimal("0.12")})
COPIED = Dataset(20, "gcp", "eu")


def copy(what: TransferKind) -> Transfer:
    """20 GB at $0.12, and at ten gigabits a second."""
    return Transfer(what, 20, "gcp", "eu", Decimal("2.40"), 16 / 3600)


def egress_line(checked: Checked, start: float, end: float, usd: str) -> Checked:
    """The same with one line for what leaves gcp."""
    found, asked, offers = checked
    line = replace(
        found.spend[0],
        kind=SpendKind.EGRESS,
        start=at(start),
        end=at(end),
        usd=Decimal(usd),
        billed_by="gcp",
        workload=found.placements[0].workload,
        provider=found.placements[0].provider,
        tier=found.placements[0].tier,
    )
    return replace(found, spend=(*found.spend, line)), asked, offers


@pytest.mark.parametrize(
    ("segments", "end"),
    [
        ([(2, 5), (7, 12)], 12),
        ([(7, 12), (2, 5)], 12),
        ([(2, 5), (20, 30)], 24),  # its first day
        ([(2, 5), (26, 30)], 5),
    ],
)
def test_a_copy_is_paid_on_the_first_day_of_what_it_is_for(
    segments: list[tuple[float, float]], end: float
) -> None:
    groups = [Segment(at(a), at(b), 1) for a, b in segments]
    found, asked, offers = held(ON_DEMAND, groups, dataset=COPIED)
    made = first_changed(found, transfers=(copy(TransferKind.DATASET),)), asked, offers
    assert refusals(transfers, egress_line(made, 2, end, "2.40"), EGRESS) == []
    for wrong in (made, egress_line(made, 2, end + 1, "2.40"), egress_line(made, 2, end, "2.41")):
        judge(refusals(transfers, wrong, EGRESS), "by gcp: expected one line of 2.40")
    untold = egress_line((found, asked, offers), 2, end, "2.40")
    assert "transfers are none, expected 20 GB of dataset" in refusals(transfers, untold, EGRESS)[0]


@pytest.mark.parametrize("where", [("lambda", "us-east"), ("lambda", "far")])
def test_data_that_is_there_is_not_copied(where: tuple[str, str]) -> None:
    data = Dataset(20, *where)
    said = refusals(transfers, held(ON_DEMAND, [span(0, 10)], dataset=data), EGRESS)
    judge(said, None if where[1] == "us-east" else "expected 20 GB of dataset from lambda")


def test_weights_are_copied_once_to_each_place_and_paid_together() -> None:
    """Two of three placements share a place; both copies of a day are one line."""
    found, asked, _ = service_plan()
    chat = replace(cast("Serving", asked.workloads[0]), weights=COPIED)
    near, far = offer("near", "1.00"), offer("far", "1.00", region="far")
    template = found.placements[0]
    spans = ((near, (2, 5), True), (near, (1, 3), False), (far, (4, 9), True))
    placements = tuple(
        replace(
            template,
            offer_id=sold.offer_id,
            segments=(Segment(at(a), at(b), 1),),
            transfers=(copy(TransferKind.WEIGHTS),) if is_first else (),
        )
        for sold, (a, b), is_first in spans
    )
    made = replace(found, placements=placements), replace(asked, workloads=(chat,)), [near, far]
    assert refusals(transfers, egress_line(made, 2, 9, "4.80"), EGRESS) == []
    for start, end in ((4, 9), (2, 5)):
        judge(refusals(transfers, egress_line(made, start, end, "4.80"), EGRESS), "one line of 4.80")


@pytest.mark.parametrize("usd_per_gb", ["0", "0.10"])
def test_weights_of_a_run_are_copied_from_where_it_ran_if_that_costs_anything(usd_per_gb: str) -> None:
    found, asked, offers = waiting_plan()
    elsewhere = offer("other", "1.00", provider="aws")
    run, chat = found.placements
    moved = replace(chat, offer_id="other", provider="aws")
    terms = MovingTerms(egress_usd_per_gb={"lambda": Decimal(usd_per_gb)})
    checked = replace(found, placements=(run, moved)), asked, [*offers, elsewhere]
    said = refusals(transfers, checked, terms)
    if usd_per_gb == "0":
        assert said == []
        return
    gb = finished_weights_gb(cast("Training", asked.workload("run")))
    judge(said, f"expected {gb:g} GB of weights from lambda")

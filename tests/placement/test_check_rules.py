"""Each rule of the checker refuses a plan that no other rule refuses: left out, it would be missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import cache
from typing import cast

import pytest

from broker.domain.basics.estimate import Estimate
from broker.domain.basics.window import Segment
from broker.domain.market.offer import GpuPool, Offer, Stock, Tier, WindowKind
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import FleetLimits, GpuRange, PlanRequest, Policy, Quota, Serving
from optimizer.performance.estimator import Estimator
from optimizer.placement.rules import form, identity
from optimizer.placement.rules.case import Case
from optimizer.placement.rules.check import RULES
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import at, offer, plan, request, serving, training, window

Checked = tuple[Plan, PlanRequest, Sequence[Offer]]
SLOW_COPIES = MovingTerms(staging_gbit_s=0.01)


def refusals(
    checked: Checked, estimator: FakeEstimator | None = None, terms: MovingTerms | None = None
) -> dict[str, str]:
    """What each rule that refuses says, by the rule's name."""
    found, asked, offers = checked
    core = cast("Estimator", estimator or FakeEstimator())
    case = Case.of(found, asked, offers, core, terms or MovingTerms())
    said = {rule.__name__.rpartition(".")[2]: list(rule.violations(case)) for rule in (identity, *RULES)}
    return {name: "\n".join(words) for name, words in said.items() if words}


def first_changed(found: Plan, **changes: object) -> Plan:
    first, *rest = found.placements
    return replace(found, placements=(replace(first, **changes), *rest))  # type: ignore[arg-type]


NODE = offer("node", "1.00", nodes=4, place="hall")


@cache
def run_plan() -> Checked:
    asked = request(training("run", 10, deadline=at(12)))
    return plan(asked, [NODE]), asked, [NODE]


@cache
def service_plan() -> Checked:
    offers = [offer("a", "1.00", nodes=2, zone="a"), offer("b", "2.00", nodes=4, provider="aws", zone="b")]
    asked = request(serving(hourly=[16.0]), hours=4)
    return plan(asked, offers), asked, offers


@cache
def waiting_plan() -> Checked:
    asked = request(training("run", 10, deadline=at(12)), serving(starts_after="run"), hours=20)
    return plan(asked, [NODE]), asked, [NODE]


@cache
def window_plan() -> Checked:
    block = offer("block", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 24, 2)))
    asked = request(training("run", 10, deadline=at(24)))
    return plan(asked, [block]), asked, [block]


@cache
def recourse_plan() -> Checked:
    block = offer("block", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 102, 1)))
    asked = request(training("run", 100, deadline=at(150), interruptible=True, confidence=0.8), hours=150)
    offers = [block, offer("node", "2.00", nodes=4, place="hall")]
    return plan(asked, offers), asked, offers


def _policy() -> Checked:
    found, asked, offers = run_plan()
    return found, replace(asked, policy=Policy(regions=("mars-*",))), offers


def _host() -> Checked:
    found, asked, offers = run_plan()
    return found, asked, [replace(one, sku=replace(one.sku, disk_gb=1.0)) for one in offers]


def _quotas() -> Checked:
    found, asked, offers = run_plan()
    return found, replace(asked, policy=Policy(quotas=(Quota("lambda", 0),))), offers


def _holding() -> Checked:
    found, asked, offers = run_plan()
    return found, asked, [replace(one, stock=Stock(nodes=0)) for one in offers]


def _assumed() -> Checked:
    asked, offers = request(training("run", 10, deadline=at(12))), [offer("node", "1.00", place="hall")]
    return replace(plan(asked, offers), assumptions=()), asked, offers


def _available() -> Checked:
    found, asked, offers = run_plan()
    end = found.placements[0].segments[-1].end
    return found, asked, [replace(one, available_until=end - timedelta(seconds=1)) for one in offers]


def _running() -> Checked:
    found, asked, offers = run_plan()
    return found, replace(asked, workloads=(training("run", 10, deadline=at(12), gpus=GpuRange(2)),)), offers


def _serving() -> Checked:
    found, asked, offers = service_plan()
    return found, replace(asked, workloads=(serving(hourly=[16.1]),)), offers


def _pools() -> Checked:
    found, asked, offers = service_plan()
    return found, replace(asked, workloads=(serving(hourly=[16.0], fleet=FleetLimits(1, 1)),)), offers


def _waiting() -> Checked:
    found, asked, offers = waiting_plan()
    return replace(found, waits=()), asked, offers


def _totals() -> Checked:
    found, asked, offers = run_plan()
    return replace(found, cost_usd=found.cost_usd + Decimal("0.01")), asked, offers


def _window_use() -> Checked:
    found, asked, offers = window_plan()
    use = found.placements[0].window_use
    assert use is not None
    return first_changed(found, window_use=replace(use, unwanted_usd=use.unwanted_usd + 1)), asked, offers


def _relaunches() -> Checked:
    asked, offers = request(serving(hourly=[3.0, 0.0, 0.0, 0.0, 3.0, 3.0]), hours=6), [offer("od", "1.00")]
    found = plan(asked, offers)
    told = found.placements[0].relaunch
    assert told is not None
    return first_changed(found, relaunch=replace(told, starts=told.starts + 1)), asked, offers


def _recourses() -> Checked:
    found, asked, offers = recourse_plan()
    told = found.placements[0].recourse
    assert told is not None
    return first_changed(found, recourse=replace(told, hours=told.hours + 1)), asked, offers


def _identity() -> Checked:
    found, asked, offers = run_plan()
    return first_changed(found, zone="elsewhere"), asked, offers


ALONE: dict[str, tuple[Callable[[], Checked], str]] = {
    "policy": (_policy, "region"),
    "host": (_host, "GB of disk"),
    "quotas": (_quotas, "0 allowed"),
    "holding": (_holding, "0 in stock"),
    "assumed": (_assumed, "nothing is said of node"),
    "available": (_available, "the offer ends at"),
    "running": (_running, "asked for 2 to any"),
    "serving": (_serving, "are left after spares"),
    "pools": (_pools, "stands on 2 pools, 1 are allowed"),
    "waiting": (_waiting, "does not state the cost of that delay"),
    "totals": (_totals, "cost_usd"),
    "window_use": (_window_use, "unwanted_usd"),
    "recourses": (_recourses, "recourse hours is"),
    "relaunches": (_relaunches, "relaunch starts is"),
    "identity": (_identity, "zone"),
}


@pytest.mark.parametrize("sound", [run_plan, service_plan, waiting_plan, window_plan, recourse_plan])
def test_what_is_damaged_below_is_sound_before(sound: Callable[[], Checked]) -> None:
    assert refusals(sound()) == {}


@pytest.mark.parametrize("rule", sorted(ALONE))
def test_a_rule_alone_refuses_what_it_is_for(rule: str) -> None:
    make, words = ALONE[rule]
    said = refusals(make())
    assert set(said) == {rule}, said
    assert words in said[rule]


def test_every_rule_has_a_plan_that_it_alone_refuses() -> None:
    """The one of transfers stands with the others of copies, in ``test_transfers``."""
    rules = {rule.__name__.rpartition(".")[2] for rule in (identity, *RULES)}
    assert rules == set(ALONE) | {"transfers"}


@pytest.mark.parametrize(("late_s", "accepted"), [(600, True), (599, False), (0, False)])
def test_a_node_that_comes_later_needs_its_cold_start_too(late_s: int, accepted: bool) -> None:
    """The second node is due at two o'clock and takes ten minutes; the first was there from the start."""
    free = offer("node", "1.00", nodes=2, billing_increment_s=1, place="hall")
    asked = request(serving(hourly=[4.0, 4.0, 8.0, 8.0]), hours=4)
    made = plan(asked, [free])
    (placement,) = made.placements
    assert placement.estimate["cold_start_s"] == 600
    due = at(2) - timedelta(seconds=late_s)
    segments = (Segment(at(0), due, 1), Segment(due, at(4), 2))
    said = refusals((first_changed(made, segments=segments), asked, [free]))
    assert ("serving" in said) is not accepted, said
    assert accepted or f"at {at(2).isoformat()} 4.0000 requests/s are left" in said["serving"]


@pytest.mark.parametrize(("most", "accepted"), [(4.0, True), (4.1, False)])
def test_a_spare_counts_where_one_replica_stands_in_each_place(most: float, accepted: bool) -> None:
    """One replica of four requests/s in each of two places: without one of them four are left."""
    offers = [offer(name, "1.00", nodes=1, zone=name) for name in ("a", "b")]
    made = plan(request(serving(hourly=[8.0]), hours=4), offers)
    assert [one.replicas for one in made.placements] == [1, 1]
    said = refusals((made, request(serving(hourly=[most], spare=1), hours=4), offers))
    assert ("requests/s are left after spares" in said.get("serving", "")) is not accepted


def test_the_second_part_of_a_run_waits_for_its_checkpoint() -> None:
    """The first ends at the sixth hour, the second begins two hours later; a copy takes longer."""

    def listing(name: str, start: int, **where: str) -> Offer:
        terms = window(WindowKind.LISTED, (start, start + 6, 1))
        return offer(name, "1.00", tier=Tier.WINDOW, window=terms, **where)

    offers = [listing("w", 0), listing("x", 8, provider="aws")]
    asked = request(training("run", 10, deadline=at(14), interruptible=True), hours=20)
    core = FakeEstimator(startup_hours=1.0)
    made = plan(asked, offers, estimator=core)
    assert [one.offer_id for one in made.placements] == ["w", "x"]
    assert refusals((made, asked, offers), core) == {}
    said = refusals((made, asked, offers), core, SLOW_COPIES)
    assert set(said) == {"running", "transfers"}, "the copy is told with the time that it takes"
    assert "before the previous part has ended and its checkpoint has been copied" in said["running"]
    here = [offers[0], listing("x", 8)]
    assert refusals((plan(asked, here, estimator=core), asked, here), core, SLOW_COPIES) == {}


@pytest.mark.parametrize("said", [(2, 5), (5, 2), (2, None), (None, 2)])
def test_of_a_pool_that_offers_count_differently_the_fewest_count(
    said: tuple[int | None, int | None],
) -> None:
    """Both offers are cut from one pool; one of them says that it has two GPUs, and three are held."""
    pair = [offer("one", "1.00", nodes=1, place="hall"), offer("two", "2.00", gpus=2, nodes=1, place="hall")]
    asked = request(serving(hourly=[12.0]), hours=4)
    made = plan(asked, pair)
    assert sum(one.gpus for one in made.placements) == 3
    ample, short = (
        [
            replace(one, stock=Stock(nodes=1, pool=GpuPool("hall", gpus)))
            for one, gpus in zip(pair, pools, strict=True)
        ]
        for pools in ((3, 5), said)
    )
    assert refusals((made, asked, ample)) == {}
    refused = refusals((made, asked, short))
    assert set(refused) == {"holding"}
    assert "3 GPUs held" in refused["holding"]
    assert "2 in the pool" in refused["holding"]


def senseless(checked: Checked) -> list[str]:
    """What is wrong with a plan's form, before any rule is asked."""
    found, asked, offers = checked
    core = cast("Estimator", FakeEstimator())
    return list(form.violations(Case.of(found, asked, offers, core, MovingTerms())))


@pytest.mark.parametrize(("output_tokens", "refused"), [(1, False), (2, True)])
def test_answers_of_one_token_have_no_time_between_tokens(output_tokens: int, refused: bool) -> None:
    found, asked, offers = service_plan()
    (service,) = asked.workloads
    assert isinstance(service, Serving)
    told = replace(service, traffic=replace(service.traffic, output_tokens=output_tokens))
    lacking = tuple(
        replace(placement, estimate=without(placement.estimate, "itl_p95_ms"))
        for placement in found.placements
    )
    words = senseless((replace(found, placements=lacking), replace(asked, workloads=(told,)), offers))
    assert [word.rpartition(": ")[2] for word in words] == len(lacking) * refused * [
        f"estimate {name} lacks itl_p95_ms" for name in ("value", "low", "high")
    ]


def without(estimate: Estimate, metric: str) -> Estimate:
    value, low, high = (
        {name: number for name, number in told.items() if name != metric}
        for told in (estimate.value, estimate.low, estimate.high)
    )
    return replace(estimate, value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("", {}, None),
        ("parallelism", {"tp": 0}, "parallelism has a degree below 1"),
        ("parallelism", {"recompute": "half"}, "recompute is 'half'"),
        ("", {"replicas": 0}, "replicas or gpus_per_replica is below 1"),
        ("", {"gpus_per_replica": 0}, "replicas or gpus_per_replica is below 1"),
        ("", {"workload": "other"}, "unknown workload 'other'"),
        ("", {"offer_id": "other"}, "offer 'other' is not in the market"),
        ("", {"segments": ()}, "holds nothing"),
        ("", {"segments": (Segment(at(0), at(5), 1), Segment(at(5), at(6), 1))}, None),
        ("", {"segments": (Segment(at(0), at(5), 1), Segment(at(4), at(6), 1))}, "segments overlap"),
    ],
)
def test_a_senseless_placement_is_named(part: str, changes: dict[str, object], words: str | None) -> None:
    found, asked, offers = run_plan()
    if part:
        changes = {part: replace(getattr(found.placements[0], part), **changes)}
    said = senseless((first_changed(found, **changes), asked, offers))
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        (1.0, None),
        (0.0, "hours is 0, expected more"),
        (-1.0, "not a number of at least 0"),
        (float("inf"), "not a number"),
    ],
)
def test_an_estimate_is_a_number_above_zero(hours: float, words: str | None) -> None:
    found, asked, offers = run_plan()
    estimate = found.placements[0].estimate
    told = replace(estimate, value={**estimate.value, "hours": hours})
    said = senseless((first_changed(found, estimate=told), asked, offers))
    assert len(said) == (words is not None)
    assert words is None or words in said[0]

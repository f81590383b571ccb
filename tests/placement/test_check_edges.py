"""Each rule of the checker at its edge, asked alone: what it still accepts, and the least that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import time, timedelta
from decimal import Decimal
from types import ModuleType
from typing import cast

import pytest

from broker.domain.basics.estimate import Estimate
from broker.domain.basics.node_launch import ColdStart, LaunchBasis
from broker.domain.basics.window import Segment, Window
from broker.domain.market.offer import GpuPool, Offer, Stock, StockLevel, Tier, WindowKind
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Assumption, Obstacle, Placement, PlanStatus, Unplaced
from broker.domain.planning.window_use import WindowUse
from broker.domain.planning.workload import GpuRange, Policy
from optimizer.performance.estimator import Estimator
from optimizer.placement.rules import assumed, holding, running, totals, window_use
from optimizer.placement.rules.case import Case
from tests.fakes.examples import waiting_terms
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import at, batch, offer, plan, planner, request, training, window
from tests.placement.test_check_rules import Checked, first_changed, run_plan, service_plan, window_plan

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
FREE = window(WindowKind.SLOTS, (0, 10, 2), (10, 20, 4))


def refusals(rule: ModuleType, checked: Checked, terms: MovingTerms | None = None) -> list[str]:
    """What one rule says of a plan."""
    found, asked, offers = checked
    core = cast("Estimator", FakeEstimator())
    return list(rule.violations(Case.of(found, asked, offers, core, terms or MovingTerms())))


def judge(said: Sequence[str], words: str | None) -> None:
    """One refusal with these words; None: there is none."""
    assert len(said) == (words is not None), said
    assert words is None or words in said[0]


def span(start: float, end: float, nodes: int = 1, *, late_s: int = 0) -> Segment:
    return Segment(at(start), at(end) + late_s * SECOND, nodes)


def held(sold: Offer, *groups: Sequence[Segment], **run: object) -> Checked:
    """A run with one placement for each group of segments, whatever the planner would say."""
    found, asked, _ = run_plan()
    (first,) = found.placements
    copies = tuple(replace(first, segments=tuple(group), offer_id=sold.offer_id) for group in groups)
    (workload,) = asked.workloads
    return (
        replace(found, placements=copies),
        replace(asked, workloads=(replace(workload, **run),)),  # type: ignore[arg-type]
        [sold],
    )


def sold_by(terms: object, **changes: object) -> Offer:
    return replace(offer("node", "1.00"), tier=Tier.WINDOW, window=terms, **changes)  # type: ignore[arg-type]


ON_DEMAND = offer("node", "1.00")


@pytest.mark.parametrize(
    ("segments", "as_of", "late", "words"),
    [
        ([span(2, 5)], 0, None, None),
        ([span(1.999, 5)], 0, None, "allowed from"),
        ([span(2, 5)], 2, None, None),
        ([span(2, 5)], 2.001, None, "allowed from"),
        ([span(2, 12)], 0, None, None),
        ([span(2, 12, late_s=1)], 0, None, None),  # whole seconds may pass the deadline by less than one
        ([span(2, 12, late_s=2)], 0, None, "allowed until"),
        ([span(2, 3), span(4, 12, late_s=2)], 0, None, "allowed until"),
        ([span(2, 36, late_s=1)], 0, Decimal(1), None),  # a soft deadline may be late by a day
        ([span(2, 36, late_s=2)], 0, Decimal(1), "allowed until"),
    ],
)
def test_a_run_is_held_from_its_start_to_its_deadline(
    segments: list[Segment], as_of: float, late: Decimal | None, words: str | None
) -> None:
    found, asked, offers = held(
        ON_DEMAND, segments, earliest_start=at(2), deadline=at(12), late_usd_per_hour=late
    )
    judge(refusals(holding, (replace(found, as_of=at(as_of)), asked, offers)), words)


GRID = replace(FREE, kind=WindowKind.REQUEST, segments=(), step_hours=2.0, lead_hours=2.0)


@pytest.mark.parametrize(
    ("changes", "segment", "words"),
    [
        ({}, span(2, 4), None),
        ({}, span(0, 4), "lead time allows"),
        ({}, span(4, 8), None),
        ({}, span(5, 9), "off the grid"),
        ({}, span(4, 7), "3 h is not a duration"),
        ({"anchor_utc": time(1, 30)}, span(3.5, 5.5), None),
        ({"anchor_utc": time(1, 30)}, span(4, 6), "off the grid"),
        ({"durations_hours": (3.0, 5.0)}, span(4, 7), None),
        ({"durations_hours": (3.0, 5.0)}, span(4, 9), None),
        ({"durations_hours": (3.0, 5.0)}, span(4, 8), "4 h is not a duration"),
        ({"durations_hours": ()}, span(4, 8), "4 h is not a duration"),
    ],
)
def test_a_window_is_cut_on_its_grid_after_its_lead_time(
    changes: dict[str, object], segment: Segment, words: str | None
) -> None:
    terms = replace(GRID, **changes)  # type: ignore[arg-type]
    judge(refusals(holding, held(sold_by(terms), [segment])), words)


@pytest.mark.parametrize(
    ("free", "segment", "words"),
    [
        (((2, 10, 2), (10, 20, 4)), span(2, 6, 2), None),
        (((2, 10, 2), (10, 20, 4)), span(4, 12, 2), None),  # stretches that touch are one
        (((10, 20, 4), (2, 10, 2)), span(4, 20, 2), None),
        (((2, 10, 2), (10, 20, 4)), span(10, 20, 4), None),
        (((2, 10, 2), (10, 20, 4)), span(4, 12, 3), "3 nodes is not free"),
        (((2, 10, 2), (10, 20, 4)), span(12, 21, 2), "is not free"),
        (((2, 10, 2), (10, 20, 4)), span(1, 4, 2), "is not free"),
        (((2, 10, 2), (11, 20, 4)), span(4, 12, 2), "is not free"),
    ],
)
def test_a_window_is_cut_out_of_what_is_free(
    free: tuple[tuple[float, float, int], ...], segment: Segment, words: str | None
) -> None:
    said = refusals(holding, held(sold_by(window(WindowKind.SLOTS, *free)), [segment]))
    assert any("is not free" in line for line in said) is (words is not None)
    assert words is None or any(words in line for line in said)


@pytest.mark.parametrize(
    ("kind", "groups", "words"),
    [
        (WindowKind.SLOTS, ([span(0, 10, 2)], [span(10, 20, 4)]), None),
        (WindowKind.SLOTS, ([span(0, 10)], [span(4, 8)]), None),
        (WindowKind.SLOTS, ([span(0, 4, 2)], [span(6, 10, 2)]), None),
        (WindowKind.SLOTS, ([span(0, 6, 2)], [span(5, 10, 1)]), "3 nodes held at"),
        (WindowKind.SLOTS, ([span(8, 12, 2)], [span(9, 10, 1)]), "3 nodes held at"),
        (WindowKind.REQUEST, ([span(0, 6, 2)], [span(5, 10, 1)]), None),  # nobody says what is free
    ],
)
def test_what_is_cut_from_one_free_stretch_is_no_more_than_it_has(
    kind: WindowKind, groups: tuple[list[Segment], ...], words: str | None
) -> None:
    judge(refusals(holding, held(sold_by(replace(FREE, kind=kind)), *groups)), words)


@pytest.mark.parametrize(
    ("start", "as_of", "words"),
    [
        (3, 0, None),
        (2.75, 0, "capacity may appear 2 h sooner"),
        (4, 2, None),
        (3.75, 2, "capacity may appear"),
    ],
)
def test_a_window_that_may_begin_early_waits_for_the_work(
    start: float, as_of: float, words: str | None
) -> None:
    found, asked, offers = held(
        sold_by(replace(waiting_terms(2.0), lead_hours=0.0)),
        [span(start, start + 4)],
        earliest_start=at(1),
    )
    judge(refusals(holding, (replace(found, as_of=at(as_of)), asked, offers)), words)


def uncounted(name: str, gpus: int, nodes: int | None = None, held_nodes: int = 0) -> Offer:
    stock = Stock(nodes=nodes, pool=GpuPool("hall", None), held_nodes=held_nodes)
    return replace(offer(name, "1.00", gpus=gpus), stock=stock)


def counted_on(checked: Checked, **nodes: int) -> Checked:
    """The same with what it says that it assumes."""
    found, asked, offers = checked
    told = tuple(Assumption(name, count, "nobody counts them") for name, count in nodes.items())
    return replace(found, assumptions=told), asked, offers


@pytest.mark.parametrize(
    ("count", "already", "words"), [(3, 0, None), (4, 0, "4 nodes held, 3 assumed"), (4, 1, None)]
)
def test_of_what_nobody_counts_as_much_is_held_as_may_be_assumed(
    count: int, already: int, words: str | None
) -> None:
    sold = replace(ON_DEMAND, stock=Stock(held_nodes=already))
    found, asked, offers = counted_on(held(sold, [span(0, 5, count)]), node=count)
    asked = replace(asked, policy=Policy(assumed_nodes=3))
    judge(refusals(assumed, (found, asked, offers)), words)


@pytest.mark.parametrize(
    ("ones", "twos", "said_twos", "already", "words"),
    [
        (2, 2, None, 0, None),  # three of the larger size are six GPUs
        (3, 2, None, 0, "pool hall: 7 GPUs held, 6 assumed"),
        (3, 2, None, 1, None),  # one of them is ours already
        (1, 1, 1, 0, None),  # one node of two GPUs is said to be there, three of one assumed
        (2, 1, 1, 0, "pool hall: 4 GPUs held, 3 assumed"),
        (3, 3, 5, 0, None),
    ],
)
def test_of_a_pool_that_nobody_counts_the_largest_size_may_be_assumed(
    ones: int, twos: int, said_twos: int | None, already: int, words: str | None
) -> None:
    one, two = uncounted("one", 1, held_nodes=already), uncounted("two", 2, said_twos)
    found, asked, _ = held(one, [span(0, 5, ones)], [span(0, 5, twos)])
    first, second = found.placements
    found = replace(found, placements=(first, replace(second, offer_id="two")))
    told = {"one": ones} | ({"two": twos} if said_twos is None else {})
    checked = counted_on((found, replace(asked, policy=Policy(assumed_nodes=3)), [one, two]), **told)
    judge(refusals(assumed, checked), words)


def test_an_assumption_is_told_once_and_of_what_is_held_at_most_at_once() -> None:
    """Two nodes, then three, and from the fifth hour on one more beside them."""
    sold = replace(ON_DEMAND, stock=Stock())
    groups = ([span(0, 5, 2), span(5, 8, 3)], [span(5, 6, 1)])
    assert refusals(assumed, counted_on(held(sold, *groups), node=4)) == []
    for nodes in (3, 5):
        judge(refusals(assumed, counted_on(held(sold, *groups), node=nodes)), "expected 4")
    found, asked, offers = counted_on(held(sold, *groups), node=4)
    twice = replace(found, assumptions=found.assumptions * 2)
    judge(refusals(assumed, (twice, asked, offers)), "assumptions name node 2 times")
    for stock in (Stock(nodes=9), Stock(StockLevel.NONE)):
        known = replace(sold, stock=stock)
        judge(refusals(assumed, counted_on(held(known, *groups), node=4)), "expected nothing")
        assert refusals(assumed, held(known, *groups)) == []


def used(checked: Checked, **changes: object) -> Checked:
    """A plan with other words on its window."""
    found, asked, offers = checked
    use = found.placements[0].window_use
    assert isinstance(use, WindowUse)
    return first_changed(found, window_use=replace(use, **changes)), asked, offers  # type: ignore[arg-type]


def moved(window_: Window, start_s: float = 0.0, end_s: float = 0.0) -> Window:
    return Window(window_.start + start_s * SECOND, window_.end + end_s * SECOND)


WANTED = Window(at(0), at(10))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"wanted": moved(WANTED, 1)}, None),
        ({"wanted": moved(WANTED, 1.001)}, "wanted"),
        ({"wanted": moved(WANTED, 0, -1)}, None),
        ({"wanted": moved(WANTED, 0, 1.001)}, "wanted"),
        ({"unwanted_usd": Decimal("14.02")}, None),
        ({"unwanted_usd": Decimal("14.03")}, "unwanted_usd"),
        ({"unwanted_usd": Decimal("13.97")}, "unwanted_usd"),
        ({"unwanted_hours": 14.0009}, None),
        ({"unwanted_hours": 14.002}, "unwanted_hours"),
        ({"bought": Window(at(0), at(23))}, "bought"),
        ({"usable": Window(at(0), at(23))}, "usable"),
    ],
)
def test_what_is_said_of_a_window_is_right_to_a_second_and_two_cents(
    changes: dict[str, object], words: str | None
) -> None:
    """A day is bought, and ten hours of it are wanted."""
    judge(refusals(window_use, used(window_plan(), **changes)), words)


def test_a_window_that_is_used_whole_may_be_a_thousandth_of_an_hour_off() -> None:
    block = offer("block", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 10, 1)))
    asked = request(training("run", 10, deadline=at(24)))
    made = (plan(asked, [block]), asked, [block])
    assert refusals(window_use, used(made, unwanted_hours=0.001)) == []
    judge(refusals(window_use, used(made, unwanted_hours=0.0011)), "unwanted_hours")


def test_two_windows_of_a_run_are_bought_from_the_first_to_the_last() -> None:
    """With half an hour of teardown ten hours end in the second; 3.5 of 14 are idle."""
    terms = window(WindowKind.LISTED, (0, 6, 1), (8, 16, 1), teardown_s=1800)
    found, asked, offers = held(sold_by(terms), [span(0, 6), span(8, 16)], interruptible=True)
    use = WindowUse(
        Window(at(0), at(12.5)), Window(at(0), at(16)), Window(at(0), at(15.5)), 3.5, Decimal("2.50")
    )
    checked = first_changed(found, window_use=use), asked, offers
    assert refusals(window_use, checked) == []
    for name, end in (("bought", 6.0), ("usable", 16.5)):
        judge(refusals(window_use, used(checked, **{name: Window(at(0), at(end))})), name)


@pytest.mark.parametrize(
    ("late_s", "accepted"), [(0, True), (1, True), (-1, True), (60, False), (-60, False)]
)
def test_a_batch_wants_its_window_for_its_cold_start_and_its_requests(late_s: float, accepted: bool) -> None:
    """100,000 requests at four a second, after ten minutes."""
    block = offer("block", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 24, 1)))
    asked = request(batch())
    made = plan(asked, [block])
    end = at(0) + timedelta(seconds=600 + 25_000 + late_s)
    said = refusals(window_use, used((made, asked, [block]), wanted=Window(at(0), end)))
    assert ("wanted" in "".join(said)) is not accepted


def test_the_parts_of_a_run_have_equal_nodes_and_make_up_the_whole() -> None:
    """Two parts of half of the work; a service has no parts."""
    found, asked, offers = held(ON_DEMAND, [span(0, 5)], [span(5, 10)], interruptible=True)
    halves = tuple(replace(one, work_share=0.5, estimate=half_of(one)) for one in found.placements)
    sound, run = replace(found, placements=halves), asked
    assert refusals(running, (sound, run, offers)) == []
    wider = replace(sound, placements=(halves[0], replace(halves[1], nodes=2, gpus=2)))
    assert "the parts of a run must have equal node counts" in "".join(
        refusals(running, (wider, run, offers))
    )
    service, wished, sold = service_plan()
    first, second = service.placements
    shared = replace(service, placements=(first, replace(second, work_share=0.5)))
    assert "work_share must be 1" in "".join(refusals(running, (shared, wished, sold)))


def half_of(placement: Placement) -> Estimate:
    from_whole = placement.estimate
    value, low, high = (
        {name: number * (0.5 if name == "hours" else 1.0) for name, number in told.items()}
        for told in (from_whole.value, from_whole.low, from_whole.high)
    )
    return replace(from_whole, value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("second_at", "early", "accepted"),
    [(5, timedelta(0), True), (5, timedelta(microseconds=1), True), (5, timedelta(microseconds=2), False)],
)
def test_a_part_begins_when_the_one_before_has_ended(
    second_at: float, early: timedelta, accepted: bool
) -> None:
    halves = [span(0, 5)], [span(second_at, second_at + 6)]
    found, asked, offers = held(ON_DEMAND, *halves, interruptible=True)
    first, second = (replace(one, work_share=0.5, estimate=half_of(one)) for one in found.placements)
    begun = replace(second, segments=(Segment(at(second_at) - early, at(11), 1),))
    said = refusals(running, (replace(found, placements=(first, begun)), asked, offers))
    judge(said, None if accepted else "before the previous part has ended")


@pytest.mark.parametrize(
    ("segments", "run", "words"),
    [
        ([span(0, 10)], {}, None),
        ([span(0, 5), span(5, 10)], {}, None),  # contiguous
        ([span(0, 5), span(6, 11)], {}, "split over 2 windows"),
        ([span(0, 5), span(6, 11)], {"interruptible": True}, "given back in between"),
        ([span(0, 5), span(5, 10, 2)], {}, "equal node counts"),
        ([span(0, 9)], {}, "needs 10.000 h, 9.000 h are usable"),
        ([span(0, 4), span(4, 7)], {"interruptible": True}, "needs 10.000 h, 7.000 h are usable"),
        ([span(0, 10)], {"gpus": GpuRange(1, 1)}, None),
        ([span(0, 10)], {"gpus": GpuRange(1, 0)}, "GPUs, asked for"),
        ([span(2, 12)], {}, None),
        ([Segment(at(2) + timedelta(microseconds=1), at(13), 1)], {}, None),
        ([Segment(at(2) + timedelta(microseconds=2), at(13), 1)], {}, "allowed until"),
        ([span(26, 36)], {"late_usd_per_hour": Decimal(1)}, None),
        ([span(26.1, 37)], {"late_usd_per_hour": Decimal(1)}, "allowed until"),
        ([span(3, 13)], {}, "allowed until"),
    ],
)
def test_a_run_of_ten_hours_ends_by_noon(
    segments: list[Segment], run: dict[str, object], words: str | None
) -> None:
    judge(refusals(running, held(ON_DEMAND, segments, deadline=at(12), **run)), words)


@pytest.mark.parametrize(("tier", "rate", "accepted"), [(Tier.SPOT, 0.5, False), (Tier.ON_DEMAND, 0.5, True)])
def test_only_spot_is_interrupted(tier: Tier, rate: float, accepted: bool) -> None:
    """An estimate without interruptions is not that of spot capacity which has some."""
    said = refusals(running, held(replace(ON_DEMAND, tier=tier, interruptions_per_hour=rate), [span(0, 10)]))
    assert (said == []) is accepted


@pytest.mark.parametrize(
    ("hours", "requests", "deadline", "words"),
    [
        (5.0, 69_600.0, 24, None),  # ten minutes of cold start leave 17,400 s, at four a second
        (5.0, 69_601.0, 24, "69600 requests by the deadline, 69601 are asked"),
        (5.0, 69_600.0, 4, "requests by the deadline"),
        (5.0, 55_204.0, 4, None),  # the second that the deadline may be passed by counts
        (5.0, 55_205.0, 4, "requests by the deadline"),
        (0.1, 1.0, 24, "answers 0 requests"),  # it has not even started
    ],
)
def test_a_batch_answers_all_by_its_deadline(
    hours: float, requests: float, deadline: float, words: str | None
) -> None:
    asked = request(batch(requests=36_000))
    made = plan(asked, [offer("node", "1.00", nodes=1)])
    (placement,) = made.placements
    changed = replace(placement, segments=(span(0, hours),), requests=requests)
    wished = request(batch(requests=requests, deadline=at(deadline)))
    said = refusals(running, (replace(made, placements=(changed,)), wished, [offer("node", "1.00")]))
    judge([line for line in said if "requests" in line and "estimate" not in line], words)


def test_a_run_states_no_phases_of_a_cold_start() -> None:
    phases = ColdStart(1.0, 2.0, 3.0, 4.0, LaunchBasis.ASSUMED)
    found, asked, offers = run_plan()
    judge(refusals(running, (first_changed(found, cold_start=phases), asked, offers)), "states phases")


def test_penalties_bounds_and_status_are_those_of_what_is_left_out() -> None:
    """A run that may be left out for $50."""
    found, asked, offers = run_plan()
    (run,) = asked.workloads
    optional = replace(run, name="other", unplaced_usd=Decimal(50))
    wished = replace(asked, workloads=(run, optional))
    left = Unplaced("other", Obstacle.STOCK, "")
    sound = replace(
        found,
        unplaced=(left,),
        penalty_usd=Decimal(50),
        bound_usd=Decimal(60),
        gap=0.0,
    )
    assert refusals(totals, (sound, wished, offers)) == []
    for usd, words in (("50.01", None), ("50.02", "penalty_usd is 50.02, expected 50")):
        told = replace(sound, penalty_usd=Decimal(usd), bound_usd=Decimal(60))
        told = replace(told, gap=float((told.objective_usd - 60) / told.objective_usd))
        judge(refusals(totals, (told, wished, offers)), words)
    judge(refusals(totals, (replace(sound, gap=1e-6), wished, offers)), None)
    judge(refusals(totals, (replace(sound, gap=2e-6), wished, offers)), "gap is")
    over = replace(sound, bound_usd=Decimal("60.01"), gap=float(Decimal("-0.01") / 60))
    judge(refusals(totals, (over, wished, offers)), "lies above")
    infeasible = replace(sound, status=PlanStatus.INFEASIBLE)
    judge(refusals(totals, (infeasible, wished, offers)), "status is infeasible, but")
    unbounded = replace(sound, bound_usd=None, gap=None)
    judge(refusals(totals, (unbounded, wished, offers)), "is missing from a plan")
    required = replace(asked, workloads=(run, replace(optional, unplaced_usd=None)))
    free = replace(sound, penalty_usd=Decimal(0), bound_usd=Decimal(10))
    judge(refusals(totals, (free, required, offers)), "but other must be placed")


@pytest.mark.parametrize("first", [1, 3])
def test_a_batch_counts_no_replica_whose_node_was_given_back(first: int) -> None:
    """Three nodes for a minute and one for the rest answer a third of the requests."""
    asked = request(batch(requests=3 * 3600 * 10, deadline=at(40), parts=1))
    offers = [offer("a", "1.00", nodes=3)]
    found = plan(asked, offers, time_limit_s=3.0)
    (placed,) = found.placements
    (segment,) = placed.segments
    minute = segment.start + timedelta(minutes=1)
    nodes = (3, 1) if first == 3 else (1, 3)
    cut = (replace(segment, end=minute, nodes=nodes[0]), replace(segment, start=minute, nodes=nodes[1]))
    wrong = replace(found, placements=(replace(placed, nodes=3, gpus=3, replicas=3, segments=cut),))
    assert any("must have equal node counts" in said for said in planner().check(wrong, asked, offers))


def test_a_run_on_spot_that_gives_its_nodes_back_begins_again() -> None:
    asked = request(training(gpu_hours=10, interruptible=True))
    offers = [offer("a", "1.00", nodes=1, tier=Tier.SPOT, interruptions_per_hour=0.01)]
    found = plan(asked, offers, time_limit_s=3.0)
    (placed,) = found.placements
    (segment,) = placed.segments
    middle = segment.start + timedelta(hours=4)
    rest = replace(segment, start=middle + timedelta(hours=3), end=segment.end + timedelta(hours=3))
    holed = (replace(segment, end=middle), rest)
    wrong = replace(found, placements=(replace(placed, segments=holed),))
    assert any("given back in between" in said for said in planner().check(wrong, asked, offers))

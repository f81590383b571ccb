"""How often spot is taken away, and when a run must leave it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

import pytest

from broker.domain.basics.estimate import Estimate
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.holding.spot import Progress, SpotBook, SpotPrior, SpotTime, may_stay_on_spot, spot_time
from broker.domain.market.offer import RateBasis, Tier
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import remaining
from broker.domain.moving.spot_fallback import BEHIND, behind_on_spot
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Batch, Checkpoints, PlanRequest, Training, WorkloadKind
from tests.domain.test_reoptimizing import interruptible, plan_of
from tests.fakes.clock import NOON
from tests.fakes.examples import TINY, a_placement, a_plan, a_request, a_segment, an_offer
from tests.fakes.planned import held_as_planned

HOUR = timedelta(hours=1)
SPOT = replace(an_offer("s", "3"), tier=Tier.SPOT)


def lease(*gone_after_h: float | None, released_after_h: float | None = None) -> Reservation:
    """Two hours or more on spot; units that went away after so many hours, and what was asked for."""
    units = tuple(
        Unit(
            n, f"t{n}", 1, UnitState.HELD if hours is None else UnitState.GONE, f"i{n}", NOON,
            gone_at=None if hours is None else NOON + hours * HOUR,
        )
        for n, hours in enumerate(gone_after_h)
    )  # fmt: skip
    over = None if released_after_h is None else NOON + released_after_h * HOUR
    state = ReservationState.ACTIVE if over is None else ReservationState.RELEASED
    return Reservation(
        "rsv", "research", state, SPOT, len(units), NOON, NOON + 48 * HOUR, units, NOON,
        active_at=NOON, released_at=over,
    )  # fmt: skip


def test_what_a_lease_went_through() -> None:
    seen = spot_time(lease(None, 4.0), NOON + 10 * HOUR)
    assert seen == SpotTime("fake", "sku-s", "s", 14.0, 1)
    ended = spot_time(lease(6.0, 6.0, released_after_h=6.0), NOON + 10 * HOUR)
    assert ended == SpotTime("fake", "sku-s", "s", 12.0, 0), "we let it go"


def test_the_rate_goes_from_what_is_assumed_to_what_was_seen() -> None:
    prior = SpotPrior(0.05, 100.0)
    assert SpotBook([], prior).rate(SPOT) == pytest.approx(0.05)
    calm = SpotBook([SpotTime("fake", "sku-s", "s", 10_000.0, 10)], prior)
    assert calm.rate(SPOT) == pytest.approx(0.001, rel=0.05)
    wild = SpotBook([SpotTime("fake", "other", "o", 100.0, 40)], prior)
    assert 0.05 < wild.rate(SPOT) < 0.4, "of its provider, not of itself"
    (told,) = wild.with_rates([SPOT])
    assert told.interruptions_per_hour == wild.rate(SPOT)
    said = replace(SPOT, interruptions_per_hour=0.01)
    assert wild.with_rates([said, an_offer()]) == (said, an_offer())


@pytest.mark.parametrize("restart", [0.0, 0.25, 0.5])
def test_who_stays_on_spot_can_still_end_in_time_without_it(restart: float) -> None:
    """Over 40 hours for 20 hours of work, every half hour of either."""
    stayed = 0
    for half, at_h in product(range(40), range(41)):
        done, now = half / 2, NOON + at_h * HOUR
        progress = Progress(done, 20.0, NOON, NOON + 40 * HOUR, restart)
        if may_stay_on_spot(progress, now):
            stayed += 1
            assert 40 - at_h >= 20 - done + 2 * restart - 1e-6
        else:
            assert not may_stay_on_spot(replace(progress, done_hours=done / 2), now), "less done is no better"
    assert 500 < stayed < 1100, "both branches are met"


def test_a_run_behind_its_line_must_leave_spot_and_is_asked_for_elsewhere() -> None:
    plan = plan_of({"train": SPOT}, hours=30)
    request = interruptible(a_request(), deadline=NOON + 31 * HOUR, checkpoint=Checkpoints(600.0))

    def leavers(now: datetime) -> dict[str, str]:
        return behind_on_spot(request, plan, held_as_planned(plan, {"s": SPOT}, now), now, MovingTerms())

    assert leavers(NOON + timedelta(minutes=5)) == {}
    now = NOON + 9 * HOUR
    assert leavers(now) == {"train": BEHIND}, "nothing is saved before the tenth hour"
    held = held_as_planned(plan, {"s": SPOT}, now)
    left = remaining(request, plan, held, now, MovingTerms(), frozenset({"train"}))
    run = left.request.workload("train")
    assert isinstance(run, Training)
    assert run.policy.tiers is not None
    assert Tier.SPOT not in run.policy.tiers


def a_batch_in_parts() -> tuple[PlanRequest, Plan]:
    """90,000 requests: 60,000 on spot in ten hours, 30,000 on demand in five; each starts for ten minutes."""
    batch = Batch(
        name="batch", team="research", model=TINY, requests=90_000, input_tokens=10, output_tokens=10,
        earliest_start=NOON, deadline=NOON + 12 * HOUR, chunk_minutes=30,
    )  # fmt: skip
    parts = []
    for offer, hours, requests in ((SPOT, 10, 60_000), (an_offer("d", "9"), 5, 30_000)):
        value = {"requests_per_s_per_replica": 2.0, "cold_start_s": 600.0, "hours": float(hours)}
        part = a_placement(offer, [a_segment(0, hours)], "batch", WorkloadKind.BATCH)
        share = requests / 90_000
        parts.append(
            replace(part, estimate=Estimate(value, value, value), work_share=share, requests=requests)
        )
    return replace(a_request(), workloads=(batch,)), a_plan(*parts)


@pytest.mark.parametrize(
    ("after_h", "lost", "left"),
    [
        (0.5, False, 90_000),  # twenty minutes of work are no whole chunk
        (1.0, False, 90_000 - 2 * 3600),  # fifty minutes: one chunk of half an hour on each of the two
        (4.2, False, 90_000 - 28_800 - 28_800),  # four hours on each, at two a second
        (6.0, False, 90_000 - 30_000 - 39_600),  # one part is over, eleven chunks of the other are answered
        (6.0, True, 60_000),  # what was taken away counts for nothing
    ],
)
def test_a_batch_is_asked_for_with_the_requests_that_are_left(
    after_h: float, lost: bool, left: float
) -> None:
    request, plan = a_batch_in_parts()
    now = NOON + after_h * HOUR
    held = held_as_planned(plan, {"s": SPOT, "d": an_offer("d", "9")}, now)
    held = tuple(one for one in held if not lost or one.offer.tier is not Tier.SPOT)
    (batch,) = remaining(request, plan, held, now, MovingTerms()).request.workloads
    assert isinstance(batch, Batch)
    assert batch.requests == left


def test_a_batch_behind_its_line_must_leave_spot_unless_it_may_not_be_on_it() -> None:
    request, plan = a_batch_in_parts()
    offers = {"s": SPOT, "d": an_offer("d", "9")}

    def leavers(now: datetime, late: timedelta) -> dict[str, str]:
        held = [
            replace(one, active_since=one.active_since and one.active_since + late)
            for one in held_as_planned(plan, offers, now)
        ]
        return behind_on_spot(request, plan, held, now, MovingTerms())

    now = NOON + 4 * HOUR
    assert leavers(now, 3.5 * HOUR) == {}, "what one part loses can be done on more nodes beside the other"
    (batch,) = request.workloads
    assert isinstance(batch, Batch)
    request = replace(request, workloads=(replace(batch, parts=1),))
    assert leavers(now, timedelta(0)) == {}
    assert leavers(now, 3.5 * HOUR) == {"batch": BEHIND}
    steady = replace(request, workloads=(replace(batch, interruptible=False),))
    held = held_as_planned(plan, offers, now)
    assert remaining(steady, plan, held, now, MovingTerms()).fixed == {"batch": NOON + 10 * HOUR}


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_lost_unit_is_as_many_losses_as_it_has_nodes(nodes: int) -> None:
    kept, gone = lease(None, 4.0).units
    row = replace(lease(None, 4.0), units=(kept, replace(gone, nodes=nodes)))
    seen = spot_time(row, NOON + 10 * HOUR)
    assert seen == SpotTime("fake", "sku-s", "s", 10.0 + 4.0 * nodes, nodes)


@pytest.mark.parametrize(
    ("done", "at_h", "stays"),
    [
        (10.0, 29.0, True),  # 11 h until the deadline: 10 of work, and two restarts of half an hour
        (10.0, 29.001, False),
        (9.999, 29.0, False),
        (4.5, 10.0, True),  # the line is at 5 h after 10: one restart behind it is still allowed
        (4.499, 10.0, False),
        (0.0, 1.0, True),
        (0.0, 1.001, False),
        (20.0, 40.0, True),  # done
    ],
)
def test_a_run_leaves_spot_at_the_edge(done: float, at_h: float, stays: bool) -> None:
    """20 hours of work in 40; a restart costs half an hour. The reserve rules late, the line early."""
    progress = Progress(done, 20.0, NOON, NOON + 40 * HOUR, 0.5)
    if at_h == 29.0 or at_h == 29.001:
        progress = replace(progress, start=NOON + 20 * HOUR)
    assert may_stay_on_spot(progress, NOON + at_h * HOUR) is stays


def test_what_went_away_before_we_asked_was_taken_and_what_went_with_our_word_was_not() -> None:
    """Nobody knows when the third went: it counts as held until the release, and is no loss."""
    row = lease(4.0, 6.0, None, released_after_h=6.0)
    unknown = replace(row.units[2], state=UnitState.GONE)
    row = replace(row, units=(*row.units[:2], unknown))
    assert spot_time(row, NOON + 10 * HOUR) == SpotTime("fake", "sku-s", "s", 16.0, 1)
    going = replace(row, state=ReservationState.RELEASING, released_at=None)
    assert spot_time(going, NOON + 10 * HOUR) == SpotTime("fake", "sku-s", "s", 20.0, 2)
    active = replace(going, state=ReservationState.ACTIVE)
    assert spot_time(active, NOON + 10 * HOUR) == SpotTime("fake", "sku-s", "s", 20.0, 2)


@pytest.mark.parametrize(
    ("provider", "sku", "hours", "basis"),
    [
        ("fake", "sku-s", 0.5, RateBasis.OWN_LEASES),
        ("fake", "other", 0.5, RateBasis.OWN_LEASES),  # its provider alone is known
        ("else", "sku-s", 0.5, RateBasis.ASSUMED),
        ("fake", "sku-s", 0.0, RateBasis.ASSUMED),  # a lease that was never usable taught nothing
    ],
)
def test_a_rate_is_our_own_once_its_provider_was_held(
    provider: str, sku: str, hours: float, basis: RateBasis
) -> None:
    book = SpotBook([SpotTime(provider, sku, "s", hours, 0)], SpotPrior())
    assert book.basis(SPOT) is basis
    assert SpotBook([], SpotPrior()).basis(SPOT) is RateBasis.ASSUMED


@pytest.mark.parametrize(
    ("span_h", "at_h", "line"),
    [
        (40.0, 10.0, 5.0),
        (40.0, -1.0, 0.0),
        (40.0, 41.0, 20.0),
        (0.5, 0.25, 10.0),
        (0.0, 0.0, 20.0),
        (0.0, 5.0, 20.0),
    ],
)
def test_the_line_runs_from_the_start_to_the_deadline(span_h: float, at_h: float, line: float) -> None:
    """Of 20 hours of work; a run without time must be done."""
    progress = Progress(0.0, 20.0, NOON, NOON + span_h * HOUR, 0.5)
    assert progress.line_hours(NOON + at_h * HOUR) == pytest.approx(line)

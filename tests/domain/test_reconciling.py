"""``decide``: the cases by name, then every combination against what must never happen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

import pytest

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import (
    OPEN_STATES,
    Idempotency,
    Lease,
    LeaseState,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.market.offer import CancelRule, Offer
from broker.domain.reconciling.reconciling import (
    decide,
    find_orphaned_leases,
    granted_window,
    is_behind,
    is_taken_back,
    lease_of,
    let_go,
    quiet_since,
    replanned,
    settled_state,
)
from broker.domain.reconciling.reconciling_actions import (
    Abandon,
    Action,
    Adopt,
    BeginRelease,
    Buy,
    Grant,
    Lost,
    MoveTo,
    ReconcileInput,
    Release,
    Resend,
    Retry,
    Wait,
)
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms, waiting_terms

S, U, L = ReservationState, UnitState, LeaseState
SETTLE = timedelta(minutes=2)
HOUR = timedelta(hours=1)
ON_DEMAND = an_offer()
BLOCK = an_offer("block", window=listed_terms(NOON + HOUR, 4))
SLOTS = an_offer("slots", window=slot_terms(NOON, 24, cancel=CancelRule.RESELL))
FLEX = an_offer("flex", window=waiting_terms(2.0))


def unit(ordinal: int, state: UnitState, ordered_at: datetime = NOON) -> Unit:
    bought = state in (U.HELD, U.GONE)
    return Unit(
        ordinal,
        f"broker-test-rsv-{ordinal}-1",
        1,
        state,
        f"i-{ordinal}" if bought else None,
        None if state is U.PLANNED else ordered_at,
    )


def row(
    state: ReservationState,
    *units: UnitState,
    offer: Offer = ON_DEMAND,
    start: datetime = NOON,
    end: datetime | None = None,
    created_at: datetime = NOON,
) -> Reservation:
    return Reservation(
        reservation_id="rsv",
        team="research",
        state=state,
        offer=offer,
        nodes=len(units),
        start=start,
        end=end,
        units=tuple(unit(ordinal, kind) for ordinal, kind in enumerate(units)),
        created_at=created_at,
        plan_id="plan-1",
    )


def lease(ordinal: int, state: LeaseState = L.ACTIVE, reference: str | None = None) -> Lease:
    return Lease("fake", reference or f"i-{ordinal}", state, f"broker-test-rsv-{ordinal}-1")


def sight(
    *leases: Lease,
    now: datetime = NOON,
    idempotency: Idempotency = Idempotency.TAG,
    quiet: datetime = NOON,
    behind: bool = False,
) -> ReconcileInput:
    return ReconcileInput(now, leases, idempotency, SETTLE, quiet, behind)


LATE = NOON + SETTLE
ENDED = "ended at the provider"
A, B = lease(0), lease(0, reference="i-9")
CASES: list[tuple[str, Reservation, ReconcileInput, Action]] = [
    ("a closed one rests", row(S.RELEASED, U.GONE), sight(A), Wait()),
    ("an order in flight is left alone", row(S.PENDING, U.ORDERING), sight(A), Wait()),
    ("its answer is found", row(S.PENDING, U.ORDERING), sight(A, B, now=LATE), Adopt(0, A, (B,))),
    ("a lost answer is found at once", row(S.UNKNOWN, U.ORDERING), sight(A), Adopt(0, A, ())),
    ("a token repeats", row(S.UNKNOWN, U.ORDERING), sight(idempotency=Idempotency.TOKEN), Resend(0)),
    (
        "a token of a dead lease is not repeated",
        row(S.UNKNOWN, U.ORDERING),
        sight(lease(0, L.ENDED), idempotency=Idempotency.TOKEN),
        Retry(0),
    ),
    ("a tag waits until it must be visible", row(S.UNKNOWN, U.ORDERING), sight(), Wait()),
    ("and then tries again", row(S.UNKNOWN, U.ORDERING), sight(now=LATE), Retry(0)),
    (
        "neither fails closed",
        row(S.UNKNOWN, U.ORDERING),
        sight(now=LATE, idempotency=Idempotency.NEITHER),
        Lost((0,), "the answer was lost, and this provider cannot tell whether it carried out the order"),
    ),
    (
        "and keeps what the provider said",
        replace(row(S.UNKNOWN, U.ORDERING), reason="machines without a description: vm-1"),
        sight(now=LATE, idempotency=Idempotency.NEITHER),
        Lost(
            (0,),
            "the answer was lost, and this provider cannot tell whether it carried out the order: "
            "machines without a description: vm-1",
        ),
    ),
    ("which ends it with its plan", row(S.UNKNOWN, U.GONE), sight(), Abandon("", whole_plan=True)),
    ("somebody may still be buying", row(S.PENDING, U.PLANNED), sight(), Wait()),
    ("or be dead", row(S.PENDING, U.PLANNED), sight(now=LATE), Buy()),
    ("what comes first is bought first", row(S.PENDING, U.PLANNED), sight(now=LATE, behind=True), Wait()),
    ("after doubt it goes on", row(S.UNKNOWN, U.HELD, U.PLANNED), sight(A), Buy()),
    ("too early", row(S.SCHEDULED, U.PLANNED, start=NOON + HOUR), sight(now=LATE), Wait()),
    ("due", row(S.SCHEDULED, U.PLANNED, start=LATE), sight(now=LATE), Buy()),
    (
        "never came",
        row(S.SCHEDULED, U.PLANNED, start=NOON, end=LATE),
        sight(now=LATE),
        Abandon("its time was over before it was bought", whole_plan=False),
    ),
    ("usable", row(S.HELD, U.HELD), sight(A), MoveTo(S.ACTIVE)),
    ("not yet", row(S.HELD, U.HELD), sight(lease(0, L.PROVISIONING)), Wait()),
    ("not all yet", row(S.HELD, U.HELD, U.HELD), sight(A, lease(1, L.PROVISIONING)), Wait()),
    (
        "failed after the order",
        row(S.HELD, U.HELD),
        sight(lease(0, L.FAILED)),
        Lost((0,), ENDED),
    ),
    ("part of a purchase failed", row(S.HELD, U.HELD, U.GONE), sight(A), Abandon("", whole_plan=True)),
    ("part of what was in use ended", row(S.ACTIVE, U.HELD, U.GONE), sight(A), Wait()),
    ("vanished", row(S.ACTIVE, U.HELD), sight(), Lost((0,), ENDED)),
    ("at rest", row(S.ACTIVE, U.HELD), sight(A), Wait()),
    (
        "a window waits for its start",
        row(S.HELD, U.HELD, offer=BLOCK, start=NOON + HOUR, end=NOON + 5 * HOUR),
        sight(lease(0, L.SCHEDULED)),
        MoveTo(S.SCHEDULED),
    ),
    (
        "a window begins",
        row(S.SCHEDULED, U.HELD, offer=BLOCK, start=NOON, end=NOON + 5 * HOUR),
        sight(A),
        MoveTo(S.ACTIVE),
    ),
    ("time is over", row(S.ACTIVE, U.HELD, end=LATE), sight(A, now=LATE), BeginRelease("its time is over")),
    ("release", row(S.RELEASING, U.HELD), sight(A), Release((A,))),
    ("ending", row(S.RELEASING, U.HELD), sight(lease(0, L.ENDING)), Wait()),
    ("gone", row(S.RELEASING, U.HELD), sight(), Lost((0,), "")),
    ("all gone", row(S.RELEASING, U.GONE), sight(), Lost((), "")),
    ("an order under release in flight", row(S.RELEASING, U.ORDERING), sight(), Wait()),
    ("it came to be", row(S.RELEASING, U.ORDERING), sight(A), Adopt(0, A, ())),
    ("it never came to be", row(S.RELEASING, U.ORDERING), sight(now=LATE), Lost((0,), "")),
    (
        "a block that nobody can end",
        row(S.RELEASING, U.HELD, offer=BLOCK, start=NOON, end=NOON + 5 * HOUR),
        sight(A),
        Wait(),
    ),
    (
        "a window that can be sold back",
        row(S.RELEASING, U.HELD, offer=SLOTS, start=NOON, end=NOON + 5 * HOUR),
        sight(A),
        Release((A,)),
    ),
]


@pytest.mark.parametrize(
    ("reservation", "seen", "action"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_decide(reservation: Reservation, seen: ReconcileInput, action: Action) -> None:
    assert decide(reservation, seen) == action


UNIT_SETS = [*product(U), *product(U, U)]
LEASE_SETS: list[Sequence[Lease]] = [
    (),
    *((lease(0, state),) for state in L),
    *((lease(0, state), lease(1, L.ACTIVE)) for state in L),
    (lease(0), lease(0, reference="i-9")),
]


@pytest.mark.parametrize("state", list(S))
def test_what_must_never_happen(state: ReservationState) -> None:
    counted = 0
    for units, leases, idempotency, settled, ending, behind in product(
        UNIT_SETS, LEASE_SETS, Idempotency, (False, True), (False, True), (False, True)
    ):
        reservation = row(state, *units, end=LATE if ending else None)
        seen = sight(*leases, now=LATE if settled else NOON, idempotency=idempotency, behind=behind)
        _judge(reservation, seen, decide(reservation, seen))
        counted += 1
    assert counted == len(UNIT_SETS) * len(LEASE_SETS) * 24


def _judge(reservation: Reservation, seen: ReconcileInput, action: Action) -> None:
    if isinstance(action, Wait):
        return
    assert reservation.is_open, f"{action} on a closed reservation"
    if isinstance(action, Buy | Resend | Retry | Adopt):
        _judge_order(reservation, seen, action)
    else:
        _judge_end(reservation, seen, action)


def _judge_order(
    reservation: Reservation, seen: ReconcileInput, action: Buy | Resend | Retry | Adopt
) -> None:
    if isinstance(action, Buy):
        states = {u.state for u in reservation.units}
        assert U.PLANNED in states
        assert U.ORDERING not in states
        assert reservation.state is not S.RELEASING
        return
    in_doubt = reservation.units[action.ordinal]
    assert in_doubt.state is U.ORDERING
    if isinstance(action, Resend):
        assert seen.idempotency is Idempotency.TOKEN
        assert reservation.state is not S.RELEASING
    elif isinstance(action, Retry):
        assert seen.idempotency is not Idempotency.NEITHER
        assert lease_of(in_doubt, seen.leases) is None
        assert replanned(in_doubt).tag.endswith("-2")
    else:
        assert action.lease.tag == in_doubt.tag
        assert action.lease not in action.extras


def _judge_end(reservation: Reservation, seen: ReconcileInput, action: Action) -> None:
    match action:
        case Release(leases):
            assert reservation.state is S.RELEASING
            tags = {u.tag for u in reservation.units}
            assert {one.tag for one in leases} <= tags
        case MoveTo(target):
            assert reservation.moved_to(target).state is not reservation.state
        case Lost(ordinals):
            assert all(lease_of(reservation.units[o], seen.leases) is None for o in ordinals)
        case _:
            left = let_go(reservation, "x", seen.now, wanted=False)
            assert left.state not in (S.PENDING, S.UNKNOWN)


def test_strays_are_ours_alive_and_awaited_by_nobody() -> None:
    awaited, held = row(S.PENDING, U.ORDERING), row(S.ACTIVE, U.GONE, U.HELD)
    leases = [
        lease(0),  # the order in flight
        lease(1),  # held
        lease(1, reference="i-7"),  # a double
        lease(2),  # nobody's
        lease(3, L.ENDED),
        Lease("fake", "i-8", L.ACTIVE, "broker-other-rsv-0-1"),
        Lease("fake", "i-9", L.ACTIVE, None),
    ]
    strays = find_orphaned_leases(leases, [awaited, held], "test")
    assert [stray.reference for stray in strays] == ["i-7", "i-2"]


def test_siblings_are_bought_in_order_and_keep_each_other_awake() -> None:
    window = row(S.PENDING, U.PLANNED, offer=BLOCK)
    first = row(S.UNKNOWN, U.ORDERING)
    assert is_behind(window, [first])
    assert not is_behind(first, [window])
    assert not is_behind(window, [row(S.ACTIVE, U.HELD)])
    assert not is_behind(window, [row(S.PENDING, U.PLANNED, start=NOON + HOUR)])
    assert quiet_since(row(S.PENDING, U.PLANNED, created_at=NOON - HOUR), [first]) == NOON


def test_the_provider_has_the_last_word() -> None:
    failed = Lease("fake", "i-0", L.FAILED, "broker-test-rsv-0-1", detail="no capacity")
    assert decide(row(S.HELD, U.HELD), sight(failed)) == Lost((0,), "ended at the provider: no capacity")


def test_what_is_held_and_shown_usable_is_in_use_whatever_was_stored_before() -> None:
    ahead = (S.PENDING, S.UNKNOWN, S.HELD, S.SCHEDULED)
    told = {**dict.fromkeys(ahead, MoveTo(S.ACTIVE)), S.ACTIVE: Wait(), S.RELEASING: Release((A,))}
    assert {state: decide(row(state, U.HELD), sight(A)) for state in OPEN_STATES} == told
    for state in set(S) - OPEN_STATES:
        assert decide(row(state, U.HELD), sight(A)) == Wait()


def granted(ordinal: int, start_h: float, end_h: float, state: LeaseState = L.ACTIVE) -> Lease:
    return replace(lease(ordinal, state), window=Window(NOON + start_h * HOUR, NOON + end_h * HOUR))


@pytest.mark.parametrize(
    ("leases", "hours"),
    [
        ((), None),
        ((granted(0, 0, 4),), (0, 4)),
        ((granted(0, 0, 4), granted(1, 1, 6)), (1, 4)),
        ((granted(1, 1, 6), granted(0, 0, 4)), (1, 4)),
        ((granted(0, 0, 6), granted(1, 1, 2)), (1, 2)),
        ((granted(0, 0, 2), granted(1, 2, 4)), None),
        ((granted(0, 0, 4), granted(1, 1, 6, L.SCHEDULED)), (1, 4)),
        ((granted(0, 0, 4), granted(1, 1, 6, L.PROVISIONING)), (0, 4)),
        ((granted(0, 0, 4), granted(7, 1, 2)), (0, 4)),
    ],
)
def test_several_leases_are_granted_the_time_that_all_of_them_have(
    leases: tuple[Lease, ...], hours: tuple[int, int] | None
) -> None:
    two = row(S.HELD, U.HELD, U.HELD, offer=BLOCK)
    expected = None if hours is None else Window(NOON + hours[0] * HOUR, NOON + hours[1] * HOUR)
    assert granted_window(two, leases) == expected


@pytest.mark.parametrize("state", list(L))
def test_a_lease_that_is_ending_or_over_is_no_stray(state: LeaseState) -> None:
    """Nobody waits for it; what its seller ends already needs no end."""
    found = find_orphaned_leases([lease(5, state)], [row(S.ACTIVE, U.HELD)], "test")
    assert bool(found) is (state not in (L.ENDING, L.ENDED, L.FAILED))


SECOND = timedelta(seconds=1)
LOOK_AGAIN = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("missed_s", "leases", "is_lost"),
    [
        (None, (), False),  # missing for the first time
        (59, (), False),
        (60, (), True),
        (61, (), True),
        (None, (lease(0, L.ENDED),), True),  # its provider says that it ended
        (None, (lease(0, L.ENDED), lease(7)), True),
        (None, (lease(7), lease(8)), False),  # others tell nothing of it
    ],
)
@pytest.mark.parametrize("state", [S.ACTIVE, S.RELEASING])
def test_a_lease_is_gone_when_two_looks_apart_miss_it_or_its_provider_says_so(
    state: ReservationState, missed_s: int | None, leases: tuple[Lease, ...], is_lost: bool
) -> None:
    missed = {} if missed_s is None else {0: LATE - missed_s * SECOND}
    seen = replace(sight(*leases, now=LATE), missed=missed, second_look=LOOK_AGAIN)
    action = decide(row(state, U.HELD), seen)
    if not is_lost:
        assert action == Wait()
        return
    assert isinstance(action, Lost)
    assert action.ordinals == (0,)


def test_what_is_left_of_a_release_is_ended_though_a_part_is_gone() -> None:
    assert decide(row(S.RELEASING, U.GONE, U.HELD), sight(lease(1))) == Release((lease(1),))
    both = (lease(0, L.ENDING), lease(1))
    assert decide(row(S.RELEASING, U.HELD, U.HELD), sight(*both)) == Release((lease(1),))


@pytest.mark.parametrize(
    ("tries", "reason"),
    [
        (0, "enough"),
        (1, "enough; released after fake had refused once"),
        (2, "enough; released after fake had refused 2 times"),
    ],
)
def test_a_release_says_how_often_it_was_refused_before(tries: int, reason: str) -> None:
    going = replace(row(S.RELEASING, U.HELD), reason="enough", tries=tries)
    assert decide(going, sight()) == Lost((0,), reason)


@pytest.mark.parametrize(
    ("offer", "end_h", "now_h", "is_taken"),
    [
        (ON_DEMAND, 5, 5, False),
        (replace(BLOCK, window=replace(listed_terms(NOON, 4), teardown_s=1800)), 5, 4.5, True),
        (replace(BLOCK, window=replace(listed_terms(NOON, 4), teardown_s=1800)), 5, 4.499, False),
        (BLOCK, 5, 4.999, False),
        (BLOCK, 5, 5, True),
        (BLOCK, None, 9, False),
    ],
)
def test_a_window_is_taken_back_from_its_teardown_on(
    offer: Offer, end_h: float | None, now_h: float, is_taken: bool
) -> None:
    end = None if end_h is None else NOON + end_h * HOUR
    held, now = row(S.ACTIVE, U.HELD, offer=offer, end=end), NOON + now_h * HOUR
    assert is_taken_back(held, now) is is_taken
    if now_h < (end_h or 99):
        words = "its time is over" if is_taken else ENDED
        assert decide(held, sight(now=now)) == Lost((0,), words)


@pytest.mark.parametrize(
    ("late_s", "action"),
    [(-1, Wait()), (0, BeginRelease("its time is over")), (1, BeginRelease("its time is over"))],
)
def test_a_window_that_is_still_there_an_hour_after_its_end_is_released(late_s: int, action: Action) -> None:
    held = row(S.ACTIVE, U.HELD, offer=BLOCK, end=NOON + 4 * HOUR)
    now = NOON + 5 * HOUR + late_s * SECOND
    assert decide(held, sight(A, now=now)) == action
    going = row(S.RELEASING, U.HELD, offer=BLOCK, end=NOON + 4 * HOUR)
    expected = Wait() if late_s < 0 else Release((A,))
    assert decide(going, sight(A, now=now)) == expected


def test_a_window_that_ends_by_itself_is_lost_after_its_end_and_one_never_bought_is_given_up() -> None:
    over = NOON + 4 * HOUR
    held = row(S.ACTIVE, U.HELD, offer=BLOCK, end=over)
    assert decide(held, sight(now=over)) == Lost((0,), "its time is over")
    planned = row(S.SCHEDULED, U.PLANNED, offer=BLOCK, end=over)
    assert isinstance(decide(planned, sight(now=over)), Abandon)
    doubtful = row(S.UNKNOWN, U.ORDERING, offer=BLOCK, end=over)
    assert decide(doubtful, sight(now=over)) == BeginRelease("its time is over")


def test_only_what_is_still_to_buy_is_given_up_after_a_day_of_refusals() -> None:
    """Refused once, and without an end."""
    day = NOON + 24 * HOUR
    for state, kind, action in (
        (S.SCHEDULED, U.PLANNED, Abandon("", whole_plan=False)),
        (S.ACTIVE, U.HELD, Wait()),
    ):
        refused = replace(row(state, kind), tries=1, tried_at=NOON)
        assert decide(refused, sight(A, now=day)) == action
        early = decide(refused, sight(A, now=day - SECOND))
        assert not isinstance(early, Abandon)


def test_a_time_that_is_granted_is_stored_once() -> None:
    waits = row(S.HELD, U.HELD, offer=FLEX, end=NOON + 4 * HOUR)
    shown = granted(0, 1, 5)
    assert decide(waits, sight(shown)) == Grant(Window(NOON + HOUR, NOON + 5 * HOUR))
    known = replace(waits, granted=Window(NOON + HOUR, NOON + 5 * HOUR))
    assert decide(known, sight(shown)) == MoveTo(S.ACTIVE)
    other = replace(waits, granted=Window(NOON + HOUR, NOON + 6 * HOUR))
    assert decide(other, sight(shown)) == Grant(Window(NOON + HOUR, NOON + 5 * HOUR))
    silent = replace(known, state=S.ACTIVE)
    assert decide(silent, sight(A)) == Wait(), "what was granted stays granted"


@pytest.mark.parametrize(
    ("offer", "lease_state", "ahead_s", "state"),
    [
        (BLOCK, L.ACTIVE, 1, S.SCHEDULED),
        (BLOCK, L.ACTIVE, 0, S.ACTIVE),
        (BLOCK, L.SCHEDULED, 0, S.HELD),
        (FLEX, L.ACTIVE, 1, S.ACTIVE),  # its capacity appeared early
        (FLEX, L.SCHEDULED, 1, S.SCHEDULED),
        (FLEX, L.SCHEDULED, 0, S.HELD),
        (ON_DEMAND, L.ACTIVE, 1, S.ACTIVE),
        (ON_DEMAND, L.PROVISIONING, 1, S.HELD),
    ],
)
def test_a_window_is_scheduled_until_it_begins(
    offer: Offer, lease_state: LeaseState, ahead_s: int, state: ReservationState
) -> None:
    held = row(S.HELD, U.HELD, offer=offer, start=NOON + ahead_s * SECOND)
    assert settled_state(held, [lease(0, lease_state)], NOON) is state


def test_one_of_several_siblings_that_must_come_first_is_enough() -> None:
    """Hourly capacity comes before a block that nobody takes back, and beside other hourly capacity."""
    first, second = row(S.UNKNOWN, U.ORDERING), row(S.ACTIVE, U.HELD)
    block = row(S.PENDING, U.PLANNED, offer=BLOCK)
    assert is_behind(block, [first, second])
    assert is_behind(block, [second, first])
    assert not is_behind(row(S.PENDING, U.PLANNED), [first, row(S.PENDING, U.PLANNED)])


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("state", [S.PENDING, S.ACTIVE, S.RELEASING])
def test_what_is_let_go_keeps_what_must_still_be_ended(state: ReservationState, wanted: bool) -> None:
    """Planned units end at once, ordered and held ones are asked back, and what is gone stays as it was."""
    mixed = let_go(row(state, U.PLANNED, U.ORDERING, U.HELD, U.GONE), "enough", LATE, wanted=wanted)
    assert (mixed.state, mixed.reason, mixed.released_at) == (S.RELEASING, "enough", None)
    assert [u.state for u in mixed.units] == [U.GONE, U.ORDERING, U.HELD, U.GONE]
    assert [u.leaving_at for u in mixed.units] == [None, LATE, LATE, None]
    empty = let_go(row(state, U.PLANNED, U.GONE), "enough", LATE, wanted=wanted)
    failed = not wanted and state is S.PENDING
    assert empty.state is (S.FAILED if failed else S.RELEASED)
    assert (empty.released_at, empty.reason) == (LATE, "enough")

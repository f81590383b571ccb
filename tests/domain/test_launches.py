"""What our own launches say of offers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.errors import InsufficientCapacity, ProviderError, QuotaExceeded
from broker.domain.holding.launches import LaunchAttempt, LaunchBook, LaunchOutcome, attempts_between
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.market.launch_statistics import LAUNCH_PRIOR, StatisticsLevel
from broker.domain.market.offer import WindowKind, WindowTerms
from tests.store.examples import HOUR, NOON, offer, reservation

MINUTE = timedelta(minutes=1)


def tried(
    outcome: LaunchOutcome, number: int = 0, *, minutes: float = 4, name: str = "a", ago: timedelta = HOUR
) -> LaunchAttempt:
    one, at = offer(name), NOON - ago
    usable_at = at + minutes * MINUTE if outcome is LaunchOutcome.USABLE else None
    return LaunchAttempt(
        f"rsv-{name}-{number}", name, "aws", one.sku.name, one.region, at, at, outcome, usable_at
    )


def test_nothing_is_known_of_a_provider_where_nothing_was_tried() -> None:
    assert LaunchBook([], NOON).statistics_of(offer("a")) is None
    assert LaunchBook([tried(LaunchOutcome.REFUSED)], NOON).statistics_of(offer("a")) is None
    assert LaunchBook([tried(LaunchOutcome.USABLE)], NOON).statistics_of(offer("v", provider="vast")) is None


def test_it_falls_back_from_the_offer_to_its_sku_to_its_provider() -> None:
    book = LaunchBook([tried(LaunchOutcome.NO_CAPACITY, n) for n in range(3)], NOON)
    other_sku = replace(offer("c"), sku=replace(offer().sku, name="p4d"))
    found = [book.statistics_of(one) for one in (offer("a"), offer("b"), other_sku)]
    assert [one.basis for one in found if one] == [
        StatisticsLevel.OFFER,
        StatisticsLevel.SKU,
        StatisticsLevel.PROVIDER,
    ]
    assert [one.attempts for one in found if one] == [3, 3, 3]
    shares = [one.success_share for one in found if one]
    assert shares == sorted(shares)
    assert [one.is_rare for one in found if one] == [True, False, False]


def test_one_odd_launch_moves_the_minutes_by_nothing() -> None:
    usual = [tried(LaunchOutcome.USABLE, n, minutes=4) for n in range(6)]
    odd = tried(LaunchOutcome.USABLE, 9, minutes=600)
    learned = LaunchBook([*usual, odd], NOON).statistics_of(offer("a"))
    assert learned is not None
    assert learned.minutes_to_usable == pytest.approx(4)
    assert str(learned) == "99% in 4 min (7 launches)"


def test_a_stock_out_fades() -> None:
    def share(ago: timedelta) -> tuple[float, bool]:
        book = LaunchBook([tried(LaunchOutcome.NO_CAPACITY, n, ago=ago) for n in range(4)], NOON)
        learned = book.statistics_of(offer("a"))
        return (1.0, False) if learned is None else (learned.success_share, learned.is_rare)

    assert share(HOUR)[1]
    assert not share(timedelta(days=14))[1]
    assert share(HOUR)[0] < share(timedelta(days=3))[0] < share(timedelta(days=14))[0]
    assert share(timedelta(days=91)) == (1.0, False)


outcomes = st.sampled_from([LaunchOutcome.USABLE, LaunchOutcome.NO_CAPACITY, LaunchOutcome.FAILED])


@given(st.lists(outcomes, min_size=1, max_size=30), st.integers(0, 500))
def test_shares_stay_inside_and_a_success_never_lowers_them(found: list[LaunchOutcome], minutes: int) -> None:
    attempts = [tried(outcome, n, minutes=minutes) for n, outcome in enumerate(found)]
    before = LaunchBook(attempts, NOON).statistics_of(offer("a"))
    after = LaunchBook([*attempts, tried(LaunchOutcome.USABLE, 99, minutes=minutes)], NOON).statistics_of(
        offer("a")
    )
    assert before is not None
    assert after is not None
    assert 0 < before.success_share < 1
    assert before.success_share <= after.success_share
    least, most = sorted((minutes, LAUNCH_PRIOR.minutes_to_usable))
    assert least <= before.minutes_to_usable <= most
    assert before.wait_hours >= before.minutes_to_usable / 60


def asked(row: Reservation) -> Reservation:
    unit = replace(row.units[0], state=UnitState.ORDERING, reference=None)
    return replace(row, state=ReservationState.PENDING, units=(unit,))


def test_an_answer_ends_an_attempt() -> None:
    row = asked(reservation("r"))
    replanned = row.with_unit(replace(row.units[0], state=UnitState.PLANNED))
    answers: tuple[tuple[ProviderError | None, LaunchOutcome], ...] = (
        (InsufficientCapacity("aws", "none"), LaunchOutcome.NO_CAPACITY),
        (QuotaExceeded("aws", "8 vCPUs"), LaunchOutcome.REFUSED),
        (None, LaunchOutcome.FAILED),
    )
    for error, outcome in answers:
        (attempt,) = attempts_between(row, replanned, error)
        assert (attempt.outcome, attempt.asked_at, attempt.minutes) == (outcome, NOON, None)
    active = replace(reservation("r"), active_at=NOON + 7 * MINUTE)
    (attempt,) = attempts_between(row, active)
    assert (attempt.outcome, attempt.minutes) == (LaunchOutcome.USABLE, 7)


def test_the_wait_for_a_window_begins_with_the_window() -> None:
    terms = WindowTerms(WindowKind.REQUEST, ())
    row = replace(reservation("r", start=NOON + 48 * HOUR, end=None), offer=replace(offer(), window=terms))
    (attempt,) = attempts_between(row, replace(row, active_at=NOON + 48 * HOUR + 3 * MINUTE))
    assert (attempt.asked_at, attempt.due_at, attempt.minutes) == (NOON, NOON + 48 * HOUR, 3)


def test_only_what_dies_unasked_before_it_was_usable_has_failed() -> None:
    held = reservation("r", state=ReservationState.HELD)
    gone = held.with_unit(replace(held.units[0], state=UnitState.GONE))
    (attempt,) = attempts_between(held, gone)
    assert attempt.outcome is LaunchOutcome.FAILED
    assert attempts_between(replace(held, state=ReservationState.RELEASING), gone) == ()
    used = NOON + MINUTE
    assert attempts_between(replace(held, active_at=used), replace(gone, active_at=used)) == ()

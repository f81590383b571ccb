"""Whose call of the planner is next: nobody waits for ever, and small calls do not wait behind large ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.planning.plan_turns import (
    MOST_INTERACTIVE_WORKLOADS,
    WEIGHTS,
    Served,
    Turn,
    TurnClass,
    class_by_size,
    next_turn,
    starting_order,
)
from tests.depth import examples

TEAMS = ("research", "product", "search")
CYCLE = sum(WEIGHTS.values())

turns = st.builds(Turn, st.sampled_from(TEAMS), st.sampled_from(TurnClass))
lines = st.lists(turns, min_size=1, max_size=12).map(
    lambda many: [replace(turn, sequence=number) for number, turn in enumerate(many, 1)]
)


def served_by(arrivals: Sequence[Turn], slots: int) -> Served:
    """What was served after ``arrivals`` have all run, one after the other ended."""
    waiting, running, served = list(arrivals), list[Turn](), Served()
    while waiting:
        found = next_turn(waiting, running, slots, served)
        if found is None:
            running.pop(0)
            continue
        turn, served = found
        waiting.remove(turn)
        running.append(turn)
    return served


@settings(max_examples=examples(100))
@given(history=lines, one=turns, slots=st.integers(1, 4), data=st.data())
def test_every_call_starts_within_a_bounded_number_of_turns(
    history: list[Turn], one: Turn, slots: int, data: st.DataObject
) -> None:
    """Whatever was served before and whatever else keeps coming, while calls end."""
    served, running = served_by(history, slots), list[Turn]()
    mine = replace(one, sequence=1000)
    waiting = [mine]
    number = 1000
    for taken in range(2 * CYCLE * len(TEAMS) + 2 * CYCLE):
        for team in TEAMS:
            for kind in TurnClass:
                busy = any((turn.team, turn.kind) == (team, kind) for turn in waiting)
                if not busy:
                    number += 1
                    waiting.append(Turn(team, kind, sequence=number))
        found = next_turn(waiting, running, slots, served)
        while found is None:
            running.pop(data.draw(st.integers(0, len(running) - 1)) if taken % 7 == 0 else 0)
            found = next_turn(waiting, running, slots, served)
        turn, served = found
        waiting.remove(turn)
        running.append(turn)
        if turn is mine:
            return
    raise AssertionError(f"{mine} still waits")


@settings(max_examples=examples(100))
@given(waiting=lines, running=lines, slots=st.integers(1, 6), history=lines)
def test_a_slot_is_taken_by_one_that_may(
    waiting: list[Turn], running: list[Turn], slots: int, history: list[Turn]
) -> None:
    served = served_by(history, slots)
    found = next_turn(waiting, running, slots, served)
    larges = sum(turn.kind is TurnClass.LARGE for turn in running)
    most = max(1, slots - 1)
    if len(running) >= slots:
        assert found is None
        return
    if found is None:
        assert {turn.kind for turn in waiting} == {TurnClass.LARGE}
        assert larges >= most
        return
    turn, _ = found
    assert turn in waiting
    if turn.kind is TurnClass.LARGE:
        assert larges < most
    at_work = Counter(one.team for one in running)
    may = {one.team for one in waiting if one.kind is not TurnClass.LARGE or larges < most}
    if at_work[turn.team] >= most:
        assert all(at_work[team] >= most for team in may)
    same = [one.sequence for one in waiting if (one.team, one.kind) == (turn.team, turn.kind)]
    assert turn.sequence == min(same)


@settings(max_examples=examples(50))
@given(waiting=lines, running=lines, slots=st.integers(1, 4))
def test_the_order_told_is_the_order_of_starts(waiting: list[Turn], running: list[Turn], slots: int) -> None:
    at_work = running[:slots]
    told = starting_order(waiting, at_work, slots, Served())
    started, served, left = [], Served(), list(waiting)
    while left:
        found = next_turn(left, at_work, slots, served)
        if found is None:
            at_work = at_work[1:]
            continue
        turn, served = found
        left.remove(turn)
        at_work = [*at_work, turn]
        started.append(turn)
    assert list(told) == started


def test_one_slot_serves_small_calls_before_a_line_of_large_ones() -> None:
    large = [Turn("research", TurnClass.LARGE, sequence=n) for n in range(1, 21)]
    small = [Turn("product", TurnClass.INTERACTIVE, sequence=n) for n in range(21, 26)]
    order = starting_order([*large, *small], (), 1, Served())
    assert [turn.kind for turn in order[:5]].count(TurnClass.INTERACTIVE) == 4
    assert TurnClass.LARGE in {turn.kind for turn in order[:5]}


def test_one_of_two_slots_never_runs_what_is_large() -> None:
    large = [Turn(team, TurnClass.LARGE, sequence=n) for n, team in enumerate(TEAMS)]
    assert next_turn(large[1:], large[:1], 2, Served()) is None
    small = Turn("product", TurnClass.INTERACTIVE, sequence=9)
    found = next_turn([*large[1:], small], large[:1], 2, Served())
    assert found is not None
    assert found[0] == small


def test_a_document_is_large_above_the_limit() -> None:
    kind = TurnClass.INTERACTIVE
    assert class_by_size(kind, MOST_INTERACTIVE_WORKLOADS) is kind
    assert class_by_size(kind, MOST_INTERACTIVE_WORKLOADS + 1) is TurnClass.LARGE

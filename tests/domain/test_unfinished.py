from datetime import timedelta
from decimal import Decimal

from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.moving.reoptimization_result import GuardRules, cut_off, guard_after, retry_at
from tests.fakes.clock import NOON

RULES = GuardRules(first_s=60.0, most_s=200.0)
SEEN = Reoptimization(
    "look", "research", "plan-1", "timetable", NOON, ProposalState.UNCHANGED, Decimal(10), Decimal(10)
)


def test_the_guard_doubles_up_to_its_most_and_begins_anew_after_a_finished_look() -> None:
    guards, last = [], None
    for _ in range(4):
        guards.append(guard_after(last, RULES))
        last = cut_off(SEEN, "6 workloads were not tried", guards[-1])
    assert guards == [60.0, 120.0, 200.0, 200.0]
    assert guard_after(None, RULES) == 60.0


def test_a_look_that_was_cut_off_pauses_as_long_as_it_could_take() -> None:
    last = cut_off(SEEN, "6 workloads were not tried", 120.0)
    assert retry_at(last) == NOON + timedelta(seconds=120)
    assert retry_at(SEEN) is None
    assert (last.state, last.before_usd, last.after_usd) == (ProposalState.UNFINISHED, None, None)
    assert last.reason == (
        "not finished within 120 s on a busy machine: 6 workloads were not tried; it is tried again"
    )

"""From when a service answers: its cold start counts, is told and checked, and costs nothing twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions
from optimizer.placement.replan.warm import WarmStart
from optimizer.placement.rules import form, running
from tests.placement.market import at, offer, plan, planner, request, serving, training
from tests.placement.test_check_edges import judge, refusals

NODE = offer("node", "1.00", nodes=4)
COLD = timedelta(minutes=10)
UNSERVED = "requests to chat before 2026-11-23 00:10:00 UTC are not served: for 10 min its first nodes start"


def unserved(found: Plan) -> list[str]:
    return [note for note in found.notes if "are not served" in note]


def test_a_service_that_starts_with_the_horizon_is_live_after_its_cold_start() -> None:
    found = plan(request(serving()), [NODE])
    (placement,) = found.placements
    assert placement.segments[0].start == at(0)
    assert placement.live_from == at(0) + COLD
    (note,) = unserved(found)
    assert note.startswith(UNSERVED)


@pytest.mark.parametrize(
    ("asked", "live"),
    [
        (request(serving(starts_at=at(5))), at(5)),
        (request(serving(hourly=[0.0] * 3 + [3.0] * 21), hours=24), at(3)),
    ],
    ids=["a start at a time", "no requests at first"],
)
def test_what_begins_later_is_ordered_before_and_loses_nothing(asked: PlanRequest, live: object) -> None:
    found = plan(asked, [NODE])
    (placement,) = found.placements
    assert (placement.live_from, unserved(found)) == (live, [])


def test_a_service_that_follows_a_run_is_live_a_cold_start_after_its_end() -> None:
    found = plan(request(training("run", 10), serving(starts_after="run")), [NODE])
    (run,), (service,), (wait,) = found.placements_of("run"), found.placements_of("chat"), found.waits
    assert run.live_from is None
    assert service.live_from == wait.start + COLD
    assert unserved(found) == []


def test_several_services_are_told_in_one_sentence() -> None:
    (note,) = unserved(plan(request(serving("a"), serving("b")), [NODE]))
    assert note.startswith("2 services are live once their first nodes have started")


def test_what_is_held_already_is_live_with_the_horizon() -> None:
    asked, offers = request(serving()), [NODE]
    old = plan(asked, offers)
    options = PlanOptions(gap=0.0, baselines=False)
    again = planner().replan(asked, offers, at(0), options, WarmStart(old, leaving_usd={"chat": Decimal(9)}))
    (placement,) = again.plan.placements
    assert (placement.live_from, unserved(again.plan)) == (at(0), [])
    assert any("live_from is" in words for words in planner().check(again.plan, asked, offers))
    later = planner().replan(asked, offers, at(2), options, WarmStart(old, leaving_usd={"chat": Decimal(9)}))
    assert later.plan.placements[0].live_from == at(2)
    assert planner().check(later.plan, asked, offers) == ()


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (timedelta(seconds=1), None),
        (timedelta(seconds=2), "live_from is 2026-11-23T00:10:02+00:00, expected 2026-11-23T00:10:00+00:00"),
        (-COLD, "live_from is 2026-11-23T00:00:00+00:00, expected 2026-11-23T00:10:00+00:00"),
    ],
)
def test_the_checker_works_it_out_again(later: timedelta, words: str | None) -> None:
    asked, offers = request(serving()), [NODE]
    found = plan(asked, offers)
    (placement,) = found.placements
    told = replace(placement, live_from=at(0) + COLD + later)
    judge(refusals(running, (replace(found, placements=(told,)), asked, offers)), words)


def test_only_services_are_live_and_only_from_a_time_in_utc() -> None:
    asked, offers = request(training("run", 10)), [NODE]
    found = plan(asked, offers)
    (placement,) = found.placements
    wrong = replace(placement, live_from=at(0))
    judge(refusals(running, (replace(found, placements=(wrong,)), asked, offers)), "only services have it")
    naive = replace(placement, live_from=at(0).replace(tzinfo=None))
    judge(refusals(form, (replace(found, placements=(naive,)), asked, offers)), "expected a time in UTC")

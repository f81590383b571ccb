"""Processes that answer for services: the same answers as here, and no plan that depends on them."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.performance.estimator import Estimator
from optimizer.placement.columns.candidates import Candidates, build_candidates
from optimizer.placement.columns.dual import Dual
from optimizer.placement.columns.prices import Row, StockPrices
from optimizer.placement.columns.run_pool import build_run_pools
from optimizer.placement.fleets.bound import FleetBound
from optimizer.placement.pipeline import limit_clock, processes_for
from optimizer.placement.problem.columns import price_cents
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import Problem, build_problem
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.workers.asks import BoundAsk, FleetsAsk, PricedAnswer, PricedAsk
from optimizer.placement.workers.billed_offers import BilledOffers
from optimizer.placement.workers.wire import lean
from optimizer.placement.workers.worker_pool import Task, WorkerPool, worker_pool
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import ANY_POOLS, T0, offer, plan, request, serving

PATIENCE_S = 120.0
DAYS_HOURS = [2.0, 3.0, 7.0, 4.0]


def market() -> list[Offer]:
    return [
        offer("cheap", "1.00", nodes=3, min_hours=48.0, tier=Tier.COMMITTED),
        offer("weekly", "1.20", nodes=5, min_hours=24.0, tier=Tier.COMMITTED, provider="aws"),
        offer("by-the-hour", "2.13", nodes=40, billing_increment_s=60, provider="gcp"),
        offer("other", "2.19", nodes=40, gpus=2, upfront_usd=Decimal("0.37")),
    ]


def asked(count: int = 4) -> PlanRequest:
    hourly = [[rate + number for rate in DAYS_HOURS] for number in range(count)]
    return request(
        *(
            serving(f"s{n}", rates, unplaced_usd=Decimal(900), fleet=ANY_POOLS)
            for n, rates in enumerate(hourly)
        )
    )


def candidates_of(asked: PlanRequest, workers: WorkerPool | None = None) -> Candidates:
    problem = workers.problem if workers is not None else build_problem(asked, market(), T0)
    estimates = build_estimates(problem, cast("Estimator", FakeEstimator()))
    return build_candidates(problem, estimates, workers=workers)


@contextmanager
def workers_of(processes: int, count: int = 4) -> Iterator[tuple[Candidates, WorkerPool]]:
    with worker_pool(build_problem(asked(count), market(), T0), processes) as workers:
        yield candidates_of(asked(count), workers), workers


def pids(workers: WorkerPool) -> list[int]:
    return [process.popen.pid for process in workers._processes]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> bool:
    until = time.monotonic() + PATIENCE_S
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_alive(pid)


def asks_of(candidates: Candidates) -> list[tuple[str, Any]]:
    every, prices = candidates.problem.table.stock_nodes, ((0, 0.3), (2, 0.1))
    makers = (BoundAsk, lambda case: PricedAsk(case, prices), lambda case: FleetsAsk(case, every))
    return [(name, make(case)) for name, case in candidates.fleets.items() for make in makers]


def as_told(answer: Any) -> Any:
    if isinstance(answer, PricedAnswer):
        return answer.usd, answer.offers
    if isinstance(answer, FleetBound):
        return answer.starts, answer.met, answer.owed, answer.hourly_usd.tolist()
    return answer


def answered_by(workers: WorkerPool, candidates: Candidates) -> list[Any]:
    found: dict[int, Any] = {}
    asks = asks_of(candidates)
    workers.run(Task(at, ask, partial(found.__setitem__, at)) for at, (_, ask) in enumerate(asks))
    return [as_told(found[at]) for at in range(len(asks))]


def test_processes_answer_as_we_do() -> None:
    with workers_of(1) as (candidates, workers):
        away: list[Any] = []
        asks = asks_of(candidates)
        workers.prefetch(Task(at, ask, away.append) for at, (_, ask) in enumerate(asks))
        until = time.monotonic() + PATIENCE_S
        while len(away) < len(asks) and time.monotonic() < until:
            workers.collect(0.1)
        own = [as_told(ask.answer(candidates.problem, never)) for _, ask in asks]
        assert [as_told(answer) for answer in away] == own
        assert any(isinstance(answer, list) and answer for answer in own)


def test_a_worker_pool_proves_what_one_process_proves() -> None:
    prices = StockPrices({Row(at): 0.11 * (at + 1) for at in range(len(market()))})
    proven = []
    for processes in (0, 2):
        with workers_of(processes) as (candidates, _):
            dual = Dual(candidates, build_run_pools(candidates))
            points = (StockPrices(), prices)
            proven += [dual.evaluate(point, {}, 0.0, never).total_usd for point in points]
            assert dual.asked >= 2 * len(candidates.fleets)
    assert proven[:2] == pytest.approx(proven[2:])


def test_what_was_asked_at_once_meanwhile_is_not_done_later() -> None:
    with workers_of(1, 3) as (candidates, workers):
        done: list[tuple[str, int]] = []
        ask = BoundAsk(next(iter(candidates.fleets.values())))

        def task(when: str, number: int) -> Task:
            return Task(("some", number), ask, lambda _: done.append((when, number)))

        workers.prefetch([task("later", number) for number in range(9)])
        workers.run(task("now", number) for number in range(8))
        until = time.monotonic() + PATIENCE_S
        while ("later", 8) not in done and time.monotonic() < until:
            workers.collect(0.05)
    assert sorted(number for _, number in done) == list(range(9))


def test_a_killed_process_is_done_without() -> None:
    with workers_of(0) as (candidates, workers):
        expected = answered_by(workers, candidates)
    with workers_of(2) as (candidates, workers), capture_logs() as logs:
        first, second = pids(workers)
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGKILL)
        assert answered_by(workers, candidates) == expected
        until = time.monotonic() + PATIENCE_S
        while workers.size and time.monotonic() < until:
            time.sleep(0.05)
        assert workers.size == 0
    assert "ended early" in logs[0]["event"]


@dataclass(frozen=True)
class Unsendable:
    """An ask that cannot travel."""

    lock: Any = field(default_factory=threading.Lock)

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> str:
        return "by ourselves"


@dataclass(frozen=True)
class CutOff:
    """An ask whose worker dies in the middle of its answer, after five of a thousand bytes."""

    asked_by: int

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> str:
        if os.getpid() == self.asked_by:
            return "by ourselves"
        os.write(int(sys.argv[1]), struct.pack("!i", 1000) + b"begun")
        os._exit(1)


@pytest.mark.parametrize("ask", [Unsendable(), CutOff(os.getpid())], ids=["not sent", "cut off"])
def test_what_is_not_sent_or_not_answered_whole_is_answered_here(ask: Any) -> None:
    """The thread that sends ends with the failure; who waits for the answer still has one."""
    found: list[str] = []
    with workers_of(2) as (_, workers), capture_logs() as logs:
        workers.run(Task(number, ask, found.append) for number in range(6))
        until = time.monotonic() + PATIENCE_S
        while len(found) < 6 and time.monotonic() < until:
            workers.collect(0.05)
    assert found == ["by ourselves"] * 6
    assert {entry["event"] for entry in logs} == {
        "a worker of the planner ended early; its work is done without it"
    }


def test_what_is_sent_of_a_problem_does_not_change_meanwhile() -> None:
    problem = build_problem(asked(), market(), T0)
    problem.memo.once("known", lambda: 1)
    sent = lean(problem)
    assert len(sent.memo) == 0
    assert sent.memo is not problem.memo


def test_what_cannot_be_started_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with capture_logs() as logs, workers_of(1, count=1) as (candidates, workers):
        assert workers.size == 0
        candidates.bound_services(never)
        assert candidates.bounded == {"s0"}
    assert logs[0]["log_level"] == "warning"


def test_a_closed_worker_pool_leaves_nobody() -> None:
    with workers_of(2, count=1) as (candidates, workers):
        started = pids(workers)
        workers.prefetch([Task("s0", BoundAsk(candidates.fleets["s0"]), lambda _: None)])
    assert not any(is_alive(pid) for pid in started)
    answers: list[Any] = []
    workers.run([Task("s0", BoundAsk(candidates.fleets["s0"]), answers.append)])
    assert len(answers) == 1


PARENT = """
import time
from tests.placement.test_worker_pool import workers_of, pids
with workers_of(2, count=1) as (_, workers):
    print(*pids(workers), flush=True)
    time.sleep(600)
"""


def test_processes_end_with_a_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    assert all(is_alive(pid) for pid in workers)
    parent.kill()
    parent.wait(PATIENCE_S)
    assert all(wait_until_gone(pid) for pid in workers)


def test_a_plan_of_many_workers_is_valid_and_bounded() -> None:
    many = asked(20)
    found = plan(many, market(), time_limit_s=10.0, gap=0.2, workers=2)
    assert found.bound_usd is not None
    assert found.bound_usd <= found.cost_usd + found.penalty_usd
    assert {p.workload for p in found.placements} | {u.workload for u in found.unplaced} == {
        w.name for w in many.workloads
    }


@pytest.mark.parametrize(
    ("changes", "processes"),
    [
        ({"workers": 1}, 0),
        ({"workers": 3}, 2),
        ({"workers": 3, "limit_clock": LimitClock.WORK}, 0),
        ({"workers": 3, "limit_clock": LimitClock.CPU}, 2),
        ({"workers": 3, "time_limit_s": 2.0}, 0),
        ({"workers": None}, 0),
    ],
)
def test_who_gets_help(changes: dict[str, Any], processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimizer.placement.pipeline.usable_cores", lambda: 1)
    options = replace(PlanOptions(), **changes)
    assert processes_for(asked(20), options) == processes
    assert processes_for(asked(2), PlanOptions(workers=8)) == 0
    # Where others help, their work counts too: the limit is then of the wall.
    assert limit_clock(asked(20), options) is (LimitClock.WALL if processes else options.limit_clock)


def test_a_later_start_is_bounded_by_no_more() -> None:
    candidates = candidates_of(asked(2))
    for case in candidates.fleets.values():
        bound = BoundAsk(case).answer(candidates.problem, never)
        first_s, first_usd = bound.starts[0]
        starts = [first_s + hours * 3600.0 for hours in range(bound.hours + 2)]
        least = [bound.from_due(start) for start in starts]
        assert least[0] == first_usd > 0
        assert least == sorted(least, reverse=True)
        assert least[1] > 0
        assert least[-1] == 0


def test_offers_as_columns_cost_the_same() -> None:
    problem = build_problem(asked(1), market(), T0)
    lean = replace(problem, table=replace(problem.table, offers=BilledOffers.of(problem.table.offers)))
    for at, sold in enumerate(problem.table.offers):
        for spans in (((0, 3700, 2),), ((60, 90, 1), (7200, 172_800, 3))):
            assert price_cents(lean, at, spans) == price_cents(problem, at, spans)
        seen = lean.table.offers[at]
        assert (seen.provider, seen.region) == (sold.provider, sold.region)
    assert len(lean.table.offers[1:3]) == 2

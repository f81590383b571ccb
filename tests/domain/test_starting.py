"""What follows from what machines say of their start, and when they are asked again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.domain.holding.starting import (
    LONGEST_LOOK,
    MOST_TRIES,
    TRIES,
    StartReport,
    Unreached,
    after_reports,
    is_due,
)
from broker.domain.holding.startup_run import StartupRun, StartupState
from tests.fakes.clock import NOON

WAITING = StartupRun(StartupState.WAITING, NOON)
LATER = NOON + timedelta(minutes=1)
DONE, RUNS, KILLED = StartReport(True, 0), StartReport(False), StartReport(True)
SILENT = Unreached("no connection over SSH: refused")


@pytest.mark.parametrize(
    ("reports", "state", "exit_code", "error"),
    [
        ([DONE, DONE], StartupState.DONE, 0, ""),
        ([DONE, RUNS], StartupState.RUNNING, None, ""),
        ([StartReport(True, 3, "no disk")], StartupState.FAILED, 3, "no disk"),
        ([DONE, StartReport(True, 3, "no disk")], StartupState.FAILED, 3, "node 1: no disk"),
        ([StartReport(True, 3, "no disk"), RUNS], StartupState.RUNNING, None, ""),
        ([SILENT, DONE], StartupState.WAITING, None, SILENT.why),
        ([Unreached("another host key", is_final=True)], StartupState.FAILED, None, "another host key"),
    ],
)
def test_the_state_of_a_unit_follows_from_all_of_its_machines(
    reports: list[StartReport | Unreached], state: StartupState, exit_code: int | None, error: str
) -> None:
    after = after_reports(WAITING, reports, LATER)
    assert (after.state, after.exit_code, after.error, after.at) == (state, exit_code, error, LATER)


def test_a_process_without_an_exit_code_failed() -> None:
    after = after_reports(WAITING, [KILLED], LATER)
    assert (after.state, after.exit_code) == (StartupState.FAILED, None)
    assert "killed" in after.error


def test_what_still_runs_is_no_news() -> None:
    running = after_reports(WAITING, [RUNS], LATER)
    assert after_reports(running, [RUNS], LATER + timedelta(hours=1)) is running


def test_a_machine_that_cannot_be_reached_is_tried_again_with_waits_and_then_no_more() -> None:
    run, now, spent = WAITING, NOON, []
    while not run.is_over:
        assert is_due(run, None, now)
        run = after_reports(run, [SILENT], now)
        spent.append(run.tries)
        if not run.is_over:
            assert not is_due(run, None, now + TRIES.after(run.tries) - timedelta(seconds=1))
            now += TRIES.after(run.tries)
    assert spent == list(range(1, MOST_TRIES + 1))
    assert run.error == f"{SILENT.why}; tried {MOST_TRIES} times"
    assert timedelta(minutes=30) < now - NOON < timedelta(hours=1)
    once = after_reports(WAITING, [SILENT], NOON)
    assert after_reports(once, [RUNS], LATER) == StartupRun(StartupState.RUNNING, LATER)


def test_the_longer_a_script_runs_the_less_often_its_machine_is_asked() -> None:
    running = StartupRun(StartupState.RUNNING, NOON)
    for ran, wait in ((timedelta(minutes=10), timedelta(minutes=1)), (timedelta(days=1), LONGEST_LOOK)):
        looked_at = NOON + ran
        assert not is_due(running, looked_at, looked_at + wait - timedelta(seconds=1))
        assert is_due(running, looked_at, looked_at + wait)
    assert is_due(running, None, NOON), "after a restart"

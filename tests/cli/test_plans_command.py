"""``plans`` against a server, through the real command."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.schemas.plans.plan import read_plan
from api.schemas.plans.plan_record import record_to_document, record_to_summary
from broker.ports.planning import BusinessStatus, PlanState
from tests.cli.running import QUICKSTART, FakeServer, broker, fake_server
from tests.e2e.processes import BROKER, clean_environment, wait_for
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer

PLACED = a_plan(a_placement(an_offer(), (a_segment(0, 10),)), plan_id="plan_1")
PLAN = record_to_document(a_record(PLACED))
WAITING = {**record_to_document(a_record(None, state=PlanState.RUNNING)), "plan_id": "plan_1"}
ASK = ("POST", "/v1/plans")
SHOW = ("GET", "/v1/plans/plan_1")


def test_a_plan_is_asked_for_followed_and_written(tmp_path: Path) -> None:
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ASK: [(202, {"plan_id": "plan_1", "status": "queued"})],
        SHOW: [(200, WAITING), (200, PLAN)],
    }
    file = tmp_path / "plan.json"
    with fake_server(answers) as server:
        done = broker("plans", "--new", QUICKSTART, "--output", file, "--json", env=server.env)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["plan_id"] == "plan_1"
    assert read_plan(file.read_text(), "plan").plan_id == "plan_1"
    assert server.seen[0][2]["Content-Type"] == "application/yaml"


def test_a_plan_that_takes_long_goes_on_and_one_that_failed_says_why() -> None:
    failed = {**WAITING, "state": "failed", "problem": "no market"}
    with fake_server({SHOW: [(200, WAITING)]}) as server:
        assert broker("plans", "plan_1", "--timeout", "0", env=server.env).exit_code == 9
    with fake_server({SHOW: [(200, failed)]}) as server:
        done = broker("plans", "plan_1", env=server.env)
    assert (done.exit_code, "no market" in done.stderr) == (1, True)
    assert broker("plans", "plan_1", "--new", QUICKSTART).exit_code == 2


def test_a_plan_is_cancelled() -> None:
    gone = {**WAITING, "state": "cancelled", "status": "cancelled"}
    cancel = ("DELETE", "/v1/plans/plan_1")
    with fake_server({cancel: [(204, "")], SHOW: [(200, gone)]}) as server:
        done = broker("plans", "plan_1", "--cancel", env=server.env)
        told = broker("plans", "plan_1", "--cancel", "--json", env=server.env)
        waited = broker("plans", "plan_1", env=server.env)
        assert [seen[:2] for seen in server.seen][:2] == [cancel, SHOW]
    assert (done.exit_code, done.stdout) == (0, "plan plan_1 is cancelled\n")
    assert json.loads(told.stdout)["state"] == "cancelled"
    assert (waited.exit_code, "plan plan_1 was cancelled" in waited.stderr) == (1, True)
    with fake_server({cancel: [(409, {"title": "made", "code": "conflict", "status": 409})]}) as server:
        assert broker("plans", "plan_1", "--cancel", env=server.env).exit_code == 5
    assert broker("plans", "--cancel").exit_code == 2
    assert broker("plans", "plan_1", "--cancel", "--intend").exit_code == 2


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((204, ""), "plan plan_1 is cancelled"),
        (
            (409, {"title": "t", "detail": "plan plan_1 is done", "code": "conflict", "status": 409}),
            "plan plan_1 could not be cancelled: plan plan_1 is done",
        ),
    ],
)
def test_ctrl_c_while_a_new_plan_is_waited_for_cancels_it(answer: tuple[int, Any], told: str) -> None:
    """A real signal to a real process."""
    cancel = ("DELETE", "/v1/plans/plan_1")
    asked = {
        ASK: [(202, {"plan_id": "plan_1", "status": "queued"})],
        SHOW: [(200, WAITING)],
        cancel: [answer],
    }
    with fake_server(asked) as server:
        command = [str(BROKER), "plans", "--new", str(QUICKSTART)]
        process = subprocess.Popen(command, env=clean_environment(**server.env), stderr=subprocess.PIPE)
        try:
            wait_for("the plan is waited for", 60, lambda: _seen(server, SHOW))
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=240)
        finally:
            process.kill()
        assert (process.returncode, _seen(server, cancel)) == (130, True)
    assert told in stderr.decode()


def test_the_search_of_a_plan_is_continued() -> None:
    go_on = ("POST", "/v1/plans/plan_0/continue")
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        go_on: [(202, {"plan_id": "plan_1", "status": "queued"})],
        SHOW: [(200, WAITING), (200, PLAN)],
    }
    with fake_server(answers) as server:
        done = broker("plans", "plan_0", "--continue", "--time-limit", "60", "--json", env=server.env)
        assert server.seen[0][:2] == ("POST", "/v1/plans/plan_0/continue?time_limit_s=60.0")
    assert (done.exit_code, json.loads(done.stdout)["plan_id"]) == (0, "plan_1")
    assert "planning plan_1" in done.stderr


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (("--continue",), "PLAN_ID"),
        (("--again",), "PLAN_ID"),
        (("plan_1", "--continue", "--fix", "1"), "--continue"),
        (("plan_1", "--again", "--fix", "1"), "--fix"),
        (("plan_1", "--time-limit", "5"), "--time-limit"),
    ],
)
def test_continuing_needs_a_plan_alone(asked: tuple[str, ...], field: str) -> None:
    done = broker("plans", *asked)
    assert (done.exit_code, field in done.stderr) == (2, True)


def test_a_plan_that_cannot_be_ordered_is_told_and_planned_again() -> None:
    why = "offer o-1 (tune, planned at $5.00) is no longer on sale"
    stale = {**PLAN, "placements": [], "stale_because": [why]}
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        SHOW: [(200, stale), (200, stale), (200, PLAN)],
        ("POST", "/v1/plans"): [(202, {"plan_id": "plan_1", "status": "queued"})],
    }
    with fake_server(answers) as server:
        told = broker("plans", "plan_1", env=server.env)
        again = broker("plans", "plan_1", "--again", "--json", env=server.env)
        (sent,) = [body for seen, body in zip(server.seen, server.bodies, strict=True) if seen[0] == "POST"]
    words = " ".join(told.stderr.split())
    assert f"cannot be reserved as planned: {why}. Plan again: broker plans plan_1 --again" in words
    assert json.loads(sent) == PLAN["workloads"]
    assert "cannot be reserved" not in again.stderr


def _seen(server: FakeServer, call: tuple[str, str]) -> bool | None:
    return True if call in [seen[:2] for seen in server.seen] else None


def test_a_draft_is_intended() -> None:
    intend = ("POST", "/v1/plans/plan_1/intend")
    with fake_server({SHOW: [(200, PLAN)], intend: [(200, PLAN), (409, {"title": "no draft"})]}) as server:
        assert broker("plans", "plan_1", "--intend", "--json", env=server.env).exit_code == 0
        assert [seen[:2] for seen in server.seen if seen[:2] == intend] == [intend]
        assert broker("plans", "plan_1", "--no-intend", env=server.env).exit_code == 5
    assert broker("plans", "--intend").exit_code == 2


def test_plans_are_listed() -> None:
    document = json.dumps({"workloads": [{"name": "chat"}, {"name": "tune"}]})
    draft = record_to_summary(replace(a_record(PLACED), document=document), BusinessStatus.DRAFT)
    draft |= {"change": "twice the traffic", "based_on": "plan_0", "stale_because": ["gone"]}
    page = {"items": [WAITING, draft], "next_cursor": None}
    with fake_server({("GET", "/v1/plans"): [(200, page)]}) as server:
        done = broker("plans", env=server.env, width=80)
        listed = broker("plans", "--json", env=server.env)
    assert done.exit_code == 0, done.output
    assert "running" in done.stdout
    for words in (
        "chat, tune",
        "what if: twice the traffic",
        "counts in planned spend",
        "offers changed",
    ):
        assert words in " ".join(done.stdout.split())
    assert {one["plan_id"] for one in json.loads(listed.stdout)["items"]} == {"plan_1"}

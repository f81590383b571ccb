"""``extend`` and ``done`` against a server: what they cost, give back and save is said before and after."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import broker, fake_server
from tests.cli.test_server_commands import BEFORE, ESTIMATE, Answers, problem, reservation

EXTENSION = ("GET", "/v1/reservations/rsv_1/extend")
EXTENSION_QUOTE = {
    "reservation_id": "rsv_1",
    "end_before": "2026-11-29T12:00:00Z",
    "end": "2026-11-30T12:00:00Z",
    "added_usd": "497.76",
    "usd_per_hour": "20.74",
}


def test_extend_holds_longer_and_says_why_not() -> None:
    path = ("POST", "/v1/reservations/rsv_1/extend")
    longer = reservation("active", end="2026-11-30T12:00:00Z")
    answers = {
        path: [(200, longer), problem(409, "conflict", "it is a window")],
        EXTENSION: [(200, EXTENSION_QUOTE), problem(403, "not-permitted")],
    }
    with fake_server(answers) as server:
        done = broker("extend", "rsv_1", "--end", "2026-11-30T12:00:00Z", "--json", env=server.env)
        refused = broker("extend", "rsv_1", "--end", "2026-12-30", env=server.env)
    assert (done.exit_code, json.loads(done.stdout)["end"]) == (0, "2026-11-30T12:00:00Z")
    assert refused.exit_code == 5
    assert "it is a window" in refused.stderr
    told = "It adds $497.76 to hold it until 30 Nov 12:00 UTC, and not until 29 Nov 12:00 UTC; "
    assert told + "an hour costs $20.74." in " ".join(done.stderr.split())


def test_in_a_terminal_an_extension_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.cli.holding.answers._is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, **_: question != "Extend it?")
    with fake_server({EXTENSION: [(200, EXTENSION_QUOTE)]}) as server:
        done = broker("extend", "rsv_1", "--end", "2026-11-30", env=server.env)
    assert "It adds $497.76" in done.stderr
    assert [method for method, _, _ in server.seen] == ["GET"]


DONE = ("POST", "/v1/reservations/rsv_1/done")


def test_done_says_what_comes_back_and_what_it_saves() -> None:
    estimate = {**ESTIMATE, "back_usd": "0.00", "saves_usd": "418.18"}
    over = reservation("released", owed_usd="21.82", credit_usd=None)
    with fake_server({BEFORE: [(200, estimate)], DONE: [(202, over)]}) as server:
        done = broker("done", "rsv_1", env=server.env)
    told = " ".join(done.stderr.split())
    assert "$21.82 stays owed. A release now saves $418.18 against holding it until its end." in told
    assert "Nothing came back, $21.82 stays owed." in told


def test_done_says_until_when_it_stays_and_what_that_costs() -> None:
    estimate = {**ESTIMATE, "back_usd": "0.00", "stays_usd": "240.00", "saves_usd": "0.00"}
    stays = reservation("active", end="2026-11-30T12:00:00Z")
    with fake_server({BEFORE: [(200, estimate)], DONE: [(202, stays)]}) as server:
        done = broker("done", "rsv_1", env=server.env)
    told = " ".join(done.stderr.split())
    assert "$240.00 stays owed. A release now saves nothing: all of it is owed" in told
    assert "It stays until 30 Nov 12:00 UTC, as a release would save nothing." in told


@pytest.mark.parametrize(
    ("typed", "sent"),
    [("2026-12-02", "2026-12-02T00:00:00Z"), ("2026-12-02T06:00:00+02:00", "2026-12-02T04:00:00Z")],
)
def test_an_end_may_be_a_day(typed: str, sent: str) -> None:
    path = ("POST", "/v1/reservations/rsv_1/extend")
    answers: Answers = {EXTENSION: [(200, EXTENSION_QUOTE)], path: [(200, reservation("active", end=sent))]}
    with fake_server(answers) as server:
        assert broker("extend", "rsv_1", "--end", typed, env=server.env).exit_code == 0
    assert json.loads(server.bodies[-1]) == {"end": sent}

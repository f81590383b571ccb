"""``reserve``, ``reservations`` and ``release`` against a server, through the real command."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.running import broker, fake_server


def reservation(state: str, name: str = "rsv_1", **fields: Any) -> dict[str, Any]:
    return {
        "reservation_id": name,
        "state": state,
        "offer_id": "o",
        "provider": "lambda",
        "sku": "8xH100",
        "region": "us-east-1",
        "nodes": 2,
        "start": "2026-11-24T00:00:00Z",
        "end": None,
        "workload": "finetune",
        "plan_id": "plan_1",
        "provider_references": ["i-1", "i-2"],
        "reason": "",
        **fields,
    }


def problem(status: int, code: str, detail: str = "because") -> tuple[int, dict[str, Any]]:
    return status, {"title": "t", "status": status, "code": code, "detail": detail}


RESERVE = ("POST", "/v1/plans/plan_1/reserve")
PLAN_QUOTE = ("GET", "/v1/plans/plan_1/quote")
ONE = ("GET", "/v1/reservations/rsv_1")
DELETE = ("DELETE", "/v1/reservations/rsv_1")
LIST = ("GET", "/v1/reservations")
BEFORE = ("GET", "/v1/reservations/rsv_1/release")
BEFORE_PLAN = ("GET", "/v1/plans/plan_1/release")
SHORT = ("GET", "/v1/reservations/shortfalls")


ESTIMATE = {
    "back_usd": "87.18",
    "stays_usd": "21.82",
    "resales": [],
    "min_hours": {},
    "unknown": 0,
    "text": "",
}


Answers = dict[tuple[str, str], list[tuple[int, Any]]]
OF_PLAN = {
    "plan_id": "plan_1",
    "cost_usd": "240.00",
    "at_once_usd": "100.00",
    "on_release": ESTIMATE,
    "market": "This order costs money: Lambda is a real seller.",
}


def quoted(answers: Answers) -> Answers:
    """``answers``, and a quote of the plan."""
    return {PLAN_QUOTE: [(200, OF_PLAN)], **answers}


def test_reserve_waits_until_the_providers_took_the_order() -> None:
    ordered = (202, {"reservations": [reservation("pending")]})
    looks = [(200, reservation("pending")), (200, reservation("active"))]
    with fake_server(quoted({RESERVE: [ordered], ONE: looks})) as server:
        done = broker("reserve", "plan_1", "--json", env=server.env)
    assert done.exit_code == 0, done.output
    assert [row["state"] for row in json.loads(done.stdout)["reservations"]] == ["active"]
    headers = server.seen[1][2]
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Idempotency-Key"].startswith("cli-")


def test_reserve_prints_what_is_held() -> None:
    with fake_server({RESERVE: [(202, {"reservations": [reservation("held")]})]}) as server:
        done = broker("reserve", "plan_1", "--idempotency-key", "again", env=server.env)
    assert done.exit_code == 0
    for word in ("rsv_1", "held", "lambda", "i-1"):
        assert word in done.stdout
    assert server.seen[0][2]["Idempotency-Key"] == "again"


@pytest.mark.parametrize(
    ("state", "exit_code"), [("failed", 8), ("pending", 9), ("unknown", 9), ("scheduled", 0)]
)
def test_reserve_says_how_it_ended(state: str, exit_code: int) -> None:
    answers = {
        RESERVE: [(202, {"reservations": [reservation(state)]})],
        ONE: [(200, reservation(state))],
    }
    with fake_server(quoted(answers)) as server:
        done = broker("reserve", "plan_1", "--timeout", "0", env=server.env)
    assert done.exit_code == exit_code, done.output


@pytest.mark.parametrize(
    ("answer", "exit_code"),
    [
        (problem(401, "not-authenticated"), 3),
        (problem(403, "not-permitted"), 3),
        (problem(404, "not-found"), 4),
        (problem(409, "stale-plan"), 5),
        (problem(409, "approval-required"), 7),
        (problem(409, "over-budget"), 7),
        (problem(409, "insufficient-capacity"), 8),
        (problem(503, "provider-unavailable"), 8),
        (problem(500, "internal"), 1),
        (problem(418, "other"), 1),
    ],
)
def test_a_servers_problem_becomes_the_exit_code_of_its_meaning(
    answer: tuple[int, dict[str, Any]], exit_code: int
) -> None:
    with fake_server(quoted({RESERVE: [answer]})) as server:
        done = broker("reserve", "plan_1", env=server.env)
    assert done.exit_code == exit_code
    assert "because" in done.stderr
    assert "Traceback" not in done.stderr


def test_reservations_reads_every_page() -> None:
    pages = [
        (200, {"items": [reservation("active")], "next_cursor": "c1"}),
        (200, {"items": [reservation("released", "rsv_0")], "next_cursor": None}),
    ]
    with fake_server({LIST: pages}) as server:
        done = broker("reservations", "--json", "--plan", "plan_1", env=server.env)
    assert [row["reservation_id"] for row in json.loads(done.stdout)["items"]] == ["rsv_1", "rsv_0"]
    assert "cursor=c1" in server.seen[1][1]
    assert "plan_id=plan_1" in server.seen[1][1]


def test_reservations_can_leave_out_what_is_over() -> None:
    rows = [reservation("active"), reservation("released", "rsv_0")]
    short = {
        "team": "research",
        "plan_id": "plan_1",
        "workload": "chat",
        "start": "2026-11-27T18:00:00Z",
        "end": "2026-11-27T22:00:00Z",
        "nodes_short": 2,
        "nodes": 6,
        "reservation_ids": ["rsv_1"],
        "refused_by": [{"provider": "vast", "said": "no stock"}],
        "next_try_at": "2026-11-27T18:04:00Z",
        "text": "chat is short of 2 of 6 nodes",
    }
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        LIST: [(200, {"items": rows, "next_cursor": None})],
        SHORT: [(200, {"items": [short]})],
    }
    with fake_server(answers) as server:
        done = broker("reservations", "--open", env=server.env)
    assert "rsv_1" in done.stdout
    assert "rsv_0" not in done.stdout
    told = " ".join(done.stdout.split())
    assert "chat is short of 2 of 6 nodes from 27 Nov 18:00 UTC to 22:00 UTC" in told
    assert "refused at vast (no stock); asked again at 27 Nov 18:04" in told


def test_reservations_show_what_was_asked_granted_and_usable() -> None:
    row = reservation(
        "active",
        start="2026-11-24T11:30:00Z",
        end="2026-11-25T11:30:00Z",
        requested={"start": "2026-11-24T12:00:00Z", "end": "2026-11-25T00:00:00Z"},
        granted={"start": "2026-11-24T11:45:00Z", "end": "2026-11-25T11:30:00Z"},
        usable={"start": "2026-11-24T11:45:00Z", "end": "2026-11-25T11:00:00Z"},
        unwanted_hours=12.0,
        unwanted_usd="480.00",
    )
    with fake_server({LIST: [(200, {"items": [row], "next_cursor": None})] * 2}) as server:
        text = broker("reservations", env=server.env).stdout
        data = json.loads(broker("reservations", "--json", env=server.env).stdout)["items"][0]
    for words in (
        "asked 24 Nov 12:00",
        "granted 24 Nov 11:45",
        "usable until 25 Nov 11:00",
        "12.0 h ($480.00)",
    ):
        assert words in text
    assert (data["unwanted_usd"], data["usable"]["end"]) == ("480.00", "2026-11-25T11:00:00Z")


def test_reservations_are_told_with_node_and_price_on_eighty_columns() -> None:
    told = {"gpu": "H200-SXM-141GB", "gpus_per_node": 1, "price_usd_per_node_hour": "2.07"}
    name = "rsv-01m82dkftm94r1pgw3fyqne7xa"
    sku, region = "datacrunch_1H200.141S.44V_1x", "eu_north"
    row = reservation("scheduled", name, sku=sku, region=region, provider="prime_intellect", **told)
    row["end"] = "2026-11-30T12:00:00Z"
    with fake_server(
        {LIST: [(200, {"items": [row, {**row, "state": "failed"}], "next_cursor": None})]}
    ) as server:
        lines = broker("reservations", env=server.env, width=80).stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    for words in (
        name,
        "2 nodes × 1 H200-SXM-141GB",
        "$2.07/node-h",
        "prime_intellect eu_north",
        "24 Nov 00:00 to 30 Nov 12:00",
    ):
        assert any(words in line for line in lines), (words, lines)
    assert lines[-1].strip() == "2 fleets: 1 scheduled, 1 failed"


def test_a_fleet_is_one_row_unless_each_step_is_asked_for() -> None:
    steps = [
        reservation(
            "scheduled", f"rsv_{n}", start=f"2099-11-2{n}T00:00:00Z", end=f"2099-11-2{n + 1}T00:00:00Z"
        )
        for n in range(5)
    ]
    with fake_server({LIST: [(200, {"items": steps, "next_cursor": None})]}) as server:
        whole = broker("reservations", env=server.env, width=80).stdout
        each = broker("reservations", "--each", env=server.env, width=80).stdout
    assert "0 nodes now, 2 from 20 Nov 00:00" in whole
    assert "2 nodes, 5 steps" in whole
    assert "rsv_3" not in whole
    assert all(f"rsv_{n}" in each for n in range(5))
    assert max(len(line) for line in (whole + each).splitlines()) <= 80


def test_release_waits_and_twice_is_no_error() -> None:
    gone = reservation("released")
    gone |= {"credit_usd": "87.20", "owed_usd": "21.80"}
    answers = {
        BEFORE: [(200, ESTIMATE)],
        DELETE: [(202, reservation("releasing")), (202, gone)],
        ONE: [(200, gone)],
    }
    with fake_server(answers) as server:
        done = broker("release", "rsv_1", env=server.env)
        assert done.exit_code == 0
        assert "You get $87.18 back, $21.82 stays owed.\n" in done.stderr
        assert "$87.20 came back, $21.80 stays owed.\n" in done.stderr
        again = broker("release", "rsv_1", "--json", env=server.env)
    assert again.exit_code == 0
    assert json.loads(again.stdout)["state"] == "released"


def test_release_that_takes_longer_is_exit_code_9() -> None:
    busy = reservation("releasing")
    before = [problem(403, "not-permitted")]
    with fake_server({BEFORE: before, DELETE: [(202, busy)], ONE: [(200, busy)]}) as server:
        done = broker("release", "rsv_1", "--timeout", "0", env=server.env)
    assert done.exit_code == 9
    assert "owed" not in done.stderr, "nothing is said of money before it is over"
    assert "broker reservations" in done.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[", ""])
def test_no_server_is_told_with_the_variable(url: str) -> None:
    done = broker("reservations", env={"BROKER_URL": url})
    assert done.exit_code == 2
    assert "BROKER_URL" in done.stderr
    assert "broker up" in done.stderr or not url  # one that is given but empty is refused as a setting


def test_a_server_that_is_no_broker_is_told() -> None:
    with fake_server(quoted({LIST: [(200, {"hello": 1})], RESERVE: [(200, ["x"])]})) as server:
        assert broker("reservations", env=server.env).exit_code == 2
        assert broker("reserve", "plan_1", env=server.env).exit_code == 2


AUDIT = ("GET", "/v1/audit")


def entry(action: str, detail: str, request_id: str | None = None) -> dict[str, Any]:
    return {
        "at": "2026-11-24T00:00:05Z",
        "actor": "key-alice",
        "action": f"reservation.{action}",
        "object_kind": "reservation",
        "object_id": "rsv_1",
        "team": "research",
        "detail": detail,
        "provider_request_id": request_id,
    }


def test_history_shows_who_what_and_why_from_the_start() -> None:
    newest_first = [entry("refused", "pending: no stock", "req-7"), entry("intend", "pending: 2 × o")]
    answers = {
        ONE: [(200, reservation("failed"))],
        AUDIT: [(200, {"items": newest_first, "next_cursor": None})],
    }
    with fake_server(answers) as server:
        shown = broker("reservations", "--history", "rsv_1", env=server.env)
        data = broker("reservations", "--history", "rsv_1", "--json", env=server.env)
    assert shown.exit_code == 0, shown.output
    for words in ("intend", "refused", "key-alice", "no stock", "req-7", "24 Nov 00:00:05"):
        assert words in shown.stdout
    assert shown.stdout.index("intend") < shown.stdout.index("refused")
    assert json.loads(data.stdout)["items"][0]["action"] == "reservation.intend"
    assert "object_id=rsv_1" in server.seen[1][1]


def test_the_history_of_nothing_is_exit_code_4() -> None:
    with fake_server({ONE: [problem(404, "not-found")]}) as server:
        assert broker("reservations", "--history", "rsv_1", env=server.env).exit_code == 4


def test_a_time_that_cannot_be_read_is_told_before_the_server_is_asked() -> None:
    refused = broker("extend", "rsv_1", "--end", "2026-12-02T06:00:00", env={"BROKER_KEY": "k"})
    assert refused.exit_code == 2
    assert "--end: found '2026-12-02T06:00:00'" in refused.stderr


def test_one_end_of_a_span_is_enough() -> None:
    path = ("GET", "/v1/spend/projection")
    with fake_server({path: [problem(404, "not-found")]}) as server:
        broker("spend", "--from", "2199-01-01", env=server.env)
        broker("spend", "--to", "2026-12-01", env=server.env)
    asked = [parse_qs(urlsplit(address).query) for _, address, _ in server.seen]
    assert [one["from"] + one["to"] for one in asked] == [
        ["2199-01-01T00:00:00Z", "2200-01-01T00:00:00Z"],
        ["2025-12-01T00:00:00Z", "2026-12-01T00:00:00Z"],
    ]
    assert asked[1]["from"] == ["2025-12-01T00:00:00Z"]


ORDER = ("POST", "/v1/reservations")


def test_an_offer_is_reserved_by_its_id() -> None:
    with fake_server({ORDER: [(202, reservation("held"))]}) as server:
        done = broker(
            "reserve", "--offer", "lambda/8xH100", "--nodes", "2", "--end", "2026-12-02", "--fit",
            "--workload", "probe", "--max-price", "24.5", "--idempotency-key", "again", env=server.env,
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(server.bodies[0]) == {
        "offer_id": "lambda/8xH100",
        "nodes": 2,
        "end": "2026-12-02T00:00:00Z",
        "workload": "probe",
        "fit": "outward",
        "max_price_usd_per_node_hour": "24.5",
    }
    assert server.seen[0][2]["Idempotency-Key"] == "again"
    assert "rsv_1" in done.stdout


QUOTE = ("POST", "/v1/reservations/quote")
EIGHT_MI300X = {
    "offer_id": "digitalocean/8xMI300X",
    "nodes": 1,
    "start": "2026-11-24T00:00:00Z",
    "end": "2026-11-27T18:00:00Z",
    "price_usd_per_node_hour": "17.52",
    "limit_usd_per_node_hour": "17.8704",
    "usd_per_hour": "17.52",
    "cost_usd": "1576.80",
    "most_usd": "1608.34",
    "at_once_usd": "0",
    "on_release": {**ESTIMATE, "back_usd": "0", "stays_usd": "0.29"},
}
"""90 hours of a node at 17.52 an hour."""


def test_an_order_of_an_offer_says_what_it_costs_before_and_after() -> None:
    held = reservation("held", nodes=1, end="2026-11-27T18:00:00Z", price_usd_per_node_hour="17.60")
    with fake_server({QUOTE: [(200, EIGHT_MI300X)], ORDER: [(202, held)]}) as server:
        done = broker(
            "reserve",
            "--offer",
            "digitalocean/8xMI300X",
            "--end",
            "2026-11-27T18:00Z",
            "--yes",
            env=server.env,
        )
    assert done.exit_code == 0, done.output
    before = " ".join(done.stderr.split())
    assert "1 node of digitalocean/8xMI300X: $1,576.80, 24 Nov 00:00 to 27 Nov 18:00 UTC" in before
    assert "($17.52 per node-hour, at most $17.87 per node-hour or $1,608.34 in all)" in before
    assert "Released right after the order: Nothing comes back, $0.29 stays owed." in before
    assert "It costs $1,584.00 until 27 Nov 18:00 UTC, $17.60 an hour." in " ".join(done.stdout.split())
    assert [path for _, path, _ in server.seen] == ["/v1/reservations/quote", "/v1/reservations"]


def test_an_order_without_an_end_says_what_an_hour_costs_and_json_stays_json() -> None:
    quote = {**EIGHT_MI300X, "end": None, "cost_usd": None, "most_usd": None}
    with fake_server({QUOTE: [(200, quote)], ORDER: [(202, reservation("held"))]}) as server:
        done = broker("reserve", "--offer", "digitalocean/8xMI300X", "--json", "--yes", env=server.env)
    assert done.exit_code == 0, done.output
    assert "$17.52 an hour until released" in " ".join(done.stderr.split())
    assert [row["reservation_id"] for row in json.loads(done.stdout)["reservations"]] == ["rsv_1"]


MONEY = "This order costs money: DigitalOcean is a real seller."


def test_an_offer_is_ordered_without_a_terminal_only_if_told_to() -> None:
    """The cost and what the seller is are told, and nothing is ordered."""
    quote = {**EIGHT_MI300X, "market": MONEY}
    with fake_server({QUOTE: [(200, quote)]}) as server:
        refused = broker("reserve", "--offer", "digitalocean/8xMI300X", env=server.env)
    assert refused.exit_code == 2
    told = " ".join(refused.stderr.split())
    assert "$1,576.80" in told
    assert MONEY in told
    assert "--yes" in told
    assert [path for _, path, _ in server.seen] == ["/v1/reservations/quote"]


def test_a_plan_says_what_it_costs_and_what_its_sellers_are_before_it_is_ordered() -> None:
    answers = quoted({RESERVE: [(202, {"reservations": [reservation("held")]})]})
    with fake_server(answers) as server:
        done = broker("reserve", "plan_1", env=server.env)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stderr.split())
    assert "Plan plan_1: $240.00, $100.00 of it paid at once. Released right after the order:" in told
    assert "This order costs money: Lambda is a real seller." in told
    assert [path for _, path, _ in server.seen] == ["/v1/plans/plan_1/quote", "/v1/plans/plan_1/reserve"]


@pytest.mark.parametrize("what", [("plan_1",), ("--offer", "digitalocean/8xMI300X")])
@pytest.mark.parametrize("answer", ["n", "y"])
def test_in_a_terminal_it_is_asked_after_the_words(
    what: tuple[str, ...], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        seen.append(question)
        return answer == "y"

    monkeypatch.setattr("api.cli.holding.answers._is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", confirm)
    held = reservation("held", nodes=1)
    answers = quoted(
        {
            RESERVE: [(202, {"reservations": [held]})],
            QUOTE: [(200, {**EIGHT_MI300X, "market": MONEY})],
            ORDER: [(202, held)],
        }
    )
    with fake_server(answers) as server:
        done = broker("reserve", *what, env=server.env)
        sure = broker("reserve", *what, "--yes", env=server.env)
    assert seen == ["Order it?"]
    assert "This order costs money" in done.stderr
    assert ("Nothing was ordered." in done.stderr, sure.exit_code) == (answer == "n", 0)
    ordered = [path for _, path, _ in server.seen if path in (RESERVE[1], ORDER[1])]
    assert len(ordered) == (1 if answer == "n" else 2)


def test_what_would_exceed_a_budget_is_refused_at_the_quote() -> None:
    with fake_server({QUOTE: [problem(409, "over-budget")]}) as server:
        refused = broker("reserve", "--offer", "o", env=server.env)
    assert refused.exit_code == 7
    assert [path for _, path, _ in server.seen] == ["/v1/reservations/quote"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "PLAN_ID"),
        (("plan_1", "--offer", "o"), "--offer"),
        (("plan_1", "--nodes", "2"), "--nodes"),
        (("--offer", "o", "--max-price", "dear"), "--max-price"),
    ],
)
def test_reserve_takes_a_plan_or_an_offer(given: tuple[str, ...], says: str) -> None:
    refused = broker("reserve", *given, env={"BROKER_KEY": "k"})
    assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output


def look(state: str) -> dict[str, Any]:
    cost = {"overlap_usd": "10", "rework_usd": "0", "egress_usd": "0", "total_usd": "10"}
    move = {
        "workload": "chat", "from_offers": ["a"], "to_offers": ["b"], "stay_usd": "460", "saving_usd": "230",
        "cost": cost, "net_usd": "220", "why": "b: 12 → 5 USD per node-hour",
        "prices": [{"offer_id": "b", "before_usd": "12", "after_usd": "5"}],
        "risks": [{"kind": "single_zone", "text": "all of it in one zone"}],
        "leaves": ["rsv_1"], "keeps": [], "state": "proposed", "reason": "",
    }  # fmt: skip
    return {
        "reoptimization_id": "reopt_1", "team": "research", "plan_id": "plan_1", "new_plan_id": "plan_2",
        "trigger": "market", "started_at": "2026-11-24T00:00:00Z", "state": state, "mode": "propose",
        "reason": "saves", "before_usd": "460", "after_usd": "230", "saving_usd": "230",
        "moving_costs_usd": "10", "net_usd": "220", "lapses_at": "2026-11-25T00:00:00Z",
        "decided_at": None, "decided_by": None, "guard_s": None, "retry_at": None, "moves": [move],
    }  # fmt: skip


LOOKS, LOOK = ("GET", "/v1/reoptimizations"), ("GET", "/v1/reoptimizations/reopt_1")
ACCEPT = ("POST", "/v1/reoptimizations/reopt_1/accept")


def test_proposals_are_listed_shown_and_accepted() -> None:
    page = {"items": [look("proposed"), look("unchanged")], "next_cursor": None}
    answers = {LOOKS: [(200, page)] * 2, LOOK: [(200, look("proposed"))], ACCEPT: [(202, look("accepted"))]}
    with fake_server(answers) as server:
        listed = broker("reoptimizations", "--state", "proposed", env=server.env)
        plain = broker("reoptimizations", "--json", env=server.env)
        shown = broker("reoptimizations", "reopt_1", env=server.env)
        accepted = broker("reoptimizations", "reopt_1", "--accept", "--json", env=server.env)
    assert listed.exit_code == shown.exit_code == accepted.exit_code == 0, listed.output
    assert "$220.00" in listed.stdout
    assert "unchanged" not in listed.stdout
    assert len(json.loads(plain.stdout)["items"]) == 2
    assert "all of it in one zone" in " ".join(shown.stdout.split())
    assert json.loads(accepted.stdout)["state"] == "accepted"
    assert server.seen[-1][2]["Idempotency-Key"].startswith("cli-")


def test_a_word_needs_a_proposal() -> None:
    with fake_server({ACCEPT: [problem(409, "conflict")]}) as server:
        assert broker("reoptimizations", "--accept", env=server.env).exit_code == 2
        assert broker("reoptimizations", "reopt_1", "--accept", "--reject", env=server.env).exit_code == 2
        assert broker("reoptimizations", "reopt_1", "--accept", env=server.env).exit_code == 5


def test_all_that_a_plan_holds_is_released() -> None:
    rows = [reservation("active", "rsv_1"), reservation("released", "rsv_2"), reservation("held", "rsv_3")]
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        BEFORE_PLAN: [(200, ESTIMATE)],
        LIST: [(200, {"items": rows, "next_cursor": None})],
        DELETE: [(202, reservation("released", "rsv_1"))],
        ("DELETE", "/v1/reservations/rsv_3"): [(202, reservation("released", "rsv_3"))],
    }
    with fake_server(answers) as server:
        done = broker("release", "--plan", "plan_1", "--json", env=server.env)
    assert done.exit_code == 0, done.output
    assert [row["reservation_id"] for row in json.loads(done.stdout)["reservations"]] == ["rsv_1", "rsv_3"]
    assert broker("release").exit_code == 2


def test_what_a_plan_holds_for_one_workload_is_released() -> None:
    rows = [
        reservation("active", "rsv_1", workload="chat"),
        reservation("held", "rsv_2", workload="chat"),
        reservation("active", "rsv_3", workload="train"),
    ]
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        BEFORE_PLAN: [(200, ESTIMATE)],
        LIST: [(200, {"items": rows, "next_cursor": None})],
        DELETE: [(202, reservation("released", "rsv_1"))],
        ("DELETE", "/v1/reservations/rsv_2"): [(409, problem(409, "conflict", "it was changed")[1])],
    }
    with fake_server(answers) as server:
        done = broker("release", "--plan", "plan_1", "--workload", "chat", env=server.env)
        asked = [path for method, path, *_ in server.seen if method == "DELETE"]
        assert server.seen[0][1] == "/v1/plans/plan_1/release?workload=chat"
    assert asked == ["/v1/reservations/rsv_1", "/v1/reservations/rsv_2"], "not those of the other workload"
    assert done.exit_code == 5
    assert "release asked for 1 of 2 reservations; not for:\n  rsv_2: it was changed\n" in done.stderr
    alone = broker("release", "rsv_1", "--workload", "chat")
    assert (alone.exit_code, "--plan PLAN_ID" in alone.stderr) == (2, True)

"""``broker reserve --hold now`` and ``broker hold`` say before the order what they cost and promise."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from tests.cli.running import broker, fake_server
from tests.cli.test_server_commands import OF_PLAN, PLAN_QUOTE, RESERVE, problem, reservation

HOLD = ("POST", "/v1/reservations/rsv_1/hold")
HOLD_QUOTE = ("GET", "/v1/reservations/rsv_1/hold")
FLEETS = ("GET", "/v1/reservations/fleets")
LIST = ("GET", "/v1/reservations")
LATER = {
    "workload": "chat",
    "offer_id": "o",
    "promise": "at_start",
    "orders": 3,
    "later": 2,
    "first_later": "2099-11-24T00:00:00Z",
    "hold_usd": "12.30",
    "stock": "low",
    "launch_chance": 0.92,
}
QUOTE = {**OF_PLAN, "hold_usd": "12.30", "placements": [LATER]}
QUOTED_HOLD = {
    "reservation_id": "rsv_1",
    "start": "2099-11-24T00:00:00Z",
    "hold_usd": "40.00",
    "usd_per_hour": "10.00",
    "market": "This order costs money: Lambda is a real seller.",
}


def words(text: str) -> str:
    return " ".join(text.split())


def test_reserve_says_what_nobody_promised_and_what_holding_it_adds() -> None:
    taken = [reservation("held", promise="held"), reservation("scheduled", "rsv_2", promise="at_start")]
    with fake_server({PLAN_QUOTE: [(200, QUOTE)], RESERVE: [(202, {"reservations": taken})]}) as server:
        done = broker("reserve", "plan_1", env=server.env, width=80)
    assert done.exit_code == 0, done.output
    told = words(done.stderr)
    assert "chat at o: 1 bought now, 2 ordered at their start, low stock, 92 % of launches" in told
    assert "the first of it is ordered on 24 Nov 00:00 UTC, and its seller may then have none" in told
    assert "With --hold now: It adds $12.30:" in told
    assert "1 reservation ordered, waiting for the providers; 1 ordered at its start" in told


def test_reserve_with_hold_now_says_what_it_adds_and_sends_it() -> None:
    taken = [reservation("held", promise="holding", requested={"start": "2099-11-24T00:00:00Z", "end": None})]
    with fake_server({PLAN_QUOTE: [(200, QUOTE)], RESERVE: [(202, {"reservations": taken})]}) as server:
        done = broker("reserve", "plan_1", "--hold", "now", env=server.env)
        refused = broker("reserve", "--offer", "o", "--hold", "now", env=server.env)
        unknown = broker("reserve", "plan_1", "--hold", "later", env=server.env)
    assert done.exit_code == 0, done.output
    told = words(done.stderr)
    assert "Held now: It adds $12.30:" in told
    cost = Decimal(str(QUOTE["cost_usd"]))
    assert f"Plan plan_1: ${cost + Decimal('12.30'):,.2f} held now, ${cost:,.2f} without. " in told
    assert "chat at o: bought now." in told
    assert "Ordered at its start:" not in done.stderr
    assert "holding" in done.stdout
    assert "needed from 24 Nov 00:00" in words(done.stdout)
    assert (refused.exit_code, unknown.exit_code) == (2, 2)
    assert "--hold" in refused.stderr


def test_hold_says_the_cost_first_and_shows_what_is_held() -> None:
    held = reservation("held", promise="holding", requested={"start": "2099-11-24T00:00:00Z", "end": None})
    with fake_server({HOLD_QUOTE: [(200, QUOTED_HOLD)], HOLD: [(202, held), (202, held)]}) as server:
        done = broker("hold", "rsv_1", env=server.env)
        again = broker("hold", "rsv_1", "--idempotency-key", "k", "--json", env=server.env)
    assert done.exit_code == 0, done.output
    told = words(done.stderr)
    assert "It adds $40.00: each node is bought now" in told
    assert "That is $10.00 an hour until 24 Nov 00:00 UTC. This order costs money" in told
    assert json.loads(again.stdout)["promise"] == "holding"
    assert [path for _, path, _ in server.seen] == [HOLD[1]] * 3


def test_what_cannot_be_held_has_the_exit_code_of_its_meaning() -> None:
    cases: list[tuple[tuple[int, Any], int]] = [
        (problem(404, "not-found"), 4),
        (problem(409, "conflict"), 5),
        (problem(409, "over-budget"), 7),
        (problem(503, "provider-unavailable"), 8),
    ]
    for answer, code in cases:
        with fake_server({HOLD_QUOTE: [(200, QUOTED_HOLD)], HOLD: [answer]}) as server:
            assert broker("hold", "rsv_1", env=server.env).exit_code == code


def test_a_fleet_tells_what_it_has_cost_and_will_cost() -> None:
    rows = [reservation("active", promise="held"), reservation("scheduled", "rsv_2", promise="at_start")]
    fleet: dict[str, Any] = {
        "team": "research",
        "plan_id": "plan_1",
        "workload": "finetune",
        "offer_id": "o",
        "provider": "lambda",
        "mode": None,
        "sku": "8xH100",
        "region": "us-east-1",
        "gpu": "H100",
        "gpus_per_node": 8,
        "tier": "on_demand",
        "state": "active",
        "reason": "",
        "nodes": 2,
        "next_change": None,
        "least_nodes": 2,
        "most_nodes": 4,
        "start": "2026-11-24T00:00:00Z",
        "end": None,
        "price_usd_per_node_hour": "10",
        "owed_usd": "20.00",
        "expected_usd": "230.00",
        "reservation_ids": ["rsv_2", "rsv_1"],
    }
    pages = {
        LIST: [(200, {"items": rows, "next_cursor": None})],
        FLEETS: [(200, {"items": [fleet], "next_cursor": None})],
    }
    with fake_server(pages) as server:
        text = broker("reservations", env=server.env, width=80).stdout
        wide = broker("reservations", env=server.env, width=200).stdout
    assert "$20.00 so far, $230.00 to come" in text
    assert "2 steps: 1 held, 1 ordered at its start" in wide
    assert max(map(len, text.splitlines())) <= 80

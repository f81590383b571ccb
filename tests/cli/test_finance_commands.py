"""``budgets`` and ``approvals`` against a server, through the real command."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.running import broker, fake_server

BUDGET: dict[str, Any] = {
    "team": "research",
    "period": "month",
    "limit_usd": "40000.00",
    "from": "2026-11-01T00:00:00Z",
    "to": "2026-12-01T00:00:00Z",
    "owed_usd": "12000.00",
    "reserved_usd": "20000.00",
    "planned_usd": "10000.00",
    "expected_usd": "42000.00",
    "left_usd": "-2000.00",
    "used_share": 0.3,
    "expected_share": 1.05,
    "runs_out_on": "2026-11-28T00:00:00Z",
    "thresholds": [],
    "set_by": "key-1",
    "set_at": "2026-11-02T00:00:00Z",
}
FIGURES = {
    "cost_usd": "205.00",
    "cost_now_usd": "206.00",
    "bound_usd": None,
    "gap": None,
    "projected_p90_usd": None,
    "budget_left_usd": "794.00",
    "plan_sha256": "0" * 64,
}
APPROVAL: dict[str, Any] = {
    "plan_id": "plan-1",
    "team": "research",
    "state": "rejected",
    "requested_by": "key-2",
    "created_at": "2026-11-02T00:00:00Z",
    "is_current": True,
    "may_decide": True,
    "figures": FIGURES,
    "decisions": [
        {"verdict": "rejected", "by": "key-1", "at": "2026-11-03T09:30:00Z", "comment": "no", "seen": FIGURES}
    ],
}


def test_budgets_are_shown_set_and_ended() -> None:
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ("GET", "/v1/budgets"): [(200, {"items": [BUDGET], "next_cursor": None})],
        ("PUT", "/v1/budgets/*/quarter"): [(200, BUDGET)],
        ("DELETE", "/v1/budgets/research/month"): [(204, "")],
    }
    with fake_server(answers) as server:
        shown = broker("budgets", env=server.env, width=140)
        assert broker("budgets", "--remove", "research", env=server.env).exit_code == 0
        done = broker("budgets", "--set", "*", "--usd", "5", "--period", "quarter", env=server.env)
        data = broker("budgets", "--json", env=server.env)
        wrong = broker("budgets", "--set", "x", "--usd", "many", env=server.env)
    assert done.exit_code == 0, done.output
    for word in ("research", "month from 2026-11-01", "$42,000.00", "-$2,000.00", "105 %", "28 Nov"):
        assert word in shown.stdout
    assert json.loads(data.stdout)["items"][0]["from"] == "2026-11-01T00:00:00Z"
    assert wrong.exit_code == 2
    assert "--usd" in wrong.stderr


def test_approvals_are_shown_and_decided() -> None:
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ("GET", "/v1/approvals"): [(200, {"items": [APPROVAL], "next_cursor": None})],
        ("POST", "/v1/plans/plan-1/reject"): [(200, {})],
    }
    with fake_server(answers) as server:
        done = broker(
            "approvals",
            "--reject",
            "plan-1",
            "--comment",
            "no",
            "--state",
            "rejected",
            env=server.env,
            width=140,
        )
        refused = broker("approvals", "--approve", "plan-9", env=server.env)
    assert done.exit_code == 0, done.output
    for word in ("plan-1", "rejected", "$206.00", "$794.00", "rejected by key-1, 3 Nov 09:30: no"):
        assert word in done.stdout
    assert refused.exit_code == 4
    assert server.seen[1][1].endswith("state=rejected")


LINE = {
    "workload": "tune",
    "offer_id": "h100-a",
    "provider": "lambda",
    "tier": "on_demand",
    "before_usd": "0",
    "after_usd": "220.00",
    "change_usd": "220.00",
    "price_usd": "-20.00",
    "volume_usd": "0.00",
    "mix_usd": "240.00",
    "is_new": True,
    "is_gone": False,
}
CHANGES = {
    **{name: LINE[name] for name in LINE if name.endswith("_usd")},
    "before": "plan-1",
    "after": "plan-2",
    "items": [LINE],
    "next_cursor": None,
    "market_usd": "95.00",
    "reoptimization_usd": "-80.00",
    "unpriced": [],
}
UNITS = {
    "total_usd": "205.00",
    "committed_usd": "0",
    "flexible_usd": "205.00",
    "runs": 1,
    "training_usd": "205.00",
    "usd_per_run": "205.00",
    "tokens_trained": 2e9,
    "usd_per_trillion_tokens_trained": "102500.00",
    "tokens_served": 0.0,
    "usd_per_million_tokens_served": None,
    "used_gpu_hours": 80.0,
    "idle_gpu_hours": 0.0,
    "idle_usd": "0",
    "usd_per_used_gpu_hour": "2.562500",
    "usd_per_idle_gpu_hour": None,
    "energy": {
        "kwh": 159.0,
        "kg_co2e": 0.0,
        "kwh_without_grid": 159.0,
        "gpu_hours_without_power": 0.0,
        "note": "an estimate",
    },
}
SAVINGS = {
    "items": [
        {
            "name": "single_shape",
            "plans": 2,
            "baseline_usd": "300.00",
            "plan_usd": "240.00",
            "saved_usd": "60.00",
            "saved_share": 0.2,
        }
    ],
    "not_run": [{"name": "converged", "plan_id": "plan-1", "why": "no offer can"}],
    "next_cursor": None,
}


def test_finance_asks_what_changed_what_units_cost_and_what_is_saved() -> None:
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ("GET", "/v1/spend/changes"): [(200, CHANGES)],
        ("GET", "/v1/spend/units"): [(200, UNITS)],
        ("GET", "/v1/spend/savings"): [(200, SAVINGS)],
    }
    with fake_server(answers) as server:
        changed = broker("spend", "--changes", "plan-1", "plan-2", env=server.env, width=160)
        units = broker("spend", "--units", env=server.env)
        saved = broker("spend", "--savings", env=server.env)
        data = broker("spend", "--units", "--json", env=server.env)
    for word in ("h100-a (new)", "-$20.00", "$240.00", "the market: $95.00; the new plan: -$80.00"):
        assert word in changed.stdout
    assert "from=plan-1&to=plan-2" in server.seen[0][1]
    for word in ("$102,500.00", "$2.5625", "1 run\n", "159 kWh"):
        assert word in units.stdout
    for word in (
        "one node type for all",
        "$60.00",
        "20 %",
        "one always-on pool is not compared with plan-1: no offer can",
    ):
        assert word in saved.stdout
    assert json.loads(data.stdout)["usd_per_run"] == "205.00"

"""``spend``, ``budgets`` and ``approvals`` against a server, through the real command."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import broker, fake_server

SPEND = ("GET", "/v1/spend/projection")
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
        ("GET", "/v1/budgets"): [(200, {"items": [BUDGET, {**BUDGET, "team": "*"}], "next_cursor": None})],
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
    assert "*" not in shown.stdout
    for word in (
        "all teams",
        "research",
        "month from 2026-11-01",
        "$42,000.00",
        "-$2,000.00",
        "105 %",
        "28 Nov",
    ):
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
    "reoptimizations": [
        {
            "reoptimization_id": "reopt-1",
            "plan_id": "plan-1",
            "decided_at": "2026-11-23T14:00:00Z",
            "moves": 1,
            "saving_usd": "40.00",
            "moving_usd": "2.50",
            "net_usd": "37.50",
        }
    ],
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
    for word in ("h100-a (new)", "-$20.00", "$240.00", "$95.00 is the old plan at the new prices"):
        assert word in changed.stdout
    told = " ".join(changed.stdout.split())
    assert "and -$80.00 is the new plan against that" in told
    assert "The three sum to the change, to the cent." in told
    assert "from=plan-1&to=plan-2" in server.seen[0][1]
    for word in (
        "$102,500.00",
        "$2.5625",
        "1 run\n",
        "159 kWh",
        "no grid is known",
        "rated power of each GPU",
    ):
        assert word in units.stdout
    assert "The carbon figure leaves out 159 of 159 kWh, in regions whose grid is not known." in units.stdout
    for word in (
        "one node type for all",
        "$60.00",
        "20 %",
        "1 move of 1 re-optimization saved $37.50 beside that, as counted when proposed",
        "less $2.50 for moving",
        "one always-on pool is not compared with plan-1: no offer can",
    ):
        assert word in saved.stdout
    assert json.loads(data.stdout)["usd_per_run"] == "205.00"


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


def test_what_changed_is_read_at_eighty_columns_and_written_as_csv(tmp_path: Path) -> None:
    """Each offer id stands in at most two lines; amounts are numbers, and no name is a formula."""
    offer = "digitalocean/nyc2/gpu-h100x8-640gb-contracted/on_demand"
    lines = [{**LINE, "offer_id": offer}, {**LINE, "workload": "=HYPERLINK(1)", "before_usd": "1234787.89"}]
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ("GET", "/v1/spend/changes"): [(200, {**CHANGES, "items": lines})],
        ("GET", "/v1/spend/units"): [(200, UNITS)],
        ("GET", "/v1/spend/savings"): [(200, SAVINGS)],
    }
    with fake_server(answers) as server:
        shown = broker("spend", "--changes", "2026-11", "2026-12", env=server.env, width=80)
        wanted = ("--view", "cash", "--csv", str(tmp_path / "c.csv"))
        written = broker("spend", "--changes", "2026-11", "2026-12", *wanted, env=server.env)
        units = broker("spend", "--units", "--csv", str(tmp_path / "u.csv"), env=server.env)
        saved = broker("spend", "--savings", "--csv", str(tmp_path / "s.csv"), env=server.env)
    text = [line.rstrip() for line in shown.stdout.splitlines()]
    assert all(len(line) <= 80 for line in text)
    first = next(index for index, line in enumerate(text) if line.startswith("digitalocean"))
    assert offer in "".join(line.split()[0] for line in text[first : first + 2])
    assert "view=cash" in server.seen[1][1]
    assert [one.exit_code for one in (written, units, saved)] == [0, 0, 0], written.output
    rows = rows_of(tmp_path / "c.csv")
    assert [row["workload"] for row in rows] == ["tune", "'=HYPERLINK(1)"]
    assert [row["change_usd"] for row in rows] == ["220.00", "-1234567.89"]
    figures = {row["figure"]: row["value"] for row in rows_of(tmp_path / "u.csv")}
    assert (figures["usd_per_run"], figures["kwh"]) == ("205.00", "159.0")
    (saving,) = rows_of(tmp_path / "s.csv")
    assert (saving["name"], saving["saved_usd"]) == ("single_shape", "60.00")


def test_a_table_without_rows_is_written_with_its_header(tmp_path: Path) -> None:
    empty: dict[str, Any] = {"items": [], "not_run": [], "not_compared": [], "next_cursor": None}
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ("GET", "/v1/spend/changes"): [(200, {**CHANGES, "items": []})],
        ("GET", "/v1/spend/savings"): [(200, empty)],
    }
    with fake_server(answers) as server:
        broker("spend", "--changes", "2026-11", "2026-12", "--csv", tmp_path / "c.csv", env=server.env)
        broker("spend", "--savings", "--csv", tmp_path / "s.csv", env=server.env)
    assert (tmp_path / "s.csv").read_text().splitlines() == [
        "name,plans,baseline_usd,plan_usd,saved_usd,saved_share"
    ]
    (header,) = (tmp_path / "c.csv").read_text().splitlines()
    assert header.startswith("workload,offer_id,provider,tier,before_usd,after_usd,change_usd,price_usd")


def test_an_empty_table_of_savings_says_why() -> None:
    why = [{"plan_id": "plan-1", "why": "it is a draft that nobody intends to buy"}]
    empty = {"items": [], "not_run": [], "not_compared": why, "next_cursor": None}
    with fake_server({("GET", "/v1/spend/savings"): [(200, empty)]}) as server:
        shown = broker("spend", "--savings", env=server.env)
    assert "no savings: no plan that is reserved or intended was compared" in shown.stdout
    assert "plan-1 does not count: it is a draft that nobody intends to buy" in shown.stdout


@pytest.mark.parametrize(("p90", "is_wide"), [("12.00", True), ("10.00", False)])
def test_a_band_is_printed_only_where_something_is_simulated(p90: str, is_wide: bool) -> None:
    ends = {"p10_usd": "10.00", "p50_usd": "10.00", "p90_usd": p90}
    period = {"period": "2026-12-01T00:00:00Z", "expected_usd": "10.00", **ends}
    form = {"interval": "month", "expected_usd": "10.00", **ends, "items": [{**period, "running": ends}]}
    with fake_server({("GET", "/v1/spend/interval"): [(200, {**form, "next_cursor": None})]}) as server:
        shown = broker("spend", "--bands", env=server.env, width=120)
    assert shown.exit_code == 0, shown.output
    assert ("P90" in shown.stdout.splitlines()[0]) is is_wide
    assert ("if nobody orders or releases" in shown.stdout) is is_wide
    assert ("no band: nothing in this time depends on" in shown.stdout) is not is_wide


def test_later_periods_that_will_be_exceeded_are_rows_of_their_own() -> None:
    later = {
        "from": "2027-02-01T00:00:00Z",
        "to": "2027-03-01T00:00:00Z",
        "owed_usd": "0.00",
        "reserved_usd": "52389.59",
        "planned_usd": "0.00",
        "until_released_usd": "52389.59",
        "expected_usd": "52389.59",
        "left_usd": "-12389.59",
        "expected_share": 1.309740,
    }
    within = {**later, "from": "2027-01-01T00:00:00Z", "left_usd": "5.00"}
    budget = {**BUDGET, "later": [within, later]}
    with fake_server({("GET", "/v1/budgets"): [(200, {"items": [budget], "next_cursor": None})]}) as server:
        shown = broker("budgets", env=server.env)
        broker("budgets", "--month", "2026-10", env=server.env)
    for word in ("month from 2027-02-01", "$52,389.59", "-$12,389.59", "131 %"):
        assert word in shown.stdout
    assert "2027-01-01" not in shown.stdout
    assert server.seen[1][1].endswith("period=2026-10")


def test_a_close_names_the_sellers_that_were_silent() -> None:
    closed = {
        "month": "2026-10", "closed_at": "2026-11-01T00:10:00Z", "closed_by": "key-1", "comment": "",
        "usd": "12.30", "focus_rows": 5,
        "unconfirmed": [{"provider": "verda", "confirmed_at": "2026-10-31T20:04:00Z"}],
    }  # fmt: skip
    with fake_server({("POST", "/v1/spend/close"): [(200, closed)]}) as server:
        shown = broker("spend", "--close", "2026-10", env=server.env)
    assert "2026-10 is closed with $12.30 in 5 FOCUS rows" in shown.stdout
    assert (
        "verda has not confirmed its leases since the month was over (last on 31 Oct 20:04)" in shown.stdout
    )


def test_a_team_is_said_to_be_new(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("team: reserach")
    with fake_server({("POST", "/v1/plans"): [(202, {"plan_id": "plan-1", "status": "queued"})]}) as server:
        broker("plans", "--new", str(file), "--timeout", "0", env=server.env)
        broker("plans", "--new", str(file), "--new-team", "--timeout", "0", env=server.env)
    asked = [path for method, path, *_ in server.seen if method == "POST"]
    assert ["new_team" in path for path in asked] == [False, True]


def spend_document() -> dict[str, Any]:
    rows = [
        ("research", "projected", "100.50"),
        ("research", "actual", "40.00"),
        ("=x()", "actual", "1.00"),
    ]
    return {
        "interval": "month",
        "group_by": "team",
        "currency": "USD",
        "total_usd": "141.50",
        "items": [
            {"period": "2026-11-01T00:00:00Z", "group": group, "basis": basis, "usd": usd}
            for group, basis, usd in rows
        ],
        "next_cursor": None,
    }


def test_spend_is_printed_with_its_sums() -> None:
    with fake_server({SPEND: [(200, spend_document())]}) as server:
        done = broker("spend", "--group-by", "team", env=server.env)
    assert done.exit_code == 0, done.output
    for word in ("2026-11", "research", "$100.50", "$41.00", "spent", "reserved", "planned", "$141.50"):
        assert word in done.stdout
    assert "group_by=team&interval=month" in server.seen[0][1]


def test_spend_as_csv_is_exact_and_runs_no_formula(tmp_path: Path) -> None:
    with fake_server({SPEND: [(200, spend_document())]}) as server:
        done = broker("spend", "--csv", tmp_path / "spend.csv", env=server.env)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO((tmp_path / "spend.csv").read_text())))
    assert [row["usd"] for row in rows] == ["100.50", "40.00", "1.00"]
    assert rows[2]["group"] == "'=x()"

"""``broker plan`` and ``broker check`` through the real command, without a server or database."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli.application import app
from api.schemas.plans.plan import read_plan
from api.schemas.plans.plan_record import record_to_document
from broker.ports.planning import BusinessStatus
from tests.cli.running import QUICKSTART, broker, fake_server, market_document, offer, write_market
from tests.fakes.examples import a_record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small market and the plan of the quickstart over it."""
    path = tmp_path_factory.mktemp("plan")
    market = write_market(path)
    made = broker("plan", QUICKSTART, "--market", market, "--time-limit", "5", "--output", path / "plan.json")
    assert made.exit_code == 0, made.output
    (path / "printed.txt").write_text(made.stdout)
    return path


def check(folder: Path, plan: Path, *more: str) -> Any:
    return broker("check", plan, "--market", folder / "market.json", "--workloads", QUICKSTART, *more)


def test_the_printed_plan_says_what_where_when_how_much_and_why(folder: Path) -> None:
    text = (folder / "printed.txt").read_text()
    plan = json.loads((folder / "plan.json").read_text())
    for word in ("Placements", "Nodes over time", "Why", "Compared with simpler strategies", "finetune-8b"):
        assert word in text
    assert f"${Decimal(plan['cost_usd']):,.2f}" in text
    assert all(placement["why"]["bottleneck"] in " ".join(text.split()) for placement in plan["placements"])


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_printed_plan_fits_the_terminal(folder: Path, width: int) -> None:
    made = broker("plan", QUICKSTART, "--market", folder / "market.json", "--time-limit", "5", width=width)
    assert max(len(line) for line in made.stdout.splitlines()) <= width
    assert "\x1b" not in made.stdout


def test_json_is_one_document_and_progress_goes_elsewhere(folder: Path) -> None:
    made = broker("plan", QUICKSTART, "--market", folder / "market.json", "--time-limit", "5", "--json")
    document = json.loads(made.stdout)
    paid = sum(Decimal(placement["cost_usd"]) for placement in document["placements"])
    assert Decimal(document["cost_usd"]) == paid == sum(Decimal(line["usd"]) for line in document["spend"])
    assert {placement["workload"] for placement in document["placements"]} == {"finetune-8b", "assistant-8b"}
    assert "planning 2 workloads" not in made.stdout
    assert "planning 2 workloads over 4 offers" in made.stderr
    assert "bound" in made.stderr


def test_check_accepts_the_plan(folder: Path) -> None:
    verdict = check(folder, folder / "plan.json")
    assert verdict.exit_code == 0
    assert verdict.stdout.startswith("ok: ")
    assert json.loads(check(folder, folder / "plan.json", "--json").stdout)["ok"] is True


def test_a_plan_of_the_server_is_checked_by_its_id(folder: Path) -> None:
    text = (folder / "plan.json").read_text()
    made = replace(read_plan(text, "plan.json"), plan_id="plan-1")
    body = {**record_to_document(a_record(made), BusinessStatus.DRAFT), "workloads": None}
    good: dict[str, Any] = {
        "plan_id": "plan-1",
        "ok": True,
        "prices_at": json.loads(text)["as_of"],
        "violations": [],
    }
    bad = {**good, "ok": False, "violations": ["cost_usd is 1.00, expected 2.00"]}
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ("GET", "/v1/plans/plan-1/check"): [(200, good), (200, bad)],
        ("GET", "/v1/plans/plan-1"): [(200, body)],
    }
    with fake_server(answers) as server:
        fine = broker("check", "plan-1", env=server.env, width=300)
        wrong = broker("check", "plan-1", "--json", env=server.env)
    assert (fine.exit_code, fine.stdout.startswith("ok: ")) == (0, True), fine.output
    assert "at the prices of 23 Nov 08:00 UTC" in fine.stdout
    assert (wrong.exit_code, json.loads(wrong.stdout)["violations"]) == (1, bad["violations"])
    alone = broker("check", folder / "plan.json")
    assert (alone.exit_code, "--market" in alone.stderr) == (2, True)


def test_a_plan_is_drawn_and_its_chances_are_told(folder: Path) -> None:
    files = "--market", folder / "market.json", "--workloads", QUICKSTART
    wish = ("--draws", "9000", "--seed", "7", "--json")
    drawn = json.loads(broker("simulate", folder / "plan.json", *files, *wish).stdout)
    plan = json.loads((folder / "plan.json").read_text())
    told = {p["workload"]: p["chance"] for p in plan["placements"]}
    found = {one["workload"]: one["chance"] for one in drawn["workloads"]}
    assert found == pytest.approx(told, abs=0.05)
    stated = {name: float(plan[f"cost_{name}_usd"]) for name in ("p10", "p50", "p90")}
    stated["mean"] = float(plan["expected_cost_usd"])
    assert stated == pytest.approx({name: float(usd) for name, usd in drawn["cost_usd"].items()}, rel=0.02)
    assert stated["p10"] < stated["p90"]
    assert sum(step["share"] for step in drawn["cost_shares"]) == pytest.approx(1)
    shown = broker("simulate", folder / "plan.json", *files, width=80).stdout
    assert "Cost over 4,000 draws" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    alone = broker("simulate", folder / "plan.json")
    assert alone.exit_code == 2
    assert "--market" in alone.stderr


def test_a_small_plan_tells_the_price_of_confidence(folder: Path) -> None:
    rows = json.loads((folder / "plan.json").read_text())["confidence_prices"]
    assert [row["confidence"] for row in rows] == [0.5, 0.8, 0.9, 0.95]
    costs = [Decimal(row["cost_usd"]) for row in rows]
    assert costs[0] <= costs[-1]
    assert all(float(after) > 0.99 * float(before) for before, after in pairwise(costs))
    printed = (folder / "printed.txt").read_text()
    assert "Price of confidence" in printed
    least = min(one["chance"] for one in json.loads((folder / "plan.json").read_text())["placements"])
    is_surer = any(row["chance"] > least + 0.005 for row in rows)
    assert (" raises the chance of the least certain workload from " in " ".join(printed.split())) is is_surer
    wish = ("--market", folder / "market.json", "--time-limit", "5", "--no-confidence-prices", "--json")
    assert json.loads(broker("plan", QUICKSTART, *wish).stdout)["confidence_prices"] == []


def _dearer(plan: dict[str, Any]) -> None:
    plan["placements"][0]["cost_usd"] = "1.00"


def _backwards(plan: dict[str, Any]) -> None:
    segment = plan["placements"][0]["segments"][0]
    segment["start"], segment["end"] = segment["end"], segment["start"]


def _unknown_kind(plan: dict[str, Any]) -> None:
    plan["placements"][0]["kind"] = "mining"


def _no_seed(plan: dict[str, Any]) -> None:
    del plan["seed"]


def _of_2020(plan: dict[str, Any]) -> None:
    plan["as_of"] = plan["created_at"] = "2020-01-01T00:00:00Z"


def _made_before_its_prices(plan: dict[str, Any]) -> None:
    plan["created_at"] = "2020-01-01T00:00:00Z"


def _at_its_bound(plan: dict[str, Any]) -> None:
    objective = sum((Decimal(plan[name]) for name in ("cost_usd", "penalty_usd", "delay_usd")), Decimal(0))
    plan["bound_usd"], plan["gap"], plan["status"] = str(objective), 0.0, "feasible"


FALSE_CLAIMS = (
    _of_2020,
    _made_before_its_prices,
    _at_its_bound,
)


@pytest.mark.parametrize("damage", [_dearer, _backwards, _unknown_kind, _no_seed, *FALSE_CLAIMS])
def test_check_rejects_a_damaged_plan_a_line_a_violation(
    folder: Path, tmp_path: Path, damage: Callable[[dict[str, Any]], None]
) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    damage(plan)
    (tmp_path / "damaged.json").write_text(json.dumps(plan))
    verdict = check(folder, tmp_path / "damaged.json")
    assert verdict.exit_code == 1
    assert verdict.stdout.strip()
    told = json.loads(check(folder, tmp_path / "damaged.json", "--json").stdout)
    assert told["ok"] is False
    assert len(told["violations"]) == len(verdict.stdout.strip().splitlines())


@pytest.mark.parametrize("text", ["[]", "{}", "not json"])
def test_check_of_something_that_is_no_plan_is_bad_input(folder: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    verdict = check(folder, tmp_path / "other.json")
    assert verdict.exit_code == 2
    assert "other.json" in verdict.stderr


def test_what_cannot_be_placed_is_printed_with_exit_code_6(tmp_path: Path) -> None:
    market = market_document()
    market["offers"] = [offer("small", gpu="L4", gpu_memory_gb=24, gpus_per_node=1, fabric=None)]
    (tmp_path / "market.json").write_text(json.dumps(market))
    made = broker("plan", QUICKSTART, "--market", tmp_path / "market.json", "--time-limit", "3")
    assert made.exit_code == 6
    assert "Left out" in made.stdout
    assert "infeasible" in made.stdout


def test_offers_of_unknown_gpus_are_told(tmp_path: Path) -> None:
    market = market_document()
    market["offers"].append(offer("new", gpu="X900"))
    (tmp_path / "market.json").write_text(json.dumps(market))
    made = broker("plan", QUICKSTART, "--market", tmp_path / "market.json", "--time-limit", "3")
    assert made.exit_code == 0
    assert "warning: 1 offers left aside" in made.stderr
    assert "X900" in made.stderr


def test_a_plan_on_a_price_list_is_told(tmp_path: Path) -> None:
    market = market_document()
    for one in market["offers"]:
        one["seller"], one["provider"] = one["provider"], "gpuhunt"
    (tmp_path / "market.json").write_text(json.dumps(market))
    made = broker("plan", QUICKSTART, "--market", tmp_path / "market.json", "--time-limit", "3")
    assert made.exit_code == 0
    assert "gpuhunt is a price list" in made.stderr
    assert "assistant-8b, finetune-8b" in made.stderr
    assert "exclude: [gpuhunt]" in made.stderr


def test_workloads_can_come_from_standard_input(folder: Path) -> None:
    given = {"--market": folder / "market.json", "--time-limit": "3"}
    arguments = [str(part) for pair in given.items() for part in pair]
    done = CliRunner().invoke(app, ["plan", "-", "--json", *arguments], input=QUICKSTART.read_text())
    assert done.exit_code == 0
    assert json.loads(done.stdout)["team"] == "quickstart"

"""``compare``, ``what-if`` and the changes of ``plans``, through the real command."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.schemas.plans.comparison import compare_plans, comparison_to_document
from api.schemas.plans.plan import PLAN
from api.schemas.plans.plan_record import record_to_document
from api.schemas.workloads.workloads import read_workloads
from broker.domain.planning.patch import PatchOperation, PatchVerb
from broker.domain.planning.plan import Fix, Obstacle, Plan, Unplaced
from broker.domain.planning.workload_document import to_document
from tests.cli.running import QUICKSTART, broker, fake_server
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer

BASE = a_plan(a_placement(an_offer(), (a_segment(0, 10),)), plan_id="plan_1")
LATER = replace(BASE, plan_id="plan_2", placements=(a_placement(an_offer(), (a_segment(24, 34),)),))
ASK = ("POST", "/v1/plans")


def written(folder: Path, plan: Plan) -> Path:
    file = folder / f"{plan.plan_id}.json"
    file.write_text(json.dumps(PLAN.write(plan)))
    return file


def comparison(name: str = "later", plan: Plan = LATER) -> dict[str, Any]:
    document: dict[str, Any] = comparison_to_document(compare_plans([("base", BASE), (name, plan)]))
    return {**document, "comparison_id": "compare-1"}


def test_files_of_plans_are_compared_at_80_columns(tmp_path: Path) -> None:
    first, second = written(tmp_path, BASE), written(tmp_path, LATER)
    done = broker("compare", first, second, width=80)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "train: it starts 24.0 h later; it ends 24.0 h later" in done.stdout
    assert "may come from the search" not in done.stdout
    unproven = written(tmp_path, replace(LATER, plan_id="plan_3", bound_usd=LATER.cost_usd - 7))
    assert "A difference below $7.00 may come from the search" in broker("compare", first, unproven).stdout
    told = json.loads(broker("compare", first, second, "--json").stdout)
    assert [move["workload"] for move in told["plans"][0]["moves"]] == ["train"]
    alone = broker("compare", first)
    assert (alone.exit_code, "two plans or more" in alone.stderr) == (2, True)
    mixed = broker("compare", first, "plan_9")
    assert (mixed.exit_code, "'plan_9', no file" in mixed.stderr) == (2, True)


def test_a_base_at_older_prices_is_told(tmp_path: Path) -> None:
    first = written(tmp_path, BASE)
    later = replace(LATER, as_of=BASE.as_of + timedelta(hours=30))
    done = broker("compare", first, written(tmp_path, later))
    told = " ".join(done.stdout.split())
    assert "was made at the prices of 23 Nov 12:00 UTC, and another at those of 24 Nov 18:00 UTC" in told
    assert "30.0 h apart" in told
    same = replace(LATER, as_of=BASE.as_of + timedelta(minutes=29))
    assert "prices of" not in broker("compare", first, written(tmp_path, same)).stdout
    assert comparison(plan=later)["prices_note"].startswith("The first plan was made")


def test_plans_of_the_server_and_comparisons_are_shown() -> None:
    answers = {
        ("GET", "/v1/comparisons"): [(200, {**comparison(), "comparison_id": None})],
        ("GET", "/v1/comparisons/compare-1"): [(200, comparison())],
    }
    with fake_server(answers) as server:
        by_id = broker("compare", "plan_1", "plan_2", env=server.env)
        again = broker("compare", "compare-1", env=server.env)
    assert by_id.exit_code == again.exit_code == 0, by_id.output + again.output
    assert "it ends 24.0 h later" in by_id.stdout


def test_changes_are_asked_awaited_and_compared() -> None:
    running = comparison()
    running["plans"][0] |= {"status": "running", "cost_usd": None, "difference_usd": None, "moves": []}
    answers = {
        ASK: [(202, {"comparison_id": "compare-1", "plan_ids": ["plan_2"]})],
        ("GET", "/v1/comparisons/compare-1"): [(200, running), (200, comparison())],
    }
    changes = ("train.deadline+=24h; policy.tiers=[spot]", "prices.lambda*=1.2")
    with fake_server(answers) as server:
        done = broker("what-if", "plan_1", *changes, env=server.env)
        asked = json.loads(server.bodies[0])
    assert done.exit_code == 0, done.output
    assert "it ends 24.0 h later" in done.stdout
    assert asked == {
        "based_on": "plan_1",
        "changes": [
            {"name": changes[0], "set": ["train.deadline+=24h", "policy.tiers=[spot]"]},
            {"name": changes[1], "set": [], "prices": {"factor": "1.2", "provider": "lambda"}},
        ],
    }
    with fake_server({**answers, ("GET", "/v1/comparisons/compare-1"): [(200, running)]}) as server:
        slow = broker("what-if", "plan_1", "a=1", "--timeout", "0", env=server.env)
    assert (slow.exit_code, "broker compare compare-1" in slow.stderr) == (9, True)
    twice = broker("what-if", "plan_1", "prices*=2; prices*=3", env={"BROKER_URL": "http://127.0.0.1:1"})
    assert (twice.exit_code, "prices once in a change" in twice.stderr) == (2, True)


def test_the_document_of_a_plan_is_printed_short() -> None:
    request = read_workloads(QUICKSTART.read_text(), source="quickstart", base=None, now=NOON)
    record = replace(a_record(BASE), document=json.dumps(to_document(request)))
    with fake_server({("GET", "/v1/plans/plan_1"): [(200, record_to_document(record))]}) as server:
        done = broker("plans", "plan_1", "--workloads", env=server.env)
        as_json = broker("plans", "plan_1", "--workloads", "--json", env=server.env)
    assert done.exit_code == 0, done.output
    short = yaml.safe_load(done.stdout)
    assert read_workloads(done.stdout, source="short", base=None, now=NOON) == request
    assert "policy" not in short
    assert json.loads(as_json.stdout) == to_document(request)


FIX = Fix(
    "at most 8 GPUs", (PatchOperation(PatchVerb.ADD, "/workloads/0/gpus", '{"max": 8}'),), BASE.cost_usd
)
OTHER = Fix("spot", (PatchOperation(PatchVerb.ADD, "/workloads/0/interruptible", "true"),), BASE.cost_usd)


def test_a_fix_is_applied_and_planned() -> None:
    left = replace(BASE, unplaced=(Unplaced("train", Obstacle.SIZE, FIX.says, (FIX, OTHER)),))
    document = {"team": "research", "workloads": [{"name": "train"}]}
    record = replace(a_record(left), document=json.dumps(document))
    made = {**record_to_document(a_record(replace(BASE, plan_id="plan_2")))}
    answers = {
        ("GET", "/v1/plans/plan_1"): [(200, record_to_document(record))],
        ASK: [(202, {"plan_id": "plan_2", "status": "queued"})],
        ("GET", "/v1/plans/plan_2"): [(200, made)],
    }
    with fake_server(answers) as server:
        done = broker("plans", "plan_1", "--fix", "2", "--json", env=server.env)
        asked = json.loads(next(body for body in server.bodies if body))
    assert done.exit_code == 0, done.output
    assert asked == {"team": "research", "workloads": [{"name": "train", "interruptible": True}]}
    with fake_server(answers) as server:
        named = broker("plans", "plan_1", "--fix", "train:1", "--json", env=server.env)
    assert named.exit_code == 0, named.output


@pytest.mark.parametrize("word", ["3", "0", "x", "chat:1", "train:"])
def test_a_fix_that_there_is_not_names_those_that_there_are(word: str) -> None:
    left = replace(BASE, unplaced=(Unplaced("train", Obstacle.SIZE, FIX.says, (FIX,)),))
    answers = {("GET", "/v1/plans/plan_1"): [(200, record_to_document(a_record(left)))]}
    with fake_server(answers) as server:
        done = broker("plans", "plan_1", "--fix", word, env=server.env)
    assert done.exit_code == 2, done.output
    assert "train" in done.stderr

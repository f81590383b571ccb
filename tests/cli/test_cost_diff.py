"""``broker cost-diff``: two documents planned over one market, and the comment that is made of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from api.cli.plans.cost_diff_view import MARKER, markdown
from broker.domain.planning.plan import Obstacle, Unplaced
from broker.domain.planning.workload import WorkloadKind
from tests.cli.running import broker, write_market
from tests.docs.fences import ROOT, fences_of
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer

CHAT: dict[str, Any] = {
    "name": "chat",
    "kind": "serving",
    "model": "Llama-3.1-8B",
    "precisions": ["bf16"],
    "traffic": {"peak_requests_per_s": 1, "input_tokens": 500, "output_tokens": 100},
    "slo": {"ttft_p95_ms": 2000, "itl_p95_ms": 100},
}


def document(folder: Path, name: str, *workloads: dict[str, Any]) -> Path:
    horizon = {"start": "2026-11-24T00:00:00Z", "days": 3}
    path = folder / name
    path.write_text(yaml.safe_dump({"team": "t", "horizon": horizon, "workloads": list(workloads)}))
    return path


def test_a_service_that_is_added_costs_what_its_plan_costs(tmp_path: Path) -> None:
    base = document(tmp_path, "base.yaml", CHAT)
    head = document(tmp_path, "head.yaml", CHAT, {**CHAT, "name": "second"})
    market = write_market(tmp_path)
    arguments = ("cost-diff", base, head, "--market", market, "--time-limit", "5")
    told = json.loads(broker(*arguments, "--format", "json").stdout)
    (changed,) = told["plans"]
    before, after = Decimal(told["base"]["cost_usd"]), Decimal(changed["cost_usd"])
    assert after - before == Decimal(changed["difference_usd"]) > 0
    assert [one["workload"] for one in told["base"]["workloads"]] == ["chat"]
    assert after == sum(Decimal(one["cost_usd"]) for one in changed["workloads"])
    done = broker(*arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(MARKER)
    assert f"${after:,.2f}" in done.stdout
    assert re.search(r"\| second \| - \| .* \| it is new in the document and takes 1 × ", done.stdout)
    same = broker("cost-diff", base, base, "--market", market, "--time-limit", "5")
    assert "No workload changes its cost" in same.stdout
    wrong = document(tmp_path, "wrong.yaml", {**CHAT, "model": "Lama"})
    assert broker("cost-diff", base, wrong, "--market", market).exit_code == 2


def test_the_comment_is_a_table_whatever_names_say() -> None:
    name = "a|b <img src=x> \\ c"
    kind = WorkloadKind.SERVING
    before = a_plan(
        a_placement(an_offer("a", "10"), [a_segment(0, 10, 2)], name, kind),
        a_placement(an_offer("a", "10"), [a_segment(0, 10)], "same", kind),
        a_placement(an_offer("a", "10"), [a_segment(0, 10)], "gone", kind),
    )
    after = a_plan(
        a_placement(an_offer("b", "5", provider="aws"), [a_segment(0, 20, 2)], name, kind),
        before.placements[1],
    )
    after = replace(after, unplaced=(Unplaced("big", Obstacle.MEMORY, "use <b>more</b> GPUs"),))
    text = markdown(before, after)
    html = MarkdownIt("commonmark").enable("table").render(text)
    rows = re.findall(r"<tr>\n(.*?)</tr>", html, flags=re.DOTALL)
    assert [len(re.findall(r"<t[hd]", row)) for row in rows] == [5, 5, 5, 5]
    assert "<img" not in html
    assert "<b>" not in html
    assert "1 more stay as they are" in text
    assert "it is not in the document" in text
    assert "Not placed after" in text
    assert "it ends 10.0 h later" in text


def test_the_recipes_are_workflows_that_run_the_command() -> None:
    page = ROOT / "docs" / "guides" / "ci.md"
    github, gitlab = (yaml.safe_load(fence.text) for fence in fences_of(page) if fence.language == "yaml")
    steps = github["jobs"]["cost"]["steps"]
    assert github[True]["pull_request"]["paths"]  # YAML 1.1 reads the key `on` as true
    assert any("broker cost-diff" in step.get("run", "") for step in steps)
    assert github["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert any("broker cost-diff" in line for line in gitlab["cost"]["script"])

"""The commands of a colleague, who has the address of a broker and a key, and no database."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.conftest import Served
from tests.e2e.processes import BROKER

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("served")]
DOCUMENT = """
team: research
horizon: {start: now, days: 2}
policy: {tiers: [on_demand]}
workloads:
  - {name: chat-8b, kind: serving, model: Llama-3.1-8B, slo: {ttft_p95_ms: 2000, itl_p95_ms: 80},
     traffic: {peak_requests_per_s: 2, input_tokens: 1000, output_tokens: 200}}
"""

Laptop = Callable[..., str]


@pytest.fixture
def laptop(served: Served, tmp_path: Path) -> Laptop:
    """Runs ``broker`` in an empty folder of somebody without a database; what it prints."""

    def run(*words: str, code: int = 0) -> str:
        environment = {**served.environment, "HOME": str(tmp_path), "COLUMNS": "160"}
        done = subprocess.run(
            [str(BROKER), *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        assert not list(tmp_path.rglob("broker.db")), f"{words} made a database"
        return done.stdout

    return run


def test_commands_read_from_the_server_alone(laptop: Laptop, tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(DOCUMENT)
    market = json.loads(laptop("offers", "--orderable", "--tier", "on_demand", "--json"))
    assert len(market["offers"]) > 100
    assert {offer["tier"] for offer in market["offers"]} == {"on_demand"}
    assert market["as_of"] == max(offer["observed_at"] for offer in market["offers"])
    offer = market["offers"][0]
    assert offer["gpu"] in laptop("offers", "--gpu", offer["gpu"], "--limit", "1")
    feeds = json.loads(laptop("providers", "list", "--feeds", "--json"))["items"]
    assert {feed["provider"] for feed in feeds} >= {"aws", "lambda", "vast"}
    assert "closed" in laptop("providers", "list", "--feeds")
    days = json.loads(laptop("prices", "--gpu", offer["gpu"], "--by-provider", "--json"))["items"]
    assert offer["provider"] in {day["provider"] for day in days}
    assert offer["provider"] in laptop("prices", "--gpu", offer["gpu"], "--by-provider")
    assert "hours on sale" in laptop("prices", "--offer", offer["offer_id"])
    assert "no forecast" in laptop("prices", "--offer", offer["offer_id"], "--forecast")
    past = json.loads(laptop("prices", "--at", market["as_of"], "--json"))
    assert offer["offer_id"] in {one["offer_id"] for one in past["offers"]}
    assert laptop("quarantine")


def test_a_plan_is_made_by_the_server_or_over_a_file_and_everything_follows(
    laptop: Laptop, tmp_path: Path
) -> None:
    (tmp_path / "chat.yaml").write_text(DOCUMENT)
    made = json.loads(laptop("plan", "chat.yaml", "--time-limit", "3", "--json"))
    assert made["plan_id"] in laptop("plans")
    variant = laptop("what-if", made["plan_id"], "chat-8b.traffic*=1.5")
    assert "chat-8b" in variant
    (tmp_path / "market.json").write_text(laptop("offers", "--gpu", "L40S,A100*", "--json"))
    alone = json.loads(
        laptop("plan", "chat.yaml", "--market", "market.json", "--gap", "0.05", "--time-limit", "3", "--json")
    )
    assert alone["plan_id"] not in laptop("plans")
    laptop("plan", "chat.yaml", "--gap", "0.05", code=2)
    laptop("init", "new.yaml", "--yes")
    assert (tmp_path / "new.yaml").is_file()
    report = laptop("cost-diff", "chat.yaml", "chat.yaml", "--time-limit", "2")
    assert "$" in report

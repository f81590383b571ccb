"""From an empty folder to a plan: ``up --once``, then what it left in the database, in real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.running import QUICKSTART, ROOT

pytestmark = pytest.mark.xdist_group("up")

BROKER = Path(sys.executable).parent / "broker"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``broker up --once`` has run."""
    path = tmp_path_factory.mktemp("home")
    done = run(path, "up", "--once", "--verbose", "--workloads", str(QUICKSTART))
    assert done.returncode == 0, done.stderr
    (path / "out.txt").write_text(done.stdout)
    (path / "err.txt").write_text(done.stderr)
    return path


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed command on a database in ``home``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    url = f"sqlite:///{home / 'broker.db'}"
    return subprocess.run(
        [str(BROKER), *arguments],
        cwd=ROOT,
        env={**kept, "BROKER_DATABASE_URL": url, "NO_COLOR": "1", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_up_once_polls_plans_and_prints(home: Path) -> None:
    printed, told = (home / "out.txt").read_text(), (home / "err.txt").read_text()
    found = re.findall(
        r"(^Cost|o plan(?:\s+costs)?(?:\s+less)?(?:\s+than)?) +\$([\d,]+\.\d\d)", printed, re.MULTILINE
    )
    counted = re.findall(r"\$([\d,]+\.\d\d): gap", printed)
    usd = {words.split()[0]: Decimal(figure.replace(",", "")) for words, figure in found}
    costs = [Decimal(figure.replace(",", "")) for figure in counted]
    assert 0 < usd["o"] <= max([usd["Cost"], *costs]), "the bound counts what is late too"
    placements = printed.partition("Placements")[2]
    for workload in ("finetune-8b", "assistant-8b"):
        assert workload in placements
    for provider in ("lambda", "runpod", "vast", "verda", "aws", "sfcompute"):
        assert re.search(rf"^{provider} +[1-9]\d* ", told, re.MULTILINE), told


def test_offers_are_cheapest_first_and_make_a_market_file(home: Path, tmp_path: Path) -> None:
    listed = run(home, "offers", "--json")
    assert listed.returncode == 0, listed.stderr
    offers = json.loads(listed.stdout)["offers"]
    prices = [float(offer["price_usd_per_node_hour"]) / offer["gpus_per_node"] for offer in offers]
    assert all(after > before - 1e-6 for before, after in pairwise(prices))
    (tmp_path / "market.json").write_text(listed.stdout)
    market = ("--market", str(tmp_path / "market.json"))
    made = run(
        home, "plan", str(QUICKSTART), *market, "--time-limit", "2", "--output", str(tmp_path / "plan.json")
    )
    assert made.returncode == 0, made.stderr
    checked = run(home, "check", str(tmp_path / "plan.json"), *market, "--workloads", str(QUICKSTART))
    assert checked.returncode == 0, checked.stdout


def test_a_plan_can_be_made_from_the_database(home: Path) -> None:
    made = run(home, "plan", str(QUICKSTART), "--time-limit", "2", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["placements"]


def test_offers_can_be_narrowed(home: Path) -> None:
    listed = run(home, "offers", "--gpu", "H100-SXM-80GB", "--tier", "on_demand", "--limit", "3")
    assert listed.returncode == 0, listed.stderr
    assert "H100-SXM-80GB" in listed.stdout
    unknown = run(home, "offers", "--gpu", "H1000")
    assert unknown.returncode == 2
    assert "H100" in unknown.stderr


def test_polling_needs_a_provider(home: Path) -> None:
    told = run(home, "poll")
    assert told.returncode == 2
    assert "BROKER_SANDBOX_URL" in told.stderr

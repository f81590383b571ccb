"""``broker backtest`` over folders and a database; bad input by name."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from api.schemas.market.market import read_market
from broker.store import create_store
from tests.cli.running import ROOT, broker, market_document
from tests.store.test_prices import say

EXAMPLE = ROOT / "fixtures" / "examples" / "backtest.yaml"
HISTORY = ROOT / "fixtures" / "history"
START = datetime(2026, 11, 23, 8, tzinfo=UTC)
CHAT = """
team: a
horizon: {start: now, days: 1}
workloads:
  - name: chat
    kind: serving
    model: Llama-3.1-8B
    traffic: {shape: flat, peak_requests_per_s: 4, input_tokens: 1200, output_tokens: 250}
    slo: {ttft_p95_ms: 2000, itl_p95_ms: 100}
"""


def markets(folder: Path, hours: int = 30, step: int = 6) -> Path:
    """A market document every few hours; one card falls to half its price after eight."""
    for hour in range(0, hours + 1, step):
        document = market_document()
        at = (START + timedelta(hours=hour)).isoformat()
        document["as_of"] = at
        if hour > 8:
            document["offers"][3]["price_usd_per_node_hour"] = "0.90"
        (folder / f"{hour:03}.json").write_text(json.dumps(document))
    return folder


def chat(folder: Path) -> Path:
    (folder / "chat.yaml").write_text(CHAT)
    return folder / "chat.yaml"


def ran(*words: str | Path) -> Any:
    made = broker("backtest", *words, "--time-limit", "2", "--look-limit", "1", "--json")
    assert made.exit_code == 0, made.output
    return json.loads(made.stdout)


def test_a_folder_of_markets_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    words = ("--history", markets(tmp_path / "h"), "--workloads", chat(tmp_path))
    found = ran(*words, "--policy", "never", "--policy", "on-change")

    never, on_change = found["policies"]
    assert [window["start"] for window in found["horizons"]] == ["2026-11-23T08:00:00Z"]
    assert (never["moves"], on_change["moves"]) == (0, 1)
    saved = Decimal(on_change["saves_against_never_usd"])
    assert saved == Decimal(never["total_usd"]) - Decimal(on_change["total_usd"]) > 0
    assert all(Decimal(row["over_bound_usd"]) >= 0 for row in found["policies"])
    table = broker("backtest", *words, "--policy", "never", width=80).stdout
    assert "all-knowing" in table
    assert max(map(len, table.splitlines())) <= 80


def test_a_database_is_replayed(tmp_path: Path, migrated_sqlite: Path) -> None:
    file = tmp_path / "broker.db"
    shutil.copy(migrated_sqlite, file)
    offers = read_market(json.dumps(market_document()), "m").offers

    async def fill() -> None:
        store = create_store(f"sqlite:///{file}")
        for hour in (0, 6, 25):
            left = [o for o in offers if o.offer_id != "dense" or hour < 25]
            await say(store, START + timedelta(hours=hour), left)
        await store.close()

    asyncio.run(fill())
    found = ran("--history", file, "--workloads", chat(tmp_path), "--policy", "never")
    assert found["history"]["offers"] == 4
    assert found["policies"][0]["unplaced"] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_bundled_history_is_replayed(tmp_path: Path) -> None:
    """Its first six days, twice three of the example's week: every policy looks at each of their instants."""
    text = EXAMPLE.read_text()
    assert "days: 7" in text
    for long, short in (("days: 7", "days: 3"), ("+6d", "+3d"), ("+5d", "+2d")):
        text = text.replace(long, short)
    (tmp_path / "half.yaml").write_text(text)
    found = ran("--history", HISTORY, "--workloads", tmp_path / "half.yaml", "--to", "2026-08-30")
    assert [row["policy"] for row in found["policies"]] == ["never", "on-change", "hourly", "daily"]
    assert all(Decimal(row["over_bound_usd"]) >= 0 for row in found["policies"])
    assert len(found["horizons"]) == 2


@pytest.mark.parametrize(
    ("history", "more", "said"),
    [
        ("nowhere", (), ["no such folder", "prices.csv"]),
        ("empty", (), ["0 market documents"]),
        ("one", (), ["one market document"]),
        ("short", (), ["/horizon", "(1.0 days)", "(0.8 days)"]),
        ("good", ("--policy", "sometimes"), ["sometimes", "on-change"]),
        ("good", ("--from", "soon"), ["--from", "'soon'"]),
        ("good", ("--from", "2026-11-24", "--to", "2026-11-23"), ["--from", "a time before"]),
        ("csv", (), ["prices.csv", "line 2", "/available"]),
    ],
)
def test_bad_histories_are_named(
    tmp_path: Path, history: str, more: tuple[str, ...], said: list[str]
) -> None:
    folder = tmp_path / "h"
    if history != "nowhere":
        folder.mkdir()
    if history in ("good", "short", "one"):
        markets(folder, {"good": 30, "short": 18, "one": 0}[history])
    if history == "csv":
        (folder / "market.json").write_text(json.dumps(market_document()))
        row = "2026-11-23T08:00:00Z,card-a,1,,perhaps"
        (folder / "prices.csv").write_text(
            f"at,offer_id,price_usd_per_node_hour,stock_nodes,available\n{row}\n"
        )
    made = broker("backtest", "--history", folder, "--workloads", chat(tmp_path), *more)
    assert made.exit_code == 2
    told = " ".join(made.stderr.replace("│", " ").split())
    assert all(word in told for word in said), told
    assert "Traceback" not in made.stderr


def test_workloads_that_are_missing_are_named() -> None:
    made = broker("backtest", "--history", HISTORY, "--workloads", "none.yaml")
    assert (made.exit_code, "no such file" in made.stderr) == (2, True)

"""``broker prices`` on a database of a few days."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.services.market.prices import PricesService
from broker.store import create_store
from tests.cli.running import QUICKSTART, broker
from tests.fakes.clock import FakeClock
from tests.store.examples import offer
from tests.store.test_prices import say

BEGIN = datetime(2026, 9, 1, 12, tzinfo=UTC)
DAYS = ("--from", "2026-09-01", "--to", "2026-09-05")


@pytest.fixture
def env(tmp_path: Path, migrated_sqlite: Path) -> dict[str, str]:
    """Where a database with twelve days of two offers is."""
    file = tmp_path / "broker.db"
    shutil.copy(migrated_sqlite, file)
    asyncio.run(fill(f"sqlite:///{file}"))
    return {"BROKER_DATABASE_URL": f"sqlite:///{file}"}


async def fill(url: str) -> None:
    store = create_store(url)
    for day in range(12):
        at = BEGIN + timedelta(days=day)
        await say(store, at, [offer("aws/rising", str(24 + 8 * day)), offer("aws/still", "16")])
    await PricesService(store.unit_of_work, FakeClock(BEGIN + timedelta(days=12))).keep_up()
    await store.close()


async def list_one(url: str) -> None:
    store = create_store(url)
    await say(store, BEGIN + timedelta(days=12), [offer("listed", "40")], "gpuhunt")
    await store.close()


def test_what_can_be_ordered_leaves_price_lists_out(env: dict[str, str]) -> None:
    asyncio.run(list_one(env["BROKER_DATABASE_URL"]))
    every, orderable = (
        {row["provider"] for row in json.loads(broker("offers", "--json", *words, env=env).stdout)["offers"]}
        for words in ((), ("--orderable",))
    )
    assert (every, orderable) == ({"aws", "gpuhunt"}, {"aws"})
    listed = broker("offers", "--orderable", "--provider", "gpuhunt", env=env)
    assert "no offer matches" in listed.stdout


def test_a_server_is_asked_where_one_is_named_and_no_database_is(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKER_DATABASE_URL", raising=False)
    nobody = {"BROKER_URL": "http://127.0.0.1:9"}
    assert broker("offers", env={**env, **nobody}).exit_code == 0
    prices = ("prices", "--gpu", "L4")
    for words in (("offers",), prices, ("providers", "list", "--feeds"), ("plan", QUICKSTART)):
        done = broker(*words, env=nobody)
        assert (done.exit_code, "'http://127.0.0.1:9'" in done.stderr) == (2, True), done.output


def told(env: dict[str, str], *words: str) -> Any:
    """What ``broker prices --json`` prints."""
    run = broker("prices", *words, "--json", env=env)
    assert run.exit_code == 0, run.stderr
    return json.loads(run.stdout)


def test_a_gpu_an_offer_a_past_market_and_a_forecast(env: dict[str, str]) -> None:
    sku = told(env, "--gpu", "H100-SXM-80GB", *DAYS)
    assert [(row["day"][-2:], row["max_usd_per_gpu_hour"]) for row in sku["items"]] == [
        ("01", "3.000000"), ("02", "4.000000"), ("03", "5.000000"), ("04", "6.000000"),
    ]  # fmt: skip
    one = told(env, "--offer", "aws/rising", *DAYS)
    assert [row["last_usd"] for row in one["items"]][:2] == ["24.000000", "32.000000"]
    market = told(env, "--at", "2026-09-03T00:00:00Z")
    assert [row["offer_id"] for row in market["offers"]] == ["aws/still", "aws/rising"]
    assert float(market["offers"][1]["price_usd_per_node_hour"]) == 32
    forecast = told(env, "--offer", "aws/rising", "--forecast")
    assert forecast["grounds"]["own_days"] == 11
    assert len(forecast["horizons"]) == 3


def test_the_same_as_tables(env: dict[str, str]) -> None:
    tables = [
        broker("prices", "--gpu", "H100-SXM-80GB", "--by-provider", *DAYS, env=env).stdout,
        broker("prices", "--offer", "aws/rising", *DAYS, env=env).stdout,
        broker("prices", "--at", "2026-09-03", env=env).stdout,
        broker("prices", "--offer", "aws/rising", "--forecast", env=env).stdout,
        broker("prices", "--gpu", "L4", *DAYS, env=env).stdout,
    ]
    for text, words in zip(
        tables,
        (("aws", "3.00"), ("2026-09-02", "32.00"), ("3 Sep 00:00",), ("168 h", "11 days"), ("nobody",)),
        strict=True,
    ):
        assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--gpu NAME, --offer ID or --at TIME"),
        (("--forecast", "--gpu", "L4"), "--offer ID"),
        (("--gpu", "H1000"), "H100"),
        (("--gpu", "L4", "--from", "soon"), "'soon'"),
        (("--gpu", "L4", "--from", "2026-11-24", "--to", "2026-11-23"), "a time before"),
        (("--at", "2199-01-01"), "a time not after"),
    ],
)
def test_bad_questions_say_what_was_expected(env: dict[str, str], words: tuple[str, ...], said: str) -> None:
    run = broker("prices", *words, env=env)
    assert run.exit_code == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_an_offer_that_is_not_on_sale_has_no_forecast(env: dict[str, str]) -> None:
    assert broker("prices", "--offer", "aws/none", "--forecast", env=env).exit_code == 4

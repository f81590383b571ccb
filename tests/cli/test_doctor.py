"""``broker doctor``: what it says of a server elsewhere, and of sellers that were the sandbox's before."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.cli.installation.diagnosis import diagnose
from api.schemas.market.diagnosis import Credentials
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.market.market import PollRound
from broker.domain.market.round_news import round_news
from broker.domain.market.seller_mode import SellerMode
from broker.settings import Settings
from broker.store import create_store
from tests.cli.running import broker, fake_server
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer

FEED: dict[str, Any] = {
    "provider": "lambda",
    "title": "Lambda",
    "mode": "real",
    "last_success_at": "2026-11-23T12:00:00Z",
    "last_error": None,
    "failures_in_a_row": 0,
    "leases_error": None,
    "orders_barred": "BROKER_ORDERS is sandbox",
    "missing_settings": [],
    "probe": {"at": "2026-11-22T12:00:00Z", "findings": []},
}
VAST = {**FEED, "provider": "vast", "title": "Vast.ai", "mode": "sandbox", "orders_barred": "", "probe": None}
Answers = dict[tuple[str, str], list[tuple[int, Any]]]
KEYS = ("GET", "/v1/ssh-keys")
PROVIDERS = ("GET", "/v1/providers")


def test_a_laptop_asks_the_server_about_its_sellers(tmp_path: Path) -> None:
    answers: Answers = {
        PROVIDERS: [(200, {"items": [FEED, VAST], "next_cursor": None})],
        KEYS: [(200, {"items": [], "next_cursor": None})],
    }
    with fake_server(answers) as server:
        laptop = {**server.env, "HOME": str(tmp_path)}
        done, told = broker("doctor", "--json", env=laptop), broker("doctor", env=laptop)
    found = json.loads(done.stdout)
    assert done.exit_code == 0, done.stderr
    checks = {one["name"]: one for one in found["checks"]}
    assert server.env["BROKER_URL"] in checks["server"]["says"]
    assert checks["SSH keys"]["finding"] == "warning"
    assert "database" not in checks
    real, toy = found["sellers"]
    assert (real["credentials"], real["orders_allowed"]) == ("found", False)
    assert (real["polled_at"], real["verified_at"]) == ("2026-11-23T12:00:00Z", "2026-11-22T12:00:00Z")
    assert (toy["credentials"], toy["orders_allowed"], toy["verified_at"]) == ("sandbox", True, None)
    assert "No seller" not in told.stdout


def test_beside_the_database_of_this_machine_the_server_s_sellers_are_told(
    tmp_path: Path, migrated_sqlite: Path
) -> None:
    answers: Answers = {
        PROVIDERS: [(200, {"items": [VAST], "next_cursor": None})],
        KEYS: [(200, {"items": [], "next_cursor": None})],
    }
    file = tmp_path / ".local" / "share" / "gpu-capacity-broker" / "broker.db"
    file.parent.mkdir(parents=True)
    shutil.copy(migrated_sqlite, file)
    with fake_server(answers) as server:
        done = broker("doctor", "--json", env={**server.env, "HOME": str(tmp_path)})
    found = json.loads(done.stdout)
    names = [one["name"] for one in found["checks"]]
    assert {"database", "leader", "server"} <= set(names)
    assert len(names) == len(set(names))
    assert [one["provider"] for one in found["sellers"]] == ["vast"]


def test_a_seller_that_the_server_cannot_read_is_told(tmp_path: Path) -> None:
    silent = {**FEED, "failures_in_a_row": 3, "last_error": "lambda: no answer within 50 s"}
    answers: Answers = {
        PROVIDERS: [(200, {"items": [silent], "next_cursor": None})],
        KEYS: [(200, {"items": [], "next_cursor": None})],
    }
    with fake_server(answers) as server:
        done = broker("doctor", "--json", env={**server.env, "HOME": str(tmp_path)})
    (seller,) = json.loads(done.stdout)["sellers"]
    assert (done.exit_code, seller["credentials"]) == (8, "unanswered")
    assert seller["problem"] == "lambda: no answer within 50 s"


def test_without_a_seller_it_says_how_to_ask_a_broker_that_runs(tmp_path: Path) -> None:
    done = broker("doctor", env={"BROKER_DATABASE_URL": f"sqlite:///{tmp_path / 'none.db'}"})
    assert "No seller is configured in this environment" in done.stdout
    assert "BROKER_URL and BROKER_KEY ask it" in " ".join(done.stdout.split())


@pytest.fixture
async def settings(tmp_path: Path, migrated_sqlite: Path) -> Settings:
    """Settings of a database in which Lambda was polled at a sandbox."""
    file = tmp_path / "broker.db"
    shutil.copy(migrated_sqlite, file)
    settings = Settings(database_url=f"sqlite:///{file}")
    store = create_store(settings.database_url)
    offer = replace(an_offer("lambda/one", provider="lambda"), mode=SellerMode.SANDBOX)
    async with store.unit_of_work(EVERY_TEAM) as uow:
        news = round_news({}, (offer,), NOON)
        await uow.offers.record_round(PollRound("lambda", NOON, 0.1, 1), news)
        await uow.commit()
    await store.close()
    return settings


@pytest.mark.parametrize(
    ("environ", "credentials", "is_polled"),
    [
        ({"BROKER_LAMBDA_API_KEY": "one-of-our-own"}, Credentials.FOUND, False),
        ({"BROKER_SANDBOX_URL": "http://127.0.0.1:9"}, Credentials.SANDBOX, True),
    ],
)
async def test_the_sandbox_s_poll_is_none_of_the_real_seller(
    settings: Settings, environ: dict[str, str], credentials: Credentials, is_polled: bool
) -> None:
    found = await diagnose(settings, environ, None, asks=False)
    seller = next(one for one in found.sellers if one.provider == "lambda")
    assert seller.credentials is credentials
    assert seller.polled_at == (NOON if is_polled else None)

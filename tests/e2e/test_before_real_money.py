"""What keeps an installation from spending money by mistake, through real processes.

One seller has credentials and an address of its own, so that it counts as real; the others are the sandbox's.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.e2e import processes
from tests.e2e.asking import planned, services
from tests.e2e.conftest import ADMIN_KEY, World

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("e2e")]

TEAM = "research"


@dataclass
class Installation:
    """A sandbox market, and the database of a broker that is started again and again on it."""

    folder: Path
    sandbox: processes.Running

    @property
    def environment(self) -> dict[str, str]:
        """Lambda at the same market, under a name that is not the sandbox's."""
        url = self.sandbox.url.replace("127.0.0.1", "localhost")
        return {
            "BROKER_LAMBDA_API_KEY": "a-key-of-our-own",
            "BROKER_LAMBDA_BASE_URL": f"{url}/lambda",
            "BROKER_SANDBOX_URL": self.sandbox.url,
            "BROKER_DATABASE_URL": f"sqlite:///{self.folder / 'broker.db'}",
        }

    @contextmanager
    def serving(self, **extra: str) -> Iterator[World]:
        """The broker with further settings; ``BROKER_RECONCILE_SECONDS`` is one second."""
        known = self.environment
        url = known["BROKER_DATABASE_URL"]
        server = processes.start_server(self.folder, self.sandbox.url, url, ADMIN_KEY, **(known | extra))
        try:
            headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
                yield World(self.sandbox, server, client)
        finally:
            server.stop()

    def broker(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """A command in the installation's environment."""
        return subprocess.run(
            [str(processes.BROKER), *arguments],
            env=processes.clean_environment(COLUMNS="80", **self.environment, **extra),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("real-money")
    sandbox = processes.start_sandbox(folder)
    try:
        yield Installation(folder, sandbox)
    finally:
        sandbox.stop()


def cheapest(world: World, provider: str) -> dict[str, Any]:
    """The cheapest node on demand that a seller has, and five of it."""
    asked = world.client.get("/v1/offers", params={"provider": provider, "tier": "on_demand", "limit": 200})
    offers = [one for one in asked.json()["items"] if one["stock"]["level"] != "none"]
    return min(offers, key=lambda one: Decimal(one["price_usd_per_node_hour"]))


def refused(answer: httpx.Response, code: str) -> dict[str, Any]:
    assert answer.status_code == 409, answer.text
    problem: dict[str, Any] = answer.json()
    assert problem["code"] == code, problem
    return problem


def order(world: World, offer: dict[str, Any], nodes: int = 1, **more: Any) -> httpx.Response:
    return world.client.post("/v1/reservations", json={"offer_id": offer["offer_id"], "nodes": nodes, **more})


def add_key(world: World, team: str) -> None:
    """A public SSH key of a team, without which nothing is ordered at a real seller."""
    public = Ed25519PrivateKey.generate().public_key()
    line = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    answer = world.client.post("/v1/ssh-keys", json={"public_key": line, "name": "a", "team": team})
    assert answer.status_code == 201, answer.text


def in_hours(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_by_default_only_the_sandbox_is_ordered_from(installation: Installation) -> None:
    with installation.serving() as world:
        real, toy = cheapest(world, "lambda"), cheapest(world, "runpod")
        assert (real["mode"], toy["mode"]) == ("real", "sandbox")
        problem = refused(order(world, real), "orders-barred")
        assert problem["detail"] == (
            "nothing is ordered from lambda while BROKER_ORDERS is sandbox, and lambda is a real seller: "
            "set BROKER_ORDERS to on, and orders there cost money"
        )
        assert [row["pointer"] for row in problem["errors"]] == ["BROKER_ORDERS"]
        refused(
            world.client.post("/v1/reservations/quote", json={"offer_id": real["offer_id"], "nodes": 1}),
            "orders-barred",
        )
        row = order(world, toy).json()
        assert (row["provider"], row["mode"]) == ("runpod", "sandbox")
        assert world.client.delete(f"/v1/reservations/{row['reservation_id']}").status_code == 202
        assert not [one for one in world.ledger() if one["provider"] == "lambda"]
        sellers = {one["provider"]: one for one in world.client.get("/v1/providers").json()["items"]}
        assert (sellers["lambda"]["mode"], sellers["runpod"]["mode"]) == ("real", "sandbox")
        assert sellers["runpod"]["orders_barred"] == "" != sellers["lambda"]["orders_barred"]
        assert "no cap over all teams" not in world.server.log.read_text()


def test_a_plan_is_not_mixed_without_its_policy_s_word(installation: Installation) -> None:
    with installation.serving(BROKER_ORDERS="on") as world:
        assert (
            "orders at real sellers (lambda) are on, and no cap over all teams"
            in world.server.log.read_text()
        )
        add_key(world, TEAM)
        body = services(TEAM, 2)
        for workload, seller in zip(body["workloads"], ("lambda", "runpod"), strict=True):
            workload["policy"] = {"providers": {"only": [seller]}}
        plan = planned(world, body)
        assert {one["provider"]: one["mode"] for one in plan["placements"]} == {
            "lambda": "real",
            "runpod": "sandbox",
        }
        problem = refused(world.client.post(f"/v1/plans/{plan['plan_id']}/reserve"), "orders-barred")
        assert "lambda is a real seller" in problem["detail"]
        assert "policy.mix_sandbox: true" in problem["detail"]
        mixed = planned(world, body | {"policy": {"mix_sandbox": True}})
        answer = world.client.post(f"/v1/plans/{mixed['plan_id']}/reserve")
        assert answer.status_code == 202, answer.text
        assert {row["mode"] for row in answer.json()["reservations"]} == {"real", "sandbox"}
        for row in answer.json()["reservations"]:
            assert world.client.delete(f"/v1/reservations/{row['reservation_id']}").status_code == 202


def test_the_caps_and_then_orders_off(installation: Installation) -> None:
    with installation.serving() as world:
        real = cheapest(world, "lambda")
        sku, region = real["sku"], real["region"]
        market = {"provider": "lambda", "sku": sku, "region": region, "stock": 8}
        httpx.post(f"{installation.sandbox.url}/_sandbox/market", json=market).raise_for_status()
    usd = Decimal(real["price_usd_per_node_hour"])
    caps = {
        "BROKER_ORDERS": "on",
        "BROKER_MAX_USD_PER_HOUR": str(usd * Decimal("2.5")),
        "BROKER_MAX_USD_PER_DAY": str(usd * 30),
        "BROKER_TEAM_CAPS": json.dumps({TEAM: {"usd_per_hour": str(usd / 2)}}),
    }
    with installation.serving(**caps) as world:
        add_key(world, "admin")
        hour = refused(order(world, real, 3), "over-cap")
        assert (hour["setting"], hour["held_usd"]) == ("BROKER_MAX_USD_PER_HOUR", "0")
        assert "held and ordered + $" in hour["detail"]
        assert hour["errors"][0]["pointer"] == "/nodes"
        day = refused(order(world, real, 2), "over-cap")
        assert (day["setting"], day["period"]) == ("BROKER_MAX_USD_PER_DAY", "day")
        key = world.client.post("/v1/keys", json={"name": "ci", "team": TEAM}).json()["secret"]
        done = installation.broker(
            "reserve", "--offer", real["offer_id"], "--yes", BROKER_URL=world.server.url, BROKER_KEY=key
        )
        assert (done.returncode, "BROKER_TEAM_CAPS allows team research" in done.stderr) == (7, True), (
            done.stderr
        )
        held = order(world, real, 1, end=in_hours(3))
        assert held.status_code == 202, held.text
        path = f"/v1/reservations/{held.json()['reservation_id']}"
        assert (held.json()["mode"], held.json()["state"] in ("held", "active")) == ("real", True)
        more = refused(order(world, real, 2, end=in_hours(2)), "over-cap")
        assert Decimal(more["held_usd"]) >= usd

    with installation.serving(BROKER_ORDERS="off") as world:
        for seller in ("lambda", "runpod"):
            told = refused(order(world, cheapest(world, seller)), "orders-barred")["detail"]
            assert f"nothing is ordered from {seller} while BROKER_ORDERS is off" in told
        assert world.client.get(path).json()["state"] == "active"
        assert world.client.delete(path).status_code == 202

        def released() -> bool | None:
            mine = [one for one in world.ledger() if one["provider"] == "lambda"]
            assert len(mine) == 1
            return True if mine[0]["released_at"] else None

        processes.wait_for("the release", 60, released)


def test_the_doctor_says_what_is_missing(installation: Installation) -> None:
    done = installation.broker("doctor", "--team", "nobody", BROKER_ORDERS="on")
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    told = " ".join(done.stdout.split())
    assert "BROKER_ORDERS is on; real sellers: lambda; no spending cap is set" in told
    assert "team nobody does not have one" in told
    found = json.loads(installation.broker("doctor", "--json").stdout)
    sellers = {one["provider"]: one for one in found["sellers"]}
    real, toy = sellers["lambda"], sellers["runpod"]
    assert (real["mode"], real["credentials"], real["orders_allowed"]) == ("real", "accepted", False)
    assert (toy["mode"], toy["credentials"], toy["orders_allowed"]) == ("sandbox", "sandbox", True)
    assert "GET /api/v1/instance-types" in real["calls"]
    lacks = json.loads(installation.broker("doctor", "--team", "nobody", "--json").stdout)["sellers"]
    (lambda_lacks,) = [one["missing"] for one in lacks if one["provider"] == "lambda"]
    assert any("no public SSH key" in why for why in lambda_lacks)


@pytest.mark.parametrize(
    ("extra", "code", "state"),
    [
        ({"BROKER_AWS_ACCESS_KEY_ID": "AKIA"}, 3, {"aws": "incomplete"}),
        ({"BROKER_LAMBDA_BASE_URL": "http://127.0.0.1:9"}, 8, {"lambda": "unanswered"}),
    ],
)
def test_the_doctor_ends_with_the_exit_code_of_what_is_wrong(
    installation: Installation, extra: dict[str, str], code: int, state: dict[str, str]
) -> None:
    known = {name: value for name, value in installation.environment.items() if name not in extra}
    done = subprocess.run(
        [str(processes.BROKER), "doctor", "--json"],
        env=processes.clean_environment(**known, **extra),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    found = {one["provider"]: one["credentials"] for one in json.loads(done.stdout)["sellers"]}
    assert found.items() >= state.items()

"""From an order to a machine: entered by OpenSSH, started by a script, balanced by nginx through a day."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.asking import planned
from tests.e2e.conftest import SECRET, World
from tests.e2e.processes import BROKER, clean_environment, free_port, wait_for
from tests.fakes.market_control import control, market_now

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("e2e"),
    pytest.mark.parametrize("world", ["sqlite"], indirect=True),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client (openssh-client) is missing"),
]
STAND_IN = """\
import http.server, os

class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = os.environ["HOST_ADDRESS"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer((os.environ["HOST_ADDRESS"], 8000), Answer).serve_forever()
"""
"""A stand-in for an inference server: it answers every path, ``/health`` too, with its own address."""


@dataclass
class Laptop:
    """A folder with a key pair, from which commands are run against the server."""

    folder: Path
    environment: dict[str, str]

    @property
    def identity(self) -> str:
        """The private key."""
        return str(self.folder / "id_ed25519")

    def broker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs ``broker`` with ``arguments``."""
        return subprocess.run(
            [str(BROKER), *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def laptop(world: World, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    """A member of team ``ml`` whose public key is stored."""
    folder = tmp_path_factory.mktemp("laptop")
    made = world.client.post("/v1/keys", json={"name": "ada", "team": "ml"}).json()
    environment = clean_environment(BROKER_URL=world.server.url, BROKER_KEY=made["secret"], HOME=str(folder))
    laptop = Laptop(folder, environment)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada@laptop", "-f", laptop.identity], check=True
    )
    stored = laptop.broker("ssh-keys", "--add", f"{laptop.identity}.pub")
    assert stored.returncode == 0, stored.stderr
    return laptop


def member(world: World, laptop: Laptop) -> httpx.Client:
    """A client with the member's key."""
    headers = {"Authorization": f"Bearer {laptop.environment['BROKER_KEY']}"}
    return httpx.Client(base_url=world.server.url, headers=headers, timeout=60)


def reached(client: httpx.Client, reservation_id: str) -> dict[str, Any]:
    """The reservation once every unit of it has answered on its SSH port."""

    def look() -> dict[str, Any] | None:
        row: dict[str, Any] = client.get(f"/v1/reservations/{reservation_id}").json()
        assert row["state"] != "failed", row
        return row if all(unit["reachable_at"] for unit in row["units"]) else None

    return wait_for("a machine that can be entered", 40, look)


def test_a_reserved_machine_is_entered_and_given_back(world: World, laptop: Laptop) -> None:
    with member(world, laptop) as client:
        offer = client.get("/v1/offers", params={"provider": "lambda", "limit": 1}).json()["items"][0]
        order = {
            "offer_id": offer["offer_id"],
            "nodes": 2,
            "startup": {"script": "echo $GREETING > started", "env": {"GREETING": "good morning"}},
        }
        answer = client.post("/v1/reservations", json=order)
        assert answer.status_code == 202, answer.text
        name = answer.json()["reservation_id"]
        row = reached(client, name)
        assert [key.split()[0] for key in row["ssh_keys"]] == ["ada@laptop"]
        assert len({unit["access"]["host"] for unit in row["units"]}) == 2

        identity = ("-i", laptop.identity)
        assert laptop.broker("ssh", name, *identity, "--", "cat started").stdout == "good morning\n"
        second = laptop.broker("ssh", name, "--unit", "1", *identity, "--", "echo $HOST_ADDRESS; exit 7")
        assert (second.stdout.strip(), second.returncode) == (row["units"][1]["access"]["host"], 7)

        # OpenSSH itself reads the configuration, and an aliased host opens.
        config = laptop.folder / "config"
        config.write_text(laptop.broker("hosts", name, "--format", "ssh-config").stdout)
        options = ["-F", str(config), *identity, "-o", "StrictHostKeyChecking=no"]
        options += ["-o", f"UserKnownHostsFile={laptop.folder / 'other_hosts'}"]
        entered = subprocess.run(
            ["ssh", *options, f"{name}-1", "echo in"], capture_output=True, text=True, check=False, timeout=60
        )
        assert entered.stdout == "in\n", entered.stderr

        lines = laptop.broker("hosts", name, "--format", "torchrun").stdout.splitlines()
        ranks = [line.split("\t")[1] for line in lines if not line.startswith("#")]
        assert ["--node-rank=0" in ranks[0], "--node-rank=1" in ranks[1]] == [True, True]

        assert laptop.broker("done", name).returncode == 0
        wait_for("its release", 40, lambda: over(client, name))
        shut = laptop.broker("ssh", name, *identity, "--", "true")
        assert (shut.returncode, "it is over" in shut.stderr) == (4, True)
    registered = world.sandbox.url + "/lambda/api/v1/ssh-keys"

    def forgotten() -> bool | None:
        answer = httpx.get(registered, headers={"Authorization": "Bearer sandbox"})
        return None if answer.json()["data"] else True

    wait_for("the key to be removed at the seller", 40, forgotten)


def test_a_start_is_run_over_ssh_where_the_seller_takes_no_script(world: World, laptop: Laptop) -> None:
    """At Hot Aisle: it runs once, what it needs is secret, and an end with an error is told."""
    script = 'echo "$GREETING" >> started; sha256sum <<< "$TOKEN" > proof; echo "not with $TOKEN" >&2'
    with member(world, laptop) as client:
        offer = client.get("/v1/offers", params={"provider": "hotaisle", "limit": 1}).json()["items"][0]
        rows = []
        for ending in ("", "; exit 3"):
            env = {"GREETING": "once", "TOKEN": {"secret": "DATASET"}}
            order = {"offer_id": offer["offer_id"], "nodes": 1}
            answer = client.post(
                "/v1/reservations", json={**order, "startup": {"script": script + ending, "env": env}}
            )
            assert answer.status_code == 202, answer.text
            rows.append(answer.json()["reservation_id"])

        def ended(name: str) -> dict[str, Any] | None:
            run: dict[str, Any] = client.get(f"/v1/reservations/{name}").json()["units"][0]["startup"]
            return run if run["state"] in ("done", "failed") else None

        good = wait_for("the start", 90, lambda: ended(rows[0]))
        assert (good["state"], good["exit_code"], good["error"]) == ("done", 0, None)
        bad = wait_for("the start that fails", 90, lambda: ended(rows[1]))
        assert (bad["state"], bad["exit_code"]) == ("failed", 3)
        assert bad["error"] == "not with [redacted]"

        identity = ("-i", laptop.identity)
        assert laptop.broker("ssh", rows[0], *identity, "--", "cat started").stdout == "once\n"
        proof = laptop.broker("ssh", rows[0], *identity, "--", "cat proof").stdout.split()[0]
        assert proof == hashlib.sha256(f"{SECRET}\n".encode()).hexdigest()
        told = [laptop.broker("reservations", "--each"), laptop.broker("reservations", "--history", rows[1])]
        assert "exit code 3" in " ".join(told[0].stdout.split())
        assert "start_failed" in told[1].stdout
        answers = [client.get(f"/v1/reservations/{name}").text for name in rows]
        answers += [world.client.get("/v1/audit").text, *(one.stdout + one.stderr for one in told)]
        assert not any(SECRET in text for text in answers)
        for name in rows:
            client.delete(f"/v1/reservations/{name}")
    folder = world.server.log.parent
    kept = [file for file in folder.rglob("*") if file.is_file()]
    assert not [file for file in kept if SECRET.encode() in file.read_bytes()]
    mine = [file for file in folder.glob("broker.db*") if file.suffix != ".key"]
    assert len(mine) > 0
    assert not [file for file in (*mine, world.server.log) if b"PRIVATE KEY" in file.read_bytes()]


def over(client: httpx.Client, name: str) -> bool | None:
    """True once a reservation is released."""
    return True if client.get(f"/v1/reservations/{name}").json()["state"] == "released" else None


def test_a_host_key_that_changed_lets_nobody_in(world: World, laptop: Laptop) -> None:
    with member(world, laptop) as client:
        offer = client.get("/v1/offers", params={"provider": "lambda", "limit": 1}).json()["items"][0]
        name = client.post("/v1/reservations", json={"offer_id": offer["offer_id"], "nodes": 1}).json()[
            "reservation_id"
        ]
        reached(client, name)
        known = laptop.folder / ".local/share/gpu-capacity-broker/known_hosts"
        other = Path(f"{laptop.identity}.pub").read_text().split()[:2]
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(f"{name}-0-0 {' '.join(other)}\n")
        shut = laptop.broker("ssh", name, "-i", laptop.identity, "--", "echo in")
        assert (shut.returncode, shut.stdout) == (5, "")
        assert "has changed" in shut.stderr
        client.delete(f"/v1/reservations/{name}")


@dataclass
class Balancer:
    """An nginx whose upstreams are the endpoints of a plan."""

    folder: Path
    port: int
    answers: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def _command(self) -> list[str]:
        return ["nginx", "-c", str(self.folder / "nginx.conf"), "-p", str(self.folder), "-e", "error.log"]

    def follow(self, upstreams: str) -> None:
        """Loads ``upstreams``, if they differ from the last ones."""
        file = self.folder / "upstreams.conf"
        if file.exists() and file.read_text() == upstreams:
            return
        file.write_text(upstreams)
        is_new = not (self.folder / "nginx.conf").exists()
        if is_new:
            (self.folder / "nginx.conf").write_text(
                "pid nginx.pid;\nerror_log error.log;\nevents {}\nhttp {\n  access_log off;\n"
                "  include upstreams.conf;\n"
                f"  server {{ listen 127.0.0.1:{self.port}; location / {{ proxy_pass http://chat; }} }}\n}}\n"
            )
        subprocess.run([*self._command, *([] if is_new else ["-s", "reload"])], check=True, timeout=30)

    def ask(self) -> None:
        """Sends requests until it is told to stop; counts the statuses.

        Each has a connection of its own: nginx closes idle ones as it is loaded anew, and a request that is
        sent at that moment would say nothing of the fleet.
        """
        single = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10, limits=single) as client:
            while not self.stop.is_set():
                try:
                    self.answers[str(client.get("/v1/completions").status_code)] += 1
                except httpx.TransportError as error:
                    self.answers[type(error).__name__] += 1
                time.sleep(0.02)

    def end(self) -> None:
        """Ends nginx."""
        self.stop.set()
        subprocess.run([*self._command, "-s", "quit"], check=False, timeout=30)


@pytest.fixture
def balancer(tmp_path: Path) -> Iterator[Balancer]:
    """An nginx of this test, which is not started yet."""
    made = Balancer(tmp_path, free_port())
    try:
        yield made
    finally:
        made.end()


def service(start: datetime) -> dict[str, Any]:
    """A service whose traffic changes by the hour, at one seller, started by a stand-in server."""
    script = f"cat > server.py <<'EOF'\n{STAND_IN}EOF\nexec python3 server.py\n"
    return {
        "team": "ml",
        "horizon": {"start": start.strftime("%Y-%m-%dT%H:%M:%SZ"), "days": 1},
        "policy": {"providers": {"only": ["lambda"]}, "tiers": ["on_demand"]},
        "workloads": [
            {
                "name": "chat",
                "kind": "serving",
                "model": "Llama-3.1-8B",
                "traffic": {
                    "peak_requests_per_s": 24,
                    "input_tokens": 800,
                    "output_tokens": 200,
                    "shape": "diurnal",
                    "trough_share": 0.2,
                    "peak_hour_utc": (start.hour + 12) % 24,
                },
                "slo": {"ttft_p95_ms": 1500, "itl_p95_ms": 80},
                "startup": {"script": script, "env": {"PYTHONUNBUFFERED": "1"}},
            }
        ],
    }


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is missing")
def test_no_request_is_lost_while_a_fleet_grows_and_shrinks_through_a_day(
    world: World, laptop: Laptop, balancer: Balancer
) -> None:
    url = world.sandbox.url
    start = market_now(url) + timedelta(seconds=40)
    member_world = World(world.sandbox, world.server, member(world, laptop))
    with member_world.client as client:
        plan = planned(member_world, service(start))
        name = plan["plan_id"]
        answer = client.post(f"/v1/plans/{name}/reserve")
        assert answer.status_code == 202, answer.text
        rows = answer.json()["reservations"]
        changes = sorted(
            datetime.fromisoformat(at) for row in rows for at in (row["start"], row["end"]) if at is not None
        )
        sizes = set()

        def follow() -> dict[str, Any]:
            balancer.follow(client.get(f"/v1/plans/{name}/endpoints", params={"format": "nginx"}).text)
            told: dict[str, Any] = client.get(f"/v1/plans/{name}/endpoints").json()
            sizes.add(sum(one["state"] == "ready" for one in told["endpoints"]))
            return told

        def settled(told: dict[str, Any]) -> bool:
            now = market_now(url)
            # The broker reads the market's clock now and then: until it has, it drains nothing.
            if datetime.fromisoformat(told["as_of"]) < now - timedelta(minutes=1):
                return False
            up = {one["reservation_id"] for one in told["endpoints"] if one["state"] in ("ready", "draining")}
            return up >= {row["reservation_id"] for row in rows if spans(row, now)}

        def look() -> bool | None:
            return True if settled(follow()) else None

        ahead_s = (start - market_now(url)).total_seconds() + 1
        control(url, "clock", advance_s=max(0.0, ahead_s))  # planning on a busy machine may take longer
        wait_for("the first machines", 90, look)
        follow()
        time.sleep(1)
        asking = threading.Thread(target=balancer.ask, daemon=True)
        asking.start()
        last = max(changes)
        # A stop a little before each change, when the leaving machines drain, and one right after it.
        stops = sorted(
            {at - timedelta(minutes=2) for at in changes} | {at + timedelta(seconds=5) for at in changes}
        )
        for stop in stops:
            ahead = (stop - market_now(url)).total_seconds()
            if ahead > 0 and stop < last - timedelta(minutes=1):
                control(url, "clock", advance_s=ahead)
                wait_for(f"the fleet of {stop}", 60, look)
                follow()
                time.sleep(1)  # nginx's old workers end; a drain lasts minutes, but this clock jumps
        balancer.stop.set()
        asking.join(30)
        client.post(f"/v1/plans/{name}/release")
    assert len(sizes) > 1, "the fleet never changed"
    assert balancer.answers.keys() == {"200"}, balancer.answers
    assert balancer.answers["200"] > 100


def spans(row: dict[str, Any], now: datetime) -> bool:
    """Whether a reservation is to be held at ``now``."""
    end = row["end"]
    return datetime.fromisoformat(row["start"]) <= now and (end is None or now < datetime.fromisoformat(end))

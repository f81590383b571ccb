"""One team's small plans beside another's large documents: ``python -m tests.bench.fair_planning``.

A real server on the sandbox market and a SQLite file. Team B asks for one service every few seconds, first
alone, then beside team A, whose documents wait in line all the time. Prints seconds from request to plan of
both, whether A's limit was kept, and the most memory that a planning process had.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.e2e.asking import services
from tests.e2e.conftest import ADMIN_KEY
from tests.e2e.processes import Running, start_sandbox, start_server

POLL_S = 0.1
SAMPLE_S = 0.5
PATIENCE_S = 900.0
SMALL_LIMIT_S = 2.0
LARGE_S_A_WORKLOAD = 0.03
LEAST_LARGE_LIMIT_S = 30.0
AT_ONCE = 64
KIB_A_GIB = 1024**2
ON_ITS_WAY = frozenset({"queued", "running"})


def main() -> int:
    """Prints the figures; 1 where a plan of team B failed or A's limit was passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fair_planning", description=__doc__)
    parser.add_argument("--documents", type=int, default=20, help="of team A, all in line from the start")
    parser.add_argument("--workloads", type=int, default=5000, help="in each of them")
    parser.add_argument("--minutes", type=float, default=5.0, help="beside team A")
    parser.add_argument("--alone-minutes", type=float, default=1.0)
    parser.add_argument("--every-s", type=float, default=5.0, help="between two services of team B")
    wish = parser.parse_args()
    limit_s = max(LEAST_LARGE_LIMIT_S, LARGE_S_A_WORKLOAD * wish.workloads)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        most = str(wish.documents * wish.workloads)  # one document more is too much for team A
        server = stack.enter_context(_served(folder, BROKER_TEAM_WORKLOADS_AT_ONCE=most))
        large, small = (stack.enter_context(_team(server, name)) for name in ("research", "product"))
        memory = stack.enter_context(_watched(server.process.pid))
        _made_s(small)  # the planner's processes start, and load their tables
        alone = _one_by_one(small, wish.alone_minutes, wish.every_s)
        print(f"team B alone:         {_words(alone)}", flush=True)
        body = services("research", wish.workloads)
        asked = [_ask(large, body, limit_s) for _ in range(wish.documents)]
        paths = [answer.headers["Location"] for answer in asked if answer.status_code == 202]
        refused = _ask(large, body, limit_s)
        beside = _one_by_one(small, wish.minutes, wish.every_s)
        print(f"team B beside team A: {_words(beside)}", flush=True)
        states = [str(large.get(path).json()["status"]) for path in paths]
        for path in paths:
            large.delete(path)
    counted = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    print(
        f"team A: {len(paths)} of {wish.documents} documents taken, {limit_s:g} s each; at the end {counted}"
    )
    print(f"team A, one more: {refused.status_code} {refused.json().get('code', '')}")
    print(f"most memory of one process that plans: {max(memory, default=0) / KIB_A_GIB:.2f} GiB")
    kept = refused.status_code == 429 and len(paths) == wish.documents
    return 0 if kept and None not in (*alone, *beside) else 1


@contextmanager
def _served(folder: Path, **settings: str) -> Iterator[Running]:
    sandbox = start_sandbox(folder)
    try:
        url = f"sqlite:///{folder / 'broker.db'}"
        server = start_server(folder, sandbox.url, url, ADMIN_KEY, **settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        sandbox.stop()


@contextmanager
def _team(server: Running, team: str) -> Iterator[httpx.Client]:
    wanted = {"name": team, "team": team, "scopes": ["plans:read", "plans:write"]}
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    made = httpx.post(f"{server.url}/v1/keys", json=wanted, headers=admin, timeout=60).raise_for_status()
    key = {"Authorization": f"Bearer {made.json()['secret']}"}
    with httpx.Client(base_url=server.url, headers=key, timeout=PATIENCE_S) as client:
        yield client


def _ask(team: httpx.Client, body: object, limit_s: float) -> httpx.Response:
    return team.post("/v1/plans", json=body, params={"time_limit_s": limit_s})


def _made_s(team: httpx.Client) -> float | None:
    """Seconds from the request of one service to its plan; None where there is none."""
    began = time.monotonic()
    answer = _ask(team, services("product", 1), SMALL_LIMIT_S)
    if answer.status_code != 202:
        return None
    while time.monotonic() - began < PATIENCE_S:
        status = team.get(answer.headers["Location"]).json()["status"]
        if status not in ON_ITS_WAY:
            return None if status == "failed" else time.monotonic() - began
        time.sleep(POLL_S)
    return None


def _one_by_one(team: httpx.Client, minutes: float, every_s: float) -> list[float | None]:
    """One service after the other, whether or not those before are made."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = []
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            asked.append(pool.submit(_made_s, team))
            time.sleep(every_s)
        return [one.result() for one in asked]


@contextmanager
def _watched(pid: int) -> Iterator[list[int]]:
    """The most memory of each process below ``pid``, KiB, as it is sampled."""
    seen: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            seen.extend(_peaks_kib(pid))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _peaks_kib(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return found
    for child in children:
        found += _peaks_kib(child)
        try:
            lines = Path(f"/proc/{child}/status").read_text().splitlines()
        except OSError:
            continue
        found += [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return found


def _words(seconds: Sequence[float | None]) -> str:
    made = sorted(one for one in seconds if one is not None)
    if len(made) < 2:
        return f"{len(made)} plans made of {len(seconds)}"
    p95 = statistics.quantiles(made, n=20)[-1]
    return f"p50 {statistics.median(made):.1f} s, p95 {p95:.1f} s, {len(made)} plans made of {len(seconds)}"


if __name__ == "__main__":
    raise SystemExit(main())

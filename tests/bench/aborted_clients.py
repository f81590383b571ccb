"""``python -m tests.bench.aborted_clients``: how long ``/healthz`` waits while clients go away in the middle.

A real ``broker serve`` on loopback; each storm is so many connections, at most twenty at once and a hundred a
second: uploads that stop after four bytes of the 5,000 announced, and readers that leave with half an
answer or none.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.e2e import processes

ADMIN_KEY = "broker_live_bench_0123456789abcdef0123456789abcdef"
AT_ONCE = 20
PROBE_EVERY_S = 0.01
LIMIT_S = 120.0

UPLOAD = (
    b"POST /signin HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 5000\r\n\r\nkey="
)
PLAN = (
    b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Type: application/json\r\n"
    b'Idempotency-Key: bench\r\nContent-Length: 5000\r\n\r\n{"te' % ADMIN_KEY.encode()
)
KEYS = b"GET /v1/keys HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % ADMIN_KEY.encode()
DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"


async def broken_off(port: int, said: bytes, read: int | None) -> None:
    """One client that says ``said`` and closes (None), or reads so many bytes of the answer and resets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said)
        await writer.drain()
        if read:
            await reader.read(read)
        if read is not None:
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
    finally:
        writer.transport.abort()


async def storm(port: int, kind: str, count: int, per_second: float) -> None:
    """So many clients, at most AT_ONCE at a time and ``per_second``."""
    numbers, began = iter(range(count)), time.monotonic()
    saids = {"uploads": ((UPLOAD, None), (PLAN, None)), "readers": ((DOCUMENT, 100), (KEYS, 0))}[kind]

    async def client() -> None:
        for number in numbers:
            await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
            await broken_off(port, *saids[number % 2])

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))


def storm_in_process(port: int, kind: str, count: int, per_second: float) -> None:
    """The same in a process of its own, which takes nothing from who measures."""
    asyncio.run(storm(port, kind, count, per_second))


async def probe(url: str, waits: list[float], over: asyncio.Event) -> None:
    """Asks ``/healthz`` again and again on one connection."""
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
        while not over.is_set():
            began = time.perf_counter()
            answer = await client.get("/healthz")
            waits.append(time.perf_counter() - began)
            assert answer.status_code == 200
            await asyncio.sleep(PROBE_EVERY_S)


async def measure(name: str, url: str, *given: Any) -> None:
    """The waits of ``/healthz`` during a storm; without one, during two seconds of nothing."""
    waits: list[float] = []
    over = asyncio.Event()
    probing = asyncio.create_task(probe(url, waits, over))
    began, note = time.perf_counter(), ""
    if given:
        process = multiprocessing.get_context("spawn").Process(target=storm_in_process, args=given)
        process.start()
        await asyncio.to_thread(process.join, LIMIT_S)
        if process.is_alive():
            process.kill()
            note = f" (broken off after {LIMIT_S:.0f} s)"
    else:
        await asyncio.sleep(2)
    took_s = time.perf_counter() - began
    over.set()
    await probing
    ms = sorted(1000 * wait for wait in waits)
    p50, p99 = ms[len(ms) // 2], ms[int(len(ms) * 0.99)]
    print(
        f"{name:34} {took_s:7.1f} s  /healthz n={len(ms):5}"
        f"  p50 {p50:8.1f}  p99 {p99:8.1f}  max {ms[-1]:8.1f} ms{note}",
        flush=True,
    )


async def run(url: str, count: int, per_second: float) -> None:
    """Each storm in turn."""
    port = int(url.rpartition(":")[2])
    await measure("nobody else", url)
    await measure(f"{count} uploads broken off", url, port, "uploads", count, per_second)
    await measure(f"{count} readers that leave", url, port, "readers", count, per_second)


def main() -> None:
    """Starts a broker, storms it, and says what stands in its log."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument("--per-second", type=float, default=100)
    arguments.add_argument("--format", default="console", choices=("console", "json"))
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), processes.free_port()
        environment = processes.clean_environment(
            BROKER_DATABASE_URL=f"sqlite:///{folder / 'broker.db'}",
            BROKER_ADMIN_KEY=ADMIN_KEY,
            BROKER_PORT=str(port),
            BROKER_LOG_FORMAT=given.format,
        )
        server = processes.start(
            ["serve"], f"http://127.0.0.1:{port}", "/healthz", folder / "server.log", environment
        )
        try:
            asyncio.run(run(server.url, given.count, given.per_second))
        finally:
            server.stop()
        text = server.log.read_text()
        print(f"log: {len(text.splitlines())} lines, {len(text)} bytes; admin key in it: {ADMIN_KEY in text}")


if __name__ == "__main__":
    main()

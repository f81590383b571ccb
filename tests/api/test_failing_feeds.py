"""All feeds over real sockets, some of them dead, slow or talking nonsense: one poll, and what is told."""

from __future__ import annotations

import time
from html import unescape
from pathlib import Path

import httpx
from pydantic import SecretStr

from api.app import create_app
from api.bootstrap import build_product
from api.jobs.scheduler import Scheduler
from broker.settings import Settings
from providers.registry import SPECS
from providers.sandbox.server import start_in_background
from tests.api.house import ADMIN_KEY

DEAD = ("digitalocean", "latitude", "vultr")
SLOW, MALFORMED = "verda", "lambda"
NOWHERE = "http://127.0.0.1:9"
LATE_S, MOST_S = 1.5, 200.0


def arm(url: str, provider: str, kind: str, seconds: float, count: int = 50) -> None:
    fault = {"provider": provider, "operation": "list", "kind": kind, "seconds": seconds, "count": count}
    httpx.post(f"{url}/_sandbox/faults", json=fault).raise_for_status()


async def test_bad_feeds_do_not_keep_the_good_ones_waiting_and_everybody_is_told(tmp_path: Path) -> None:
    sandbox = start_in_background(0, seed=11)
    settings = Settings(
        database_url=f"sqlite:///{tmp_path / 'b.db'}",
        solver_executor="thread",
        admin_key=SecretStr(ADMIN_KEY),
    )
    environ = {f"BROKER_{name.upper()}_BASE_URL": NOWHERE for name in DEAD}
    product = build_product(settings, environ, sandbox_url=sandbox.url)
    app = create_app(product, scheduled=False)
    try:
        arm(sandbox.url, SLOW, "slow", LATE_S, count=1)
        arm(sandbox.url, MALFORMED, "malformed", 600)
        async with app.router.lifespan_context(app):
            began = time.monotonic()
            await Scheduler(product).poll()
            seconds = time.monotonic() - began
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
                await client.post("/signin", data={"key": ADMIN_KEY})
                page = (await client.get("/market")).text
                client.headers["Authorization"] = f"Bearer {ADMIN_KEY}"
                feeds = {f["provider"]: f for f in (await client.get("/v1/providers")).json()["items"]}
    finally:
        sandbox.stop()
    print(f"{len(feeds)} feeds, five of them bad: {seconds:.1f} s")
    assert feeds.keys() == SPECS.keys()
    assert seconds < MOST_S
    bad = {*DEAD, MALFORMED}
    for name in feeds.keys() - bad:
        assert (feeds[name]["stale_since"], feeds[name]["last_error"]) == (None, None), feeds[name]
        assert feeds[name]["offers"] > 0, name
    assert feeds[SLOW]["seconds"] >= LATE_S
    for name in bad:
        feed = feeds[name]
        assert (feed["offers"], feed["failures_in_a_row"], feed["breaker"]) == (0, 1, "half_open")
        assert feed["stale_since"] is not None
        assert feed["last_error"] in unescape(page)
    assert all("ConnectError" in feeds[name]["last_error"] for name in DEAD)

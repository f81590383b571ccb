"""Polling: ``python -m tests.bench.polling [--offers 50000]``.

Every feed of the registry at once, from the sandbox in another process over real sockets; the sandbox is
widened to about so many offers (``tests.bench.market``). Then the time to store such rounds in SQLite
(``tests.bench.rounds``), and a round with feeds that are dead, slow, endless, huge or packed as a bomb.
Figures of one run on one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog
from rich.console import Console
from rich.table import Table

from broker.domain.basics.errors import ProviderError
from broker.domain.market.offer import OfferBatch
from broker.ports.unit_of_work import OfferSource
from providers.registry import build_adapters, configured
from providers.spec import Feed
from tests.bench.effort import Effort, effort_table, measured
from tests.bench.market import WIDENED
from tests.bench.rounds import rows_of, store_rounds

BAD = {
    "digitalocean": ("dead", "refuses every connection"),
    "verda": ("drip", "a byte every 0.2 s, time limit 2 s a call"),
    "prime_intellect": ("pages", "full pages, each with a next one"),
    "hyperstack": ("huge", "2 GB without a length"),
    "latitude": ("huge-length", "2 GB, announced"),
    "shadeform": ("bomb", "1 GB in 1 MB of gzip"),
    "aws": ("line", "2 GB without the end of a line"),
}


@dataclass
class Answer:
    """One feed's answer."""

    seconds: float
    batch: OfferBatch | None = None
    error: str = ""


@dataclass
class Polled:
    """A poll of all feeds."""

    answers: dict[str, Answer] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)

    def offers_of(self, names: Sequence[str]) -> int:
        """How many offers these feeds gave."""
        batches = (self.answers[name].batch for name in names if name in self.answers)
        return sum(len(batch.offers) for batch in batches if batch is not None)


@contextlib.contextmanager
def process_of(*command: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own, by its address; ended when left."""
    started = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert started.stdin is not None
    assert started.stdout is not None
    try:
        yield started.stdout.readline().strip(), started
    finally:
        started.stdin.close()
        started.wait(timeout=30)


def last_words(process: subprocess.Popen[str]) -> str:
    """Ends a server and gives what it says at its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    return process.stdout.read().strip()


async def poll(feeds: Mapping[str, OfferSource]) -> Polled:
    """All feeds at once."""
    polled, at = Polled(), datetime.now(UTC)

    async def ask(name: str, feed: OfferSource) -> None:
        began = time.perf_counter()
        try:
            batch = await feed.list_offers(at)
        except ProviderError as error:
            polled.answers[name] = Answer(time.perf_counter() - began, error=str(error))
        else:
            polled.answers[name] = Answer(time.perf_counter() - began, batch)

    async with measured(polled.effort):
        await asyncio.gather(*(ask(name, feed) for name, feed in feeds.items()))
    return polled


@contextlib.asynccontextmanager
async def feeds_at(environ: Mapping[str, str], url: str) -> AsyncIterator[Mapping[str, Feed]]:
    """The feeds of the registry at a market server."""
    feeds = build_adapters(configured(environ, url))
    try:
        yield feeds
    finally:
        for feed in feeds.values():
            await feed.aclose()


async def poll_market(copies: int) -> tuple[Polled, float]:
    """A poll of the sandbox with so many invented places, and the sandbox's own CPU seconds."""
    with process_of("tests.bench.market", "--copies", str(copies)) as (url, process):
        async with feeds_at({}, url) as feeds:
            polled = await poll(feeds)
        return polled, float(last_words(process))


async def poll_with_bad_feeds() -> tuple[Polled, Polled, dict[str, int]]:
    """The same market without and with bad feeds, and the bytes that those sent."""
    with (
        process_of("tests.bench.market") as (url, _),
        process_of("tests.fakes.bad_server") as (bad_url, bad_server),
    ):
        async with feeds_at({}, url) as feeds:
            healthy = await poll(feeds)
        environ = {
            f"BROKER_{name.upper()}_BASE_URL": "http://127.0.0.1:9" if kind == "dead" else f"{bad_url}/{kind}"
            for name, (kind, _) in BAD.items()
        }
        async with feeds_at({**environ, "BROKER_VERDA_TIMEOUT_S": "2"}, url) as feeds:
            polled = await poll(feeds)
        sent: dict[str, int] = json.loads(last_words(bad_server))
    return healthy, polled, sent


def feed_table(polled: Polled, title: str) -> Table:
    """A line a feed."""
    table = Table("feed", "seconds", "offers", "rejected rows", "error", title=title)
    for name, answer in sorted(polled.answers.items()):
        batch = answer.batch or OfferBatch((), ())
        table.add_row(
            name,
            f"{answer.seconds:.2f}",
            f"{len(batch.offers):,}",
            f"{len(batch.rejected):,}",
            answer.error[:90],
        )
    return table


def bad_table(healthy: Polled, polled: Polled, sent: Mapping[str, int]) -> Table:
    """A line a bad feed, and one for all the others."""
    table = Table("feed", "what it does", "sent MB", "seconds", "offers", "what the poll says")
    for name, (kind, words) in BAD.items():
        answer = polled.answers[name]
        table.add_row(
            name,
            words,
            f"{sent.get(kind, 0) / 1e6:.1f}",
            f"{answer.seconds:.2f}",
            "-" if answer.batch is None else str(len(answer.batch.offers)),
            answer.error[:90],
        )
    rest = [name for name in polled.answers if name not in BAD]
    slowest = max(polled.answers[name].seconds for name in rest)
    failed = [name for name in rest if polled.answers[name].error]
    table.add_row(
        f"the other {len(rest)}",
        "as ever",
        "",
        f"{slowest:.2f}",
        f"{polled.offers_of(rest):,}",
        f"{healthy.offers_of(rest):,} offers without the bad feeds; failed: {', '.join(failed) or 'none'}",
    )
    return table


async def run(console: Console, wanted: int) -> None:
    """Prints every table."""
    healthy, polled, sent = await poll_with_bad_feeds()
    base = healthy.offers_of(tuple(healthy.answers))
    copies = max(0, math.ceil((wanted - base) / max(1, healthy.offers_of(WIDENED))))
    full, sandbox_cpu_s = await poll_market(copies)
    total = full.offers_of(tuple(full.answers))
    console.print(
        feed_table(full, f"{len(full.answers)} feeds, {copies} invented places for each recorded one")
    )
    with tempfile.TemporaryDirectory() as folder:
        batches = {name: answer.batch for name, answer in full.answers.items() if answer.batch is not None}
        stored = await store_rounds(batches, f"sqlite:///{Path(folder) / 'broker.db'}")
    console.print(
        effort_table(
            [
                ("poll, sandbox as it is", base, healthy.effort),
                ("poll, sandbox widened", total, full.effort),
                ("poll, seven bad feeds", polled.offers_of(tuple(polled.answers)), polled.effort),
                *rows_of(stored),
            ]
        )
    )
    console.print(f"CPU of the widened sandbox itself: {sandbox_cpu_s:.1f} s (building the market included)")
    console.print(bad_table(healthy, polled, sent))


def main() -> int:
    """Polls, stores, prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.polling", description=__doc__)
    parser.add_argument("--offers", type=int, default=50_000)
    wish = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(run(Console(width=160), wish.offers))
    return 0


if __name__ == "__main__":
    sys.exit(main())

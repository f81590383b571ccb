"""Storing rounds: ``python -m tests.bench.rounds [--offers 50000] [--postgres]``.

Invented offers of a few sellers go through the gate into an empty database: a first round, the same again a
minute later, then one with other prices for an offer in a hundred, then the same again. Figures of one run on
one machine; the CPU is that of the broker's process (PostgreSQL's own is not in it).
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from rich.console import Console

from broker.catalogue import load_gate_rules
from broker.domain.market.market import PollRound
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.market.sku import Fabric, FabricKind, Form, IntraNode, LinkKind, Sku
from broker.services.market.offers import OffersService
from broker.store import create_store
from tests.bench.effort import Effort, effort_table, measured
from tests.fakes.clock import FakeClock
from tests.postgres import PostgresServer

SELLERS = 6
CHANGED_ONE_IN = 100


class Replayed:
    """A feed that gives offers again, as if they had just been seen; ``nudged``: one in a hundred dearer."""

    def __init__(self, provider: str, batch: OfferBatch) -> None:
        self.provider, self.batch, self.nudged = provider, batch, False

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """The batch as of ``observed_at``."""
        offers = tuple(
            self._seen(number, offer, observed_at) for number, offer in enumerate(self.batch.offers)
        )
        return OfferBatch(offers, self.batch.rejected)

    def _seen(self, number: int, offer: Offer, at: datetime) -> Offer:
        if not self.nudged or number % CHANGED_ONE_IN:
            return replace(offer, observed_at=at)
        price = offer.price_usd_per_node_hour * Decimal("1.01")
        return replace(offer, observed_at=at, price_usd_per_node_hour=price)


async def store_rounds(
    batches: Mapping[str, OfferBatch], url: str
) -> list[tuple[str, Effort, tuple[PollRound, ...]]]:
    """Stores four rounds in the empty database at ``url``: what each cost."""
    sources = {name: Replayed(name, batch) for name, batch in batches.items()}
    store = create_store(url)
    clock, stored = FakeClock(datetime.now(UTC)), []
    try:
        await store.migrate()
        offers = OffersService(store.unit_of_work, sources, clock, poll_timeout_s=600, gate=load_gate_rules())
        for title, nudged in (
            ("first round, everything new", False),
            ("a minute later, nothing changed", False),
            ("then 1 % of the prices changed", True),
            ("then nothing changed", True),
        ):
            for source in sources.values():
                source.nudged = nudged
            effort = Effort()
            async with measured(effort):
                rounds = await offers.refresh()
            stored.append((title, effort, rounds))
            clock.advance(minutes=1)
    finally:
        await store.close()
    return stored


def rows_of(stored: Sequence[tuple[str, Effort, tuple[PollRound, ...]]]) -> list[tuple[str, int, Effort]]:
    """Lines of the table."""
    return [(title, sum(each.offers for each in rounds), effort) for title, effort, rounds in stored]


def invented(count: int) -> dict[str, OfferBatch]:
    """So many offers of a few sellers, the same every time."""
    fabric = Fabric(FabricKind.INFINIBAND, 3200.0, 64, "cluster")
    skus = [
        Sku(f"gpu-{gpus}", gpu, gpus, memory, 24.0 * gpus, 200.0 * gpus, 3e3, Form.VM, link, fabric)
        for gpu, memory, link in (
            ("H100-SXM-80GB", 80.0, IntraNode(LinkKind.NVLINK, 900.0)),
            ("A100-SXM-80GB", 80.0, IntraNode(LinkKind.NVLINK, 600.0)),
            ("L40S", 48.0, IntraNode(LinkKind.PCIE, 64.0)),
        )
        for gpus in (1, 2, 4, 8)
    ]
    each = count // SELLERS
    return {
        f"seller-{seller}": OfferBatch(tuple(_invented(f"seller-{seller}", n, skus) for n in range(each)))
        for seller in range(SELLERS)
    }


def _invented(provider: str, number: int, skus: Sequence[Sku]) -> Offer:
    sku, region = skus[number % len(skus)], f"region-{number // len(skus)}"
    price = Decimal(150 + number * 7919 % 100) / 100 * sku.gpus_per_node
    return Offer(
        offer_id=f"{provider}/{sku.name}/{sku.gpu}/{region}/on_demand",
        provider=provider,
        sku=sku,
        region=region,
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=price,
        observed_at=datetime(2026, 1, 1, tzinfo=UTC),
        source="invented",
        native=NativePrice(price, "USD", "hour"),
        country="US",
        stock=Stock(StockLevel.HIGH, number % 9),
        compliance=frozenset({"SOC2", "ISO27001"}),
        reference={"type": sku.name, "region": region, "image": "ubuntu-22.04"},
    )


async def run(console: Console, count: int, *, postgres: bool) -> None:
    """Prints the table of each database."""
    batches = invented(count)
    with tempfile.TemporaryDirectory() as folder:
        stored = await store_rounds(batches, f"sqlite:///{Path(folder) / 'broker.db'}")
    console.print("SQLite", effort_table(rows_of(stored)), sep="\n")
    if postgres:
        server = PostgresServer()
        try:
            stored = await store_rounds(batches, server.create_database())
        finally:
            server.stop()
        console.print("PostgreSQL", effort_table(rows_of(stored)), sep="\n")
    console.print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


def main() -> int:
    """Stores, prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rounds", description=__doc__)
    parser.add_argument("--offers", type=int, default=50_000)
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own, too")
    wish = parser.parse_args()
    asyncio.run(run(Console(width=160), wish.offers, postgres=wish.postgres))
    return 0


if __name__ == "__main__":
    sys.exit(main())

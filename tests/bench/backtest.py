"""A history to try backtests on: ``python -m tests.bench.backtest --generate DIR [--days 90] [--seed 1]``.

Offers and their first prices are the recorded, dated ones of ``fixtures/market`` (the newest of each place);
what prices do from then on is drawn by seed, every six hours:

- lists (on demand) hardly move: all 12 places that were recorded twice, mostly weeks apart, cost the same.
  A chance of one in 180 a day, then up to 12 % down or up.
- spot floats around its recorded level, pulled to 3 tenths of the list (recorded at AWS: 12 % to 100 % of it,
  half of all between 24 % and 44 %), between 12 % and 100 %; a tenth of the way back a day, steps that make
  the logarithm spread 0.2 (recorded between zones of one place: 0.1 at one instant). The whole tier falls a
  quarter in 90 days (recorded: 29 % in two months, DigitalOcean B300). One in 100 places is taken away in a
  day, for 6 to 48 hours.
- machines of marketplaces drift by 4 % a day around their first price; one in 30 leaves in a day, for 6 to 72
  hours.

``--swing 4`` makes the steps of spot and machines four times as large, and changes of lists four times as
frequent and as large: no recorded market moves so. It shows what looking again is worth where prices do.
``--moving``: only what moves (spot and marketplaces), so that nothing can be bought at a list.

Without ``--generate`` it only says what it would write. All of it is marked illustrative.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from api.schemas.market.history import MARKET, PRICES
from api.schemas.market.market import market_to_document
from broker.domain.market.market import PricePoint
from broker.domain.market.market_history import MarketHistory
from broker.domain.market.offer import NativePrice, Offer, Stock, StockLevel, Tier
from broker.domain.market.sku import Fabric, FabricKind, Form, Sku
from broker.provider_facts import infer_intra_node
from tests.fakes.market_csv import points_csv

RECORDED = Path(__file__).parents[2] / "fixtures" / "market" / "real_prices.csv"
START = datetime(2026, 8, 24, tzinfo=UTC)
STEP = timedelta(hours=6)
STEPS_A_DAY = 4
GPUS = ("H100-SXM-80GB", "H200-SXM-141GB", "A100-SXM-80GB", "L40S", "L4", "A10G")
PLACE = ("provider", "sku", "gpus_per_node", "region", "zone", "tier")
MARKETPLACES = ("vast",)
AGGREGATORS = ("shadeform", "prime_intellect")
FABRIC_NODES = 16
LIST_CHANCE, LIST_SHARE = 1 / 180, 0.12
SPOT_LEVEL, SPOT_LEAST, SPOT_MOST = 0.3, 0.12, 1.0
SPOT_BACK, SPOT_STEP, SPOT_FALL = 0.1, 0.045, math.log(0.75) / 90
MACHINE_STEP, MACHINE_BACK = 0.02, 0.05
TAKEN, LEFT = 1 / 100, 1 / 30


@dataclass
class Mover:
    """An offer on its way. ``log`` of its price over its anchor; ``away`` steps until it is back."""

    offer: Offer
    list_usd: float
    swing: float = 1.0
    log: float = 0.0
    away: int = 0

    def step(self, number: int, lots: random.Random) -> tuple[Decimal, bool]:
        """Its price and whether it is on sale after the next step."""
        if self.offer.tier is Tier.SPOT:
            usd, chance, longest = self._spot(number, lots), TAKEN, 8
        elif self.offer.provider in MARKETPLACES:
            usd, chance, longest = self._machine(lots), LEFT, 12
        else:
            usd, chance, longest = self._listed(lots), 0.0, 0
        if self.away:
            self.away -= 1
        elif lots.random() < chance / STEPS_A_DAY:
            self.away = lots.randint(1, longest)
        return Decimal(f"{usd:.4f}"), self.away == 0

    @property
    def _first_usd(self) -> float:
        return float(self.offer.price_usd_per_node_hour)

    def _spot(self, number: int, lots: random.Random) -> float:
        goal = math.log(SPOT_LEVEL * self.list_usd / self._first_usd)
        goal = max(-0.4, min(0.4, goal)) + SPOT_FALL * number / STEPS_A_DAY
        self.log += SPOT_BACK / STEPS_A_DAY * (goal - self.log) + lots.gauss(0, self.swing * SPOT_STEP)
        usd = self._first_usd * math.exp(self.log)
        return min(SPOT_MOST * self.list_usd, max(SPOT_LEAST * self.list_usd, usd))

    def _machine(self, lots: random.Random) -> float:
        if lots.random() < 1 / STEPS_A_DAY:
            self.log += lots.gauss(0, self.swing * 2 * MACHINE_STEP) - MACHINE_BACK * self.log
        return self._first_usd * math.exp(self.log)

    def _listed(self, lots: random.Random) -> float:
        if lots.random() < self.swing * LIST_CHANCE / STEPS_A_DAY:
            self.log += self.swing * lots.uniform(-LIST_SHARE, LIST_SHARE)
        return self._first_usd * math.exp(self.log)


def recorded(most: int) -> list[tuple[Offer, float]]:
    """The newest recorded price of each place of a few GPUs, at most ``most`` of a provider, GPU and tier,
    with the list price that a spot price hangs on."""
    newest: dict[tuple[str, ...], dict[str, str]] = {}
    with RECORDED.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] not in GPUS or row["tier"] not in ("on_demand", "spot"):
                continue
            if row["provider"] in AGGREGATORS or row["stock"] == "none":
                continue
            key = tuple(row[name] for name in PLACE)
            if key not in newest or row["recorded_on"] >= newest[key]["recorded_on"]:
                newest[key] = row
    lists = {
        key[:4]: float(r["price_usd_per_node_hour"]) for key, r in newest.items() if key[5] == "on_demand"
    }
    counts: defaultdict[tuple[str, str, str, str], int] = defaultdict(int)
    found = []
    for key, row in sorted(newest.items()):
        kind = (row["provider"], row["gpu"], row["tier"], row["gpus_per_node"])
        if counts[kind] >= most:
            continue
        counts[kind] += 1
        price = float(row["price_usd_per_node_hour"])
        found.append((offer_of(row), max(price, lists.get(key[:4], price / SPOT_LEVEL))))
    return found


def offer_of(row: dict[str, str]) -> Offer:
    """An offer of a recorded row."""
    gpus = int(row["gpus_per_node"])
    kind = row["fabric"]
    fabric = None
    if kind:
        fabric = Fabric(
            FabricKind(kind), float(row["fabric_gbit_s_per_node"] or 400), FABRIC_NODES, row["region"]
        )
    price = Decimal(row["price_usd_per_node_hour"])
    place = "/".join(word for word in (row["region"], row["zone"]) if word) or "anywhere"
    return Offer(
        offer_id=f"{row['provider']}/{row['sku']}/{place}/{row['tier']}",
        provider=row["provider"],
        sku=Sku(
            name=row["sku"],
            gpu=row["gpu"],
            gpus_per_node=gpus,
            gpu_memory_gb=float(row["gpu_memory_gb"]),
            vcpus=float(row["vcpus"] or 8 * gpus),
            memory_gb=float(row["memory_gb"] or 100 * gpus),
            disk_gb=500.0 * gpus,
            form=Form(row["form"]) if row["form"] else None,
            intra_node=infer_intra_node(row["gpu"], gpus),
            fabric=fabric,
        ),
        region=row["region"] or "anywhere",
        tier=Tier(row["tier"]),
        price_usd_per_node_hour=price,
        observed_at=START,
        source=f"illustrative, from the price recorded {row['recorded_on'] or 'on an unknown day'}",
        native=NativePrice(price, "USD", "hour"),
        zone=row["zone"] or None,
        stock=Stock(StockLevel.MEDIUM, 16),
        billing_increment_s=60,
    )


def generate(days: int, seed: int, most: int, swing: float = 1.0, *, moving: bool = False) -> MarketHistory:
    """A history of so many days."""
    lots = random.Random(seed)
    movers = [
        Mover(offer, list_usd, swing)
        for offer, list_usd in recorded(most)
        if not moving or offer.tier is Tier.SPOT or offer.provider in MARKETPLACES
    ]
    points: list[PricePoint] = []
    last: dict[str, tuple[Decimal, bool]] = {}
    for number in range(days * STEPS_A_DAY + 1):
        for mover in movers:
            offer = mover.offer
            state = mover.step(number, lots) if number else (offer.price_usd_per_node_hour, True)
            if last.get(offer.offer_id) != state:
                last[offer.offer_id] = state
                points.append(_point(offer, START + number * STEP, *state))
    offers = {
        m.offer.offer_id: replace(m.offer, price_usd_per_node_hour=last[m.offer.offer_id][0]) for m in movers
    }
    return MarketHistory(offers, tuple(points))


def _point(offer: Offer, at: datetime, usd: Decimal, on_sale: bool) -> PricePoint:
    return PricePoint(offer.offer_id, at, usd, offer.stock.nodes if on_sale else 0, on_sale)


def write(history: MarketHistory, folder: Path) -> None:
    """The two files of a history."""
    folder.mkdir(parents=True, exist_ok=True)
    market = market_to_document(history.points[-1].at, history.offers.values())
    (folder / MARKET).write_text(json.dumps(market, indent=1) + "\n")
    (folder / PRICES).write_text(points_csv(history))


def summary(history: MarketHistory) -> Iterator[str]:
    """What is in a history, in words."""
    tiers: defaultdict[str, int] = defaultdict(int)
    for offer in history.offers.values():
        tiers[offer.tier.value] += 1
    words = ", ".join(f"{count} {tier}" for tier, count in sorted(tiers.items()))
    yield f"{len(history.offers)} offers ({words}), {len(history.points):,} points"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes, says what."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.backtest", description=__doc__)
    parser.add_argument("--generate", type=Path, metavar="DIR")
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=6, help="offers of a provider, GPU, size and tier")
    parser.add_argument("--swing", type=float, default=1.0, help="how many times as much prices move")
    parser.add_argument("--moving", action="store_true", help="leave lists out")
    wish = parser.parse_args(arguments)
    history = generate(wish.days, wish.seed, wish.most, wish.swing, moving=wish.moving)
    if wish.generate is not None:
        write(history, wish.generate)
    print(*summary(history), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

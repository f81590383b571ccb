"""A market for the benchmarks: offers drawn by seed from the recorded prices of ``fixtures/market``.

What is sold (GPU, count, links, fabric, tier) is as recorded; prices are jittered. O offers, S SKUs.
"""

from __future__ import annotations

import csv
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from broker.catalogue import load_gpus
from broker.domain.market.offer import Tier
from broker.domain.market.sku import Fabric, FabricKind, Form, IntraNode, LinkKind, Sku
from optimizer.performance.hardware.sku_arrays import implied_link, kinds_of

PRICES = Path(__file__).resolve().parents[2] / "fixtures" / "market" / "real_prices.csv"
NODES_MOST = 64
UNKNOWN_PCIE = 32e9


@dataclass(frozen=True, slots=True, eq=False)
class Market:
    """Distinct SKUs, the first of each kind of hardware, and per offer [O] its SKU, USD per node-hour and
    spot interruptions per node-hour."""

    skus: tuple[Sku, ...]
    sku_of_kind: NDArray[np.intp]
    sku_of: NDArray[np.intp]
    usd_per_node_hour: NDArray[np.float64]
    interruptions_per_hour: NDArray[np.float64]


def draw_market(rng: random.Random, count: int) -> Market:
    """``count`` offers."""
    with PRICES.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] in load_gpus()]
    place: dict[Sku, int] = {}
    sku_of, usd, interruptions = [], [], []
    for row in rng.choices(rows, k=count):
        sku_of.append(place.setdefault(_sku(row), len(place)))
        usd.append(float(row["price_usd_per_node_hour"]) * math.exp(rng.gauss(0, 0.2)))
        interruptions.append(rng.uniform(0.002, 0.05) if row["tier"] == Tier.SPOT else 0.0)
    return Market(
        tuple(place),
        np.unique(kinds_of(tuple(place))[1], return_index=True)[1],
        np.asarray(sku_of, dtype=np.intp),
        np.asarray(usd),
        np.asarray(interruptions),
    )


def _sku(row: dict[str, str]) -> Sku:
    gpus = int(row["gpus_per_node"])
    fabric = None
    if row["fabric"]:
        rate = float(row["fabric_gbit_s_per_node"] or 100 * gpus)
        fabric = Fabric(FabricKind(row["fabric"]), rate, NODES_MOST)
    link = None
    if row["intra_node"]:
        implied = implied_link(load_gpus()[row["gpu"]], UNKNOWN_PCIE)
        link = IntraNode(LinkKind(row["intra_node"]), implied.gbyte_s)
    return Sku(
        name=row["sku"],
        gpu=row["gpu"],
        gpus_per_node=gpus,
        gpu_memory_gb=float(row["gpu_memory_gb"] or load_gpus()[row["gpu"]].memory_gb),
        form=Form(row["form"]) if row["form"] else None,
        intra_node=link,
        fabric=fabric,
    )
